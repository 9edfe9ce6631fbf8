"""Equal answers are decoded and parsed once; what never comes again is not kept."""

from __future__ import annotations

import msgspec
import pytest

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.survey import meanings
from clusterprep.survey.meanings import Meanings

A, B = Read("file", ("/a",)), Read("file", ("/b",))
NODE = Node("n1", "n1", 0)
INVENTORY = Inventory("test", (NODE,))


class Counted:
    """A parser that notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __call__(self, *answers: object) -> tuple[object, ...]:
        self.calls.append(answers)
        return answers


def piece(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def test_equal_pieces_are_one_value() -> None:
    parse = Counted()
    known = Meanings([Fact("a", parse=parse)])
    long = '["ok", "' + "x" * 100 + '"]'
    values = [known.of([A], ((0,),), [piece(long)])["a"] for _ in range(4)]
    assert len({id(value) for value in values}) == len(parse.calls) == 1
    assert known.of([A], ((0,),), [piece('["ok", "y"]')]) == {"a": ("y",)}
    assert known.of([A], ((0,),), [piece(long)])["a"] is values[0]


def test_a_fact_of_two_answers_is_parsed_for_each_pair_of_them() -> None:
    parse = Counted()
    known = Meanings([Fact("both", parse=parse), Fact("one", parse=str)])
    layout = ((0, 1), (1,))
    pairs = [("1", "2"), ("1", "3"), ("1", "2"), ("2", "1")]
    seen = [
        known.of([A, B], layout, [piece(f'["ok", {first}]'), piece(f'["ok", {second}]')])
        for first, second in pairs
    ]
    assert [row["both"] for row in seen] == [(1, 2), (1, 3), (1, 2), (2, 1)]
    assert [row["one"] for row in seen] == ["2", "3", "2", "1"]
    assert list(seen[0]) == ["both", "one"], "in the order of the plan"
    assert parse.calls == [(1, 2), (1, 3), (2, 1)]


def test_answers_that_equal_those_of_the_node_before_are_not_looked_at() -> None:
    parse, both = Counted(), Counted()
    known = Meanings([Fact("both", parse=both), Fact("one", parse=parse)])
    for second in (1, 2, 3):
        values = known.of([A, B], ((0, 1), (0,)), [piece('["ok", 0]'), piece(f'["ok", {second}]')])
        assert values == {"both": (0, second), "one": (0,)}
        values.clear()  # what the caller does with its facts is no matter of other nodes
    assert len(parse.calls) == 1
    assert len(both.calls) == 3


def test_a_parser_that_changes_an_answer_changes_that_of_no_other_node() -> None:
    def parse(rows: list[int], other: int) -> int:
        return rows.pop() + other

    known = Meanings([Fact("both", parse=parse)])
    seen = []
    for other in (10, 20, 30):
        answers = [piece('["ok", [1, 2]]'), piece(f'["ok", {other}]')]
        seen.append(known.of([A, B], ((0, 1),), answers)["both"])
    assert seen == [12, 22, 32]


def test_a_node_that_is_lost_changes_nothing_for_the_next() -> None:
    known = Meanings([Fact("a"), Fact("b")])
    layout = ((0,), (1,))
    good = [piece('["ok", 1]'), piece('["ok", 2]')]
    assert known.of([A, B], layout, good) == {"a": 1, "b": 2}
    with pytest.raises(LinkLost):
        known.of([A, B], layout, [piece('["ok", 3]'), piece('["ok", NaN]')])
    assert known.of([A, B], layout, good) == {"a": 1, "b": 2}


def test_values_and_pieces_mean_the_same() -> None:
    known = Meanings([Fact("a", parse=repr)])
    as_value = known.of([A], ((0,),), [["ok", {"x": [1, 1.0, True, None, "ü"]}]])
    text = '["ok", {"x": [1, 1.0, true, null, "\\u00fc"]}]'
    assert known.of([A], ((0,),), [piece(text)]) == as_value


@pytest.mark.parametrize("text", ["1" * 30, "[" * 80 + "]" * 80, "NaN"])
def test_a_piece_that_no_agent_writes_loses_the_node(text: str) -> None:
    known = Meanings([Fact("a")])
    with pytest.raises(LinkLost) as raised:
        known.of([A], ((0,),), [piece(text)])
    assert raised.value.reason == "garbled"


def test_a_text_that_is_too_long_is_not_cut() -> None:
    known = Meanings([Fact("a", parse=len)])
    text = '["ok", "' + "x" * (MAX_TEXT + 1) + '"]'
    assert known.of([A], ((0,),), [piece(text)])["a"].reason == "truncated"
    known.close()


def test_answers_that_never_come_again_are_not_kept_without_end() -> None:
    parse = Counted()
    known = Meanings([Fact("a", parse=parse)])
    most = meanings.MOST_UNREPEATED
    for number in range(most + 10):
        known.of([A], ((0,),), [piece(f'["ok", {number}]')])
    del parse.calls[:]
    for number in (0, most - 1, most, most + 9):
        assert known.of([A], ((0,),), [piece(f'["ok", {number}]')]) == {"a": (number,)}
    assert parse.calls == [(most,), (most + 9,)]
