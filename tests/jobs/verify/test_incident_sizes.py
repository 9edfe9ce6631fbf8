"""The sizes of known incidents on real ranks of this machine.

As far as its memory and the time limit let them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.collect import run_verify
from clusterprep.jobs.verify.schedule import (
    INCIDENT_ALL_GATHER,
    INCIDENT_BROADCAST,
    with_incident_sizes,
)
from clusterprep.model import VerifyResult
from clusterprep.remote.agent.collectives import COLLECTIVES, Broadcast, fitting
from tests.jobs.verify.agents import agents
from tests.jobs.verify.loopback import nodes, plan

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def tried(timeout: float) -> VerifyResult:
    of = nodes()
    with agents(of) as links:
        return judge(run_verify(links, with_incident_sizes(plan(of, sizes=(8,), timeout=timeout))))


def test_the_incidents_are_scaled_down_to_the_time_limit_and_the_report_says_so() -> None:
    result = tried(6.0)
    assert result.verdict == "pass"
    gathered, sent = result.collectives[-2:]
    assert (gathered.op, sent.op) == ("all_gather", "broadcast")
    assert gathered.wrong == sent.wrong == 0
    assert 0 < gathered.bytes < 4 * 4 * INCIDENT_ALL_GATHER
    assert 0 < sent.bytes <= 4 * INCIDENT_BROADCAST
    assert "all_gather 3.914 GiB was scaled down to" in result.message
    assert "time limit" in result.message or "memory" in result.message
    assert [stage.verdict for stage in result.stages] == ["pass"] * len(result.stages)


@contextmanager
def alone(room: float, seconds: float) -> Iterator[SimpleNamespace]:
    """One rank that is a world of its own, with so much memory.

    On which a collective takes so long.
    """
    from clusterprep.remote.agent.collectives import RankContext
    from clusterprep.remote.agent.trial import Cpu

    class Device(Cpu):
        def __init__(self) -> None:
            super().__init__(torch, 0)
            self.seconds = seconds

        def timed(self, collective, limit, blocks=False):  # type: ignore[no-untyped-def]
            super().timed(collective, limit, blocks)
            return self.seconds

        def room(self) -> float:
            return room

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        yield RankContext(torch, Device(), 0, 1)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("room", "seconds", "limit", "size", "why"),
    [
        pytest.param(1 << 40, 1e-6, 1e4, 1 << 30, "", id="fits"),
        pytest.param(1 << 30, 1e-6, 1e4, 1 << 29, "memory", id="half-of-the-memory"),
        # What the rank itself does counts too, by a real clock: beside hours it is nothing on any
        # machine.
        pytest.param(1 << 40, 500.0, 40_000.0, 20 << 20, "time", id="a-quarter-of-the-limit"),
    ],
)
def test_a_size_is_what_memory_and_time_allow(
    room: float, seconds: float, limit: float, size: int, why: str
) -> None:
    step = {"op": "broadcast", "bytes": 1 << 30, "dtype": "float32", "repetitions": 1, "fit": True}
    with alone(room, seconds) as job:
        fits, reason = fitting(job, step, limit)
    assert (fits, reason) == (pytest.approx(size, rel=0.05), why)


def test_what_a_rank_does_for_its_own_part_counts_as_time() -> None:
    """The collective takes nothing here.

    And filling and checking a gigabyte takes longer than a quarter of this.
    """
    step = {"op": "broadcast", "bytes": 1 << 30, "dtype": "float32", "repetitions": 1, "fit": True}
    with alone(1 << 40, 0.0) as job:
        fits, reason = fitting(job, step, 0.05)
    assert fits < 1 << 30
    assert reason == "time"


def test_what_large_ones_take_longer_is_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte takes 0.1 ms here, so a gigabyte would take 0.1 s; but 32 megabytes take 32 s."""

    class Sized(Broadcast):
        def prepare(self, size: int) -> int:
            prepared = int(super().prepare(size))
            self.context.device.seconds = 1e-4 if prepared <= 1 << 20 else 32.0
            return prepared

    monkeypatch.setitem(COLLECTIVES, "broadcast", Sized)
    step = {"op": "broadcast", "bytes": 1 << 30, "dtype": "float32", "repetitions": 1, "fit": True}
    with alone(1 << 40, 0.0) as job:
        fits, reason = fitting(job, step, 2000.0)
    # What this machine itself takes is measured with it, so a busy one fits less. Without the large
    # size all of it would fit.
    assert (fits, reason) == (pytest.approx(500 / 1024 * (1 << 30), rel=0.3), "time")


def test_the_memory_of_a_rank_is_its_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterprep.remote.agent.trial import Cpu

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < Cpu(torch, 0).room() <= total / 4
    assert Path("/proc/meminfo").exists()
