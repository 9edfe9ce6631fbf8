"""Sort and count what became of the failures that `fix` looked at, for all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterprep.model import Finding, FixRow

# What is still to be looked at stands first.
OUTCOMES = ("not cured", "by hand", "not done", "planned", "cured")
# Letters of the page's style: a failure, unknown, neither, a pass.
KINDS = {"not cured": "f", "by hand": "w", "cured": "p"}


def sorted_fixes(fixes: Iterable[FixRow]) -> list[FixRow]:
    """Return the rows of a fix, what is not cured first."""
    return sorted(fixes, key=lambda row: OUTCOMES.index(row.outcome))


def count_fixes(fixes: Iterable[FixRow]) -> str:
    """Return «1 not cured, 2 by hand, 18 cured», or that there was nothing to do."""
    counts: Counter[str] = Counter(row.outcome for row in fixes)
    parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
    return ", ".join(parts) or "nothing to cure"


def curable_checks(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the checks with a failure that counts and that `fix` can cure, each once."""
    names: dict[str, None] = {}
    for finding in findings:
        counts = finding.verdict == "fail" and not finding.fixed and not finding.silenced
        if counts and finding.fix is not None:
            names[finding.check] = None
    return tuple(names)
