"""A value that follows from a fleet is worked out once for it, and anew for a changed copy."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.model import Fleet
from clusterprep.model.memoize import once_per_facts, once_per_fleet
from tests.support.fleet import fleet

SEEN = fleet(n1={"a": 1}, n2={"a": 2})


def test_once_for_each_fleet() -> None:
    calls: list[Fleet] = []

    @once_per_fleet
    def size(seen: Fleet) -> int:
        calls.append(seen)
        return len(seen.snapshots)

    other = replace(SEEN, snapshots={"n1": SEEN.snapshots["n1"]})
    assert [size(SEEN), size(SEEN), size(other), size(SEEN)] == [2, 2, 1, 2]
    assert len(calls) == 2


def test_what_was_worked_out_makes_no_fleet_unequal() -> None:
    once = fleet(n1={"a": 1})
    once.derived["x"] = 1
    assert once == fleet(n1={"a": 1})


def test_what_follows_from_some_facts_stays_while_others_are_added() -> None:
    calls: list[Fleet] = []

    @once_per_facts("a")
    def total(seen: Fleet) -> int:
        calls.append(seen)
        return sum(snapshot.facts["a"] for snapshot in seen.snapshots.values())

    before = fleet(n1={"a": 1}, n2={"a": 2})
    assert total(before) == 3
    beside = before.with_facts({"n1": {"b": 9}, "n2": {"b": 9}})
    other = beside.with_facts({"n2": {"a": 5}})
    assert [total(beside), total(other), total(before)] == [3, 6, 3]
    assert calls == [before, other]
