"""The report as one HTML page: no network, no trust in what nodes say, readable without a script and on paper.

Everything that is shown passes `_finalized`, which takes out what no page should hold, and then Jinja's escape. The
page's own script and style are known by their hashes to a policy that allows nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from clusterprep import __version__
from clusterprep.model import ChangeRow, EnvValue, Report
from clusterprep.model.units import format_size
from clusterprep.reports import html_charts, html_findings, html_pairs, html_trial
from clusterprep.reports.advice import advice
from clusterprep.reports.blocks import counts
from clusterprep.reports.html_nodes import Roster, grid_of, label, many
from clusterprep.reports.plain import clean, duration, elapsed, field

LONG = 4000  # characters of anything that is shown; the formats' own limits are shorter
VALUES, CHANGES = 400, 200  # values of the environment, and changes
DIFF = 400  # lines of one difference
TURNS = 20  # checks that turned since an earlier run, of each kind
TEMPLATE = "report.html"


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """The whole page."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same in parts, as the template makes them."""
    stream = environment().get_template(TEMPLATE).stream(**context(report))
    stream.enable_buffering(200)
    yield from stream
    yield "\n"


@functools.cache
def environment() -> Environment:
    """Jinja with escape for everything, and no word for what is not there."""
    source = {TEMPLATE: _part("report.html")}
    made = Environment(
        loader=DictLoader(source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    made.filters |= {"duration": duration, "elapsed": elapsed, "size": format_size, "many": many}
    return made


def _finalized(value: object) -> object:
    """Texts of nodes may be long, and hold controls, directions and halves of characters; markup is our own."""
    return field(value, LONG) if isinstance(value, str) and not isinstance(value, Markup) else value


def _part(name: str) -> str:
    return (
        resources.files("clusterprep").joinpath(f"data/report/{name}").read_text(encoding="utf-8")
    )


def context(report: Report) -> dict[str, Any]:
    """What the template shows."""
    roster = Roster(report)
    script, style = _part("report.js"), _part("report.css")
    verify = report.verify
    missing = frozenset(verify.stages[-1].missing) if verify and verify.stages else frozenset[int]()
    ranks, left = html_trial.rank_lines(verify.ranks, missing) if verify else ([], 0)
    return {
        "report": report,
        "ranges_of": roster.ranges,
        "version": __version__,
        "counts": counts(report),
        "advice": advice(report, "below"),
        "policy": _policy(script, style),
        "script": Markup(script),  # noqa: S704 - ours
        "style": Markup(style),  # noqa: S704 - ours
        "names": _as_data(roster.names),
        "since": _since(report, roster),
        "reached": sum(node.reached for node in report.nodes or ()),
        "lost": _lost(report),
        "culprits": [
            one for trial in (verify, report.launch) if trial is not None for one in trial.culprits
        ],
        "cards": html_findings.cards(report, roster),
        "passed": html_findings.passed(report.findings or (), roster),
        "skipped": html_findings.skipped(report.findings or (), roster),
        "grid": grid_of(report, roster),
        "env": _env(report.env or (), roster),
        "env_left": max(0, len(report.env or ()) - VALUES),
        "paths": [
            (row.path, row.reaches, row.add, roster.label(row.nodes))
            for row in report.env_paths or ()
        ],
        "changes": _changes(report.changes or (), roster),
        "changes_left": max(0, len(_moving(report.changes or ())) - CHANGES),
        "still": [row.target for row in report.changes or () if row.outcome == "unchanged"],
        "stages": html_trial.stage_lines(verify.stages, verify.ranks) if verify else [],
        "ranks": ranks,
        "ranks_left": left,
        "ranks_folded": len(ranks) < len(verify.ranks) if verify else False,
        "bandwidth": html_charts.bandwidth(verify.collectives) if verify else None,
        "arrivals": html_charts.arrivals(verify.stages, verify.ranks) if verify else (),
        "heats": html_pairs.heats(report, roster),
        "launched": html_trial.launched_lines(report.launch.ranks) if report.launch else [],
        "error_lines": str((report.error or {}).get("message") or "").split("\n")[:DIFF],
    }


def _since(report: Report, roster: Roster) -> dict[str, Any] | None:
    """What turned since an earlier run: how many, and the first of them with their nodes."""
    since = report.since
    if since is None:
        return None
    parts = [
        (word, len(turns), [(turn.check, roster.label(turn.nodes)) for turn in turns[:TURNS]])
        for word, turns in (("new", since.new), ("fixed", since.fixed))
    ]
    return {"run": since.run, "started": since.started, "parts": parts}


def _policy(script: str, style: str) -> str:
    """A page that loads nothing, sends nothing and runs nothing but this script."""
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _as_data(names: Sequence[str]) -> Markup:
    """Names for the script as JSON in which nothing can end its element."""
    text = json.dumps([clean(name)[:256] for name in names], ensure_ascii=True)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - escaped above


def _lost(report: Report) -> list[Mapping[str, str]]:
    """Nodes that were not reached and of which no finding speaks."""
    spoken = {
        node for one in report.findings or () if one.check == "ssh.reach" for node in one.nodes
    }
    alike: dict[tuple[str, str], list[str]] = {}
    remedies: dict[tuple[str, str], str] = {}
    for node in report.nodes or ():
        if not node.reached and node.node not in spoken:
            key = (node.reason or "unknown", node.detail)
            alike.setdefault(key, []).append(node.node)
            remedies.setdefault(key, node.remedy)
    return [
        {"nodes": label(tuple(nodes)), "reason": key[0], "detail": key[1], "remedy": remedies[key]}
        for key, nodes in alike.items()
    ]


def _env(env: Sequence[EnvValue], roster: Roster) -> list[tuple[EnvValue, str, str]]:
    everyone = {node for value in env for node in value.nodes}
    told = (
        (value, "all" if len(value.nodes) == len(everyone) else roster.label(value.nodes))
        for value in env[:VALUES]
    )
    return [(value, where, roster.ranges(value.nodes)) for value, where in told]


def _moving(changes: Sequence[ChangeRow]) -> list[ChangeRow]:
    return [row for row in changes if row.outcome != "unchanged"]


def _changes(changes: Sequence[ChangeRow], roster: Roster) -> list[dict[str, Any]]:
    """Changes with their differences line by line, each with what it does."""
    return [
        {
            "row": row,
            "nodes": roster.label(row.nodes),
            "size": len(row.nodes),
            "ranges": roster.ranges(row.nodes),
            "kind": _OUTCOMES.get(row.outcome, "n"),
            "lines": [(_DIFF.get(line[:1], ""), line) for line in _lines(row.diff)],
        }
        for row in _moving(changes)[:CHANGES]
    ]


_OUTCOMES = {"failed": "f", "rolled-back": "w", "not-started": "u", "done": "p"}
_DIFF = {"+": "add", "-": "del", "@": "at"}


def _lines(diff: str) -> list[str]:
    lines = diff.rstrip().split("\n") if diff.strip() else []
    if [line[:4] for line in lines[:2]] == ["--- ", "+++ "]:
        lines = lines[2:]
    more = [f"… {len(lines) - DIFF:,} more lines"] if len(lines) > DIFF else []
    return [*lines[:DIFF], *more]
