"""The report for scripts: one JSON document in the shape that the contract promises, one row of a list to a line."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from clusterprep.model import (
    Absent,
    ChangeRow,
    CollectiveResult,
    Culprit,
    EnvPath,
    EnvValue,
    Finding,
    Json,
    LaunchResult,
    NodeSnapshot,
    Report,
    Stage,
    VerifyResult,
)

SCHEMA = 1
DEEPEST = 64  # levels of a fact; a node that nests deeper is up to something


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """ASCII always: neither the reader's locale nor a strange byte in a fact can spoil the document."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same text in parts: of ten thousand nodes it is half a gigabyte, and needs never be there as a whole."""
    frame = document(replace(report, nodes=None if report.nodes is None else ()))
    for place, (key, section) in enumerate(frame.items()):
        yield f"{',' if place else '{'}\n  {json.dumps(key)}: "
        if key == "nodes" and report.nodes:
            yield from _node_rows(report.nodes)
        else:
            yield _laid_out(section, 1)
    yield "\n}\n"


def _node_rows(nodes: Sequence[NodeSnapshot]) -> Iterator[str]:
    """A line for each node. What many nodes answered alike is one value that they share, and is put into words once."""
    shared = {
        key: count
        for key, count in Counter(id(v) for n in nodes for v in n.facts.values()).items()
        if count > 1
    }
    texts: dict[int, str] = {}
    names = dict.fromkeys(name for node in nodes for name in node.facts)
    keys = {name: json.dumps(_text(str(name))) for name in names}
    for place, node in enumerate(nodes):
        facts = []
        for name, value in node.facts.items():
            text = texts.get(id(value)) or json.dumps(json_of(value, _INSIDE), allow_nan=False)
            facts.append(f"{keys[name]}: {text}")
            if id(value) in shared:
                texts[id(value)] = text
        row = json.dumps(json_of(_node(node)))[:-1]
        yield f'{"," if place else "["}\n    {row}, "facts": {{{", ".join(facts)}}}}}'
    yield "\n  ]"


_INSIDE = 4  # levels of the document above a fact


def document(report: Report) -> dict[str, Json]:
    """The report as what json.loads would give; sections that the command does not produce are absent."""
    sections = {
        "error": None if report.error is None else {key: report.error.get(key) for key in _ERROR},
        "notices": list(report.notices) or None,
        "nodes": _rows(report.nodes, lambda seen: {**_node(seen), "facts": seen.facts}),
        "findings": _rows(report.findings, _finding),
        "env": _rows(report.env, _env),
        "env_paths": _rows(report.env_paths, _env_path),
        "changes": _rows(report.changes, _change),
        "verify": None if report.verify is None else _verify(report.verify),
        "launch": None if report.launch is None else _launch(report.launch),
        "since": report.since,
        "runs": _rows(report.runs, lambda run: run),
        "comparison": report.comparison,
    }
    head = {key: getattr(report, key) for key in _HEAD}
    present = {key: value for key, value in sections.items() if value is not None}
    whole: dict[str, Json] = json_of({"schema": SCHEMA, **head, **present})
    return whole


def json_of(value: Any, depth: int = 0) -> Json:
    """Any fact as JSON: dataclasses become objects, absence keeps its reason, what JSON cannot say becomes text."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is str:
        return _text(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is Absent or depth > DEEPEST:
        absent = value if kind is Absent else Absent("garbled", f"nested deeper than {DEEPEST}")
        return {"absent": _text(absent.reason), "detail": _text(absent.detail)}
    return _compound(value, depth + 1)


_AS_IT_IS = frozenset((type(None), bool, int))
_HEAD = ("command", "run", "cluster", "started", "seconds", "verdict")
_ERROR = ("code", "message", "file", "line", "key")
_FINDING = (
    "check",
    "verdict",
    "severity",
    "nodes",
    "reason",
    "fixed",
    "silenced",
    *("seen", "wanted", "message", "remedy"),
)
_ENV = ("name", "value", "nodes", "why")
_CHANGE = ("nodes", "resource", "target", "action", "outcome", "diff")
_WORKAROUND = ("settings", "works", "busbw_gbs", "bytes", "share", "why")
_VERIFY = ("verdict", "backend", "world_size", "nproc_per_node", "rendezvous")
_STAGE = ("name", "seconds", "verdict", "arrived", "missing", "limit")
_LAUNCH = ("verdict", "mode", "world_size", "nproc_per_node", "rendezvous", "folders", "logs")
_COLLECTIVE = ("op", "bytes", "seconds", "algbw_gbs", "busbw_gbs", "wrong")


def _compound(value: Any, depth: int) -> Json:
    if isinstance(value, (list, tuple)):
        return [json_of(item, depth) for item in value]
    if (names := _fields(type(value))) is not None:  # type: ignore[arg-type]
        return {name: json_of(getattr(value, name), depth) for name in names}
    if isinstance(value, Mapping):
        return {_text(str(key)): json_of(item, depth) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((json_of(item, depth) for item in value), key=str)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return _text(str(value))


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """The names of a dataclass's fields, of which there are as many as we wrote."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else None


def _text(text: str) -> str:
    """A lone surrogate (a byte that is no UTF-8) is legal in Python and refused by most JSON readers."""
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def _rows(rows: tuple[Any, ...] | None, shape: Any) -> list[Json] | None:
    return None if rows is None else [shape(row) for row in rows]


def _pick(value: Any, names: tuple[str, ...]) -> dict[str, Json]:
    return {name: getattr(value, name) for name in names}


def _node(seen: NodeSnapshot) -> dict[str, Json]:
    return {"name": seen.node, **_pick(seen, ("address", "reached", "reason"))}


def _finding(finding: Finding) -> dict[str, Json]:
    """The end of its silence only where there is one, its age only where it was not learned now."""
    until = {} if finding.until is None else {"until": finding.until.isoformat()}
    return {
        **_pick(finding, _FINDING),
        **until,
        **({} if finding.age is None else {"age_s": round(finding.age)}),
    }


def _env(value: EnvValue) -> dict[str, Json]:
    return _pick(value, _ENV)


def _env_path(row: EnvPath) -> dict[str, Json]:
    return {**_pick(row, ("path", "reaches", "nodes")), **_if_any("add", row.add)}


def _change(change: ChangeRow) -> dict[str, Json]:
    return {**_pick(change, _CHANGE), **_if_any("detail", change.detail)}


def _verify(result: VerifyResult) -> dict[str, Json]:
    culprits: list[Json] = [_culprit(culprit) for culprit in result.culprits]
    rows: list[Json] = [_collective(row) for row in result.collectives]
    stages: list[Json] = [_stage(row) for row in result.stages]
    told = {
        **_pick(result, _VERIFY),
        "stages": stages,
        "collectives": rows,
        "ranks": list(result.ranks),
    }
    tried: list[Json] = [_pick(row, _WORKAROUND) for row in result.workarounds]
    more: dict[str, Json] = {"workarounds": tried} if tried else {}
    more |= {"pairs": list(result.pairs)} if result.pairs else {}
    return {**told, "culprits": culprits, **more, **_if_any("message", result.message)}


def _stage(row: Stage) -> dict[str, Json]:
    """When ranks arrived only where that was seen."""
    return {**_pick(row, _STAGE), **({"after": row.after} if row.after else {})}


def _launch(result: LaunchResult) -> dict[str, Json]:
    rows = {
        "ranks": _rows(result.ranks, lambda row: row),
        "culprits": _rows(result.culprits, _culprit),
    }
    return {
        **_pick(result, _LAUNCH),
        **rows,
        "causes": list(result.causes),
        **_if_any("message", result.message),
    }


def _collective(row: CollectiveResult) -> dict[str, Json]:
    """The type of the elements only where it is not float32."""
    return {
        **_pick(row, _COLLECTIVE),
        **_if_any("dtype", "" if row.dtype == "float32" else row.dtype),
    }


def _if_any(key: str, text: str) -> dict[str, Json]:
    """Words that only some rows have: why a change was not made, what a trial proved."""
    return {key: text} if text else {}


def _culprit(culprit: Culprit) -> dict[str, Json]:
    ends = {"from": culprit.source, "to": culprit.target}
    return {
        **_pick(culprit, ("kind", "nodes", "rank")),
        **ends,
        **_pick(culprit, ("confidence", "cause", "evidence")),
    }


def _laid_out(value: Json, depth: int) -> str:
    """Objects and lists are opened down to the rows of a section; a row itself stays on one line, for grep and diff."""
    pad, close = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, dict) and value and (depth == 0 or _holds_rows(value)):
        items = (f"{json.dumps(key)}: {_laid_out(item, depth + 1)}" for key, item in value.items())
        return "{" + pad + ("," + pad).join(items) + close + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return (
            "["
            + pad
            + ("," + pad).join(json.dumps(item, allow_nan=False) for item in value)
            + close
            + "]"
        )
    return json.dumps(value, allow_nan=False)


def _holds_rows(section: dict[str, Json]) -> bool:
    return any(isinstance(item, list) for item in section.values())
