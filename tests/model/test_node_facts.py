"""The facts of a node are a mapping like any other, with the names of all nodes but once."""

from __future__ import annotations

import pytest

from clusterprep.model.node_facts import Rows
from tests.support.fleet import fleet

FIRST = {"a": 1, "b": None}


def test_facts_are_a_mapping() -> None:
    facts = Rows().extended(FIRST, {"c": 3})
    whole = {"a": 1, "b": None, "c": 3}
    assert facts == whole
    assert (list(facts), tuple(facts.values()), len(facts)) == (list("abc"), (1, None, 3), 3)
    assert (facts["b"], facts.get("b", 9), facts.get("d", 9), "d" in facts) == (
        None,
        None,
        9,
        False,
    )
    assert {**facts} == whole
    with pytest.raises(KeyError):
        facts["d"]


def test_a_fact_of_the_same_name_is_replaced_in_its_place() -> None:
    rows = Rows()
    facts = rows.extended(rows.extended(FIRST, {"c": 3}), {"a": 5, "d": 4})
    assert list(facts.items()) == [("a", 5), ("b", None), ("c", 3), ("d", 4)]


def test_nodes_that_were_asked_the_same_share_the_names() -> None:
    first = fleet(n1={"a": 1}, n2={"a": 2}, n3={"z": 3})
    added = first.with_facts({name: {"b": 4} for name in first.snapshots})
    again = added.with_facts({name: {"c": 5} for name in first.snapshots})
    for of in (added, again):
        places = [of.snapshots[name].facts.places for name in ("n1", "n2", "n3")]  # type: ignore[attr-defined]
        assert places[0] is places[1]
        assert places[0] is not places[2]
    assert again.fact("n3", "z") == 3
    assert again.fact("n2", "c") == 5
