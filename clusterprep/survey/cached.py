"""Deep checks: which they are, what is kept of their findings, and what kept findings are still worth. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterprep import __version__
from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.facts.results import RESULTS, SCHEMA, Results, path_of, rows_of
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.model.units import format_duration
from clusterprep.survey.settings import RunSettings

FACT = RESULTS.name
NEVER, OLD = "never stored", "out of date"  # reasons
LONGEST = 24 * 3600.0  # seconds; a timer that has missed a whole day does not run
RENEW = "clusterprep check --local --deep --store   # from a timer: docs/prolog.md"


def is_deep(check: Check, facts: Mapping[str, Fact]) -> bool:
    """Whether a check needs, or would use, a fact that is deep; without it another answer might come out."""
    return any(facts[name].deep for name in (*check.facts, *check.uses))


def leave_deep(
    checks: tuple[Check, ...], facts: Mapping[str, Fact], settings: RunSettings
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The checks to ask for now, and those that are answered from what the nodes keep."""
    if not (settings.budget or settings.deep):
        return checks, ()
    slow = tuple(check for check in checks if is_deep(check, facts))
    if settings.deep:
        return tuple(check for check in checks if check in slow or check.name == "ssh.reach"), ()
    return tuple(check for check in checks if check not in slow), slow


def settings_of(node: Node) -> str:
    """What the findings about a node follow from besides the node itself, as one word."""
    declared = {
        "python": node.python,
        "job_user": node.job_user or node.ssh.user,
        "root": node.root,
        "gpus": repr(node.gpus),
        "nproc_per_node": node.nproc_per_node,
        "interfaces": repr(node.interfaces),
        "env": {name: setting.value for name, setting in node.env.items()},
        "require": dict(node.require),
    }
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:16]


def cached_checks(
    findings: tuple[Finding, ...], checks: Sequence[Check], node: Node
) -> dict[str, Any]:
    """What a node keeps of a look at it."""
    names = [check.name for check in checks]
    told = tuple(finding for finding in findings if finding.check in names)
    head = {"schema": SCHEMA, "tool": __version__, "about": settings_of(node), "checks": names}
    return {**head, "findings": rows_of(told, node)}


def announce_cached(fleet: Fleet, checks: Sequence[Check]) -> Iterable[Finding]:
    """The kept findings of deep checks on every node that was reached, with their age.

    Where there are none that still hold, a check is unknown and never more than a warning: it was not looked at on
    purpose, and what a job waits for must not depend on whether a timer has run. Remedies are to be pasted, so
    they come from the check and never from the node.
    """
    for node in fleet.reached:
        results = fleet.fact(node.name, FACT)
        why = _unusable(results, node)
        for check in checks:
            if why is None and check.name in results.checks:
                mine = (finding for finding in results.findings if finding.check == check.name)
                yield from (_of_now(finding, check, node, results) for finding in mine)
            else:
                reason, message = why or (NEVER, "the stored results do not hold this check yet")
                yield Finding(
                    check.name,
                    "unknown",
                    "warning",
                    (node.name,),
                    message,
                    remedy=RENEW,
                    reason=reason,
                )


def _of_now(finding: Finding, check: Check, node: Node, results: Results) -> Finding:
    """The kept finding as it is told of this node."""
    remedy = (
        check.remedy.replace("NODE", node.name) if finding.verdict in ("fail", "unknown") else ""
    )
    return replace(finding, nodes=(node.name,), remedy=remedy, age=results.age)


def _unusable(results: Results | Absent | None, node: Node) -> tuple[str, str] | None:
    """Reason and sentence why stored results say nothing about this node now."""
    if isinstance(results, Absent):
        why = results.detail or results.reason
        # Findings with one reason are folded, so a node that chooses its words gets none of those that are ours.
        reason = "garbled" if results.reason in (NEVER, OLD) else results.reason
        return reason, f"the stored results in {path_of(node)} could not be used: {why}"
    if results is None:
        return NEVER, "it is not asked under a budget, and this node has no stored results"
    if results.age is None:
        return OLD, "the stored results are from before the last boot"
    if results.age > LONGEST:
        limit = format_duration(LONGEST)
        return (
            OLD,
            f"the stored results are {format_duration(round(results.age))} old, and {limit} is the limit",
        )
    if results.about != settings_of(node):
        return OLD, "the stored results are about other settings of this node"
    return None


def note(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One line about the checks that were answered from the store."""
    old = [finding for finding in findings if finding.age is not None]
    if not old:
        return ()
    oldest = max(finding.age or 0.0 for finding in old)
    number = len({finding.check for finding in old})
    return (
        f"{number} deep checks were not asked now: they are as of {format_duration(round(oldest))} ago",
    )
