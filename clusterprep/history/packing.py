"""A report as bytes and back: nodes and facts by column, each different value once, sets of nodes as ranges. Pure.

Ten thousand nodes have half a gigabyte of facts as text, and most of it is the same on all of them. What is read back
is equal in all that a report shows; facts come back as their JSON, so a format may not ask them for more than that.
"""

from __future__ import annotations

import functools
import json
import types
import typing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import date
from typing import Any

from clusterprep import model
from clusterprep.model import Absent, Json, NodeSnapshot, Report
from clusterprep.model import history as past

FORMAT = 1
_NODE = tuple(field.name for field in fields(NodeSnapshot) if field.name != "facts")
_HEAD = ("command", "run", "cluster", "started", "seconds", "verdict", "code")
_FEW = 4  # names; shorter sets stay as they are, for whoever looks into the file
_QUICK = 1 << 20  # bytes; what is longer is squeezed less hard


class Unreadable(Exception):
    """Bytes that this version did not write, or that were damaged."""


# ---------------------------------------------------------------- a report without facts


def pack(report: Report) -> bytes:
    """Everything but the facts of the nodes."""
    names = [snapshot.node for snapshot in report.nodes or ()]
    position = {name: place for place, name in enumerate(names)}
    body = {
        field.name: _plain(getattr(report, field.name), position)
        for field in fields(Report)
        if field.name != "nodes"
    }
    sections: dict[str, Json] = {"format": FORMAT, "report": body}
    if report.nodes is not None:
        rows = {
            name: _column([getattr(snapshot, name) for snapshot in report.nodes]) for name in _NODE
        }
        sections["nodes"] = {"count": len(names), **rows}
    return squeeze(sections)


def unpack(data: bytes, only: Sequence[str] | None = None) -> Report:
    """The report, its nodes without facts; with `only`, no sections but these. Raises Unreadable."""
    try:
        sections = unsqueeze(data)
        if sections["format"] != FORMAT:
            raise Unreadable(f"format {sections['format']} was written by a newer clusterprep")
        nodes: tuple[NodeSnapshot, ...] | None = None
        if "nodes" in sections:
            count = sections["nodes"]["count"]
            columns = [_values(sections["nodes"][name], count) for name in _NODE]
            nodes = tuple(
                NodeSnapshot(**dict(zip(_NODE, row, strict=True)))
                for row in zip(*columns, strict=True)
            )
        names = [snapshot.node for snapshot in nodes or ()]
        wanted = {
            key: value
            for key, value in sections["report"].items()
            if only is None or key in (*_HEAD, *only)
        }
        report: Report = _typed(Report, wanted, names)
        return replace(report, nodes=nodes)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def squeeze(value: Json) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return zlib.compress(text, 1 if len(text) > _QUICK else 6)


def unsqueeze(data: bytes) -> Json:
    """Raises Unreadable for what is no squeezed JSON."""
    try:
        return json.loads(zlib.decompress(data))
    except (zlib.error, ValueError, TypeError) as error:
        raise Unreadable(f"damaged: {error}") from None


def _plain(value: Any, position: Mapping[str, int]) -> Json:
    """A value of the model as JSON; a long set of nodes becomes its places, «0-511,600»."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name), position)
            for field in fields(value)
            if _told(value, field)
        }
    if isinstance(value, tuple):
        if len(value) > _FEW and all(isinstance(name, str) and name in position for name in value):
            return {"at": _ranges([position[name] for name in value])}
        return [_plain(item, position) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, position) for key, item in value.items()}
    return value.isoformat() if isinstance(value, date) else value


def _told(value: Any, field: Any) -> bool:
    """Defaults need no words."""
    return field.default is MISSING or getattr(value, field.name) != field.default


def _ranges(places: Sequence[int]) -> str:
    """`0-3,7`, in the order given."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _places(text: str) -> Iterator[int]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


# ---------------------------------------------------------------- and back, by the types of the model


def _typed(kind: Any, value: Json, names: Sequence[str]) -> Any:
    """The value that a field of this type held. Keys that this version does not know are passed over."""
    if value is None or kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _typed(
            next(k for k in typing.get_args(kind) if k is not types.NoneType), value, names
        )
    if origin is tuple:
        if isinstance(value, dict):
            return tuple(names[place] for place in _places(value["at"]))
        return tuple(_typed(typing.get_args(kind)[0], item, names) for item in value)
    if kind is date:
        return date.fromisoformat(value)
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        return kind(
            **{
                name: _typed(hints[name], item, names)
                for name, item in value.items()
                if name in hints
            }
        )  # type: ignore[operator]
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, {**vars(model), **vars(past)})


# ---------------------------------------------------------------- columns


def _column(values: Sequence[Json]) -> Json:
    """A list of values, each different one once: [values] alone where all are equal, or [values, place of each]."""
    texts: dict[str, int] = {}
    of = [texts.setdefault(json.dumps(value), len(texts)) for value in values]
    distinct = [json.loads(text) for text in texts]
    return [distinct, *([] if len(distinct) <= 1 or len(distinct) == len(values) else [of])]


def _values(column: Json, count: int) -> list[Json]:
    distinct, *of = column
    if of:
        return [distinct[place] for place in of[0]]
    found: list[Json] = distinct if len(distinct) == count else distinct * count
    return found


def pack_facts(nodes: Sequence[NodeSnapshot]) -> Iterator[tuple[str, bytes]]:
    """Each fact's name with its values on all nodes; first, under the name "", which nodes know which facts."""
    shapes: dict[tuple[str, ...], int] = {}
    of = [shapes.setdefault(tuple(snapshot.facts), len(shapes)) for snapshot in nodes]
    yield "", squeeze([[list(shape) for shape in shapes], of])
    names = dict.fromkeys(name for shape in shapes for name in shape)
    for name in names:
        yield name, _packed([snapshot.facts[name] for snapshot in nodes if name in snapshot.facts])


def _packed(values: Sequence[Any]) -> bytes:
    """One fact of all nodes that have it. Values that nodes share are put into words once."""
    seen: dict[int, int] = {}
    texts: dict[str, int] = {}
    of = []
    for value in values:
        place = seen.get(id(value))
        if place is None:
            place = seen[id(value)] = texts.setdefault(_words(value), len(texts))
        of.append(place)
    index = (
        ""
        if len(texts) <= 1 or of == list(range(len(values)))
        else json.dumps(of, separators=(",", ":"))
    )
    whole = f"[[{','.join(texts)}]{',' if index else ''}{index}]".encode()
    return zlib.compress(whole, 1 if len(whole) > _QUICK else 6)


def _words(fact: Any) -> str:
    try:
        return _ENCODER.encode(fact)
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps({"absent": "garbled", "detail": f"it could not be kept: {error}"})


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def _of_ours(value: Any) -> Json:
    """What the encoder has no words for, by one level; the rest is left to it, for it is ten times as fast."""
    if isinstance(value, Absent):
        return {"absent": value.reason, "detail": value.detail}
    kind: Any = type(value)
    if (names := _names(kind)) is not None:
        own = getattr(value, "__dict__", ())
        return own if len(own) == len(names) else {name: getattr(value, name) for name in names}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return dict(value) if isinstance(value, Mapping) else str(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_of_ours)


def unpack_facts(
    columns: Mapping[str, bytes], count: int, left_out: Any = None
) -> list[dict[str, Any]]:
    """The facts of each node, in the order in which the report had them. Raises Unreadable.

    `left_out` stands for those whose bytes were not kept.
    """
    try:
        shapes, of = unsqueeze(columns[""])
        found: list[dict[str, Any]] = [dict.fromkeys(shapes[shape]) for shape in of]
        if len(found) != count:
            raise Unreadable(f"facts of {len(found)} nodes where there are {count}")
        for name in dict.fromkeys(name for shape in shapes for name in shape):
            having = [facts for facts in found if name in facts]
            data = columns[name]
            values = column_of(data, len(having)) if data else [left_out] * len(having)
            for facts, value in zip(having, values, strict=True):
                facts[name] = value
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None
    return found


def column_of(data: bytes, count: int) -> list[Any]:
    """The values of one fact on the `count` nodes that have it; equal ones are one object."""
    distinct, *of = unsqueeze(data)
    distinct = [_fact(value) for value in distinct]
    return _values([distinct, *of], count)


def knowing(data: bytes, name: str, nodes: Sequence[str]) -> list[str]:
    """The nodes that have a fact, by what was kept under the name ""."""
    shapes, of = unsqueeze(data)
    having = [name in shape for shape in shapes]
    return [node for node, shape in zip(nodes, of, strict=True) if having[shape]]


def _fact(value: Json) -> Any:
    """Absence is told from values, as the reports tell it."""
    if isinstance(value, dict) and set(value) == {"absent", "detail"}:
        return Absent(value["absent"], value["detail"])
    return value
