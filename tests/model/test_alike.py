"""Classes of nodes with the same settings and the same values of facts, or of parts of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.model import NOT_ASKED, Absent, Fleet
from clusterprep.model.alike import alike_nodes, settings_of
from clusterprep.model.fact_columns import Part, absences, column_of, columns
from tests.support.fleet import fleet

VALUES = ("x", "y", "z", Absent("denied"))
LENGTH = Part("serial", len)


def names(of: Fleet, *facts: str | Part) -> list[list[str]]:
    """The names of each class of all nodes."""
    return [[node.name for node in nodes] for nodes in alike_nodes(of, of.reached, facts)]


def test_nodes_with_one_value_in_memory_are_one_class() -> None:
    of = fleet(n1={"a": "x"}, n2={"a": "y"}, n3={"a": "x"}, n4={})
    assert names(of, "a") == [["n1", "n3"], ["n2"], ["n4"]]
    assert names(of) == [["n1", "n2", "n3", "n4"]]


def test_other_settings_make_another_class() -> None:
    of = fleet(n1={}, n2={}, n3={}, some={"n2": {"require": {"a": "1"}}})
    assert names(of) == [["n1", "n3"], ["n2"]]


def test_nodes_whose_parts_are_equal_are_one_class() -> None:
    """Equal parts need not be one object, and what is absent has no part."""
    denied = Absent("denied")
    of = fleet(n1={"serial": "123"}, n2={"serial": "456"}, n3={"serial": denied}, n4={"serial": ""})
    assert names(of, "serial") == [["n1"], ["n2"], ["n3"], ["n4"]]
    assert names(of, LENGTH) == [["n1", "n2"], ["n3"], ["n4"]]


def test_classes_of_some_nodes_have_no_others() -> None:
    of = fleet(n1={"a": "x"}, n2={"a": "x"}, n3={"a": "y"}, n4={"a": "x"})
    classes = alike_nodes(of, of.reached[1:], ("a",))
    assert [[node.name for node in nodes] for nodes in classes] == [["n2", "n4"], ["n3"]]
    assert list(alike_nodes(of, (), ("a",))) == []


@given(
    st.lists(st.tuples(*[st.sampled_from(VALUES)] * 3), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_classes_are_those_of_a_look_at_each_node(
    rows: list[tuple[Any, ...]], left_out: set[int]
) -> None:
    facts = ("a", "b", "c")
    of = fleet(
        **{f"n{number}": dict(zip(facts, row, strict=True)) for number, row in enumerate(rows)}
    )
    nodes = [node for place, node in enumerate(of.reached) if place not in left_out]
    expected: dict[object, list[str]] = {}
    for node in nodes:
        values = [id(of.fact(node.name, fact)) for fact in facts]
        expected.setdefault((settings_of(node), *values), []).append(node.name)
    classes = alike_nodes(of, tuple(nodes), facts)
    assert [[node.name for node in members] for members in classes] == list(expected.values())


@pytest.mark.parametrize(
    ("values", "usual", "odd"),
    [
        pytest.param([], NOT_ASKED, [], id="none"),
        pytest.param(["x", "x"], "x", [], id="one-value"),
        pytest.param(["x", "y", "y", "z"], "y", [0, 3], id="most"),
    ],
)
def test_a_column_says_where_the_usual_value_is_not(
    values: list[Any], usual: Any, odd: list[int]
) -> None:
    column = column_of(values)
    assert (column.usual, list(column.odd)) == (usual, odd)


@given(st.lists(st.sampled_from([*VALUES, None]), min_size=1, max_size=9))
def test_absences_are_found_whatever_is_usual(values: list[Any]) -> None:
    facts: dict[str, dict[str, Any]] = {}
    for number, value in enumerate(values):
        facts[f"n{number}"] = {} if value is None else {"a": value}
    of = fleet(**facts)
    expected = {}
    for name in facts:
        value = of.fact(name, "a")
        if isinstance(value, Absent):
            expected[name] = value
    assert absences(of)["a"] == expected
    assert len(columns(of)["a"].values) == len(values)
