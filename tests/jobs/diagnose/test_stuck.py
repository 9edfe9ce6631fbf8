"""Time-outs: what counts as one, who did not come, and what nothing in the log proves."""

# ruff: noqa: E501, ISC004 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.culprit import worded
from clusterprep.jobs.diagnose.forms import TABLE
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Diagnosis, Evidence, LogFile, Weight
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose, needles
from clusterprep.jobs.diagnose.trouble import has_network_trouble, waits


def told(*texts: str, file: str = "train.log") -> Diagnosis:
    rows = "\n".join(texts).splitlines()
    return diagnose([line_of(file, number, text, number) for number, text in enumerate(rows, 1)])


def first(*texts: str) -> tuple[str, str | None, bool]:
    """The first cause, its culprit, and whether it is an answer rather than one of several."""
    found = told(*texts).causes[0]
    return found.cause.name, found.culprit, found.confidence >= 0.5


def log_of(text: str) -> LogFile:
    return LogFile((line_of("log", 1, text, 1),))


def watchdog(
    rank: int,
    seq: int = 40_000,
    op: str = "ALLREDUCE",
    numel: int = 1_000_000,
    at: str = "1206 18:44:12.715298746",
) -> str:
    return (
        f"[rank{rank}]:[E{at} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
    )


def status(rank: int, enqueued: int, completed: int, group: str = "0", seq: int = 40_000) -> str:
    return (
        f"[rank{rank}]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:2268] [PG ID {group} PG GUID {group}(default_pg) Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}"
    )


# ---------------------------------------------------------------- events and settings


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(backend='nccl', timeout=900, dist_timeout=1800, lr=0.1)",
        "{'timeout': 900, 'ddp_timeout': 1800}",
        "ddp_timeout=1800,",
        "timeout: 900",
        "NCCL_IB_TIMEOUT=22",
        "export NCCL_IB_TIMEOUT=22 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600",
        "n1:7:7 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "+ torchrun --rdzv-conf timeout=900 train.py --timeout 60",
        "distributed_timeout_minutes ..................... 10",
        "connection timeout: 30",
        "connect timeout = 30",
        "socket timeout 60",
        "[rank0]:[I1 00:00:00.0 ProcessGroupNCCL.cpp:905] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: 0",
        "[rank0]:[E1 00:00:00.0 ProcessGroupNCCL.cpp:744] [Rank 0] Some NCCL operations have failed or timed out.",
        "[rank0]: Collective WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following async exception: NCCL error: unhandled system error",
    ],
)
def test_a_limit_that_is_set_is_no_event(line: str) -> None:
    assert not waits(log_of(line))
    loopback = "n1:1:2 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>"
    assert [one for one in told(loopback, line).causes if one.severity != "benign"] == []


def test_a_limit_of_the_rendezvous_that_is_set_is_none_that_fired() -> None:
    ignored = (
        "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified."
    )
    settings = "  rendezvous_timeout : 900"
    assert told(ignored, settings).causes == ()


@pytest.mark.parametrize(
    "line",
    [
        watchdog(1),
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: Socket Timeout",
        "TimeoutError: The client socket has timed out after 300s while trying to connect to (n1, 29500).",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "[W socket.cpp:464] [c10d] waitForInput: poll for socket SocketImpl(fd=79) returned 0, likely a timeout",
        "RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
        "gloo::IoException: Application timeout caused pair closure",
        "n1:1:2 [0] NCCL WARN Call to connect timeout : Connection refused",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out.",
        "[Rank 1] Work WorkNCCL(SeqNum=2521, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) timed out in blocking wait.",
    ],
)
def test_a_limit_that_fired_is_one(line: str) -> None:
    assert waits(log_of(line))


def asynchronous(error: str, said: str) -> list[str]:
    return [
        "[rank5]:[E207 19:37:09.983540349 ProcessGroupNCCL.cpp:552] [Rank 5] Collective WorkNCCL(SeqNum=3921, OpType=_ALLGATHER_BASE, "
        f"NumelIn=1, NumelOut=8, Timeout(ms)=600000) raised the following async exception: NCCL error: {error}, NCCL version 2.21.5",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:",
        said,
    ]


def test_an_asynchronous_error_is_what_nccl_says_and_no_time_out() -> None:
    refused = asynchronous(
        "unhandled system error",
        "socketStartConnect: Connect to 10.1.2.3<40001> failed : Software caused connection abort",
    )
    lost = asynchronous(
        "remote process exited or there was a network error",
        "NET/IB : Got completion from peer 10.9.0.7<39138> with error 12, opcode 0, len 0, vendor err 129",
    )
    assert first(*refused)[0] == "firewall_blocked_port"
    assert first(*lost)[0] == "ib_fabric_unreachable"
    for lines in (refused, lost):
        for found in told(*lines).causes:
            assert not found.cause.name.startswith(("rank_desync", "slow_work"))
            assert "process group" not in found.message  # no limit fired


def test_a_peer_that_ended_is_no_time_out_either() -> None:
    ended = asynchronous(
        "remote process exited or there was a network error",
        "socketProgressOpt: Call to recv from 10.119.24.53<49901> failed : Broken pipe",
    )
    names = {found.cause.name for found in told(*ended).causes}
    assert not {name for name in names if name.startswith(("rank_desync", "slow_work"))}


# ---------------------------------------------------------------- nothing proves the cause


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        pytest.param([watchdog(1)], None, id="one-log"),
        pytest.param([watchdog(0), watchdog(5)], None, id="two-of-many"),
        pytest.param([watchdog(r) for r in (0, 1, 3)], "rank 2", id="one-says-nothing"),
        pytest.param([watchdog(r, 4, "BROADCAST", 112) for r in range(1, 7)], "rank 0", id="root"),
        pytest.param([watchdog(r, 21_668, numel=1) for r in (13, 14)], None, id="a-flag"),
        pytest.param(
            ["Timed out waiting 1800000ms for recv operation to complete"], None, id="gloo"
        ),
    ],
)
def test_a_lone_time_out_gives_no_reason(lines: list[str], culprit: str | None) -> None:
    _, blamed, answered = first(*lines)
    assert (blamed, answered) == (culprit, False)
    message = told(*lines).causes[0].message
    assert "network" not in message
    for what in ("logs of all ranks", "TORCH_NCCL_TRACE_BUFFER_SIZE", "py-spy"):
        assert what in message


def test_who_waited_in_what_for_whom_is_told() -> None:
    message = told(*(watchdog(r) for r in (0, 1, 3))).causes[0].message
    assert "rank 2 did not come to ALLREDUCE #40000 of 1,000,000 elements" in message
    assert "in which ranks 0, 1, 3 waited" in message
    assert "says nothing of it in this log" in message


def test_the_network_worked_only_where_earlier_collectives_ended() -> None:
    proven = told(
        *(watchdog(r) for r in range(3)), *(status(r, 40_002, 39_999) for r in range(3))
    ).causes[0]
    assert "up to #39999 of the same group had ended, so the network had worked" in proven.message
    none_ended = told(
        *(watchdog(r, 1, "ALLGATHER", 8) for r in range(4)),
        *(status(r, 1, -1, seq=1) for r in range(4)),
    ).causes[0]
    assert "network" not in none_ended.message


@pytest.mark.parametrize(
    "trouble",
    [
        "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<39138> with error 12, opcode 0, len 0, vendor err 129",
        "n1:1:2 [0] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.9.0.7<41001> returned 113(No route to host) errno 115(Operation now in progress)",
        "n1:1:2 [0] include/socket.h:395 NCCL WARN Net : Connect to 10.9.0.7<41001> failed : Connection refused",
    ],
)
def test_trouble_of_the_network_comes_first(trouble: str) -> None:
    found = told(
        watchdog(0), watchdog(1), status(0, 40_002, 39_999), status(1, 40_002, 39_999), trouble
    )
    assert not found.causes[0].cause.name.startswith(("rank_desync", "slow_work"))
    assert all("network had worked" not in one.message for one in found.causes)


def test_a_connection_that_the_end_of_a_rank_closed_is_no_trouble_of_the_network() -> None:
    closed = "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:22735"
    assert not has_network_trouble(log_of(closed))


def test_a_container_address_beside_a_time_out_comes_first() -> None:
    docker = "4f1c2ab09d7e:7:7 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>"
    assert first(docker, watchdog(0), watchdog(1))[0] == "container_bridge_network"


def test_a_rank_that_crashed_explains_the_others_that_waited() -> None:
    oom = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.15 GiB"
    found = told(oom, *(watchdog(r) for r in (0, 1, 3)))
    assert found.causes[0].cause.name == "rank_gpu_oom"
    assert all(one.confidence < 0.5 for one in found.causes[1:])


def test_a_whole_node_without_a_line_is_a_log_that_is_missing() -> None:
    """Of 24 ranks those of the second node have no line: nothing says that they did not come."""
    assert first(*(watchdog(r) for r in (*range(8), *range(16, 24))))[1] is None


def test_a_dump_tells_that_a_collective_timed_out() -> None:
    own = "[rank{0}]:[E1128 21:11:49.041194513 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 22, last completed NCCL work: 21.This is most likely"
    seen = "[rank0]:[E1128 21:11:49.041188078 ProcessGroupNCCL.cpp:1806] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed flight recorder dump signal from another rank via TCPStore."
    assert first(own.format(1), seen, own.format(2))[1:] == ("rank 0", False)
    assert "collective #22" in told(own.format(1), seen, own.format(2)).causes[0].message


# ---------------------------------------------------------------- ranks and groups


def in_group(rank: int, guid: int, group_rank: int, seq: int, numel: int) -> list[str]:
    return [
        f"[rank{rank}]:[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:616] [Rank {group_rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.",
        f"[rank{rank}]:[E218 04:54:22.864535778 ProcessGroupNCCL.cpp:1795] [PG ID 11 PG GUID {guid}(mesh_tp) Rank {group_rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}.",
    ]


def test_collectives_of_different_groups_are_not_compared() -> None:
    """Two ranks wait in two groups that have the same number of their own on each rank."""
    lines = [*in_group(13, 119, 1, 216, 4096), *in_group(15, 112, 0, 57, 32)]
    found = told(*lines)
    assert all(one.cause.name != "rank_desync_control_flow" for one in found.causes)
    assert all(one.confidence < 0.5 for one in found.causes)


def test_ranks_of_a_group_are_told_by_their_rank_in_the_job() -> None:
    lines = [*in_group(12, 119, 0, 300, 4096), *in_group(13, 119, 1, 216, 4096)]
    name, culprit, answered = first(*lines)
    assert (name, culprit, answered) == ("rank_desync_control_flow", "rank 13", True)
    message = told(*lines).causes[0].message
    assert "rank 12 in ALLREDUCE #300" in message


def test_a_rank_of_a_group_without_its_rank_in_the_job_is_found_by_other_lines() -> None:
    options = "[rank6]:[I1 00:00:00.0 ProcessGroupNCCL.cpp:905] [PG ID 2 PG GUID 9(mesh_tp) Rank 1] ProcessGroupNCCL initialization options: size: 2, global rank: 6, TIMEOUT(ms): 600000"
    here = (
        "[PG ID 2 PG GUID 9(mesh_tp) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600045 milliseconds before timing out."
    )
    assert "rank 6 waited in ALLREDUCE #7" in told(options, here).causes[0].message


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]:[E1 00:00:00.0 ProcessGroupNCCL.cpp:1] [Rank 3] Received a dump signal due to a collective timeout from rank 0. Last enqueued NCCL work: 39999, last completed NCCL work: 39999.",
        "[rank3]:[E1 00:00:00.0 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from this local rank. Last enqueued NCCL work: 39998, last completed NCCL work: 39998.This is most likely",
        "[rank3]:[E1 00:00:00.0 ProcessGroupNCCL.cpp:1] [PG 0 Rank 3] x last enqueued NCCL work: 39999, last started NCCL work: -1, last completed NCCL work: 39998.",
        "[rank3]:[E1 00:00:00.0 ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 3] PG status: last enqueued work: 39999, last completed work: 39999",
    ],
)
def test_every_wording_of_what_was_last_enqueued_is_read(line: str) -> None:
    assert first(watchdog(0), watchdog(1), watchdog(2), line)[1] == "rank 3"


def test_ranks_that_torchrun_did_not_see_abort_are_those_that_did_not_time_out() -> None:
    """The watchdog ends its process by SIGABRT; torchrun ends the others by SIGTERM."""

    def block(rank: int, code: int) -> str:
        return f"[{rank}]:\n  time      : 2026-06-28_11:58:49\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {1795 + rank})"

    lines = [watchdog(5, 77, "SCATTER"), watchdog(3, 77, "SCATTER"), "Failures:"]
    lines += [block(rank, -15 if rank == 0 else -6) for rank in range(8)]
    assert first(*lines)[1:] == ("rank 0", False)


def test_a_message_that_a_terminal_broke_within_its_brackets_is_one() -> None:
    whole = watchdog(2, 4, "BROADCAST", 112)
    head, tail = whole[: whole.index("Out=")], whole[whole.index("Out=") :]
    assert "BROADCAST #4 of 112 elements" in told(head, tail).causes[0].message


@pytest.mark.parametrize("library", ["NCCL", "HCCL", "XCCL", "MCCL", "CNCL"])
def test_other_libraries_have_the_same_watchdog(library: str) -> None:
    lines = [watchdog(r).replace("WorkNCCL", f"Work{library}") for r in (0, 1, 3)]
    assert first(*lines)[1] == "rank 2"


def test_coalesced_work_has_no_number_of_elements() -> None:
    lines = [watchdog(r, op="COALESCED", numel=18446744073709551615) for r in (0, 1)]
    assert "18,446" not in told(*lines).causes[0].message


@pytest.mark.parametrize("op", ["ALLTOALL_BASE", "ALLTOALL", "GATHER", "ALLGATHER"])
def test_operations_in_which_ranks_may_give_different_amounts_are_no_mismatch(op: str) -> None:
    found = told(watchdog(0, op=op, numel=5000), watchdog(1, op=op, numel=7000))
    assert all(one.cause.name != "collective_mismatch" for one in found.causes)


def test_numbers_that_differ_by_one_may_come_from_data_that_did_not_arrive() -> None:
    assert first(*(watchdog(r, 40_000 + (r == 2)) for r in range(4)))[2] is False
    assert first(*(watchdog(r, 40_000 + 3 * (r == 2)) for r in range(4)))[2] is True


def test_both_ends_of_a_send_are_named() -> None:
    pair = told(watchdog(4, 12, "RECV", 4096), watchdog(0, 12, "SEND", 4096)).causes[0]
    assert (pair.culprit, pair.confidence < 0.5) == ("ranks 0 and 4", True)
    assert "rank 4 in RECV #12" in pair.message


def test_the_other_end_of_a_group_of_two_is_the_one_that_is_needed() -> None:
    waits_in = [line.replace("ALLREDUCE", "RECV") for line in in_group(4, 21, 1, 12, 4096)]
    other = "[rank0]:[I1 00:00:00.0 ProcessGroupNCCL.cpp:905] [PG ID 3 PG GUID 21(mesh_tp) Rank 0] ProcessGroupNCCL initialization options: size: 2, global rank: 0, TIMEOUT(ms): 600000"
    assert first(*waits_in, other)[1:] == ("rank 0", False)


# ---------------------------------------------------------------- what the absent rank did


def test_a_rank_whose_traceback_is_elsewhere_took_another_way() -> None:
    frame = '[rank0]:   File "/opt/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3949, in all_gather'
    closed = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.7.7]:57000"
    waiting = [watchdog(r, 78, "BROADCAST", 80) for r in (1, 2, 3)]
    assert first(frame, closed, *waiting) == ("rank_desync_control_flow", "rank 0", True)
    same = frame.replace("all_gather", "broadcast")
    assert first(same, closed, *waiting)[2] is False


def test_different_numbers_of_batches_are_uneven_data() -> None:
    batches = [f"rank {r}: train_dataloader has {3180 - (r == 2)} batches" for r in range(4)]
    waiting = [watchdog(r) for r in (0, 1, 3)]
    assert first(*batches, *waiting) == ("rank_desync_uneven_data", "rank 2", True)
    assert (
        "rank 2 has 3,179 batches and rank 0 has 3,180"
        in told(*batches, *waiting).causes[0].message
    )
    equal = [f"rank {r}: train_dataloader has 3180 batches" for r in range(4)]
    assert first(*equal, *waiting)[2] is False


@pytest.mark.parametrize("library", ["nccl", "gloo"])
def test_a_rank_with_fewer_samples_that_waits_with_the_others_is_no_reason(library: str) -> None:
    """Shards of a data set may differ in size; who waits has not come to its end."""
    samples = [f"[rank{r}]: {1000 - (r == 2)} samples" for r in range(4)]
    gloo = "[rank{}]: RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
    waiting = [watchdog(r) if library == "nccl" else gloo.format(r) for r in (0, 2, 3)]
    assert first(*samples, *waiting)[2] is False


def test_samples_per_second_are_no_number_of_samples() -> None:
    speeds = [f"[rank{r}]: 12{r} samples/s" for r in range(4)]
    assert first(*speeds, *(watchdog(r) for r in (0, 1, 3)))[2] is False


def bar(percent: int, elapsed: str, rest: str = "") -> str:
    return f"Running tokenizer on dataset:  {percent}%|####| 328/359 [{elapsed}<12:05, 0.41 examples/s]{rest}"


def test_work_that_lasted_as_long_as_the_others_waited_is_slow_work() -> None:
    waiting = [watchdog(r, 1, numel=1) for r in (1, 2, 3)]
    assert first(bar(88, "09:58"), *waiting) == ("slow_work_exceeds_timeout", "rank 0", True)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(bar(100, "00:12"), id="finished"),
        pytest.param("[rank1]: saving checkpoint global_step=4000", id="of-a-rank-that-waited"),
        pytest.param(
            "2026-12-06 12:00:00,496 - root - INFO - Saving model checkpoint to out/4000",
            id="hours-before",
        ),
    ],
)
def test_work_that_was_over_is_no_reason(line: str) -> None:
    waiting = [watchdog(r, numel=1) for r in (1, 2, 3)]
    assert first(line, *waiting)[2] is False


def test_saving_while_the_others_waited_is_slow_work() -> None:
    saving = "2026-12-06 18:36:00,496 - root - INFO - rank 0: saving checkpoint global_step=4000"
    waiting = [watchdog(r, numel=1) for r in (1, 2, 3)]
    assert first(saving, *waiting) == ("slow_work_exceeds_timeout", "rank 0", True)


@pytest.mark.parametrize("elapsed", ["29:55", "30:09", "10:20"])
def test_a_bar_that_breaks_off_when_a_limit_passes_is_slow_work(elapsed: str) -> None:
    cut = bar(47, elapsed, "Traceback (most recent call last):")
    assert first(cut) == ("slow_work_exceeds_timeout", None, True)


def test_a_bar_that_breaks_off_at_another_time_is_no_slow_work() -> None:
    early = bar(47, "12:09", "Traceback (most recent call last):")
    assert told(early).causes == ()


# ---------------------------------------------------------------- culprits


def test_devices_of_one_host_are_named_with_it() -> None:
    cause = causes()["ib_fabric_unreachable"]
    rows = [
        line_of("log", n, f"n{n // 3}:7:9 [0] NCCL WARN NET/IB : of card {n}", n) for n in range(6)
    ]
    log = LogFile(tuple(rows), frozenset({"n0", "n1"}))

    def named(*numbers: int) -> str | None:
        evidence = [
            Evidence(cause.name, rows[n], Weight.LIKELY, (("HCA", f"mlx5_{n}"),)) for n in numbers
        ]
        return worded(cause, evidence, log)

    assert named(0, 1, 2) == "HCAs mlx5_0, mlx5_1, mlx5_2 of n0"
    assert named(0) == "HCA mlx5_0 of n0"
    assert named(0, 5) == "HCAs mlx5_0 and mlx5_5"


def test_localhost_is_no_name_of_a_host() -> None:
    line = "localhost:7:9 [0] NCCL WARN Cuda failure 802 'system not yet initialized'"
    assert told(line).causes[0].culprit is None
    assert told(line.replace("localhost", "n1")).causes[0].culprit == "host n1"


def test_a_spawned_process_is_named_by_its_own_traceback_alone() -> None:
    everywhere = [
        f"[{gpu}] enqueue.cc:215 NCCL WARN Cuda failure 'invalid device function'"
        for gpu in range(4)
    ]
    head = "-- Process 3 terminated with the following error:"
    assert told(*everywhere, head, "RuntimeError: no").causes[0].culprit is None
    missing = "RuntimeError: Distributed package doesn't have NCCL built in"
    assert told(head, missing).causes[0].culprit == "process 3"
    assert told(missing, head, "RuntimeError: no").causes[0].culprit is None


# ---------------------------------------------------------------- what torch and others report


_DESYNC_LINES = (
    "[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0",
    "\t - [0] Timeout at collective: ALLREDUCE, #315",
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
    "\t     [7] finished collective #182, but didn't join collective #183 (count from 1)",
    "\t - Snapshot of ranks' latest states:",
    "\t   #182 finished ranks:",
    "\t     [7] finished ALLREDUCE",
    "\t   #315 started ranks:",
    "\t     [0, 1, 2] started ALLREDUCE",
)
DESYNC = "\n".join(_DESYNC_LINES)


def test_the_report_of_a_desync_names_who_lags() -> None:
    assert first(watchdog(0, 241), DESYNC) == ("rank_desync_control_flow", "rank 7", True)
    assert "#182 is the last one that they joined" in told(DESYNC).causes[0].message


@pytest.mark.parametrize(
    ("line", "culprit", "answered"),
    [
        (
            "RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms",
            "ranks 4, 5, 6, 7",
            True,
        ),
        (
            "Not all ranks joining collective for group 0:default_pg collective nccl:all_reduce Missing ranks are {3}",
            "rank 3",
            True,
        ),
        (
            "EI0002: [PID: 2969] The wait execution of the Notify register times out. Reason: The Notify register has not received the Notify record from remote rank: [24].",
            "rank 24",
            False,
        ),
        (
            "[rank1]:[F304 12:00:00.0 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog got stuck for 480 seconds",
            None,
            False,
        ),
    ],
)
def test_reports_name_who_is_missing(line: str, culprit: str | None, answered: bool) -> None:
    assert first(line)[1:] == (culprit, answered)


def test_a_rank_with_no_parameters_is_none_but_a_failed_exchange() -> None:
    line = "[rank2]: RuntimeError: DDP expects same model across all ranks, but Rank 2 has 51 params, while rank 0 has inconsistent {} params."
    assert first(line.format(50))[0] == "collective_mismatch"
    assert told(line.format(0)).causes == ()


def test_what_the_rules_look_for_is_kept_while_reading() -> None:
    wanted = needles()
    for text in (
        watchdog(1)[watchdog(1).index("Out=") :],
        status(1, 2, 1),
        bar(47, "30:09"),
        "rank 7: train_dataloader has 3179 batches",
        "EI9999: hccl fftsplus task timeout occurred during task execution",
    ):
        form = text.encode().translate(TABLE)
        assert any(needle in form for needle in wanted), text
