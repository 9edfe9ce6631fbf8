"""Encode values as JSON by msgspec where that is, but for the layout, what json would write. Pure.

    quick = quick_encoder([fact])
    data = quick.encode(fact) if quick else None   # None: left to json

msgspec is ten times as fast, but writes some values otherwise: bytes in base64, sets in any order,
and infinities as null. So a value is given to it only if its types say that
it holds none of these. Values of ten thousand nodes are of a few classes, whose fields are looked
at once for each class.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from clusterprep.model import Absent
from clusterprep.model.joined import Joined

_OURS = __name__.partition(".")[0] + "."
_SCALARS = frozenset((type(None), bool, int, float, str))
_KEYS = frozenset((int, str))
_CONTAINERS = frozenset((dict, Joined, list, tuple))
_ADDRESSES = (IPv4Address, IPv6Address)
_MAPPINGS = (dict, Mapping)
_SEQUENCES_AND_UNIONS = (list, tuple, Sequence, Union, types.UnionType)
_SETS = (frozenset, set, AbstractSet)
_LINK_LOCAL = 0xFE80 << 48  # the first half of an address
_LEVELS = 8  # of containers; a value that nests deeper is left to json

Held = frozenset[type]
"""Which of dict, frozenset and float a value may hold: what needs care."""
_NOTHING: Held = frozenset()


def encode_other(value: object) -> str | dict[str, Any]:
    """Return an address as text, and Joined as a dictionary. Raises TypeError for anything else."""
    if type(value) is Joined:
        return value.merged()
    if type(value) is IPv6Address and value.scope_id is None:
        # The standard library takes five times as long for them, and each node has a dozen: RDMA
        # devices have link-local addresses. Their second half begins behind the first zeros.
        prefix, host = divmod(int(value), 1 << 64)
        if prefix == _LINK_LOCAL and host >> 48:
            parts = (host >> 48, host >> 32 & 0xFFFF, host >> 16 & 0xFFFF, host & 0xFFFF)
            return "fe80::{:x}:{:x}:{:x}:{:x}".format(*parts)
    if isinstance(value, _ADDRESSES):
        return str(value)
    raise TypeError(f"no text is known for {type(value).__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=encode_other)
# Sorts sets, and the keys of dictionaries too, whose order shall stay: not for values with both.
_SORTING = msgspec.json.Encoder(enc_hook=encode_other, order="deterministic")


# What is raised for a class that msgspec does not know, half of a surrogate pair, and more than 64
# bits.
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError)


class QuickEncoder:
    """Encodes values of the types that `held` was found for."""

    def __init__(self, held: Held) -> None:
        self.may_hold_floats = float in held
        self.sorts = frozenset in held  # sets, and the keys of dictionaries with them
        self._encoder = _SORTING if self.sorts else _ENCODER

    def encode(self, value: object) -> bytes | None:
        """Return JSON, which may hold characters beyond ASCII; None if json would write another.

        Infinities and what is no number are null.
        """
        try:
            return self._encoder.encode(value)
        except _REFUSALS:
            return None

    def encode_lines(self, values: Sequence[object]) -> bytes | None:
        """Return a line of JSON for each value; None if json would write another for one of them.

        For many values that is quicker than one by one.
        """
        try:
            return self._encoder.encode_lines(values)
        except _REFUSALS:
            return None


def quick_encoder(values: Collection[object]) -> QuickEncoder | None:
    """Return what encodes all of these values, or None if one of them must be left to json."""
    held: set[type] = set()
    if not _collect(values, held, _LEVELS):
        return None
    if frozenset in held and dict in held:
        return None
    return _encoder_of(frozenset(held))


@functools.cache
def _encoder_of(held: Held) -> QuickEncoder:
    return QuickEncoder(held)


# ---------------------------------------------------------------- values


def _collect(values: Iterable[Any], held: set[type], levels: int) -> bool:
    """Add what values hold to `held`; return whether all of them can be encoded quickly.

    The types of keys and items are collected in C, as a fact has thousands of them.
    """
    kinds = set(map(type, values))
    containers = _containers_in([values], kinds)
    for _ in range(levels + 1):
        if not _add_classes(kinds - _CONTAINERS, held):
            return False
        if not containers:
            return True
        if dict in kinds or Joined in kinds:
            held.add(dict)
        kinds = set()
        contents = []
        for container in containers:
            items: Iterable[Any] = container
            if isinstance(container, (dict, Joined)):
                if not _KEYS.issuperset(map(type, container)):
                    return False
                items = container.values()
            kinds.update(map(type, items))
            contents.append(items)
        containers = _containers_in(contents, kinds)
    return False


def _containers_in(contents: Iterable[Iterable[Any]], kinds: set[type]) -> list[Any]:
    """Return the containers among the items of `contents`, a shared one once.

    `kinds` are the types of all items: where none is a container, they are not gone through.
    """
    if kinds.isdisjoint(_CONTAINERS):
        return []
    found = [item for items in contents for item in items if type(item) in _CONTAINERS]
    return list(dict(zip(map(id, found), found, strict=True)).values())


def _add_classes(kinds: Iterable[type], held: set[type]) -> bool:
    """Add what values of these types may hold; return whether they can be encoded quickly."""
    for kind in kinds:
        if kind is float:
            held.add(float)
        elif kind not in _SCALARS:
            of_kind = _held_by_class(kind)
            if of_kind is None:
                return False
            held |= of_kind
    return True


# ---------------------------------------------------------------- declared types


@functools.cache
def _held_by_class(kind: type) -> Held | None:
    """Return what records of a class may hold, by the declared types of its fields; None if not.

    Fields of our own classes are trusted to have these types. What a node may have brought there
    instead was JSON, of which a set of text is no part.
    """
    if kind in _ADDRESSES or kind is Absent:
        return _NOTHING
    if not issubclass(kind, Struct) or not kind.__module__.startswith(_OURS):
        return None
    if kind.__struct_encode_fields__ != kind.__struct_fields__ or kind.__struct_config__.tag:
        return None
    try:
        hints = get_type_hints(kind)
        return _held_by_all(hints[name] for name in kind.__struct_fields__)
    except (NameError, RecursionError):  # a type that is not there at run time, or of itself
        return None


def _held_by_all(hints: Iterable[Any]) -> Held | None:
    """Return what values of any of these types may hold, None if one of them cannot be encoded."""
    held = _NOTHING
    for hint in hints:
        of_hint = _held_by_hint(hint)
        if of_hint is None:
            return None
        held |= of_hint
    return held


def _held_by_hint(hint: Any) -> Held | None:
    """Return what values of a declared type may hold, None if they cannot be encoded quickly."""
    if hint in _SCALARS:
        return frozenset({float}) if hint is float else _NOTHING
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is None:
        return _held_by_class(hint) if isinstance(hint, type) else None
    if origin is Literal:
        return _NOTHING if _SCALARS.issuperset(map(type, arguments)) else None
    if origin in _SETS:
        return frozenset({frozenset}) if arguments == (str,) else None
    if origin in _MAPPINGS:
        return _held_by_mapping(*arguments)
    if origin in _SEQUENCES_AND_UNIONS:
        return _held_by_all(argument for argument in arguments if argument is not Ellipsis)
    return None


def _held_by_mapping(key: Any, value: Any) -> Held | None:
    of_value = _held_by_hint(value)
    if key not in _KEYS or of_value is None:
        return None
    return of_value | {dict}
