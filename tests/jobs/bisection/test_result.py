"""The result of a search: its verdict, its culprits, and the runs that show them."""

from __future__ import annotations

import pytest

from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.result import result_of
from clusterprep.jobs.bisection.search import Search
from clusterprep.model import BisectResult
from tests.jobs.bisection.played import played, with_faults

COMMAND = ("train.py",)


def result(search: Search, stopped: str = "") -> BisectResult:
    return result_of(search, COMMAND, 31, stopped, "/logs")


def test_a_node_is_shown_by_runs_with_it_and_without_it() -> None:
    seen = result(played(8, with_faults([["n3"]])))
    (culprit,) = seen.culprits
    assert (seen.verdict, culprit.kind, culprit.nodes) == ("fail", "node", ("n3",))
    assert culprit.cause.startswith("the command fails wherever n3 is among the nodes")
    with_it, without = culprit.evidence[:3], culprit.evidence[3:]
    assert all("n[" in line and " failed after 5.0 s" in line for line in with_it)
    assert len(without) == 3
    assert all(" passed in 5.0 s" in line for line in without)
    numbers = [run.number for run in seen.runs]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_pair_is_shown_by_runs_with_one_of_the_two() -> None:
    seen = result(played(8, with_faults([["n2", "n7"]])))
    (culprit,) = seen.culprits
    assert (culprit.kind, culprit.nodes) == ("link", ("n2", "n7"))
    assert "on n[2,7] failed" in culprit.evidence[0]
    for line in culprit.evidence[3:]:
        number = int(line.split()[1])
        assert len({"n2", "n7"} & {*seen.runs[number - 1].nodes}) == 1


def test_a_slow_node_is_told_to_be_slow() -> None:
    seen = result(played(8, with_faults([["n6"]]), slow=True))
    (culprit,) = seen.culprits
    assert "is slow wherever n6" in culprit.cause
    assert "was slow: 9.0 s" in culprit.evidence[0]
    assert {run.ended for run in seen.runs} == {"passed", "slow"}


def test_a_node_with_which_it_always_hangs_is_told_so() -> None:
    search = Search(["n1", "n2", "n3", "n4"])
    while search.found is None:
        bad = "n4" in search.next
        search.take(Outcome("hung", 60.0, "rank 3 hangs") if bad else Outcome("passed", 3.0))
    (culprit,) = result(search).culprits
    assert culprit.cause.startswith("the command hangs wherever n4")
    assert culprit.evidence[0].endswith("hung for 60.0 s: rank 3 hangs")


def test_without_a_fault_it_passes() -> None:
    seen = result(played(8, lambda nodes: False))
    assert (seen.verdict, seen.culprits, seen.message) == ("pass", (), "")


@pytest.mark.parametrize("made", [1, 6])
def test_what_was_stopped_is_not_known(made: int) -> None:
    search = Search(["n1", "n2", "n3", "n4"])
    for _ in range(made):
        search.take(Outcome("failed" if "n1" in search.next else "passed", 3.0))
    seen = result(search, "the time is up (--max-time)")
    assert (seen.verdict, seen.message) == ("unknown", "the time is up (--max-time)")
    assert len(seen.runs) == made
    assert all(culprit.confidence == 0.5 for culprit in seen.culprits)
