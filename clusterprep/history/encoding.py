"""Encode facts as JSON for the history. Pure.

encoded({"mlx5_0": Device("mlx5_0", (1, 2))}, 2 << 20)   # b'{"mlx5_0":{"name":"mlx5_0",…}}'

msgspec encodes ten times as fast as the json module, but some values otherwise: sets in any order,
bytes in base64, infinity as null, and Absent like any record. So a value is given to it only if
the types of its records say that it holds none of these. Of ten thousand nodes the records are of
a few classes, so that is found out once for each class.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal

import msgspec

from clusterprep.model import Absent, Json
from clusterprep.model.records import field_names

LEFT_OUT = Absent("left out", "too long for the history")

_SCALARS = frozenset((str, int, float, bool, types.NoneType))
_KEYS = frozenset((str, int))
_AS_TEXT = (IPv4Address, IPv6Address)  # unknown to msgspec, which asks for their text
# How msgpack begins infinities and what is no number; JSON has neither.
_NOT_FINITE = (b"\x7f\xf0", b"\xff\xf0", b"\x7f\xf8", b"\xff\xf8")


def encoded(fact: Any, longest: int) -> bytes:
    """Return a fact as JSON; an Absent with the reason if it is too long or is no JSON."""
    try:
        data = _quickly_encoded(fact)
        if data is None:
            data = _SLOW.encode(fact).encode()
        return data if len(data) <= longest else _SLOW.encode(LEFT_OUT).encode()
    except (TypeError, ValueError, RecursionError) as error:
        absent = Absent("garbled", f"it could not be kept: {error}")
        return _SLOW.encode(absent).encode()


def _quickly_encoded(fact: Any) -> bytes | None:
    """Return JSON by msgspec, None where it would write another JSON or none."""
    if not _is_plain(fact):
        return None
    try:
        data = _FAST.encode(fact)
        # Infinities become null, so most facts need no second look.
        is_json = b"null" not in data or not _is_infinite(fact)
    except (ValueError, OverflowError, RecursionError):
        return None  # half of a surrogate pair, or more than 64 bits
    return data if is_json else None


def _is_infinite(fact: Any) -> bool:
    """Return whether a number in a fact may be infinite or none."""
    packed = _PACKER.encode(fact)
    return any(start in packed for start in _NOT_FINITE)


def _is_plain(value: Any) -> bool:
    """Return whether msgspec encodes the value as the json module does."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return _KEYS.issuperset(map(type, value)) and _are_plain(value.values())
    if kind in (tuple, list):
        return _are_plain(value)
    return _is_plain_record(kind)


def _are_plain(values: Collection[Any]) -> bool:
    kinds = set(map(type, values)) - _SCALARS
    if all(map(_is_plain_record, kinds)):
        return True
    return all(map(_is_plain, values))


@functools.cache
def _is_plain_record(kind: Any) -> bool:
    """Return whether all values of a class are plain, by the types of its fields."""
    if kind in _AS_TEXT:
        return True
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct) or kind is Absent:
        return False
    return all(map(_is_plain_hint, typing.get_type_hints(kind).values()))


def _is_plain_hint(hint: Any) -> bool:
    """Return whether all values of an annotation are plain. A record within itself is not."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS or origin is Literal:
        return True
    if origin in (typing.Union, types.UnionType) or origin in (tuple, list, Sequence):
        return all(_is_plain_hint(argument) for argument in arguments if argument is not Ellipsis)
    if origin in (dict, Mapping):
        keys, values = arguments
        return keys in _KEYS and _is_plain_hint(values)
    return isinstance(hint, type) and origin is None and _is_plain_record(hint)


def _plain_level(value: Any) -> Json:
    """Return what the json module cannot encode, one level of it made plain."""
    if isinstance(value, Absent):
        return {
            "absent": value.reason,
            "detail": value.detail,
        }
    names = field_names(type(value))
    if names is not None:
        return {name: getattr(value, name) for name in names}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


_SLOW = json.JSONEncoder(separators=(",", ":"), default=_plain_level)
_FAST = msgspec.json.Encoder(enc_hook=str)
_PACKER = msgspec.msgpack.Encoder(enc_hook=str)
