"""Pack a report into bytes and unpack it: by column, each distinct value once. Pure.

Ten thousand nodes have half a gigabyte of facts as JSON, and most of it is the same on all of them.
A report that was unpacked shows the same in every format. Its facts are JSON and not our classes,
so a format may not ask more of them.

The types of the model decide the format, so a new field needs no line here. Each fact is a row of
the file with every different value once, so half a gigabyte becomes some megabytes, and reading one
fact of an earlier run, as `compare` does, takes a few kilobytes. An old run looks as it did after
its classes have changed.
"""

from __future__ import annotations

import functools
import itertools
import json
import types
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from operator import ne, sub
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from clusterprep import model, remedies
from clusterprep.facts.counters import EARLIER
from clusterprep.history.encoding import encoded, encoded_facts
from clusterprep.model import Absent, Json, NodeSnapshot, Report, fixes
from clusterprep.model import history as past
from clusterprep.remedies import Remedy

FORMAT = 1
_NODE = tuple(name for name in NodeSnapshot.__struct_fields__ if name != "facts")
_HEAD = ("command", "run", "cluster", "started", "seconds", "verdict", "code")
_SCALARS = frozenset((str, int, float, bool, types.NoneType))
_FEW = 4  # names; sets of so many stay readable in the file
_LARGE = 1 << 20  # bytes; what is longer is compressed more quickly
_FAST, _SMALL = 1, 6  # levels of zlib
# Characters of one fact of one node. Facts of honest nodes are far below:
# docs/howto/history.md.
LONGEST_VALUE = 2 << 20
FACT_NAMES = ""  # the name under which is kept which facts each node has


class Unreadable(Exception):
    """Bytes that are damaged, or that another version wrote."""


# ---------------------------------------------------------------- a report without facts


def pack(report: Report) -> bytes:
    """Return a report as compressed JSON, without the facts of its nodes."""
    place_by_node = {}
    for place, snapshot in enumerate(report.nodes or ()):
        place_by_node[snapshot.node] = place
    body = {}
    for name in Report.__struct_fields__:
        if name != "nodes":
            body[name] = _plain(getattr(report, name), place_by_node)
    sections: dict[str, Json] = {
        "format": FORMAT,
        "report": body,
    }
    if report.nodes is not None:
        sections["nodes"] = _pack_nodes(report.nodes)
    return squeeze(sections)


def _pack_nodes(nodes: Sequence[NodeSnapshot]) -> dict[str, Json]:
    """Return the number of nodes, and each field of NodeSnapshot but the facts as a column."""
    columns: dict[str, Json] = {"count": len(nodes)}
    for name in _NODE:
        values = [_plain(getattr(snapshot, name), {}) for snapshot in nodes]
        columns[name] = _column(values)
    return columns


def unpack(data: bytes, only: Sequence[str] | None = None) -> Report:
    """Return the report, its nodes without facts. Raises Unreadable.

    `only` names the fields of Report that are wanted besides its head, by default all.
    """
    try:
        sections = unsqueeze(data)
        written = sections["format"]
        if written != FORMAT:
            raise Unreadable(f"format {written} was written by a newer clusterprep")
        nodes = None
        if "nodes" in sections:
            nodes = _unpack_nodes(sections["nodes"])
        names = [snapshot.node for snapshot in nodes or ()]
        body = sections["report"]
        if only is not None:
            for name in set(body) - {*_HEAD, *only}:
                del body[name]
        report: Report = _typed(Report, body, names)
        return replace(report, nodes=nodes)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def _unpack_nodes(section: Mapping[str, Json]) -> tuple[NodeSnapshot, ...]:
    count = section["count"]
    columns = [_values(section[name], count) for name in _NODE]
    nodes = []
    for row in zip(*columns, strict=True):
        values = dict(zip(_NODE, row, strict=True))
        values["remedy"] = remedies.unpack(values["remedy"])
        nodes.append(NodeSnapshot(**values))
    return tuple(nodes)


def squeeze(value: Json) -> bytes:
    """Return compressed JSON."""
    return _compressed(json.dumps(value, separators=(",", ":")))


def _compressed(text: str) -> bytes:
    data = text.encode()
    return zlib.compress(data, _FAST if len(data) > _LARGE else _SMALL)


def unsqueeze(data: bytes) -> Json:
    """Return the value of compressed JSON. Raises Unreadable."""
    try:
        return json.loads(zlib.decompress(data))
    except (zlib.error, ValueError, TypeError) as error:
        raise Unreadable(f"damaged: {error}") from None


def _plain(value: Any, place_by_node: Mapping[str, int]) -> Json:
    """Return a value of the model as JSON. A long set of nodes becomes its places, «0-511,600»."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Struct):
        return _plain_fields(value, place_by_node)
    if isinstance(value, tuple):
        return _plain_items(value, place_by_node)
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            plain[str(key)] = _plain(item, place_by_node)
        return plain
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Remedy):
        return remedies.pack(value)
    return value


def _plain_items(values: tuple[Any, ...], place_by_node: Mapping[str, int]) -> Json:
    places = None
    if len(values) > _FEW:
        places = _places_of(values, place_by_node)
    if places is not None:
        return {"at": _ranges(places)}
    if _SCALARS.issuperset(map(type, values)):
        return list(values)
    return [_plain(item, place_by_node) for item in values]


def _plain_fields(value: Any, place_by_node: Mapping[str, int]) -> dict[str, Json]:
    """Return the fields that do not have their default."""
    kind: Any = type(value)
    # In C, as a trial has a rank for each GPU.
    plain = dict(zip(kind.__struct_fields__, astuple(value), strict=True))
    for name, default in _defaults(kind):
        if plain[name] == default:
            del plain[name]
    for name, item in plain.items():
        if type(item) not in _SCALARS:
            plain[name] = _plain(item, place_by_node)
    return plain


@functools.cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a Struct that have a default, with it.

    The default of a field with a factory is the factory, which no value equals.
    """
    defaults = kind.__struct_defaults__  # of the last fields
    names = kind.__struct_fields__[len(kind.__struct_fields__) - len(defaults) :]
    return tuple(zip(names, defaults, strict=True))


def _places_of(values: Sequence[Any], place_by_node: Mapping[str, int]) -> list[int] | None:
    """Return the places of nodes, None if one of the values is no node."""
    try:
        return list(map(place_by_node.__getitem__, values))
    except (KeyError, TypeError):  # another name, or no name at all
        return None


def _ranges(places: Sequence[int]) -> str:
    """Return places as `0-3,7`, in the order given."""
    steps = map(sub, itertools.islice(places, 1, None), places)
    is_start = map(ne, steps, itertools.repeat(1))  # in C: most sets have nearly all nodes
    starts = [0, *itertools.compress(itertools.count(1), is_start)]
    texts = []
    for start, end in itertools.pairwise((*starts, len(places))):
        first, last = places[start], places[end - 1]
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(texts)


def _places(text: str) -> Iterator[int]:
    """Yield the places of `0-3,7`."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


# ---------------------------------------------------------------- back, by the types of the model


_UNPACKED = {
    date: date.fromisoformat,
    Remedy: remedies.unpack,
}


def _typed(kind: Any, value: Json, names: Sequence[str]) -> Any:
    """Return the value that a field of this type had. Unknown keys are skipped.

    `names` has the nodes of the report, to which the places of a node set refer.
    """
    if value is None or kind is Any:
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        # Unions of the model are a type or None.
        member = args[1] if args[0] is types.NoneType else args[0]
        return _typed(member, value, names)
    if origin is tuple:
        if isinstance(value, dict):
            return tuple(names[place] for place in _places(value["at"]))
        return tuple(_typed(args[0], item, names) for item in value)
    if kind in _UNPACKED:
        return _UNPACKED[kind](value)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _typed_fields(kind, value, names)
    return value


def _typed_fields(kind: Any, value: Json, names: Sequence[str]) -> Any:
    """Return an object of the Struct `kind`."""
    hints = _hints(kind)
    values = {}
    for name, item in value.items():
        if name in hints:
            values[name] = _typed(hints[name], item, names)
    return kind(**values)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return field → type of a Struct of the model."""
    classes = {**vars(model), **vars(past), **vars(fixes)}
    return typing.get_type_hints(kind, classes)


# ---------------------------------------------------------------- columns


def _column(values: Sequence[Json]) -> Json:
    """Return [distinct values, place of each value].

    The places are left out if all values are equal, or all are distinct.
    """
    place_by_key: dict[Any, int] = {}
    distinct: list[Json] = []
    places = []
    for value in values:
        # Most are text. What else is equal may be of another type, as 1 and True are.
        key = value
        if type(value) is not str:
            key = repr(value) if type(value) in _SCALARS else json.dumps(value)
            key = key.encode()
        place = place_by_key.setdefault(key, len(distinct))
        if place == len(distinct):
            distinct.append(value)
        places.append(place)
    if len(distinct) <= 1 or len(distinct) == len(values):
        return [distinct]
    return [distinct, places]


def _values(column: Json, count: int) -> list[Json]:
    """Return the `count` values of a column."""
    distinct: list[Json] = column[0]
    if len(column) > 1:
        return [distinct[place] for place in column[1]]
    return distinct if len(distinct) == count else distinct * count


def pack_facts(
    nodes: Sequence[NodeSnapshot], longest: int = LONGEST_VALUE
) -> Iterator[tuple[str, bytes]]:
    """Yield each fact's name with its values on the nodes that have it.

    A value of more than `longest` characters of JSON is LEFT_OUT on its node.

    Before them comes FACT_NAMES with two lists: every different list of a node's fact names, and
    for each node the place of its own among them.
    """
    place_by_names: dict[tuple[str, ...], int] = {}
    places = []
    for snapshot in nodes:
        names = _kept_names(tuple(snapshot.facts))
        places.append(place_by_names.setdefault(names, len(place_by_names)))
    name_lists = [list(names) for names in place_by_names]
    yield FACT_NAMES, squeeze([name_lists, places])
    for name, values in _fact_values([snapshot.facts for snapshot in nodes if snapshot.facts]):
        if name != EARLIER.name:
            yield name, _packed(values, longest)


@functools.lru_cache(maxsize=64)  # nearly all nodes were asked the same
def _kept_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name != EARLIER.name)


def _fact_values(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield each fact's name with its values in the rows that have it."""
    if not rows:
        return
    names = tuple(rows[0])
    if all(tuple(row) == names for row in rows):
        # To go through the facts of each node once is quicker than a look for each fact.
        columns = zip(*[row.values() for row in rows], strict=True)
        yield from zip(names, columns, strict=True)
        return
    for name in _distinct_names(rows):
        yield name, [row[name] for row in rows if name in row]


def _distinct_names(name_lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of all lists, each once, in the order of their first appearance."""
    all_names = itertools.chain.from_iterable(name_lists)
    return list(dict.fromkeys(all_names))


def _packed(values: Sequence[Any], longest: int) -> bytes:
    """Return one fact of all nodes that have it, as `_column` would.

    Shared values are encoded once, and equal texts are known again by their hashes: together they
    may be hundreds of megabytes.
    """
    different = dict(zip(map(id, values), values, strict=True))
    texts = _Texts(longest)
    column = _Compressor()
    column.add(b"[[")
    place_by_id: dict[int, int] = {}
    for number, data in zip(different, encoded_facts(different.values(), longest), strict=True):
        place, is_new = texts.place(different[number], data)
        place_by_id[number] = place
        if is_new:
            column.add(b"," + data if place else data)
    column.add(b"]")
    if 1 < texts.count < len(values):
        places = list(map(place_by_id.__getitem__, map(id, values)))
        indices = json.dumps(places, separators=(",", ":"))
        column.add(f",{indices}".encode())
    column.add(b"]")
    return column.finish()


class _Texts:
    """Gives each different text a place, and keeps only the first texts.

    A later text with the hash of an earlier one is compared with that one, encoded again.
    """

    def __init__(self, longest: int) -> None:
        self.count = 0
        self._longest = longest
        self._place_by_hash: dict[int, int] = {}
        self._further: dict[int, list[int]] = {}  # first place -> others with that hash
        self._facts: list[Any] = []
        self._kept: list[bytes] = []
        self._room = _LARGE

    def place(self, fact: Any, text: bytes) -> tuple[int, bool]:
        """Return the place of the text of a fact, and whether it is a new one."""
        first = self._place_by_hash.setdefault(hash(text), self.count)
        if first != self.count:
            further = self._further.setdefault(first, [])
            for place in (first, *further):
                if self._text(place) == text:
                    return place, False
            further.append(self.count)
        self._facts.append(fact)
        if len(text) <= self._room:
            self._kept.append(text)
            self._room -= len(text)
        else:
            self._room = 0
        self.count += 1
        return self.count - 1, True

    def _text(self, place: int) -> bytes:
        if place < len(self._kept):
            return self._kept[place]
        return encoded(self._facts[place], self._longest)


class _Compressor:
    """Compresses JSON piece by piece, to what `_compressed` makes of the whole."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._compressed: list[bytes] = []
        self._stream: Any = None  # once there is more than _LARGE

    def add(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) > _LARGE:
            if self._stream is None:
                self._stream = zlib.compressobj(_FAST)
            self._compressed.append(self._stream.compress(self._waiting))
            self._waiting.clear()

    def finish(self) -> bytes:
        """Return the compressed bytes of all pieces."""
        if self._stream is None:
            return zlib.compress(self._waiting, _SMALL)
        self._compressed.append(self._stream.compress(self._waiting))
        self._compressed.append(self._stream.flush())
        return b"".join(self._compressed)


def unpack_facts(
    columns: Mapping[str, bytes], count: int, left_out: Any = None
) -> list[dict[str, Any]]:
    """Return the facts of each of `count` nodes, in the order of the report. Raises Unreadable.

    `columns` is what `pack_facts` gave. A fact whose bytes were not kept, so that they are empty,
    has the value `left_out`.
    """
    try:
        name_lists, places = unsqueeze(columns[FACT_NAMES])
        nodes: list[dict[str, Any]] = []
        for place in places:
            nodes.append(dict.fromkeys(name_lists[place]))
        if len(nodes) != count:
            raise Unreadable(f"facts of {len(nodes)} nodes where there are {count}")
        for name in _distinct_names(name_lists):
            nodes_with_fact = [facts for facts in nodes if name in facts]
            values = [left_out] * len(nodes_with_fact)
            column = columns[name]
            if column:
                values = column_of(column, len(nodes_with_fact))
            for facts, value in zip(nodes_with_fact, values, strict=True):
                facts[name] = value
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None
    return nodes


def column_of(data: bytes, count: int) -> list[Any]:
    """Return a fact on the `count` nodes that have it; equal values are one object."""
    distinct, *places = unsqueeze(data)
    facts = [_fact(value) for value in distinct]
    return _values([facts, *places], count)


def nodes_knowing(data: bytes, name: str, nodes: Sequence[str]) -> list[str]:
    """Return the nodes that have a fact. `data` is what `pack_facts` gives under FACT_NAMES."""
    name_lists, places = unsqueeze(data)
    places_with_fact = {place for place, names in enumerate(name_lists) if name in names}
    nodes_with_fact = []
    for node, place in zip(nodes, places, strict=True):
        if place in places_with_fact:
            nodes_with_fact.append(node)
    return nodes_with_fact


def _fact(value: Json) -> Any:
    """Return a fact of its JSON, in which an Absent has these two keys and no other."""
    if isinstance(value, dict) and set(value) == {"absent", "detail"}:
        return Absent(value["absent"], value["detail"])
    return value
