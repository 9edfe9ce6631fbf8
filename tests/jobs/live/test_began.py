"""What the kernel said since a job began, by the first look at it."""

from __future__ import annotations

import pytest

from clusterprep.facts.kernel_log import KernelLog, KernelRecord
from clusterprep.jobs.live.began import since_began
from clusterprep.jobs.live.grouping import jobs_of
from clusterprep.model import Absent
from clusterprep.survey.watch.changes import Change
from tests.jobs.live.looks import four, rank

# Ranks started 10 s after the boot of their nodes, as `rank` has it; that of n2 later.
LOOKS = four(rank(0), rank(1, started=5000), rank(2), rank(3))
JOBS, _ = jobs_of(LOOKS, ())


def log(*seconds: float, first: float = 0.0) -> KernelLog:
    records = tuple(
        KernelRecord(number, at, 3, 1, at, f"at {at:.0f}") for number, at in enumerate(seconds)
    )
    return KernelLog(100.0, int(first), first, records)


def told(n2: KernelLog | Absent | None) -> tuple[Change, ...]:
    """What is told if the other nodes' kernels said nothing."""
    logs: dict[str, KernelLog | Absent] = dict.fromkeys(("n1", "n3", "n4"), log())
    if n2 is not None:
        logs["n2"] = n2
    return since_began(JOBS, LOOKS, logs)


def test_lines_that_are_newer_than_the_first_rank_of_their_node_are_told() -> None:
    (change,) = told(log(20.0, 49.0, 51.0, 60.0))
    assert (change.kind, change.nodes, change.lines) == ("since", ("n2",), ("at 51", "at 60"))


def test_of_many_lines_the_newest_are_shown() -> None:
    (change,) = told(log(*range(60, 68)))
    assert (change.lines[-1], len(change.lines), change.left_out) == ("at 67", 5, 3)


@pytest.mark.parametrize(
    ("n2", "said"),
    [
        pytest.param(None, "it was not asked", id="not-asked"),
        pytest.param(Absent("denied", "kmsg needs root"), "denied: kmsg needs root", id="denied"),
        pytest.param(log(first=55.0), "does not have the first 5 s of the job", id="lost"),
    ],
)
def test_what_is_not_known_is_said(n2: KernelLog | Absent | None, said: str) -> None:
    (change,) = told(n2)
    assert (change.kind, change.nodes) == ("unknown", ("n2",))
    assert said in change.message


def test_a_quiet_log_is_no_news() -> None:
    assert told(log(20.0)) == ()
