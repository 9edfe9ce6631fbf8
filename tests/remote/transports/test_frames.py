"""Answers in pieces: what they are decoded to, and what is refused, is as for a whole frame."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from clusterprep.remote.transports.frames import DEEPEST, PIECE_LEVEL, decoded, parsed, plain

DEEP = DEEPEST - PIECE_LEVEL  # levels that one answer may have


def frame(*answers: str) -> bytes:
    return f'{{"id": 7, "answers": [{", ".join(answers)}]}}'.encode()


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * (levels - 1) + "[]" + closing * (levels - 1)


@pytest.mark.parametrize(
    "answer",
    [
        "null",
        "true",
        "-0",
        "1.0",
        "1e5",
        "18446744073709551615",
        "-9223372036854775808",
        "0.12345678901234567890123",
        '"00000000000000000000000000000000"',
        r'"a \"quoted\" \\ text [[[{"',
        r'"\ud83d\ude00"',
        r'"half of a pair: \udcff"',
        r'{"\udcff": ["ok", {}]}',
        nested(DEEP),
        nested(DEEP, '{"a": ', "}"),
    ],
)
def test_a_piece_is_decoded_as_a_whole_frame_would_be(answer: str) -> None:
    whole = parsed(frame('["ok", 1]', answer))
    pieces = plain(parsed(frame('["ok", 1]', answer), in_pieces=True))
    assert repr(pieces) == repr(whole)  # which tells 1, 1.0 and True apart
    assert pieces["answers"][1] == json.loads(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "1" * 21,
        "-" + "1" * 20,
        '{"a": [1, ' + "9" * 400 + "]}",
        "1e999",
        "NaN",
        "-Infinity",
        nested(DEEP + 1),
        nested(DEEP + 1, '{"a": ', "}"),
        nested(DEEP // 2 + 2, '[{"a": ', "}]"),
        nested(900),
        nested(100_000),
        # Brackets within texts are none.
        '["]",' * DEEP + nested(1) + ',"["]' * DEEP,
        r'["\"]",' * DEEP + nested(1) + r',"\\["]' * DEEP,
        '"\x01"',
        "[1,]",
        "tru",
    ],
)
def test_what_is_refused_of_a_whole_frame_is_refused_of_a_piece(answer: str) -> None:
    with pytest.raises(ValueError, match="an answer is"):
        parsed(frame(answer))
    with pytest.raises(ValueError, match="an answer is"):
        plain(parsed(frame(answer), in_pieces=True))


def test_nothing_of_a_look_is_decoded_before_it_is_needed() -> None:
    answers = parsed(frame('["ok", 1]', "1" * 21), in_pieces=True)["answers"]
    assert [type(answer) for answer in answers] == [msgspec.Raw, msgspec.Raw]
    assert decoded(bytes(answers[0])) == ["ok", 1]


@pytest.mark.parametrize(
    "other",
    [
        {"id": 1},
        {"id": 1, "answers": "x"},
        {"id": 1, "answers": [["ok", 1]], "more": 0},
        {"answers": [["ok", 1]]},
        {"beat": 1},
    ],
)
def test_other_frames_are_values(other: dict[str, Any]) -> None:
    assert parsed(json.dumps(other).encode(), in_pieces=True) == other
    assert plain(other) == other
