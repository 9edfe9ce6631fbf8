"""An answer that shows that the login has no right to see the value."""

from __future__ import annotations

import pytest

from clusterprep.facts import Denied, Fact, file
from clusterprep.model import Absent, Inventory, Node
from clusterprep.survey.queries import Queries, QueryPlan

NODE = Node("n1", "n1", 0)
INVENTORY = Inventory("demo", (NODE,))


def parse_size(text: str | None) -> int:
    if text == "":
        raise Denied("only root can read the size")
    return int(text or "0")


def understood(answer: str, lenient: bool = False) -> object:
    fact = Fact("demo.size", file("/proc/demo"), parse_size, lenient=lenient)
    queries = Queries(QueryPlan((), (fact,)), INVENTORY)
    return queries.facts(queries.of(NODE), [["ok", answer]])["demo.size"]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_refused_answer_is_denied_with_the_message(lenient: bool) -> None:
    assert understood("", lenient) == Absent("denied", "only root can read the size")


def test_a_garbled_answer_is_not_denied() -> None:
    found = understood("twelve")
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


def test_an_answer_that_may_be_seen_is_a_value() -> None:
    assert understood("12") == 12
