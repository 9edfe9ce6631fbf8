"""A time-out says which limit fired, what its default is, and where it is set."""

from __future__ import annotations

import pytest

from tests.jobs.diagnose.test_ranking import told

GROUP = (
    "[Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)={ms}) "
    "ran for {ms} milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (
            GROUP.format(ms=600000),
            ["NCCL process group's: 600 s", "the default of torch since 2.2", "timeout=…"],
        ),
        (GROUP.format(ms=1800000), ["1800 s", "not the default", "before 2.2 it was"]),
        (GROUP.format(ms=5400000), ["5400 s", "which is 600 s"]),
        (
            "DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
            ["1800 s", "Lightning"],
        ),
        (
            "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            ["600 s", "torchrun"],
        ),
        (
            "DistStoreError: Timed out after 77 seconds waiting for clients. 1/2 clients joined.",
            ["77 s", "not a default"],
        ),
        (
            (
                "The client socket has timed out after 600000ms "
                "while trying to connect to (n1, 29500)."
            ),
            ["store's: 600 s"],
        ),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            ["torchrun's", "600 s", "join_timeout"],
        ),
        (
            "[Rank 1] Process group watchdog got stuck for 480 seconds",
            ["heartbeat: 480 s", "HEARTBEAT_TIMEOUT_SEC"],
        ),
        (
            "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
            ["gloo", "1800 s"],
        ),
        (
            "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0",
            ["300 s", "bare TCPStore"],
        ),
        (
            (
                "NCCL WARN socketPollConnect: connect to 10.9.0.7<4> returned "
                "Connection timed out, exceeded error retry count after 35 attempts"
            ),
            ["35", "NCCL_SOCKET_RETRY_CNT"],
        ),
        (
            "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms",
            ["monitored_barrier: 30 s", "1800 s"],
        ),
        (
            GROUP.format(ms=1800000).replace("WorkNCCL", "WorkHCCL"),
            ["HCCL process group: 1800 s", "timeout=…"],
        ),
        (
            (
                "EI9999: hccl fftsplus task timeout occurred during task execution, "
                "timeout:30min(default)."
            ),
            ["HCCL_EXEC_TIMEOUT"],
        ),
        (
            "NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
            ["NCCL_IB_TIMEOUT"],
        ),
    ],
)
def test_the_limit_that_fired_is_named(line: str, parts: list[str]) -> None:
    message = told(line).causes[0].message
    assert [part for part in parts if part not in message] == []


def test_the_default_is_that_of_the_torch_in_the_log() -> None:
    old = told("PyTorch version: 2.0.1", GROUP.format(ms=1800000)).causes[0].message
    assert "1800 s, the default of torch 2.0" in old


def test_a_time_out_that_follows_is_told_beside_the_cause() -> None:
    found = told(
        "n1:7:7 [7] init.cc:981 NCCL WARN Invalid rank requested : 7/4",
        "DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    )
    assert found.causes[0].cause.name == "world_size_mismatch"
    assert "1800 s" in found.causes[0].message


def test_a_limit_that_a_line_only_mentions_has_not_fired() -> None:
    oom = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    mentioned = (
        "[Rank 1] Collective WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) "
        "raised the following async exception: NCCL error: unhandled system error"
    )
    options = "ProcessGroupNCCL initialization options: size: 8, TIMEOUT(ms): 600000"
    assert "limit" not in told(oom, mentioned, options).causes[0].message
    assert "600 s" in told(oom, GROUP.format(ms=600000)).causes[0].message
