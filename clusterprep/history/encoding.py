"""Encode facts as JSON for the history. Pure.

encoded({"mlx5_0": Device("mlx5_0", (1, 2))}, 2 << 20)   # b'{"mlx5_0":{"name":"mlx5_0",…}}'

msgspec encodes ten times as fast as the json module, but some values otherwise, which
`model.quick_json` leaves to json, and infinity as null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from clusterprep.model import Absent, Json
from clusterprep.model.quick_json import QuickEncoder, encode_other, quick_encoder
from clusterprep.model.records import field_names

LEFT_OUT = Absent("left out", "too long for the history")

# How msgpack writes infinities and what is no number; JSON has neither.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0\xf8]")


def encoded(fact: Any, longest: int) -> bytes:
    """Return a fact as JSON; an Absent with the reason if it is too long or is no JSON."""
    return next(encoded_facts([fact], longest))


def encoded_facts(facts: Collection[Any], longest: int) -> Iterator[bytes]:
    """Yield each fact as JSON; an Absent with the reason if it is too long or is no JSON.

    The types of all are looked at together, which is quickest where they are of one kind.
    """
    of_all = quick_encoder(facts)
    for fact in facts:
        quick = of_all or quick_encoder((fact,))
        data = _quickly_encoded(fact, quick)
        if data is None:
            data = _slowly_encoded(fact)
        yield data if len(data) <= longest else _slowly_encoded(LEFT_OUT)


def _quickly_encoded(fact: Any, quick: QuickEncoder | None) -> bytes | None:
    """Return JSON by msgspec, None where it would write another JSON or none."""
    data = quick.encode(fact) if quick is not None else None
    if data is None or quick is None:
        return None
    # Infinities become null, so most facts need no second look.
    if quick.may_hold_floats and b"null" in data and _is_infinite(fact):
        return None
    return data


def _is_infinite(fact: Any) -> bool:
    """Return whether a number in a fact may be infinite or none."""
    return _NOT_FINITE.search(_PACKER.encode(fact)) is not None


def _slowly_encoded(fact: Any) -> bytes:
    try:
        return _SLOW.encode(fact).encode()
    except (TypeError, ValueError, RecursionError) as error:
        absent = Absent("garbled", f"it could not be kept: {error}")
        return _SLOW.encode(absent).encode()


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
_PACKER = msgspec.msgpack.Encoder(enc_hook=encode_other)
