"""Parts of answers that are equal on many nodes, or many times on one, are read once. Pure.

    @read_once
    def _interface(row: dict[str, Any]) -> Interface: ...

    _interface(row)   # the same object for each row of the same content

An answer as a whole may differ on each node, by an address or a serial number, while most of its
rows are the same everywhere. To read them once saves the time, and to share the value the memory.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")

MOST_PARTS = 4096  # that are remembered of each kind
# What is longer is read each time: else nodes that lie could fill the memory.
LONGEST_PART = 4096  # bytes of JSON
LONGEST_TEXT = 256  # characters


def read_once(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `parse`, which takes one part of an answer, with one value for equal parts.

    The value must not be changed.
    """

    @functools.lru_cache(maxsize=MOST_PARTS)
    def parse_json(data: bytes) -> Value:
        return parse(_from_json(data))

    @functools.wraps(parse)
    def parse_part(part: Any) -> Value:
        data = as_json(part)
        return parse_json(data) if len(data) <= LONGEST_PART else parse(part)

    return parse_part


def read_text_once(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return `parse`, which takes a short text, with one value for equal texts.

    The value must not be changed.
    """
    remembered = functools.lru_cache(maxsize=MOST_PARTS)(parse)

    @functools.wraps(parse)
    def parse_text(text: str) -> Value:
        return remembered(text) if len(text) <= LONGEST_TEXT else parse(text)

    return parse_text


@read_text_once
def shared_text(text: str) -> str:
    """Return the text, as one object for equal texts."""
    return text


def as_json(part: Any) -> bytes:
    """Return JSON of a part of an answer. It is the same for equal parts only."""
    try:
        return msgspec.json.encode(part)
    except UnicodeEncodeError:  # half of a surrogate pair, which stands for a byte that is no UTF-8
        return json.dumps(part).encode()


def _from_json(data: bytes) -> Any:
    """Return the value of what `as_json` wrote."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:  # of half of a surrogate pair, as above
        return json.loads(data)
