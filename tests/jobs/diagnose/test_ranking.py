"""Which cause comes first, which are only echoes, who is to blame, and what is left."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import contextlib
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.jobs.diagnose.echoes import meaning
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import MOST_UNEXPLAINED, SHOWN, diagnose

OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NO_PLUGIN = (
    "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
)
DESTROYED = "[rank0]:[W304 12:00:00.0 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit"


def told(*texts: str, file: str = "train.log") -> Diagnosis:
    return diagnose([line_of(file, n, text, n) for n, text in enumerate(texts, 1)])


def names(diagnosis: Diagnosis) -> list[str]:
    return [found.cause.name for found in diagnosis.causes]


def timeout(
    rank: int | None, seq: int = 40_000, op: str = "ALLREDUCE", numel: int = 1_000_000
) -> str:
    who = "" if rank is None else f"[Rank {rank}] "
    return (
        f"[E ProcessGroupNCCL.cpp:563] {who}Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        f"NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600068 milliseconds before timing out."
    )


def test_what_plainly_says_its_cause_comes_before_what_follows_from_it() -> None:
    found = told(
        timeout(0),
        timeout(1),
        timeout(3),
        "n1:7:9 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<4>",
        OOM,
    )
    assert names(found)[0] == "rank_gpu_oom"
    assert found.causes[0].culprit == "rank 2"
    assert found.causes[0].confidence > found.causes[1].confidence


def test_of_two_plain_causes_the_earlier_comes_first() -> None:
    taken = "RuntimeError: The server socket has failed to bind to [::]:29555 (errno: 98 - Address already in use)."
    assert names(told(OOM, taken)) == ["rank_gpu_oom", "port_in_use"]
    assert names(told(taken, OOM)) == ["port_in_use", "rank_gpu_oom"]


def test_times_decide_between_files() -> None:
    late = line_of("a.log", 1, f"[2031-03-04 12:00:09] {OOM}", 0)
    early = line_of(
        "b.log", 1, "[2031-03-04 12:00:01] OSError: [Errno 98] Address already in use", 1
    )
    assert names(diagnose([late, early]))[0] == "port_in_use"


def test_a_generic_cause_yields_to_the_one_that_explains_it() -> None:
    found = told(
        "n1:7:9 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<4> with status=12 opcode=0 len=0 vendor err 129 (Send)",
        "n1:7:9 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    )
    assert names(found) == ["memlock_limit", "ib_fabric_unreachable"]
    assert found.causes[1].confidence < 0.5


def test_fatal_before_slow_before_harmless() -> None:
    slow = "n1:7:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    assert [f.severity for f in told(NO_PLUGIN, slow, OOM).causes] == [
        "fatal",
        "degraded",
        "benign",
    ]


def test_only_harmless_lines_are_no_failure() -> None:
    found = told(NO_PLUGIN, DESTROYED, "Training finished.")
    assert {f.severity for f in found.causes} == {"benign"}
    assert found.code == 0
    assert [f.culprit for f in found.causes] == [None, None]


def test_a_worker_that_failed_is_no_success_whatever_is_harmless() -> None:
    failed = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert told(NO_PLUGIN, DESTROYED, failed, "ValueError: of the program's own").code == 3
    assert names(told(DESTROYED, failed)) == []


def test_nothing_known_is_said_to_be_unknown_with_what_looks_like_errors() -> None:
    found = told(
        "step 1",
        "ValueError: the loss is not finite",
        "ValueError: the loss is not finite",
        "0 errors",
        "KeyError: 'x'",
    )
    assert found.code == 3
    assert [line.message for line in found.unexplained] == [
        "ValueError: the loss is not finite",
        "KeyError: 'x'",
    ]


def test_few_lines_are_left_and_no_form_twice() -> None:
    found = told(
        *(f"RuntimeError: {word} failed {n} times" for n, word in enumerate("abcdefghijklmnop"))
    )
    assert len(found.unexplained) == MOST_UNEXPLAINED
    assert len(told(*(f"RuntimeError: it failed {n} times" for n in range(50))).unexplained) == 1


def test_echoes_are_left_over_where_nothing_else_is() -> None:
    echo = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, and so the error"
    assert [line.message for line in told(echo).unexplained] == [echo]
    assert told(echo, OOM).unexplained == ()


def test_an_empty_log_is_unknown() -> None:
    assert told().code == 3
    assert told("all is well").causes == ()


def test_a_cause_shows_a_few_lines_no_two_of_one_form() -> None:
    found = told(
        *(f"[rank{n}]: RuntimeError: CUDA error: invalid device ordinal" for n in range(9))
    )
    (one,) = found.causes
    assert len(one.lines) == 1
    assert one.more == 8
    assert len(one.lines) <= SHOWN


# ---------------------------------------------------------------- time-outs of collectives


@pytest.mark.parametrize(
    ("lines", "cause", "culprit"),
    [
        pytest.param(
            [timeout(0), timeout(1), timeout(3)],
            "rank_desync_uneven_data",
            "rank 2",
            id="one-is-missing",
        ),
        pytest.param([timeout(None)], "rank_desync_uneven_data", None, id="no-rank-named"),
        pytest.param([timeout(1)], "rank_desync_uneven_data", None, id="one-alone"),
        pytest.param(
            [timeout(0), timeout(1, seq=39_990), timeout(2), timeout(3)],
            "rank_desync_control_flow",
            "rank 1",
            id="behind",
        ),
        pytest.param(
            [timeout(0, 12), timeout(1, 12), timeout(2, 13)],
            "rank_desync_control_flow",
            "rank 2",
            id="ahead-at-the-start",
        ),
        pytest.param(
            [timeout(0), timeout(1, op="BROADCAST"), timeout(2)],
            "rank_desync_control_flow",
            "rank 1",
            id="another-operation",
        ),
        pytest.param(
            [timeout(0), timeout(1, numel=1_000_001), timeout(2)],
            "collective_mismatch",
            "rank 1",
            id="another-size",
        ),
        pytest.param(
            [timeout(0), timeout(1, numel=1)],
            "rank_desync_control_flow",
            None,
            id="other-place-of-two",
        ),
        pytest.param(
            [timeout(r, 3, numel=1) for r in (1, 2, 3)],
            "slow_work_exceeds_timeout",
            "rank 0",
            id="barrier",
        ),
        pytest.param(
            [timeout(r, 2, "BROADCAST", 253_440_000) for r in range(3)],
            "p2p_acs_iommu",
            None,
            id="all-there-at-the-start",
        ),
    ],
)
def test_time_outs_tell_who_is_missing(lines: list[str], cause: str, culprit: str | None) -> None:
    first = told(*lines).causes[0]
    assert (first.cause.name, first.culprit) == (cause, culprit)


def test_what_a_rank_last_enqueued_tells_that_it_is_behind() -> None:
    dump = "[rank3]:[E304 12:00:00.0 ProcessGroupNCCL.cpp:1] [Rank 3] Received a dump signal due to a collective timeout from rank 0. Last enqueued NCCL work: 39999, last completed NCCL work: 39999."
    first = told(timeout(0), timeout(1), timeout(2), dump).causes[0]
    assert (first.cause.name, first.culprit) == ("rank_desync_control_flow", "rank 3")


def test_a_message_that_a_logger_broke_in_two_is_one() -> None:
    head, tail = timeout(1).split(": WorkNCCL", 1)
    first = told(f"{head}:", f"WorkNCCL{tail}").causes[0]
    assert first.cause.name == "rank_desync_uneven_data"


def test_gloo_tells_who_is_missing_too() -> None:
    lines = [
        f"[rank{r}]: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
        for r in (1, 2, 3)
    ]
    first = told(*lines).causes[0]
    assert (first.cause.name, first.culprit) == ("slow_work_exceeds_timeout", "rank 0")


def test_tracebacks_of_different_calls_are_different_ways_through_the_program() -> None:
    lines = [
        f"[rank{r}]: RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
        for r in range(4)
    ]
    frames = [
        f'[rank{r}]:   File "/opt/env/site-packages/torch/distributed/distributed_c10d.py", line 2810, in {"broadcast" if r == 1 else "all_reduce"}'
        for r in range(4)
    ]
    first = told(*frames, *lines).causes[0]
    assert (first.cause.name, first.culprit) == ("rank_desync_control_flow", "rank 1")


def test_the_rank_that_gave_up_first_cut_the_others_off_and_loopback_is_not_blamed() -> None:
    calls = ["all_reduce", "all_reduce", "barrier", "all_reduce"]
    frames = [
        f'[rank{r}]:   File "/opt/env/site-packages/torch/distributed/distributed_c10d.py", line 2810, in {call}'
        for r, call in enumerate(calls)
    ]
    cut = (
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:22735"
    )
    timed_out = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"
    ends = [f"[rank{r}]: {timed_out if r in (1, 2) else cut}" for r in range(4)]
    first = told(*frames, *ends).causes[0]
    assert (first.cause.name, first.culprit) == ("rank_desync_control_flow", "rank 2")


# ---------------------------------------------------------------- how workers ended


def summary(rank: int, code: int, pid: int = 71) -> list[str]:
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : {code} (pid: {pid})",
    ]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, "host_oom_kill"),
        (-7, "shm_too_small"),
        (-15, "external_termination"),
        (-1, "external_termination"),
    ],
)
def test_the_first_failure_of_a_summary(code: int, cause: str) -> None:
    first = told(*summary(3, code)).causes[0]
    assert (first.cause.name, first.culprit) == (cause, "rank 3")


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("kernel: Out of memory: Killed process 4711 (python) total-vm:1kB", True),
        ("[INFO] [launch.py:347:main] Process 4711 exits with return code = -9", False),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.", False),
        ("srun: error: gpu-07: task 3: Exited with exit code 137", False),
    ],
)
def test_signal_9_alone_does_not_say_that_memory_ran_out(line: str, is_known: bool) -> None:
    (found,) = told(line).causes
    assert found.cause.name == "host_oom_kill"
    assert ("memory ran out" in found.message) == is_known
    assert ("may have run out" in found.message) == (not is_known)


@pytest.mark.parametrize("code", [1, -6])
def test_an_exit_code_that_many_failures_have_is_no_known_cause(code: int) -> None:
    assert told(*summary(3, code)).code == 3


def test_a_rank_that_torchrun_killed_is_not_to_blame() -> None:
    forced = "[WARNING] Unable to shutdown process 71 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL"
    assert told(forced, *summary(1, -9)).causes == ()


def test_workers_that_were_ended_after_another_failed_are_not_to_blame() -> None:
    other = ["Failures:", "[1]:", "  rank      : 0 (local_rank: 0)", "  exitcode  : -15 (pid: 70)"]
    first = told(*other, *summary(3, -9)).causes[0]
    assert (first.cause.name, first.culprit) == ("host_oom_kill", "rank 3")


# ---------------------------------------------------------------- who is to blame


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        pytest.param(
            ["n1:7:9 [0] NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory"],
            "host n1",
            id="the-only-host",
        ),
        pytest.param(
            [
                f"n{n}:7:9 [0] NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory"
                for n in (1, 2)
            ],
            None,
            id="all-hosts",
        ),
        pytest.param(
            ["[3] NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory"],
            None,
            id="no-host",
        ),
        pytest.param(
            ["n1:7:9 [0] NCCL WARN Connect to 10.9.0.7<41001> returned 113(No route to host)"],
            "peer 10.9.0.7 as seen from n1",
            id="peer",
        ),
        pytest.param(
            [
                f"n1:7:9 [0] NCCL WARN Connect to 10.9.0.{n}<41001> returned 113(No route to host)"
                for n in (7, 8)
            ],
            None,
            id="two-peers",
        ),
        pytest.param(
            [
                "[rank5]: CUDA error: invalid device ordinal",
                "[rank7]: CUDA error: invalid device ordinal",
            ],
            None,
            id="all-ranks",
        ),
        pytest.param(
            [
                "[rank5]: CUDA error: invalid device ordinal",
                "[rank7]: CUDA error: invalid device ordinal",
                f"{timeout(0)} error",
            ],
            "ranks 5 and 7",
            id="some-ranks",
        ),
        pytest.param(
            [
                f"n1:7:7 [{a}] NCCL WARN Duplicate GPU detected : rank {a} and rank {b} both on CUDA device 3b000"
                for a, b in ((1, 0), (2, 0))
            ],
            "ranks 0, 1, 2 on CUDA device 3b000",
            id="ranks-on-a-device",
        ),
        pytest.param(
            [
                "RuntimeError: no",
                "-- Process 4 terminated with the following error:",
                "RuntimeError: Distributed package doesn't have NCCL built in",
            ],
            "process 4",
            id="spawned",
        ),
    ],
)
def test_the_rank_to_blame(lines: list[str], culprit: str | None) -> None:
    assert told(*lines).causes[0].culprit == culprit


# ---------------------------------------------------------------- what several causes share


def test_ipv6_that_fails_is_harmless_until_nothing_works() -> None:
    six = "[W socket.cpp:558] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97 - Address family not supported by protocol)."
    assert names(told(six)) == ["benign_ipv6_fallback"]
    assert (
        names(
            told(
                six,
                "RuntimeError: The client socket has failed to connect to any network address of (n1, 29500).",
            )
        )[0]
        == "ipv6_ipv4_mismatch"
    )


def test_docker_in_a_list_is_harmless_until_connections_fail() -> None:
    using = "n1:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:10.9.0.7<0> [1]docker0:172.17.0.1<0>"
    assert names(told(using)) == []
    assert (
        names(
            told(
                using,
                "n1:7:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying",
            )
        )[0]
        == "virtual_interface_selected"
    )


def test_no_infiniband_is_harmless_where_none_is_wanted() -> None:
    absent = "n2:7:7 [0] NCCL INFO NET/IB : No device found."
    assert names(told(absent)) == ["benign_no_net_plugin"]
    first = told(
        "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.9.0.7<0>", absent
    ).causes[0]
    assert (first.cause.name, first.severity, first.culprit) == (
        "rdma_device_not_in_container",
        "degraded",
        "host n2",
    )


@pytest.mark.parametrize(
    ("local", "remote", "cause"),
    [
        ("::ffff:10.4.2.11", "::ffff:10.4.3.60", "rail_cross_nic"),
        ("::ffff:10.4.2.11", "::ffff:10.4.2.60", "ib_fabric_unreachable"),
        ("fe80::ac1f:6bff:fe01:2", "::ffff:10.4.2.60", "roce_gid_index"),
        ("fe80::ac1f:6bff:fe01:2", "fe80::ac1f:6bff:fe01:3", "roce_gid_index"),
        ("fe80::ec0d:9a03:ab:1", "fe80::ec0d:9a03:ab:2", "ib_fabric_unreachable"),
    ],
)
def test_what_two_gids_say(local: str, remote: str, cause: str) -> None:
    text = f"n1:7:9 [5] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID {local}, remote GID {remote}"
    assert told(text).causes[0].cause.name == cause


@pytest.mark.parametrize("seed", range(12))
def test_whatever_stands_in_a_log_is_diagnosed_without_a_fall(seed: int) -> None:
    """Pieces of all messages, shuffled, cut and glued."""
    source = random.Random(seed)
    examples = [sign.example for cause in causes().values() for sign in cause.signs]
    texts = []
    for _ in range(300):
        one, two = source.choice(examples), source.choice(examples)
        cut = source.randrange(len(one))
        texts.append(
            source.choice(["", "[rank99999999999]: ", "0: ", "[1,2]:"])
            + one[:cut]
            + two[source.randrange(len(two)) :]
        )
    found = told(*texts)
    assert found.code in (0, 1, 3)
    for one_cause in found.causes:
        assert one_cause.lines
        assert 0 < one_cause.confidence < 1


def differing(a: int, one: str, b: int, other: str) -> str:
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {a} is running collective: CollectiveFingerPrint({one}), "
        f"but Rank {b} is running collective: CollectiveFingerPrint({other}).Collectives differ in the following aspects: "
    )


REDUCE = "SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float"


@pytest.mark.parametrize(
    ("lines", "cause", "culprit"),
    [
        (
            [differing(0, REDUCE, 1, REDUCE.replace("[4]", "[5]"))],
            "collective_mismatch",
            "ranks 0 and 1",
        ),
        (
            [differing(0, REDUCE, 1, REDUCE.replace("ALLREDUCE", "BROADCAST"))],
            "rank_desync_control_flow",
            "ranks 0 and 1",
        ),
        (
            [differing(1, "SequenceNumber=1OpType=BARRIER", 2, "SequenceNumber=0OpType=BARRIER")],
            "rank_desync_control_flow",
            "ranks 1 and 2",
        ),
        (
            [differing(0, REDUCE, 1, "OpType=BARRIER"), differing(2, REDUCE, 1, "OpType=BARRIER")],
            "rank_desync_control_flow",
            "rank 1",
        ),
    ],
)
def test_what_torch_compares_itself(lines: list[str], cause: str, culprit: str) -> None:
    first = told(*lines).causes[0]
    assert (first.cause.name, first.culprit) == (cause, culprit)


def test_ranks_that_only_say_where_they_were_timed_out_too() -> None:
    at = "[rank{0}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {0}] Timeout at NCCL work: 40000, last enqueued NCCL work: 40000, last completed NCCL work: 39999."
    first = told(timeout(1), *(at.format(rank) for rank in (1, 2, 3))).causes[0]
    assert (first.cause.name, first.culprit) == ("rank_desync_uneven_data", "rank 0")


def test_connections_that_came_about_in_the_end_are_no_failure() -> None:
    retry = "n1:7:9 [0] NCCL INFO Call to connect returned Connection refused, retrying"
    ready = "n1:7:9 [0] NCCL INFO comm 0x55a rank 0 nranks 2 cudaDev 0 busId 86000 - Init COMPLETE"
    assert names(told(retry)) == ["firewall_blocked_port"]
    assert names(told(retry, ready)) == []
    assert names(told(ready, retry)) == ["firewall_blocked_port"]


def test_two_nccls_are_a_mismatch_only_where_two_hosts_or_ranks_have_them() -> None:
    assert names(told("NCCL version 2.18.1+cuda12.1", "NCCL version 2.21.5+cuda12.4")) == []
    first = told(
        "[rank0]: NCCL version 2.18.1+cuda12.1", "[rank4]: NCCL version 2.21.5+cuda12.4"
    ).causes[0]
    assert first.cause.name == "env_or_version_mismatch"
    assert "2.18.1 on rank 0, 2.21.5 on rank 4" in first.message


def test_work_that_is_told_on_the_line_of_the_time_out_is_nobodys_of_those_who_waited() -> None:
    bar = "Running tokenizer on dataset:   9%|####   | 280/2969 [29:55<4:48:08, 0.15 examples/s]"
    found = told(
        bar + timeout(2, 2, numel=1), timeout(1, 2, numel=1), timeout(3, 2, numel=1)
    ).causes[0]
    assert (found.cause.name, found.culprit) == ("slow_work_exceeds_timeout", "rank 0")


def test_a_checkpoint_that_is_being_saved_is_work() -> None:
    saving = "2031-03-04 12:00:00,496 - root - INFO - Saving latest checkpoint model after 3 epochs"
    assert names(told(saving, timeout(7)))[0] == "slow_work_exceeds_timeout"


@pytest.mark.parametrize("count", [1, 3])
def test_the_barrier_of_the_store_counts_who_came(count: int) -> None:
    line = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        f"store_based_barrier_key:1 (world_size=2, worker_count={count}, timeout=0:30:00)"
    )
    assert names(told(line))[0] == ("rendezvous_incomplete" if count < 2 else "world_size_mismatch")


def test_a_store_that_was_to_be_on_this_host_is_no_matter_of_names_or_filters() -> None:
    line = "TimeoutError: The client socket has timed out after 1800s while trying to connect to (127.0.0.1, 41000)."
    assert names(told(line)) == ["rendezvous_incomplete"]


def test_a_link_local_peer_names_the_interface() -> None:
    line = "n1:7:9 [5] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to fe80::1:2:3%ib1<41000> failed : Software caused connection abort"
    found = told(line).causes[0]
    assert (found.cause.name, found.culprit) == ("virtual_interface_selected", "interface ib1")


def test_the_plug_in_that_sets_a_topology_file_says_which() -> None:
    found = told(
        "n1:7:9 [1] NCCL INFO NET/OFI Setting NCCL_TOPO_FILE environment variable to /opt/ofi/topo.xml",
        "n1:7:9 [1] graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found",
    ).causes[0]
    assert (found.cause.name, found.culprit) == ("topo_or_graph_file_bad", "file /opt/ofi/topo.xml")


def test_ranks_that_each_tell_their_own_collective_are_compared() -> None:
    line = "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running inconsistent collective: CollectiveFingerPrint(OpType={}, TensorShape"
    alike = told(line.format(0, "ALLGATHER"), line.format(1, "ALLGATHER")).causes[0]
    apart = told(line.format(0, "ALLGATHER"), line.format(1, "BROADCAST")).causes[0]
    assert (alike.cause.name, alike.culprit) == ("collective_mismatch", "ranks 0 and 1")
    assert (apart.cause.name, apart.culprit) == ("rank_desync_control_flow", "ranks 0 and 1")


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        (
            "RuntimeError: [2] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
            "rank 0",
        ),
        (
            "[rank1]:[W304 14:34:56.8 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[n1]:41170, remote=[n1]:29500) timed out after 1800000ms",
            None,
        ),
    ],
)
def test_a_store_that_waits_for_work_is_slow_work_and_without_it_somebody_is_missing(
    line: str, culprit: str | None
) -> None:
    bar = "Tokenizing Prompts (num_proc=64):  92%|####| 328/359 [29:58<12:05, 0.41 examples/s]"
    found = told(bar, line).causes[0]
    assert (found.cause.name, found.culprit) == ("slow_work_exceeds_timeout", culprit)
    assert names(told(line))[0] == "rendezvous_incomplete"


def test_what_is_a_hosts_own_matter_names_the_rank_where_no_host_is_told() -> None:
    line = "[rank3]: Cuda failure 802 'system not yet initialized'"
    assert told(line).causes[0].culprit == "rank 3"
    assert (
        told("Test CUDA failure common.cu:892 'invalid device ordinal'").causes[0].culprit is None
    )
    assert (
        told("n1: Test CUDA failure common.cu:892 'invalid device ordinal'").causes[0].culprit
        == "host n1"
    )


def test_a_name_that_is_asked_for_until_the_log_ends_has_no_address() -> None:
    """torch asks again and again, and never goes on to IPv4."""
    asked = "[W socket.cpp:697] [c10d] The IPv6 network addresses of (n1.internal, 29500) cannot be retrieved (gai error: -2 - Name or service not known)."
    lines = [line_of("train.log", n, asked, n) for n in (1, 2)]
    assert names(diagnose(lines[:1], {"train.log": 1})) == ["benign_ipv6_fallback"]
    assert names(diagnose(lines, {"train.log": 2})) == ["hostname_unresolvable"]
    assert names(diagnose(lines, {"train.log": 3})) == ["benign_ipv6_fallback"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "n1:40:41 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
            "env_or_version_mismatch",
        ),
        ("gloo::EnforceNotMet: unable to find interface for: eth9", "socket_ifname_not_found"),
        ("modinfo: ERROR: Module nv_peer_mem not found.", "gpudirect_rdma_missing"),
        (
            "n1:40:41 [0] NCCL WARN Call to ibv_get_device_list failed",
            "rdma_device_not_in_container",
        ),
        (
            "n1:40:41 [0] net.cc:480 NCCL WARN Error: network AWS Libfabric not found.",
            "efa_provider",
        ),
        ("n1:40:41 [0] NCCL WARN ibv_post_recv() returned 12", "ib_fabric_unreachable"),
        (
            "n1:40:41 [0] NCCL WARN NET/IB: Fatal error. Detected 1 failed devices",
            "ib_fabric_unreachable",
        ),
        ("mlx5: Failed to modify QP 0x7f to RTR", "ib_fabric_unreachable"),
        ("RuntimeError: cudaErrorECCUncorrectable", "gpu_hardware_fault"),
        (
            "AttributeError: module 'torch.distributed' has no attribute 'init_process_group'",
            "nccl_not_built",
        ),
        (
            "torch.OutOfMemoryError: Allocation on device 2 would exceed allowed memory.",
            "rank_gpu_oom",
        ),
        (
            "Some of your processes may have been killed by the cgroup out-of-memory handler.",
            "host_oom_kill",
        ),
        ("worker ended with exit status 137", "host_oom_kill"),
        ("the spot instance got an interruption notice", "external_termination"),
        (
            "- To our best knowledge, ranks [2] are the lagging ranks that caused this timeout.",
            "rank_desync_control_flow",
        ),
        (
            "RuntimeError: world_size (6) is not divisible by tensor_model_parallel_size (4)",
            "world_size_mismatch",
        ),
        ("[n1:40:0:41] Caught signal 7 (Bus error: nonexistent physical address)", "shm_too_small"),
        (
            "[9.1] [n1:40:0] ib_iface.c:946 UCX ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory",
            "memlock_limit",
        ),
        ("ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory.", "memlock_limit"),
        (
            "[9.1] UCX ERROR ibv_reg_mr(address=0x7f, length=64, access=0xf) failed: Cannot allocate memory",
            "memlock_limit",
        ),
        ("IbError: ibv_modify_qp failed (errno 19) (Ib failure: No such device)", "roce_gid_index"),
        (
            "DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.",
            "rendezvous_incomplete",
        ),
        (
            "RuntimeError: [1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
            "rendezvous_incomplete",
        ),
        (
            "RuntimeError: The new group's rank should be within the world_size set by init_process_group",
            "world_size_mismatch",
        ),
        ("RuntimeError: CUDA_ERROR_NVLINKUNCORRECTABLE", "gpu_hardware_fault"),
        (
            "n1:7:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 169.254.3.7<40001> failed : Software caused connection abort",
            "virtual_interface_selected",
        ),
        (
            "Detected mismatch between collectives on ranks. Rank 3 is running inconsistent collective: CollectiveFingerPrint(OpType=BARRIER)",
            "rank_desync_control_flow",
        ),
        (
            "[ERROR] ['python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -7",
            "shm_too_small",
        ),
    ],
)
def test_each_wording_of_a_sign_is_seen(line: str, cause: str) -> None:
    """What is looked for first must stand in every wording, or a wording is never seen."""
    assert names(told(line))[0] == cause


@pytest.mark.parametrize(
    "line",
    [
        "n1:40:41 [0] misc/socket.cc:380 NCCL WARN socketFinalizeAccept: wrong magic 1f != 2f",
        "n1:40:41 [0] NCCL WARN Call to send failed : Broken pipe",
        "n1:40:41 [0] NCCL WARN dlsym failed on ibv_query_ece - undefined symbol",
        "[rank1]:[E ProcessGroupNCCL.cpp:1537] Received a dump from the store",
    ],
)
def test_each_wording_of_an_echo_is_known(line: str) -> None:
    assert meaning(line_of("train.log", 1, line, 1)) is not None


@pytest.mark.parametrize(
    ("line", "cause", "culprit"),
    [
        (
            "Mismatched data types: One rank had type float32, but another rank had type float64.",
            "collective_mismatch",
            None,
        ),
        (
            "Mismatched broadcast root ranks: One rank specified root rank 0, but another rank specified root rank 1.",
            "collective_mismatch",
            None,
        ),
        (
            "Mismatched MPI operations: One rank did an allreduce, but another rank did an allgather.",
            "rank_desync_control_flow",
            None,
        ),
        (
            "w.cc:588] HorovodAllreduce_grad_0 [missing ranks: 2, 5]",
            "rank_desync_control_flow",
            "ranks 2 and 5",
        ),
        (
            "n1:40:41 [0] net_ib.cc:651 NCCL WARN NET/IB : collective mismatch error local size 4096 remote 512 addr 7f rkey 1 seq 5a/5a",
            "env_or_version_mismatch",
            "host n1",
        ),
        (
            "n1:40:41 [0] net_ib.cc:700 NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=0",
            "ib_fabric_unreachable",
            "link n1 - 10.9.0.7",
        ),
        (
            "[n1:40:0:41] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15 vend 0x81)",
            "ib_fabric_unreachable",
            "HCA mlx5_2 on n1",
        ),
        (
            "[n1:40 :0:41] ib_mlx5_log.c:115  FATAL: Error on mlx5_3:1 QP 0xe6d7 wqe[7]: Transport retry count exceeded",
            "ib_fabric_unreachable",
            "HCA mlx5_3 on n1",
        ),
        (
            "[1943394930.000000] [n1:40:0] ib_md.c:325  UCX  ERROR ibv_reg_mr(address=0x7f, length=34, access=0xf) failed: Cannot allocate memory",
            "memlock_limit",
            "host n1",
        ),
        (
            "n1:40:41 [2] enqueue.cc:215 NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the execution'",
            "gpu_hardware_fault",
            "host n1",
        ),
        (
            "n1:40:41 [0] enqueue.cc:197 NCCL WARN Cuda failure 98 'invalid device function'",
            "nccl_bug_or_version",
            "host n1",
        ),
        (
            "mpirun noticed that process rank 7 with PID 0 on node n1 exited on signal 9 (Killed).",
            "host_oom_kill",
            "rank 7",
        ),
        (
            "cuda_driver.cc:806] failed to allocate 2.00G: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "rank_gpu_oom",
            None,
        ),
        (
            "ResourceExhaustedError: Out of memory error on GPU 3. Cannot allocate 2GB memory on GPU 3",
            "rank_gpu_oom",
            None,
        ),
        (
            "n1:40:41 [0] NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)",
            "ib_fabric_unreachable",
            "HCA mlx5_1",
        ),
        (
            "NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library.",
            "nccl_library_conflict",
            None,
        ),
        (
            "Horovodrun was unable to connect to the horovodrun driver service on any of the following addresses: {}",
            "rendezvous_incomplete",
            None,
        ),
    ],
)
def test_other_frameworks_and_libraries_say_it_too(
    line: str, cause: str, culprit: str | None
) -> None:
    """Horovod, JAX, TensorFlow, Paddle, UCX and older NCCL have words of their own for what is one thing."""
    first = told(line).causes[0]
    assert (first.cause.name, first.culprit) == (cause, culprit)


def test_tasks_that_did_not_come_to_a_barrier_of_jax_are_named() -> None:
    said = "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: start. Timed out task names:"
    found = told(said, "/job:jax_worker/replica:0/task:3", "/job:jax_worker/replica:0/task:1")
    assert [(one.cause.name, one.culprit) for one in found.causes] == [
        ("rendezvous_incomplete", "ranks 1 and 3")
    ]


def test_a_step_that_slurm_cancels_after_an_error_is_not_ended_from_outside() -> None:
    error = "[n1:40:0:41] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15 vend 0x81)"
    step = "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2031-03-04T12:00:00{} ***"
    assert names(told(error, step.format("")))[0] == "ib_fabric_unreachable"
    assert names(told(error, step.format(" DUE TO TIME LIMIT")))[0] == "external_termination"


def test_a_flushed_completion_follows_from_the_one_that_failed() -> None:
    flushed = "n1:40:41 [0] net_ib.cc:700 NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with error 5, opcode 0"
    denied = "n1:40:41 [0] net_ib.cc:700 NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with error 4, opcode 0"
    assert names(told(flushed, denied))[0] == "p2p_acs_iommu"


def test_addresses_of_old_nccl_and_of_aliases_are_read() -> None:
    refused = (
        "n1:40:41 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused"
    )
    old = told("n1:40:41 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>", refused)
    assert names(old)[0] == "loopback_hostname_resolution"
    alias = told("n1:40:41 [0] NCCL INFO Bootstrap : Using eno1:avahi:169.254.8.3<0>", refused)
    assert (names(alias)[0], alias.causes[0].culprit) == (
        "virtual_interface_selected",
        "interface eno1:avahi",
    )
    linked = told("n1:40:41 [0] NCCL INFO Bootstrap : Using veth1:fe80::1c0d%veth1<0>", refused)
    assert (names(linked)[0], linked.causes[0].culprit) == (
        "virtual_interface_selected",
        "interface veth1",
    )


def test_a_connection_that_the_peer_ended_was_one_over_loopback_too() -> None:
    """Loopback that was reached is no wrong address."""
    ended = (
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895"
    )
    assert names(told(ended, "RuntimeError: Socket Timeout")) == ["rendezvous_incomplete"]


def test_a_rank_in_the_monitored_barrier_names_the_rank_that_it_waited_for() -> None:
    waited = "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    found = told(waited)
    assert names(found) == ["rank_desync_control_flow"]
    assert found.causes[0].culprit == "rank 0"
    assert names(told(waited, OOM))[0] == "rank_gpu_oom"


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        (
            "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: ab12, IP: 10.9.0.7) over the last time period.",
            "host 10.9.0.7",
        ),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            None,
        ),
        ("Xid 79 (GPU has fallen off the bus) detected on PCI:0000:3b:00", "GPU 0000:3b:00"),
        ("[17.1] UCX ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory", "HCA mlx5_0"),
    ],
)
def test_the_host_or_card_that_the_message_names_is_meant(line: str, culprit: str | None) -> None:
    assert told(line).causes[0].culprit == culprit


def test_one_element_reduced_late_in_a_run_is_not_the_barrier_before_the_start() -> None:
    """Loggers reduce single numbers too; only at the start a rank may still be preparing."""
    assert names(told(timeout(3, seq=70_000, numel=1))) == ["rank_desync_uneven_data"]
    assert names(told(timeout(3, seq=1, numel=1))) == ["slow_work_exceeds_timeout"]


def test_a_clock_in_brackets_is_no_host() -> None:
    found = told(
        "[12:00:01] rdma.h:234: Check failed: mr ibv_reg_mr failed: Cannot allocate memory"
    )
    assert names(found) == ["memlock_limit"]
    assert found.causes[0].culprit is None


@pytest.mark.parametrize("gloo", [False, True])
def test_a_rank_beyond_all_worlds_costs_nothing(gloo: bool) -> None:
    """It is some other number. Every rank up to it would be a billion numbers in memory."""
    lines = [timeout(0), timeout(999_999_999)]
    if gloo:
        waited = (
            "RuntimeError: [gloo/transport/tcp/pair.cc:1] Application timeout caused pair closure"
        )
        lines = [f"[rank{rank}]: {waited}" for rank in (0, 999_999_999)]
    with memory_limit(1 << 30):
        diagnosis = told(*lines)
    assert all(found.culprit is None for found in diagnosis.causes)


@contextlib.contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let this process have so many bytes more of address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_mismatch_that_nccl_suspects_is_not_told_as_a_fact() -> None:
    found = told(
        "n1:1:2 [0] init.cc:1256 NCCL WARN Your program may be hanging, this may be caused by a collective mismatch around rank 1."
    ).causes[0]
    assert (found.culprit, found.confidence) == ("rank 1", 0.75)
    assert found.message.startswith("Ranks may have entered")


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("n1:1:2 [3] include/alloc.h:200 NCCL WARN Failed to CUDA calloc async 608 bytes", "GPU 3 of n1"),
        ("n1:1:2 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'", "host n1"),
        ("n1:1:2 [0] NCCL WARN Cuda failure 'unspecified launch failure'", "host n1"),
        ("n1:1:2 [0] NCCL WARN Cuda failure 'hardware stack error'", "host n1"),
        ("n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with status=IBV_WC_LOC_LEN_ERR(1) opcode=128", "peer 10.9.0.7 as seen from n1"),
        ("n1:1:2 [0] NCCL WARN NET/IB: Fatal error. Detected 1 failed devices", "host n1"),
        ("mlx5: n1: got completion with error:", "host n1"),
        ("n1:1:2 [0] plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin", "host n1"),
        ("n1:1:2 [0] net.cc:480 NCCL WARN Error: network AWS Libfabric not found.", "host n1"),
        ("n1:1:2 [0] net.cc:480 NCCL WARN Failed to initialize NET plugin Libfabric", "host n1"),
    ],
)  # fmt: skip
def test_whom_the_line_names_is_the_culprit(line: str, culprit: str) -> None:
    assert told(line).causes[0].culprit == culprit
