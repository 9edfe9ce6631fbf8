"""What of a report is trouble: findings of one check gathered, in the order of their gravity, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from clusterprep.model import Finding, Report
from clusterprep.reports.plain import counted, distinct, field
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.cached import RENEW

RANK = {
    ("fail", "error"): 0,
    ("fail", "warning"): 1,
    ("unknown", "error"): 2,
    ("unknown", "warning"): 3,
}
WORDS = {
    ("fail", "error"): "FAIL",
    ("fail", "warning"): "WARN",
    ("unknown", "error"): "UNKNOWN",
    ("unknown", "warning"): "UNKNOWN",
}

# What to do about an answer that did not come, whatever it was wanted for.
CURES = {
    "denied": "run it with sudo on the nodes (-b, --become), or as a user who may read it",
    "missing_tool": "install on the node what the message names",
    "hung": "dmesg -T | tail -50   # on the node: a driver or a file system that does not answer",
    "the budget ended": "uptime; dmesg -T | tail -50   # on the node: then the same check without --budget",
    "never stored": RENEW,
    "out of date": RENEW,
    "timed_out": "dmesg -T | tail -50; uptime   # on the node: what does not answer, or too much load",
}


@dataclass(frozen=True)
class Block:
    """Findings of one check that differ only in what was seen where."""

    findings: tuple[Finding, ...]

    @property
    def check(self) -> str:
        return self.findings[0].check

    @property
    def verdict(self) -> str:
        return self.findings[0].verdict

    @property
    def severity(self) -> str:
        return self.findings[0].severity

    @property
    def reason(self) -> str | None:
        return self.findings[0].reason

    @property
    def fixed(self) -> bool:
        return self.findings[0].fixed

    @property
    def silenced(self) -> str | None:
        return self.findings[0].silenced

    @property
    def until(self) -> date | None:
        return self.findings[0].until

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for finding in self.findings for node in finding.nodes))


def blocks_of(findings: Iterable[Finding]) -> list[Block]:
    """Findings gathered into blocks, in the order in which each one's first came; without nodes each stands alone."""
    gathered: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key: tuple[object, ...] = (
            one.check,
            one.verdict,
            one.severity,
            one.reason,
            one.fixed,
            one.silenced,
            one.until,
        )
        if not one.nodes and one.verdict == "fail":
            key = (*key, one.message, one.seen)
        gathered.setdefault(key, []).append(one)
    return [Block(tuple(same)) for same in gathered.values()]


def troubles(findings: Iterable[Finding]) -> list[Block]:
    """What counts, or would with --strict: failures first, errors before warnings."""
    standing = [one for one in blocks_of(findings) if not one.fixed and not one.silenced]
    trouble = [one for one in standing if (one.verdict, one.severity) in RANK]
    return sorted(trouble, key=lambda block: RANK[block.verdict, block.severity])


def gathered(blocks: Iterable[Block]) -> list[list[Block]]:
    """Checks that are unknown for one and the same reason on the same nodes stand together: it is one thing to mend."""
    gathered: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        key: tuple[object, ...] = (block.verdict, block.severity, block.reason, block.nodes)
        key = (*key, *distinct(one.message for one in block.findings))
        if block.verdict != "unknown" or any(one.seen for one in block.findings):
            key = (*key, block.check, len(gathered))
        gathered.setdefault(key, []).append(block)
    return list(gathered.values())


def cure(gap: Block) -> str:
    """What to do about an answer that is missing, which is another thing than what its check would have found."""
    name = field(gap.check)
    return CURES.get(
        gap.reason or "", f"clusterprep explain {name}   # how it is measured, and what that needs"
    )


def counts(report: Report) -> str:
    """`1 error, 2 warnings, 0 unknown on 16 nodes`, and what does not count beside what does."""
    nodes = f" on {counted(len(report.nodes), 'node')}" if report.nodes else ""
    if report.findings is None:
        return _without_findings(report) + nodes
    blocks = [
        block for block in blocks_of(report.findings) if not block.silenced and not block.fixed
    ]
    said = [
        counted(_count(blocks, "fail", "error"), "error"),
        counted(_count(blocks, "fail", "warning"), "warning"),
        f"{_count(blocks, 'unknown')} unknown",
    ]
    return ", ".join(said) + nodes + _accepted(report.findings)


def _without_findings(report: Report) -> str:
    if report.error is not None:
        lines = str(report.error.get("message") or "").split("\n")
        return f"{counted(sum(bool(line.strip()) for line in lines), 'problem')}"
    if report.env is not None:
        return counted(len({value.name for value in report.env}), "variable")
    if report.changes is not None:
        return counted(len(report.changes), "change")
    return "finished" if report.verify is None else f"verify {report.verify.verdict}"


def _accepted(findings: Sequence[Finding]) -> str:
    blocks = blocks_of(findings)
    fixed = sum(block.fixed for block in blocks)
    silenced = sum(bool(block.silenced) and not block.fixed for block in blocks)
    return "".join(
        f", {number} {word}"
        for number, word in ((fixed, "fixed"), (silenced, "silenced"))
        if number
    )


def _count(blocks: Sequence[Block], verdict: str, severity: str | None = None) -> int:
    return sum(block.verdict == verdict and severity in (None, block.severity) for block in blocks)
