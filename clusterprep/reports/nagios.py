"""The report for Nagios and what speaks its language: one line with figures, and an exit code of its own."""

from __future__ import annotations

from collections.abc import Sequence

from clusterprep.model import Culprit, Report
from clusterprep.reports.blocks import Block, counts, gathered, troubles
from clusterprep.reports.plain import clean, counted, field, folded

STATES = (
    "OK",
    "WARNING",
    "CRITICAL",
    "UNKNOWN",
)  # by exit code, as the plug-in guidelines number them
LINE = 1000  # characters before the figures; NRPE of old cuts after 1024 bytes
SHOWN = 5  # blocks of trouble
VALUE, NODES = 80, 60  # characters of what was seen, and of a node set


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """`CLUSTERPREP CRITICAL - 1 error … | errors=1 …`."""
    text = f"CLUSTERPREP {STATES[exit_code(report)]} - {_text(report)}"
    # A bar would end the text, and begin figures that are none.
    return f"{_cut(text).replace('|', '/')} | {_figures(report)}\n"


def exit_code(report: Report) -> int:
    """0 to 3. What was not determined is UNKNOWN, and so is a command that could not do its work.

    A warning that failed is a WARNING here also without --strict: that is what the state is for. So are changes that a
    plan found to be pending, where they were asked for.
    """
    if report.code == 1:
        return 2
    if report.code not in (0, 5):
        return 3
    failed = any(block.verdict == "fail" for block in troubles(report.findings or ()))
    return 1 if failed or report.code == 5 else 0


def _text(report: Report) -> str:
    name = f"{clean(report.command)} {field(report.cluster, VALUE)}".strip()
    if report.error is not None:
        return f"{name}: {field(str(report.error.get('message') or report.verdict))}"
    parts = [f"{name}: {counts(report)}"]
    parts += [
        f"{field(one.cause)} on {folded(one.nodes, NODES)}" for one in _culprits(report)[:SHOWN]
    ]
    groups = gathered(troubles(report.findings or ()))
    parts += [_said(alike) for alike in groups[:SHOWN]]
    if rest := sum(map(len, groups[SHOWN:])):
        parts.append(f"{rest} more")
    if report.findings is None and report.nodes:
        lost = [node.node for node in report.nodes if not node.reached]
        parts += [f"not reached: {folded(lost, NODES)}"] if lost else []
    if report.code == 5:
        parts.append("changes are pending")
    return "; ".join(parts)


def _culprits(report: Report) -> list[Culprit]:
    trials = (report.verify, report.launch)
    return [culprit for trial in trials if trial is not None for culprit in trial.culprits]


def _said(alike: Sequence[Block]) -> str:
    """A check, or all those that one missing answer leaves open."""
    block, first = alike[0], alike[0].findings[0]
    if len(alike) > 1:
        return f"{len(alike)} checks unknown on {folded(block.nodes, NODES)}: {field(first.message, VALUE)}"
    where = f" on {folded(block.nodes, NODES)}" if block.nodes else ""
    seen = f": {field(first.seen, VALUE)}" if first.seen else ""
    wanted = f", wanted {field(first.wanted, VALUE)}" if first.seen and first.wanted else ""
    word = f"{block.check}{' unknown' if block.verdict == 'unknown' else ''}"
    return f"{word}{where}{seen}{wanted}"


def _figures(report: Report) -> str:
    """Performance data: `name=value`, seconds with their unit."""
    blocks = troubles(report.findings or ())
    numbers = {
        "errors": sum((one.verdict, one.severity) == ("fail", "error") for one in blocks),
        "warnings": sum((one.verdict, one.severity) == ("fail", "warning") for one in blocks),
        "unknown": sum(one.verdict == "unknown" for one in blocks),
        "nodes": len(report.nodes or ()),
        "unreached": sum(not node.reached for node in report.nodes or ()),
    }
    told = [f"{name}={number}" for name, number in numbers.items()]
    rates = [row.busbw_gbs for row in (report.verify.collectives if report.verify else ())]
    return " ".join(
        [*told, *([f"busbw_gbs={max(rates):.3f}"] if rates else []), f"time={report.seconds:.3f}s"]
    )


def _cut(text: str) -> str:
    return text if len(text) <= LINE else f"{text[:LINE]}… ({counted(len(text), 'character')})"
