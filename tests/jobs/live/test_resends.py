"""Which links send data again, by the counters of two looks."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.jobs.live.connections import connections_of
from clusterprep.jobs.live.resends import Resends
from clusterprep.survey.watch.changes import Change
from tests.jobs.live.looks import four, rank

ADDRESSES = {f"10.0.0.{number}": f"n{number}" for number in range(1, 5)}
NAMES = {f"n{number + 1}:{100 + number}": f"rank {number}" for number in range(4)}


def counted(resent: int | None, segments: int = 1000) -> dict[str, Any]:
    return {"resent": resent, "segments": segments}


def look(resends: Resends, **sockets: Any) -> tuple[Change, ...]:
    looks = four(*map(rank, range(4)), **sockets)
    return resends.look(connections_of(looks, ADDRESSES), NAMES)


def test_growth_is_told_with_both_nodes_and_once() -> None:
    resends = Resends()
    assert look(resends) == ()
    (change,) = look(resends, r1_r2=counted(40, 2000))
    assert (change.kind, change.nodes) == ("resends", ("n2", "n3"))
    assert "link n2 - n3" in change.message
    assert "40 of 1,000 segments since the last look" in change.message
    (line,) = change.lines
    assert line.startswith("rank 1 to rank 2, 10.0.0.2:")
    assert look(resends, r1_r2=counted(80, 3000)) == ()


def test_the_first_look_tells_what_was_sent_again_before() -> None:
    resends = Resends()
    (change,) = look(resends, r1_r2=counted(40))
    assert "since the job's connections exist" in change.message


def test_it_is_over_after_three_looks_without_growth_and_can_come_again() -> None:
    resends = Resends()
    look(resends, r1_r2=counted(40))
    same = {"r1_r2": counted(40)}
    assert [len(look(resends, **same)) for _ in range(4)] == [0, 0, 1, 0]
    assert [change.kind for change in look(resends, r1_r2=counted(80))] == ["resends"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(counted(0), counted(9), id="few"),
        pytest.param(counted(500), counted(500), id="none"),
        pytest.param(counted(0), counted(50, 100_000), id="less-than-one-in-a-thousand"),
        pytest.param(counted(None), counted(None), id="not-counted"),
    ],
)
def test_what_is_normal_is_not_told(before: dict[str, Any], after: dict[str, Any]) -> None:
    resends = Resends()
    look(resends, r1_r2=before)
    assert look(resends, r1_r2=after) == ()


def test_a_new_connection_with_the_same_ports_counts_from_its_start() -> None:
    resends = Resends()
    look(resends, r1_r2=counted(500, 100_000_000))
    (change,) = look(resends, r1_r2=counted(30, 900))
    assert "30 of 900 segments" in change.message


def test_that_nothing_is_counted_is_said_once() -> None:
    resends = Resends()
    (change,) = look(resends, r1_r2=counted(None))
    assert (change.kind, change.nodes) == ("unknown", ("n2",))
    assert look(resends, r1_r2=counted(None)) == ()
