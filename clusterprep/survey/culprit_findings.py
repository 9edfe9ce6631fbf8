"""Name with each culprit of a trial what checks have found on its nodes, as one story. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from clusterprep.model import Culprit, Finding
from clusterprep.model.nodeset import fold
from clusterprep.remote.untrusted import shortened
from clusterprep.survey.consequences import standing

MOST = 3  # findings named with one culprit
LONGEST = 120  # characters of what was seen


def with_findings(
    culprits: Iterable[Culprit], findings: Iterable[Finding], trial: Collection[str]
) -> tuple[Culprit, ...]:
    """Return the culprits, each with the failures of checks on its nodes as its first evidence.

    `findings` know what they follow from, and those that do are left out. So are those of the
    checks in `trial`, which tell of the same trial, and what fails on all nodes that were judged,
    for it tells no node from the others.
    """
    findings = tuple(findings)
    everywhere = len({node for finding in findings for node in finding.nodes})
    telling = []
    for finding in standing(findings):
        counts = finding.verdict == "fail" and finding.silenced is None and not finding.fixed
        if counts and finding.check not in trial and len(finding.nodes) < everywhere:
            telling.append(finding)
    telling.sort(key=lambda finding: finding.severity != "error")
    return tuple(_with_findings(culprit, telling) for culprit in culprits)


def _with_findings(culprit: Culprit, findings: Sequence[Finding]) -> Culprit:
    nodes = {*culprit.nodes, culprit.source, culprit.target}
    lines = []
    for finding in findings:
        shared = [node for node in finding.nodes if node in nodes]
        # Where a finding kept the trial from starting, the culprit is made of it.
        is_known = any(line.startswith(f"{finding.check}:") for line in culprit.evidence)
        if shared and not is_known:
            seen = shortened(finding.seen or finding.message, LONGEST)
            lines.append(f"{finding.check} fails on {fold(shared)} too: {seen}")
    if not lines:
        return culprit
    return replace(culprit, evidence=(*lines[:MOST], *culprit.evidence))
