"""Render the report as one HTML page that loads nothing, and that needs no script to be read.

Every text that is shown passes `_finalized`, which takes out what no page should hold, and then
Jinja's escape. The page's own script and style are known by their hashes to a content security
policy that allows nothing else.

It uses no library of charts: what it draws is a few lines and squares whose numbers `html_charts`
and `html_pairs` compute, and a library would be a megabyte in every report.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from clusterprep import __version__
from clusterprep.jobs.verify.speed import least_gbs
from clusterprep.model import (
    BatchRow,
    ChangeRow,
    CommandResult,
    EnvValue,
    Finding,
    FixRow,
    NodeSnapshot,
    Report,
    VerifyResult,
)
from clusterprep.model.history import Turn
from clusterprep.model.units import format_size
from clusterprep.reports import fleet_grid, html_charts, html_findings, html_pairs, html_trial
from clusterprep.reports.advice import advice
from clusterprep.reports.blocks import (
    culprits_of,
    describe_ending,
    number_reached,
    summarize,
    unreported_nodes,
)
from clusterprep.reports.fixes import KINDS, sorted_fixes
from clusterprep.reports.html_nodes import Roster, grid_of, label, many
from clusterprep.reports.plain import (
    clean,
    diff_lines,
    fold_nodes,
    format_elapsed,
    format_seconds,
    has_diff_header,
    safe_text,
)

LONG = 4000  # characters of any text; the limits of single texts are shorter
VALUES, CHANGES = 400, 200  # values of the environment, and changes
DIFF = 400  # lines of one difference, and of an error
TURNS = 20  # checks that are new, and that are fixed, since an earlier run
NAME = 256  # characters of a node's name in the script's data
TEMPLATE = "report.html"
HEAD = "head.html"  # how each page begins

# CSS classes.
_OUTCOMES = {
    "failed": "f",
    "unanswered": "f",
    "rolled-back": "w",
    "not-started": "u",
    "done": "p",
}
_DIFF = {"+": "add", "-": "del", "@": "at"}

# What the template asks for about a trial.
_VERIFY_NAMES = ("stages", "ranks", "ranks_left", "ranks_folded", "bandwidth", "arrivals")


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the whole page."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """Yield the page in parts, as the template makes them."""
    template = environment(TEMPLATE).get_template(TEMPLATE)
    stream = template.stream(**context(report))
    stream.enable_buffering(200)
    yield from stream
    yield "\n"


@functools.cache
def environment(template: str) -> Environment:
    """Return Jinja with a template that escapes everything and refuses names not defined."""
    sources = {name: _part(name) for name in (template, HEAD)}
    made = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    made.filters["duration"] = format_seconds
    made.filters["elapsed"] = format_elapsed
    made.filters["size"] = format_size
    made.filters["many"] = many
    return made


def _finalized(value: object) -> object:
    """Return text cut and cleaned: texts of nodes may be long and hold control characters.

    Markup is the page's own and stays.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return safe_text(value, LONG)
    return value


def _part(name: str) -> str:
    path = resources.files("clusterprep").joinpath(f"data/report/{name}")
    return path.read_text(encoding="utf-8")


def context(report: Report) -> dict[str, Any]:
    """Return the values that the template shows."""
    roster = Roster(report)
    findings = report.findings or ()
    values: dict[str, Any] = {
        "report": report,
        "version": __version__,
    }
    values |= page_parts()
    values["names"] = _as_data(roster.names)
    values["ranges_of"] = roster.ranges
    values["counts"] = summarize(report)
    values["advice"] = advice(report, "below")
    values["since"] = _since(report, roster)
    values["reached"] = number_reached(report)
    values["lost"] = _unreached(report)
    values["error_lines"] = _error_lines(report)
    values["culprits"] = culprits_of(report)
    values["cards"] = html_findings.cards(report, roster)
    values["passed"] = html_findings.passed(findings, roster)
    values["skipped"] = html_findings.skipped(findings, roster)
    values["grid"] = grid_of(report, roster)
    values["fleet"] = _fleet(report, roster)
    values |= _env_context(report, roster)
    values |= _batches_context(report.batches or (), roster)
    values |= _fixes_context(report.fixes or (), roster)
    values |= _changes_context(report.changes or (), roster)
    values |= _results_context(report.results or (), roster)
    values |= _verify_context(report.verify, report.findings or ())
    values["heats"] = html_pairs.heats(report, roster)
    values["bisect_runs"] = []
    if report.bisect is not None:
        values["bisect_runs"] = [(run, fold_nodes(run.nodes)) for run in report.bisect.runs]
    values["launched"] = []
    if report.launch is not None:
        values["launched"] = html_trial.launched_lines(report.launch.ranks)
    return values


def _fleet(report: Report, roster: Roster) -> dict[str, Any] | None:
    """Return the picture of the fleet, for more nodes than one."""
    grid = fleet_grid.layout(report, roster)
    if grid is None or len(roster.names) < 2:
        return None
    elements = [*fleet_grid.shapes(grid, linked=True), *fleet_grid.legend(grid)]
    drawn = Markup("\n".join(elements))  # noqa: S704 - texts in it are escaped where it is drawn
    return {"width": fleet_grid.WIDTH, "height": grid.total_height, "elements": drawn}


def page_parts() -> dict[str, str]:
    """Return the page's script and style, and the policy that allows only them."""
    script = _part("report.js")
    style = _part("report.css")
    # It loads nothing, sends nothing and runs nothing but this script.
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    return {
        "script": Markup(script),  # noqa: S704 - a file of the package
        "style": Markup(style),  # noqa: S704 - a file of the package
        "policy": f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
    }


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def _as_data(names: Sequence[str]) -> Markup:
    """Return the names as JSON for the script, without a character that could end its element."""
    shortened = []
    for name in names:
        cleaned = clean(name)
        shortened.append(cleaned[:NAME])
    text = json.dumps(shortened, ensure_ascii=True)
    for char in "<>&":
        escaped = f"\\u{ord(char):04x}"
        text = text.replace(char, escaped)
    return Markup(text)  # noqa: S704 - escaped above


def _since(report: Report, roster: Roster) -> dict[str, Any] | None:
    """Return how many checks are new and fixed since an earlier run, and the first of them."""
    since = report.since
    if since is None:
        return None
    new = ("new", len(since.new), _turns(since.new, roster))
    fixed = ("fixed", len(since.fixed), _turns(since.fixed, roster))
    return {
        "run": since.run,
        "started": since.started,
        "parts": [new, fixed],
    }


def _turns(turns: Sequence[Turn], roster: Roster) -> list[tuple[str, str]]:
    """Return (check, nodes) of the first findings that are new or fixed."""
    rows = []
    for turn in turns[:TURNS]:
        nodes = roster.label(turn.nodes)
        rows.append((turn.check, nodes))
    return rows


def _unreached(report: Report) -> list[dict[str, Any]]:
    """Return the nodes that were not reached, by reason and detail."""
    alike: dict[tuple[str, str], list[NodeSnapshot]] = {}
    for node in unreported_nodes(report):
        key = (node.reason or "unknown", node.detail)
        alike.setdefault(key, []).append(node)
    rows = []
    for (reason, detail), nodes in alike.items():
        names = tuple(node.node for node in nodes)
        row: dict[str, Any] = {
            "nodes": label(names),
            "reason": reason,
            "detail": detail,
        }
        row["remedy"] = nodes[0].remedy
        rows.append(row)
    return rows


def _error_lines(report: Report) -> list[str]:
    if report.error is None:
        return [""]
    message = str(report.error.get("message") or "")
    return message.split("\n")[:DIFF]


# ---------------------------------------------------------------- sections


def _env_context(report: Report, roster: Roster) -> dict[str, Any]:
    """Return what the template's section about the environment uses, by name."""
    env = report.env or ()
    paths = []
    for path in report.env_paths or ():
        nodes = roster.label(path.nodes)
        paths.append((path.path, path.reaches, path.add, nodes))
    return {
        "env": _env(env, roster),
        "env_left": max(0, len(env) - VALUES),
        "paths": paths,
    }


def _env(env: Sequence[EnvValue], roster: Roster) -> list[tuple[EnvValue, str, str]]:
    """Return values with their nodes and the numbers of these."""
    all_nodes: set[str] = set()
    for value in env:
        all_nodes.update(value.nodes)
    rows = []
    for value in env[:VALUES]:
        nodes = "all"
        if len(value.nodes) != len(all_nodes):
            nodes = roster.label(value.nodes)
        rows.append((value, nodes, roster.ranges(value.nodes)))
    return rows


def _batches_context(batches: Sequence[BatchRow], roster: Roster) -> dict[str, Any]:
    """Return what the template's section about batches uses, by name."""
    rows = []
    for row in batches[:CHANGES]:
        rows.append((row, roster.label(row.nodes), _OUTCOMES.get(row.outcome, "n")))
    return {"batches": rows, "batches_left": max(0, len(batches) - CHANGES)}


def _fixes_context(fixes: Sequence[FixRow], roster: Roster) -> dict[str, Any]:
    """Return what the template's section about fixes uses, by name."""
    rows = []
    for row in sorted_fixes(fixes)[:CHANGES]:
        rows.append((row, roster.label(row.nodes), KINDS.get(row.outcome, "n")))
    return {"fixes": rows, "fixes_left": max(0, len(fixes) - CHANGES)}


def _changes_context(changes: Sequence[ChangeRow], roster: Roster) -> dict[str, Any]:
    """Return what the template's section about changes uses, by name."""
    changed = []
    unchanged = []
    still_on: dict[str, None] = {}
    for row in changes:
        if row.outcome == "unchanged":
            unchanged.append(row.target)
            still_on.update(dict.fromkeys(row.nodes))
        else:
            changed.append(row)
    return {
        "changes": [_change(row, roster) for row in changed[:CHANGES]],
        "changes_left": max(0, len(changed) - CHANGES),
        "still": unchanged,
        "still_on": roster.label(tuple(still_on)),
    }


def _change(row: ChangeRow, roster: Roster) -> dict[str, Any]:
    """Return a change with its difference, each line with its CSS class."""
    lines = []
    for line in _difference(row.diff):
        kind = _DIFF.get(line[:1], "")
        lines.append((kind, line))
    values: dict[str, Any] = {
        "row": row,
        "lines": lines,
    }
    values["nodes"] = roster.label(row.nodes)
    values["size"] = len(row.nodes)
    values["ranges"] = roster.ranges(row.nodes)
    values["kind"] = _OUTCOMES.get(row.outcome, "n")
    return values


def _results_context(results: Sequence[CommandResult], roster: Roster) -> dict[str, Any]:
    """Return what the template's section about the outputs of a command uses, by name."""
    rows = []
    for result in results[:CHANGES]:
        row: dict[str, Any] = {"ending": describe_ending(result), "left_out": result.left_out}
        row["kind"] = "p"
        if row["ending"]:
            row["kind"] = "u" if result.exit_code is None else "f"
        row["nodes"] = roster.label(result.nodes)
        row["size"] = len(result.nodes)
        row["ranges"] = roster.ranges(result.nodes)
        row["outputs"] = [_lines_of(result.stdout), _lines_of(result.stderr)]
        rows.append(row)
    return {"results": rows, "results_left": max(0, len(results) - CHANGES)}


def _lines_of(output: str) -> list[str]:
    """Return the first lines of an output, and how many more there are."""
    lines = output.rstrip().splitlines()
    shown = lines[:DIFF]
    if len(lines) > DIFF:
        shown.append(f"… {len(lines) - DIFF:,} more lines")
    return shown


def _difference(diff: str) -> list[str]:
    """Return the first lines of a difference, and how many more there are."""
    lines = diff_lines(diff)
    if has_diff_header(lines):
        lines = lines[2:]  # the heading of the change names the file
    shown = lines[:DIFF]
    if len(lines) > DIFF:
        shown.append(f"… {len(lines) - DIFF:,} more lines")
    return shown


def _verify_context(verify: VerifyResult | None, findings: Iterable[Finding]) -> dict[str, Any]:
    """Return what the template's section about verify uses, by name."""
    if verify is None:
        # The template shows none of these then, but asks for each.
        return dict.fromkeys(_VERIFY_NAMES)
    missing: frozenset[int] = frozenset()
    if verify.stages:
        missing = frozenset(verify.stages[-1].missing)
    ranks, ranks_left = html_trial.rank_lines(verify.ranks, missing)
    values: dict[str, Any] = {
        "ranks": ranks,
        "ranks_left": ranks_left,
    }
    values["ranks_folded"] = len(ranks) < len(verify.ranks)
    values["stages"] = html_trial.stage_lines(verify.stages, verify.ranks)
    values["bandwidth"] = html_charts.bandwidth(verify.collectives, least_gbs(findings))
    values["arrivals"] = html_charts.arrivals(verify.stages, verify.ranks)
    return values
