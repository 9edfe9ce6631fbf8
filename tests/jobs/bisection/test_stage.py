"""What a bisect says and keeps while it makes its runs, and how its limits end it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterprep.errors import Interrupted
from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.files import RunFolder, earlier
from clusterprep.jobs.bisection.search import Search
from clusterprep.jobs.bisection.stage import Desk, Limits, RunOnce, Stopped, follow
from clusterprep.jobs.bisection.state import Measurement, resumed
from clusterprep.model import BisectResult
from tests.jobs.bisection.played import names, played, with_faults

RUN = "20261129-080000-0001"
HERE = Measurement(tuple(names(8)), ("train.py",), 2)
N3 = with_faults([["n3"]])
MADE = len(played(8, N3).runs)  # runs that the whole search takes


def command(number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome:
    """A command that fails where n3 is among the nodes."""
    assert number == len(before) + 1
    if N3(frozenset(nodes)):
        return Outcome("failed", 90.0, "rank 2 on n3 ended with exit code 1")
    return Outcome("passed", 30.0)


class Followed:
    """A bisect that was followed to its end: what it said, what it found."""

    def __init__(
        self, state: Path, run_once: RunOnce, limits: Limits, search: Search | None = None
    ) -> None:
        self.lines: list[str] = []
        self.folder = RunFolder(state, RUN)
        desk = Desk(self.lines.append, self.folder)
        self.result: BisectResult = follow(
            search or Search(HERE.nodes), run_once, HERE, limits, desk
        )


def test_the_cost_is_stated_before_and_each_run_is_told(tmp_path: Path) -> None:
    seen = Followed(tmp_path, command, Limits())
    assert seen.lines[0] == (
        "clusterprep: bisect of 8 nodes: at most 16 runs if one node or pair is at fault, 31 for "
        "two; 31 are allowed (--max-runs)"
    )
    assert seen.lines[1].endswith("so it ends within 5 h 10 min (--max-time)")
    assert seen.lines[2] == (
        "clusterprep: run 1/31 on n[1-8] failed after 90.0 s: rank 2 on n3 ended with exit code 1"
    )
    assert seen.lines[3].endswith("the other 15 runs that one fault takes at most are 22 min")
    assert len(seen.lines) == 3 + MADE
    assert (seen.result.verdict, seen.result.most_runs) == ("fail", 31)


def test_what_the_user_allows_is_stated(tmp_path: Path) -> None:
    seen = Followed(tmp_path, command, Limits(runs=9, seconds=3600, one_run=60))
    assert "; 9 are allowed (--max-runs)" in seen.lines[0]
    assert seen.lines[1] == (
        "clusterprep: a run hangs after 60 s (--run-timeout), so it ends within 9 min (--max-time)"
    )


@pytest.mark.parametrize("allowed", [1, 4, MADE - 1])
def test_no_more_runs_are_made_than_allowed_and_the_rest_later(
    tmp_path: Path, allowed: int
) -> None:
    first = Followed(tmp_path, command, Limits(runs=allowed))
    assert (first.result.verdict, len(first.result.runs)) == ("unknown", allowed)
    assert first.result.message.endswith(f"(--max-runs); --resume {RUN} goes on")
    search = Search(HERE.nodes)
    state, file = earlier(tmp_path, "last")
    resumed(search, state, HERE, file)
    second = Followed(tmp_path, command, Limits(), search)
    assert f", {allowed} of them made before" in second.lines[0]
    assert (second.result.verdict, len(second.result.runs)) == ("fail", MADE)
    assert second.result.runs[:allowed] == first.result.runs


def test_what_stops_a_run_is_told_and_is_no_outcome(tmp_path: Path) -> None:
    def lost(number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome:
        if number == 3:
            raise Stopped("run 3 on n[1-6] has no result: n5 was lost while the job ran")
        return command(number, nodes, before)

    seen = Followed(tmp_path, lost, Limits())
    assert (seen.result.verdict, len(seen.result.runs)) == ("unknown", 2)
    assert "n5 was lost while the job ran" in seen.result.message
    assert len(earlier(tmp_path, RUN)[0].outcomes) == 2


def test_an_interruption_says_how_to_go_on(tmp_path: Path) -> None:
    def interrupted(number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome:
        if number == 2:
            raise Interrupted("interrupted")
        return command(number, nodes, before)

    with pytest.raises(Interrupted, match=f"interrupted; --resume {RUN} goes on"):
        Followed(tmp_path, interrupted, Limits())
    assert len(earlier(tmp_path, RUN)[0].outcomes) == 1


def test_a_bisect_that_has_ended_is_told_again_without_a_run(tmp_path: Path) -> None:
    whole = Followed(tmp_path, command, Limits())
    search = Search(HERE.nodes)
    state, file = earlier(tmp_path, RUN)
    resumed(search, state, HERE, file)

    def none(number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome:
        raise AssertionError("a run was made")

    assert Followed(tmp_path, none, Limits(), search).result == whole.result
