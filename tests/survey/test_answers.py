"""What raw answers of an agent become."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts import Fact, file
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.survey.queries import QueryPlan
from tests.support.asked import interpret

NODE = Node("n1", "n1", 0)
INVENTORY = Inventory("test", (NODE,))
TEXT = Fact("a.fact", file("/a"), lambda text: text.upper())
(READ,) = TEXT.reads(NODE, INVENTORY)


def understood(answers: dict[Read, Any], fact: Fact = TEXT) -> Any:
    return interpret(QueryPlan((), (fact,)), NODE, INVENTORY, answers)["a.fact"]


def test_an_answer_is_parsed() -> None:
    assert understood({READ: ["ok", "x"]}) == "X"


def test_a_missing_file_is_knowledge() -> None:
    fact = Fact("a.fact", file("/a"), lambda text: ("parsed", text))
    assert understood({READ: ["no", "missing", "/a"]}, fact) == ("parsed", None)


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "truncated", "unknown_read"])
def test_any_other_missing_answer_is_its_reason(reason: str) -> None:
    assert understood({READ: ["no", reason, "why"]}) == Absent(reason, "why")
    assert understood({READ: ["no", reason]}) == Absent(reason)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        ["ok"],
        ["yes", "x"],
        "ok",
        {"ok": "x"},
        7,
        [None, None],
        ["OK", "x"],
        [["ok"], "x"],
    ],
)
def test_an_answer_of_another_shape_is_garbled(raw: object) -> None:
    assert understood({READ: raw}).reason == "garbled"


def test_no_answer_at_all_is_garbled() -> None:
    assert understood({}).reason == "garbled"


@pytest.mark.parametrize(
    "error", [ValueError, KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError]
)
def test_an_answer_that_cannot_be_understood_is_garbled_with_the_trouble(
    error: type[Exception],
) -> None:
    def parse(text: str) -> str:
        raise error("trouble")

    found = understood({READ: ["ok", "x"]}, Fact("a.fact", file("/a"), parse))
    assert found.reason == "garbled"
    assert error.__name__ in found.detail
    assert "trouble" in found.detail


def test_only_a_lenient_fact_sees_what_is_missing() -> None:
    two = (Read("file", ("/a",)), Read("file", ("/b",)))
    answers = {two[0]: ["no", "denied", "why"], two[1]: ["ok", "x"]}
    strict = Fact("a.fact", lambda node, inventory: two, lambda a, b: "parsed")
    lenient = Fact("a.fact", lambda node, inventory: two, lambda a, b: (a, b), lenient=True)
    assert understood(answers, strict) == Absent("denied", "why")
    assert understood(answers, lenient) == (Absent("denied", "why"), "x")


def test_an_answer_that_is_nested_too_deep_to_be_printed_is_garbled() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert understood({READ: ["ok", deep]}).reason == "garbled"
