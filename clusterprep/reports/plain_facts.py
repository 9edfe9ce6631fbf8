"""Encode facts by msgspec where its text is, byte by byte, that of json: ten times as fast. Pure.

The two write other floats, characters beyond ASCII and sets. So a fact is taken only if it is made
of types that both write alike, and its text only if nothing in it may differ. Of a fact with very
small or large numbers msgspec makes plain types, which json then writes.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

_OURS = __name__.partition(".")[0] + "."
_SCALARS = frozenset((type(None), bool, int, float, str))
_KEYS = frozenset((int, str))
_ADDRESSES = (IPv4Address, IPv6Address)
_MAPPINGS = (dict, Mapping)
_SEQUENCES = (list, tuple, Sequence)
_LEVELS = 8  # of containers; a fact that nests deeper is left to json

# The end of a number with an exponent, which no string has but in its middle. The expression begins
# with a letter that is searched for in C: a class of characters would take thirty times as long.
_EXPONENT = re.compile(rb"e(?<=[0-9]e)-?[0-9]{1,3}(?:[,\]}]|$)")
_SMALL = b"0.0000"  # json writes numbers that begin so with an exponent
_DELETE = b"\x7f"  # a control character that json alone escapes
_ABSENT = b'{"reason": '  # an absent value, for which the report has other names


def encode_plain(fact: object) -> str | None:
    """Return the text that json.dumps would give of a fact, or None if it may differ."""
    if not _are_plain((fact,), _LEVELS):
        return None
    try:
        data = msgspec.json.format(_ENCODER.encode(fact), indent=0)
        if _ABSENT in data:
            return None
        if _SMALL in data or _DELETE in data or _EXPONENT.search(data):
            # Round trips take less than 0.1 ms, so nearly every node has such numbers.
            return _JSON.encode(msgspec.to_builtins(fact, enc_hook=_encode_address))
        return data.decode("ascii")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _encode_address(value: object) -> str:
    """Return an address as text. Raises TypeError for anything else that msgspec does not know."""
    if isinstance(value, _ADDRESSES):
        return str(value)
    raise TypeError(f"no text is known for {type(value).__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_address)
_JSON = json.JSONEncoder(allow_nan=False)


# ---------------------------------------------------------------- values


def _are_plain(values: Collection[object], levels: int) -> bool:
    """Return whether values are made of types that both encoders write alike."""
    kinds: set[type] = set(map(type, values))
    for kind in kinds - _SCALARS:
        if kind in (dict, list, tuple):
            inner = _contents(values, kind)
            if levels == 0 or inner is None or not _are_plain(inner, levels - 1):
                return False
        elif not _is_plain_kind(kind):
            return False
    return True


def _contents(values: Iterable[Any], kind: type) -> list[object] | None:
    """Return what the containers of one kind hold, or None if a key is neither text nor a number.

    The types of keys and items are collected in C, as a fact has thousands of them.
    """
    contents: list[object] = []
    for value in values:
        held: Any = value
        if type(value) is not kind:
            continue
        if kind is dict:
            if not _KEYS.issuperset(map(type, held)):
                return None
            held = held.values()
        contents.extend(held)
    return contents


# ---------------------------------------------------------------- declared types


@functools.cache
def _is_plain_kind(kind: type) -> bool:
    """Return whether all values of a class are plain, by the declared types of its fields.

    Fields of our own classes are trusted to have these types. What a node may have brought there
    instead was JSON, which both encoders write alike too.
    """
    if kind in _ADDRESSES:
        return True
    if not issubclass(kind, Struct) or not kind.__module__.startswith(_OURS):
        return False
    if kind.__struct_encode_fields__ != kind.__struct_fields__ or kind.__struct_config__.tag:
        return False
    try:
        hints = get_type_hints(kind)
        return all(_is_plain_hint(hints[name]) for name in kind.__struct_fields__)
    except (NameError, RecursionError):  # a type that is not there at run time, or of itself
        return False


def _is_plain_hint(hint: Any) -> bool:
    """Return whether all values of a declared type are plain."""
    if hint in _SCALARS:
        return True
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is None:
        return isinstance(hint, type) and _is_plain_kind(hint)
    if origin is Literal:
        return _SCALARS.issuperset(map(type, arguments))
    if origin in _MAPPINGS:
        key, value = arguments
        return key in _KEYS and _is_plain_hint(value)
    if origin in _SEQUENCES:
        return all(argument is Ellipsis or _is_plain_hint(argument) for argument in arguments)
    if origin in (Union, types.UnionType):
        return all(map(_is_plain_hint, arguments))
    return False
