"""Parts of answers that are equal on many nodes, or many times on one, are read once. Pure.

    @read_once
    def _interface(row: dict[str, Any]) -> Interface: ...

    _interface(row)   # the same object for each row of the same content

An answer as a whole may differ on each node, by an address or a serial number, while most of its
rows are the same everywhere. To read them once saves the time, and to share the value the memory.
A row may be a piece of JSON, `msgspec.Raw`, which is decoded only if it is new (`Fact.pieces`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from clusterprep.errors import LinkLost
from clusterprep.model import Json
from clusterprep.remote.transports.frames import decoded

Value = TypeVar("Value")

# How many are remembered of each kind. Parts are rows of a node, of which a part may be another one
# on each: what is remembered of these is for nothing.
MOST_PARTS = 1024
MOST_TEXTS = 4096
# What is longer is read each time: else nodes that lie could fill the memory.
LONGEST_PART = 4096  # bytes of JSON
LONGEST_TEXT = 256  # characters


class Apart(msgspec.Struct, frozen=True):
    """A part of an answer, and the texts that the node has for itself, which are not in the part.

    The part has the numbers "0", "1", … in their places.
    """

    part: Any
    own: tuple[str, ...] = ()


def read_once(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `parse`, which takes one part of an answer, with one value for equal parts.

    The value must not be changed. Pieces of JSON in the part are decoded for `parse`. Raises
    LinkLost for pieces that no agent writes.
    """

    @functools.lru_cache(maxsize=MOST_PARTS)
    def parse_json(data: bytes) -> Value:
        return parse(strictly_decoded(data))

    @functools.wraps(parse)
    def parse_part(part: Any) -> Value:
        data = as_json(part)
        if len(data) <= LONGEST_PART:
            return parse_json(data)
        return parse(strictly_decoded(data))

    return parse_part


def read_text_once(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return `parse`, which takes a short text, with one value for equal texts.

    The value must not be changed.
    """
    remembered = functools.lru_cache(maxsize=MOST_TEXTS)(parse)

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
        return json.dumps(part, default=_value_of_piece).encode()


def _value_of_piece(piece: Any) -> Json:
    """Return the value of a piece. Raises TypeError for anything else, as `json` demands."""
    if isinstance(piece, msgspec.Raw):
        return strictly_decoded(bytes(piece))
    raise TypeError(f"{type(piece).__name__} is no part of an answer")


def strictly_decoded(data: bytes) -> Json:
    """Return the value of JSON. Raises LinkLost for what no agent writes."""
    try:
        return decoded(data)
    except ValueError as error:
        raise LinkLost("garbled", str(error)) from None
