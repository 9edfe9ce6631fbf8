"""What diagnose says of the logs of five real incidents, which tests/incidents tells from before the job on."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.jobs.diagnose.test_ranking import names, told

TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={out}, "
    "Timeout(ms)=600000) ran for 600068 milliseconds before timing out."
)
GUESS = "[rank{rank}]:[W304 17:41:12.735149131 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank {rank}] using GPU {gpu} to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect."


def test_a_mixed_box_whose_ranks_guess_their_gpus() -> None:
    """I-1: the mapping is named, and harmless as long as it is right."""
    (found,) = told(GUESS.format(rank=3, gpu=3)).causes
    assert (found.cause.name, found.severity) == ("benign_device_unknown_barrier", "benign")
    assert "rank 3 uses GPU 3" in found.message


def test_ranks_that_guess_one_gpu_are_no_harmless_matter() -> None:
    lines = [f"n1: {GUESS.format(rank=rank, gpu=0)}" for rank in (0, 1)]
    first = told(*lines).causes[0]
    assert (first.cause.name, first.culprit) == ("duplicate_gpu", "ranks 0 and 1 on GPU 0 of n1")


@pytest.mark.parametrize(
    ("ranks", "culprit"),
    [
        pytest.param((0, 1, 3), "rank 2", id="one-is-missing"),
        pytest.param((None,), None, id="as-it-was-posted"),
    ],
)
def test_ranks_out_of_step_while_saving(ranks: tuple[int | None, ...], culprit: str | None) -> None:
    """I-2: ranks out of step, who was missing where the log shows it, and seeds instead of the network."""
    said = TIMEOUT.format(seq=1474236, op="_ALLGATHER_BASE", numel=262675456, out=1050701824)
    lines = [
        f"[E ProcessGroupNCCL.cpp:563] {'' if rank is None else f'[Rank {rank}] '}{said}"
        for rank in ranks
    ]
    first = told(*lines).causes[0]
    assert (first.cause.name, first.culprit) == ("rank_desync_uneven_data", culprit)
    assert "seed" in first.cause.remedy
    assert first.confidence < 0.5  # the log shows who did not come, and not why
    assert "600 s" in first.message


def test_never_starts() -> None:
    """I-3: three lines, one cause first; the plug-in line is harmless, and the limit that fired is named."""
    found = told(
        "n2:71:71 [3] init.cc:981 NCCL WARN Invalid rank requested : 7/4",
        "n2:71:71 [3] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 4/8 clients joined.",
    )
    assert names(found) == ["world_size_mismatch", "rendezvous_incomplete", "benign_no_net_plugin"]
    assert found.causes[0].culprit == "rank 7 (world size 4)"
    assert "1800 s" in found.causes[0].message
    assert "Lightning" in found.causes[0].message


def test_an_old_kernel_and_a_time_out_in_this_order() -> None:
    """I-4: the kernel's warning first, the time-out after it."""
    said = TIMEOUT.format(seq=3, op="BROADCAST", numel=253440000, out=253440000)
    found = told(
        "Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.",
        *(f"[E ProcessGroupNCCL.cpp:563] [Rank {rank}] {said}" for rank in range(3)),
    )
    assert names(found) == ["nccl_bug_or_version", "p2p_acs_iommu"]
    assert "kernel 5.4.0" in found.causes[0].message
    assert "600 s" in found.causes[1].message


def test_the_same_kernel_without_a_hang_is_not_blamed() -> None:
    line = "Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang."
    assert told(line).causes == ()


def test_nodes_that_start_different_numbers() -> None:
    """I-5: which node started how many."""
    found = told(
        "n1: [INFO|cli.py:96] Initializing 8 distributed tasks at: n1:29500",
        "n2: [INFO|cli.py:96] Initializing 8 distributed tasks at: n1:29500",
        "n3: [INFO|cli.py:96] Initializing 4 distributed tasks at: n1:29500",
    )
    (first,) = found.causes
    assert (first.cause.name, first.culprit) == ("world_size_mismatch", "host n3")
    assert "n1 started 8, n2 started 8, n3 started 4" in first.message
