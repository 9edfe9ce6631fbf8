"""Equal parts of answers are read once, long ones each time, and what differs never shares."""

from __future__ import annotations

import msgspec
import pytest

from clusterprep.errors import LinkLost
from clusterprep.facts.parts import LONGEST_PART, LONGEST_TEXT, read_once, read_text_once


def test_equal_parts_are_one_value() -> None:
    shared = read_once(lambda row: [row["a"]])
    assert shared({"a": 1, "b": "x"}) is shared({"a": 1, "b": "x"})
    assert shared({"a": 1, "b": "y"}) == [1]


@pytest.mark.parametrize("two", [(1, True), (1, 1.0), (0, False), ("1", 1), ([], {}), (None, "")])
def test_parts_that_only_look_alike_are_not(two: tuple[object, object]) -> None:
    shared = read_once(lambda part: type(part[0]))
    assert [shared([value]) for value in two] == [type(value) for value in two]


def test_a_text_that_is_no_unicode_is_read_as_it_is() -> None:
    assert read_once(lambda part: part["a"])({"a": "\udcff"}) == "\udcff"


@pytest.mark.parametrize("longest", [1, LONGEST_PART])
def test_pieces_of_json_are_decoded(longest: int) -> None:
    shared = read_once(lambda part: part)
    text = "x" * longest
    piece = msgspec.Raw(b'{"a": [1]}')
    assert shared((text, {"b": piece})) == [text, {"b": {"a": [1]}}]
    assert shared(["\udcff" + text, piece]) == ["\udcff" + text, {"a": [1]}]


def test_equal_pieces_are_decoded_once() -> None:
    read: list[object] = []
    shared = read_once(read.append)
    for text in (b"[1]", b"[1]", b"[2]"):
        shared(("a", msgspec.Raw(text)))
    assert read == [["a", [1]], ["a", [2]]]


@pytest.mark.parametrize("text", ["1" * 30, "[" * 80 + "]" * 80, "NaN"])
def test_a_piece_that_no_agent_writes_loses_the_node(text: str) -> None:
    with pytest.raises(LinkLost):
        read_once(lambda part: part)([msgspec.Raw(text.encode())])


def test_what_cannot_be_read_is_said_each_time() -> None:
    shared = read_once(lambda part: int(part["a"]))
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            shared({"a": "x"})


def test_long_ones_are_not_kept() -> None:
    shared = read_once(lambda part: [part])
    assert shared("x" * LONGEST_PART) is not shared("x" * LONGEST_PART)
    texts = read_text_once(lambda text: [text])
    assert texts("x" * LONGEST_TEXT) is texts("x" * LONGEST_TEXT)
    assert texts("x" * (LONGEST_TEXT + 1)) is not texts("x" * (LONGEST_TEXT + 1))


def test_a_text_that_is_none_is_refused_as_before() -> None:
    with pytest.raises((TypeError, AttributeError)):
        read_text_once(lambda text: text.upper())([["x"]])  # type: ignore[arg-type]
