"""Render the report as a Nagios plug-in does: one line with performance data, and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clusterprep.model import Report
from clusterprep.model.units import pluralize
from clusterprep.reports.blocks import Block, culprits_of, group_gaps, summarize, troubles
from clusterprep.reports.plain import clean, fold_nodes, safe_text

# By exit code, as the plug-in guidelines number them.
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
LINE = 1000  # characters before the performance data; old versions of NRPE cut after 1024 bytes
SHOWN = 5  # blocks of trouble
VALUE, NODES = 80, 60  # characters of a value, and of a node set


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return `CLUSTERPREP CRITICAL - 1 error … | errors=1 …`."""
    state = STATES[exit_code(report)]
    text = _cut(f"CLUSTERPREP {state} - {describe_report(report)}")
    # In Nagios' format a bar ends the text and begins the performance data.
    text = text.replace("|", "/")
    return f"{text} | {_performance_data(report)}\n"


def exit_code(report: Report) -> int:
    """Return 0 to 3. What was not determined is UNKNOWN, and so is a command that did not work.

    A failed warning is a WARNING here also without --strict, because that is what this state is
    for. So are changes that a plan found to be pending, where they were asked for.
    """
    if report.code == 1:
        return 2
    if report.code not in (0, 5):
        return 3
    if report.code == 5:
        return 1
    for block in troubles(report.findings or ()):
        if block.verdict == "fail":
            return 1
    return 0


def describe_report(report: Report) -> str:
    """Return `check demo: 1 error, … on 4 nodes; time.offset on n1: 3 s, wanted 1 s; …`."""
    cluster = safe_text(report.cluster, VALUE)
    command = f"{clean(report.command)} {cluster}".strip()
    if report.error is not None:
        message = str(report.error.get("message") or report.verdict)
        return f"{command}: {safe_text(message)}"
    parts = [f"{command}: {summarize(report)}", *_changes(report)]
    for culprit in culprits_of(report)[:SHOWN]:
        nodes = fold_nodes(culprit.nodes, NODES)
        parts.append(f"{safe_text(culprit.cause)} on {nodes}")
    parts += _trouble(report)
    parts += _failed_changes(report)
    if report.held_by:
        parts.append(f"nothing is written without {fold_nodes(report.held_by, NODES)}")
    # Among findings, those of the check ssh.reach name the nodes that were not reached.
    if report.findings is None:
        parts += _unreached(report)
    if report.code == 5:
        parts.append("changes are pending")
    return "; ".join(parts)


def _changes(report: Report) -> list[str]:
    """Return `changes: 2 done`, or that there was none; nothing for a command that makes none."""
    if report.changes is None:
        return []
    counts = Counter(row.outcome for row in report.changes if row.outcome != "unchanged")
    if not counts:
        return ["nothing was changed"]
    return [f"changes: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}"]


def _trouble(report: Report) -> list[str]:
    """Return the gravest groups of trouble as text, and how many blocks are not shown."""
    groups = group_gaps(troubles(report.findings or ()))
    parts = []
    for group in groups[:SHOWN]:
        text = _describe(group)
        parts.append(text)
    remaining = sum(map(len, groups[SHOWN:]))
    if remaining:
        parts.append(f"{remaining} more")
    return parts


def _failed_changes(report: Report) -> list[str]:
    """Return a text about each change that failed: where, and why."""
    parts = []
    for row in report.changes or ():
        if row.outcome in ("failed", "unanswered"):
            why = safe_text(row.detail, VALUE)
            target = safe_text(row.target, VALUE)
            parts.append(f"{target} {row.outcome} on {fold_nodes(row.nodes, NODES)}: {why}")
    return parts[:SHOWN]


def _unreached(report: Report) -> list[str]:
    names = [node.node for node in report.nodes or () if not node.reached]
    if not names:
        return []
    return [f"not reached: {fold_nodes(names, NODES)}"]


def _describe(group: Sequence[Block]) -> str:
    """Return a text about a check, or about all checks that one missing answer leaves open."""
    block = group[0]
    first = block.findings[0]
    nodes = fold_nodes(block.nodes, NODES)
    if len(group) > 1:
        message = safe_text(first.message, VALUE)
        return f"{len(group)} checks unknown on {nodes}: {message}"
    text = block.check
    if block.verdict == "unknown":
        text += " unknown"
    if block.nodes:
        text += f" on {nodes}"
    if first.seen:
        text += f": {safe_text(first.seen, VALUE)}"
        if first.wanted:
            text += f", wanted {safe_text(first.wanted, VALUE)}"
    return text


def _performance_data(report: Report) -> str:
    """Return `name=value` for each figure, seconds with their unit."""
    numbers = {
        "errors": 0,
        "warnings": 0,
        "unknown": 0,
        "nodes": 0,
        "unreached": 0,
    }
    for block in troubles(report.findings or ()):
        if block.verdict == "unknown":
            numbers["unknown"] += 1
        elif block.severity == "error":
            numbers["errors"] += 1
        else:
            numbers["warnings"] += 1
    for node in report.nodes or ():
        numbers["nodes"] += 1
        if not node.reached:
            numbers["unreached"] += 1
    text = ""
    for name, number in numbers.items():
        text += f"{name}={number} "
    if report.verify and report.verify.collectives:
        fastest = max(row.busbw_gbs for row in report.verify.collectives)
        text += f"busbw_gbs={fastest:.3f} "
    return text + f"time={report.seconds:.3f}s"


def _cut(text: str) -> str:
    if len(text) <= LINE:
        return text
    size = pluralize(len(text), "character")
    return f"{text[:LINE]}… ({size})"
