"""Render the report as the JSON document of the contract, one row of a list per line."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_not
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from clusterprep.facts.counters import EARLIER
from clusterprep.model import (
    Absent,
    BatchRow,
    BisectResult,
    ChangeRow,
    CollectiveResult,
    CommandResult,
    Culprit,
    EnvPath,
    EnvValue,
    Finding,
    FixRow,
    Json,
    LaunchResult,
    NodeLists,
    NodeSnapshot,
    RankPlace,
    Report,
    Stage,
    VerifyResult,
)
from clusterprep.model.quick_json import quick_encoder
from clusterprep.model.records import field_names

SCHEMA = 1
DEEPEST = 64  # levels of a fact; no honest fact nests deeper
BATCH = 32  # nodes whose facts are encoded together
ROWS = 256  # other rows that are encoded together
_FACT_DEPTH = 4  # levels of the document above a fact
MOST_KNOWN = 64  # values of one fact whose text is kept for other nodes

# Keys of the rows, which are the names of the fields that they come from.
_HEAD = ("command", "run", "cluster", "started", "seconds", "verdict")
_ERROR = ("code", "message", "file", "line", "key")
_NODE = ("address", "reached", "reason")
_FINDING = (
    "check",
    "verdict",
    "severity",
    "nodes",
    "reason",
    "fixed",
    "silenced",
    "seen",
    "wanted",
    "message",
    "remedy",
)
_ENV = ("name", "value", "nodes", "why")
_ENV_PATH = ("path", "reaches", "nodes")
_CHANGE = ("nodes", "resource", "target", "action", "outcome", "diff")
_WORKAROUND = ("settings", "works", "busbw_gbs", "bytes", "share", "why")
_FIX = ("check", "nodes", "outcome", "reason")
_BATCH = ("name", "nodes", "outcome", "gate")
_VERIFY = ("verdict", "backend", "world_size", "nproc_per_node", "rendezvous")
_STAGE = ("name", "seconds", "verdict", "arrived", "missing", "limit")
_RESULT = ("stdout", "stderr", "seconds")
_LAUNCH = ("verdict", "mode", "world_size", "nproc_per_node", "rendezvous", "folders", "logs")
_BISECT = ("verdict", "command", "most_runs", "runs", "message", "logs")
_LISTS = ("passing", "failing", "unknown")
_COLLECTIVE = ("op", "bytes", "seconds", "algbw_gbs", "busbw_gbs", "wrong")

_AS_IT_IS = frozenset((type(None), bool, int))  # types that json.dumps writes as they are
_LISTS_OF_ROWS = (list, tuple, set, frozenset)


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the document, always in ASCII, so that no locale and no fact can spoil it."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """Yield the document in parts: for ten thousand nodes it is half a gigabyte."""
    nodes = report.nodes
    if nodes:
        # The rows of the nodes are written one by one below.
        report = replace(report, nodes=())
    opening = "{"
    for key, section in _sections(report).items():
        yield f"{opening}\n  {_quoted(key)}: "
        opening = ","
        if key == "nodes" and nodes:
            yield from _node_rows(nodes)
        else:
            yield from _laid_out(section, 1)
    yield "\n}\n"


def document(report: Report) -> dict[str, Json]:
    """Return the report as what json.loads gives. Sections that a command lacks are absent."""
    values: dict[str, Json] = json_of(_sections(report))
    return values


def _sections(report: Report) -> dict[str, Any]:
    """Return the sections of the document by their keys; they may hold records of the model."""
    sections: dict[str, Any] = {}
    sections["inventory"] = report.inventory or None
    sections["error"] = _error(report.error)
    sections["notices"] = report.notices or None
    sections["nodes"] = _rows(report.nodes, _node_with_facts)
    sections["findings"] = _rows(report.findings, _finding)
    sections["env"] = _rows(report.env, _env)
    sections["env_paths"] = _rows(report.env_paths, _env_path)
    sections["gpus"] = report.gpus
    sections["ranks"] = _rows(report.ranks, _rank_place)
    sections["changes"] = _rows(report.changes, _change)
    sections["fixes"] = _rows(report.fixes, _fix)
    sections["batches"] = _rows(report.batches, _batch)
    sections["verify"] = _verify(report.verify)
    sections["launch"] = _launch(report.launch)
    sections["bisect"] = _bisect(report.bisect)
    sections["site_checks"] = report.site_checks
    sections["lists"] = _lists(report.lists)
    sections["groups"] = report.groups
    sections["results"] = _rows(report.results, _result)
    sections["since"] = report.since
    sections["runs"] = report.runs
    sections["comparison"] = report.comparison
    head = _pick(report, _HEAD)
    present = {key: section for key, section in sections.items() if section is not None}
    return {
        "schema": SCHEMA,
        **head,
        **present,
    }


def json_of(value: Any, depth: int = 0) -> Json:
    """Return any fact as JSON.

    Structs and dataclasses become objects, an absent value keeps its reason, and what JSON has no
    type for becomes text.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is str:
        return _text(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is Absent:
        return _absent(value)
    if depth > DEEPEST:
        return _absent(Absent("garbled", f"nested deeper than {DEEPEST}"))
    return _compound(value, depth + 1)


# ---------------------------------------------------------------- nodes and their facts


def _node_rows(nodes: Sequence[NodeSnapshot]) -> Iterator[str]:
    """Yield the section of the nodes, a line for each."""
    rows = _FactRows()
    opening = "["
    for start in range(0, len(nodes), BATCH):
        batch = nodes[start : start + BATCH]
        heads = _row_texts(list(map(_node, batch)), 0)
        texts = rows.texts([node.facts for node in batch])
        for head, facts in zip(heads, texts, strict=True):
            # The facts become the last key of the object.
            yield f'{opening}\n    {head.removesuffix("}")}, "facts": '
            yield facts
            yield "}"
            opening = ","
    yield "\n  ]"


class _FactRows:
    """Encodes the facts of nodes.

    Nodes that answered alike share one value in memory, which is encoded once. What is another
    value on every node, dozens of facts, is encoded in one call for each node.
    """

    def __init__(self) -> None:
        self._known: dict[int, Raw] = {}  # by the id of the value, which the report keeps alive
        self._counts: Counter[str] = Counter()  # known values of each fact
        self._apart: set[str] = set()  # facts that cannot be encoded in one call with others
        # The facts of the node before, and its row: most values are those of the next node too.
        self._names: tuple[str, ...] = ()
        self._values: tuple[Any, ...] = ()
        self._before: dict[str, Any] = {}

    def texts(self, facts_of_nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the facts of each node as an object of JSON.

        The types of all their values are looked at together, so these are few nodes at a time.
        """
        rows = [self._row(facts) for facts in facts_of_nodes]
        together = []
        for row in rows:
            together += [item for item in row.values() if type(item) is not Raw]
        quick = quick_encoder(together)
        if quick is None or quick.sorts:
            self._set_apart(rows)
            quick = None
        for row in rows:
            data = quick.encode(row) if quick is not None else None
            yield _in_ascii(data) if data is not None else _encoded_one_by_one(row)

    def _row(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return facts by name, those as JSON that are known or cannot be encoded with others."""
        names, values = tuple(facts), tuple(facts.values())
        changed: Iterable[tuple[str, Any]] = zip(names, values, strict=True)
        row = dict(self._before)
        if names == self._names:  # in C: there are a million facts
            changed = itertools.compress(changed, map(is_not, values, self._values))
        else:
            row = dict.fromkeys(names)
            row.pop(EARLIER.name, None)
        for name, value in changed:
            if name == EARLIER.name:
                continue
            item = self._known.get(id(value), value)
            is_alone = name in self._apart or self._counts[name] < MOST_KNOWN
            if is_alone and type(item) is not Raw:
                item = self._encoded_alone(name, value)
            row[name] = item
        self._names, self._values, self._before = names, values, row
        return row

    def _encoded_alone(self, name: str, fact: Any) -> Raw:
        """Return a fact as JSON, and keep that of the first values for other nodes."""
        raw = Raw(fact_text(fact).encode())
        if self._counts[name] < MOST_KNOWN:
            self._counts[name] += 1
            self._known[id(fact)] = raw
        return raw

    def _set_apart(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Note which facts of these rows cannot be encoded in one call with others."""
        for row in rows:
            for name, item in row.items():
                if type(item) is Raw or name in self._apart:
                    continue
                quick = quick_encoder((item,))
                if quick is None or quick.sorts:
                    self._apart.add(name)
        self._names = ()  # of the node before they are not encoded yet


def _encoded_one_by_one(row: Mapping[str, Any]) -> str:
    """Return the facts of a node, some of them as JSON already, as an object of JSON."""
    items = []
    for name, item in row.items():
        text = bytes(item).decode() if type(item) is Raw else fact_text(item)
        items.append(f"{fact_text(str(name))}:{text}")
    return f"{{{','.join(items)}}}"


def fact_text(fact: Any) -> str:
    """Return a fact as the text of `json_of`, in ASCII and without spaces."""
    return _in_ascii(_compact(fact, _FACT_DEPTH))


def _row_text(value: Any, depth: int = 0) -> str:
    """Return a value as the text of `json_of` in one line, with spaces, for people and grep."""
    return _in_ascii(msgspec.json.format(_compact(value, depth), indent=0))


def _row_texts(rows: Sequence[Any], depth: int) -> Iterator[str]:
    """Yield `_row_text` of each row, many at once: a trial has a row for each rank."""
    for start in range(0, len(rows), ROWS):
        batch = rows[start : start + ROWS]
        quick = quick_encoder(batch)
        data = quick.encode_lines(batch) if quick is not None else None
        if data is None:
            yield from [_row_text(row, depth) for row in batch]
            continue
        for line in data.splitlines():  # a line break within a text is an escape
            yield _in_ascii(msgspec.json.format(line, indent=0))


def _compact(value: Any, depth: int) -> bytes:
    """Return a value as the JSON of `json_of`, by the fastest encoder that writes it."""
    quick = quick_encoder((value,))
    data = quick.encode(value) if quick is not None else None
    if data is not None:
        return data
    plain = json_of(value, depth)
    try:
        return msgspec.json.encode(plain)
    except (ValueError, OverflowError):  # more than 64 bits, for an older msgspec
        return json.dumps(plain, separators=(",", ":")).encode()


def _in_ascii(data: bytes) -> str:
    """Return JSON with escapes for what is beyond ASCII, which stands in texts alone."""
    text = data.decode()
    if text.isascii():
        return text
    return _BEYOND_ASCII.sub(lambda found: _quoted(found[0])[1:-1], text)


def _quoted(text: str) -> str:
    return json.dumps(_text(text))


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")


# ---------------------------------------------------------------- values


def _absent(absent: Absent) -> Json:
    return {
        "absent": _text(absent.reason),
        "detail": _text(absent.detail),
    }


def _compound(value: Any, depth: int) -> Json:
    if isinstance(value, (list, tuple)):
        return [json_of(item, depth) for item in value]
    names = field_names(type(value))
    if names is not None:
        return {name: json_of(getattr(value, name), depth) for name in names}
    if isinstance(value, Mapping):
        return {_text(str(key)): json_of(item, depth) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        items = [json_of(item, depth) for item in value]
        return sorted(items, key=str)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return _text(str(value))


def _text(text: str) -> str:
    """Return the text without lone surrogates, which most JSON readers refuse.

    Python reads a byte that is not UTF-8 as a lone surrogate.
    """
    if text.isascii():
        return text
    encoded = text.encode("utf-16", "surrogatepass")
    return encoded.decode("utf-16", "replace")


# ---------------------------------------------------------------- sections


def _rows(rows: Iterable[Any] | None, convert: Any) -> list[Json] | None:
    if rows is None:
        return None
    return [convert(row) for row in rows]


def _pick(value: Any, names: Iterable[str]) -> dict[str, Json]:
    return {name: getattr(value, name) for name in names}


def _error(error: Mapping[str, Json] | None) -> dict[str, Json] | None:
    if error is None:
        return None
    return {key: error.get(key) for key in _ERROR}


def _node(snapshot: NodeSnapshot) -> dict[str, Json]:
    return {
        "name": snapshot.node,
        **_pick(snapshot, _NODE),
    }


def _node_with_facts(snapshot: NodeSnapshot) -> dict[str, Json]:
    row = _node(snapshot)
    row["facts"] = {name: fact for name, fact in snapshot.facts.items() if name != EARLIER.name}
    return row


def _finding(finding: Finding) -> dict[str, Json]:
    """Return a finding.

    `note` is there only if the remedy has one, `until` if its silence ends, `fix` if the command of
    that name can cure it, `age_s` if it is an old answer, and `because` if it follows from others.
    """
    row = _pick(finding, _FINDING)
    row["remedy"] = str(finding.remedy)
    if finding.remedy.note:
        row["note"] = finding.remedy.note
    if finding.until is not None:
        row["until"] = finding.until.isoformat()
    if finding.fix is not None:
        row["fix"] = [state.resource for state in finding.fix.states]
    if finding.age is not None:
        row["age_s"] = round(finding.age)
    if finding.because:
        row["because"] = [_pick(cause, ("check", "nodes")) for cause in finding.because]
    return row


def _fix(row: FixRow) -> dict[str, Json]:
    return _pick(row, _FIX)


def _env(value: EnvValue) -> dict[str, Json]:
    return _pick(value, _ENV)


def _env_path(path: EnvPath) -> dict[str, Json]:
    row = _pick(path, _ENV_PATH)
    if path.add:
        row["add"] = path.add
    return row


def _rank_place(place: RankPlace) -> dict[str, Json]:
    """Return the place of a rank; `why` only of one without a GPU."""
    row = _pick(place, ("rank", "local_rank", "node", "gpu"))
    if place.why:
        row["why"] = place.why
    return row


def _result(row: CommandResult) -> dict[str, Any]:
    result = {"nodes": row.nodes, "exit": row.exit_code, **_pick(row, _RESULT)}
    if row.reason is not None:
        result["reason"] = row.reason
    if row.left_out:
        result["left_out"] = row.left_out
    return result


def _change(change: ChangeRow) -> dict[str, Json]:
    row = _pick(change, _CHANGE)
    if change.detail:
        row["detail"] = change.detail
    return row


def _batch(batch: BatchRow) -> dict[str, Json]:
    row = _pick(batch, _BATCH)
    if batch.detail:
        row["detail"] = batch.detail
    return row


def _verify(result: VerifyResult | None) -> dict[str, Json] | None:
    if result is None:
        return None
    row = _pick(result, _VERIFY)
    row["stages"] = _rows(result.stages, _stage)
    row["collectives"] = _rows(result.collectives, _collective)
    row["ranks"] = result.ranks
    row["culprits"] = _rows(result.culprits, _culprit)
    if result.workarounds:
        row["workarounds"] = [_pick(workaround, _WORKAROUND) for workaround in result.workarounds]
    if result.pairs:
        row["pairs"] = result.pairs
    if result.acceptance:
        row["acceptance"] = result.acceptance
    if result.message:
        row["message"] = result.message
    return row


def _stage(stage: Stage) -> dict[str, Json]:
    """Return a stage; `after` only if it is known when the ranks arrived."""
    row = _pick(stage, _STAGE)
    if stage.after:
        row["after"] = stage.after
    return row


def _collective(result: CollectiveResult) -> dict[str, Json]:
    """Return a collective; the type of its elements only if it is not float32."""
    row = _pick(result, _COLLECTIVE)
    if result.dtype and result.dtype != "float32":
        row["dtype"] = result.dtype
    return row


def _lists(lists: NodeLists | None) -> dict[str, Json] | None:
    if lists is None:
        return None
    row = _pick(lists, _LISTS)
    if lists.picked is not None:
        row["picked"] = lists.picked
    if lists.folder:
        row["folder"] = lists.folder
    return row


def _launch(result: LaunchResult | None) -> dict[str, Json] | None:
    if result is None:
        return None
    row = _pick(result, _LAUNCH)
    row["ranks"] = result.ranks
    row["culprits"] = _rows(result.culprits, _culprit)
    row["causes"] = result.causes
    if result.message:
        row["message"] = result.message
    return row


def _bisect(result: BisectResult | None) -> dict[str, Json] | None:
    if result is None:
        return None
    row = _pick(result, _BISECT)
    row["culprits"] = _rows(result.culprits, _culprit)
    return row


def _culprit(culprit: Culprit) -> dict[str, Json]:
    row = _pick(culprit, ("kind", "nodes", "rank"))
    row["from"] = culprit.source
    row["to"] = culprit.target
    row |= _pick(culprit, ("confidence", "cause", "evidence"))
    return row


# ---------------------------------------------------------------- layout


def _laid_out(value: Any, depth: int) -> Iterator[str]:
    """Yield JSON in which every row of a section is one line, for grep and diff."""
    items = _items(value)
    close = "\n" + "  " * depth
    start = close + "  "
    if items is not None and any(isinstance(item, _LISTS_OF_ROWS) for item in items.values()):
        opening = "{"
        for key, item in items.items():
            yield f"{opening}{start}{_quoted(str(key))}: "
            yield from _laid_out(item, depth + 1)
            opening = ","
        yield f"{close}}}"
    elif isinstance(value, (list, tuple)) and value and _items(value[0]) is not None:
        opening = "["
        for text in _row_texts(value, depth + 1):
            yield f"{opening}{start}{text}"
            opening = ","
        yield f"{close}]"
    else:
        yield _row_text(value, depth)


def _items(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of what becomes an object of JSON, None for anything else."""
    if isinstance(value, Mapping):
        return value
    names = field_names(type(value))
    if names is None or isinstance(value, Absent):
        return None
    return {name: getattr(value, name) for name in names}
