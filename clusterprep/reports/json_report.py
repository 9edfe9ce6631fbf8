"""Render the report as the JSON document of the contract, one row of a list per line."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

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
from clusterprep.model.records import field_names
from clusterprep.reports.plain_facts import encode_plain

SCHEMA = 1
DEEPEST = 64  # levels of a fact; no honest fact nests deeper
_FACT_DEPTH = 4  # levels of the document above a fact

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
    for key, section in document(report).items():
        yield f"{opening}\n  {json.dumps(key)}: "
        opening = ","
        if key == "nodes" and nodes:
            yield from _node_rows(nodes)
        else:
            yield _laid_out(section, 1)
    yield "\n}\n"


def document(report: Report) -> dict[str, Json]:
    """Return the report as what json.loads gives. Sections that a command lacks are absent."""
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
    values: dict[str, Json] = json_of(
        {
            "schema": SCHEMA,
            **head,
            **present,
        }
    )
    return values


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


def _node_rows(nodes: Sequence[NodeSnapshot]) -> Iterator[str]:
    """Yield the section of the nodes, a line for each.

    Nodes that answered alike share one value in memory, which is converted to text only once.
    """
    shared = _shared_values(nodes)
    texts: dict[int, str] = {}
    keys: dict[str, str] = {}
    opening = "["
    for node in nodes:
        facts = []
        for name, value in node.facts.items():
            if name not in keys:
                keys[name] = json.dumps(_text(str(name)))
            text = texts.get(id(value))
            if text is None:
                text = fact_text(value)
                if id(value) in shared:
                    texts[id(value)] = text
            facts.append(f"{keys[name]}: {text}")
        row = json.dumps(json_of(_node(node)))
        # The facts become the last key of the object.
        row = row.removesuffix("}")
        yield f'{opening}\n    {row}, "facts": {{{", ".join(facts)}}}}}'
        opening = ","
    yield "\n  ]"


def fact_text(fact: Any) -> str:
    """Return a fact as the text of `json_of`.

    Of ten thousand nodes there are hundreds of megabytes, so the fastest encoder that writes the
    same is taken. That of json walks through any fact, and only our classes are made plain here.
    What it writes otherwise than `json_of` does, a part of a character or more levels than a report
    has, and what it refuses, such as an infinite number, no honest fact has. It is converted by
    `json_of`.
    """
    plain = encode_plain(fact)
    if plain is not None:
        return plain
    try:
        text = _FACT_ENCODER.encode(fact)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(json_of(fact, _FACT_DEPTH), allow_nan=False)
    is_deep = text.count("[") + text.count("{") > DEEPEST - _FACT_DEPTH and _is_deep(fact)
    if is_deep or _SURROGATE in text:
        return json.dumps(json_of(fact, _FACT_DEPTH), allow_nan=False)
    return text


def _is_deep(fact: Any) -> bool:
    """Return whether containers in a fact are nested too deep; our classes hold only few levels."""
    level = [fact]
    for _ in range(DEEPEST - _FACT_DEPTH):
        items: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                items.extend(value.values())
            elif isinstance(value, (list, tuple)):
                items.extend(value)
        if not items:
            return False
        level = items
    return True


def _plain(value: Any) -> Json:
    """Return what the encoder of json does not know, one level of it made plain."""
    if isinstance(value, Absent):
        return _absent(value)
    if isinstance(value, frozenset) and set(map(type, value)) == {str}:
        return sorted(value)  # as `json_of` sorts it; nearly all sets of facts hold text
    names = field_names(type(value))
    if names is not None:
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return dict(value)
    return _compound(value, _FACT_DEPTH)


_FACT_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)
_SURROGATE = "\\ud"  # how JSON in ASCII writes halves of characters


def _shared_values(nodes: Iterable[NodeSnapshot]) -> set[int]:
    """Return the ids of values that are facts of more than one node."""
    uses: Counter[int] = Counter()
    for node in nodes:
        uses.update(map(id, node.facts.values()))
    return {value for value, number in uses.items() if number > 1}


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
    row["facts"] = snapshot.facts
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


def _laid_out(value: Json, depth: int) -> str:
    """Return JSON in which every row of a section is one line, for grep and diff."""
    if isinstance(value, dict) and _holds_rows(value):
        items = []
        for key, item in value.items():
            name = json.dumps(key)
            text = _laid_out(item, depth + 1)
            items.append(f"{name}: {text}")
        return _enclosed("{", items, "}", depth)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = [json.dumps(item, allow_nan=False) for item in value]
        return _enclosed("[", rows, "]", depth)
    return json.dumps(value, allow_nan=False)


def _enclosed(opening: str, items: Sequence[str], closing: str, depth: int) -> str:
    """Return the items on lines of their own, indented by depth, between two brackets."""
    close = "\n" + "  " * depth
    start = close + "  "
    content = f",{start}".join(items)
    return f"{opening}{start}{content}{close}{closing}"


def _holds_rows(section: dict[str, Json]) -> bool:
    return any(isinstance(item, list) for item in section.values())
