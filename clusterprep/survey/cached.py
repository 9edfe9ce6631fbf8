"""Deep checks: select them, store their findings on nodes, and read stored findings. Pure.

Deep checks run code of the job's user, which may be slow. A timer runs `check --deep --store`,
which stores their findings on the nodes; `check --budget` reports what is stored instead of running
them.

Fresh findings count as if they were just made. Findings that are missing, old, from another boot or
about other settings are unknown with the severity of a warning, although not knowing is otherwise
as grave as failing: these checks were left out on purpose, and an error would appear on every job
of a cluster without the timer. The age is counted in time since the boot, which no user can set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from clusterprep import __version__
from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.facts.results import RESULTS, SCHEMA, Results, path_of, rows_of
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.model.runtimes import in_request
from clusterprep.model.units import format_duration
from clusterprep.remedies import NO_REMEDY, placed, shell_line
from clusterprep.survey.settings import RunSettings

FACT = RESULTS.name
NEVER, OLD = "never stored", "out of date"  # reasons
LONGEST = 24 * 3600.0  # seconds; a timer that has missed a whole day does not run
RENEW = shell_line(
    "clusterprep check --local --deep --store   # from a timer: docs/howto/prolog.md"
)


def is_deep(check: Check, facts: Mapping[str, Fact]) -> bool:
    """Return True if a deep fact may change what the check says."""
    names = (*check.facts, *check.uses)
    return any(facts[name].deep for name in names)


def split_deep(
    checks: tuple[Check, ...], facts: Mapping[str, Fact], settings: RunSettings
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """Return the checks to run now, and those that stored findings answer."""
    if not settings.budget and not settings.deep:
        return checks, ()
    deep: list[Check] = []
    quick: list[Check] = []
    timed: list[Check] = []  # what a timer runs: the deep checks, and whether the node is reached
    for check in checks:
        if is_deep(check, facts):
            deep.append(check)
            timed.append(check)
            continue
        quick.append(check)
        if check.name == "ssh.reach":
            timed.append(check)
    if settings.deep:
        return tuple(timed), ()
    return tuple(quick), tuple(deep)


# ---------------------------------------------------------------- storing


def settings_digest(node: Node) -> str:
    """Return a digest of all settings of a node on which findings about it depend."""
    env: dict[str, str] = {}
    for name, setting in node.env.items():
        env[name] = setting.value
    job_user = node.job_user or node.ssh.user
    declared = {
        "python": node.python,
        "job_user": job_user,
        "root": node.root,
        "gpus": repr(node.gpus),
        "nproc_per_node": node.nproc_per_node,
        "interfaces": repr(node.interfaces),
        "env": env,
        "require": dict(node.require),
        "endpoints": node.endpoints,
        "shared": node.shared,
        **in_request(node.runtime),
    }
    text = json.dumps(declared, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored_document(
    findings: tuple[Finding, ...], checks: Sequence[Check], node: Node
) -> dict[str, Any]:
    """Return what a node stores of these checks."""
    names = [check.name for check in checks]
    about_checks = tuple(finding for finding in findings if finding.check in names)
    rows = rows_of(about_checks, node)
    return {
        "schema": SCHEMA,
        "tool": __version__,
        "about": settings_digest(node),
        "checks": names,
        "findings": rows,
    }


# ---------------------------------------------------------------- reading


def cached_findings(fleet: Fleet, checks: Sequence[Check]) -> Iterable[Finding]:
    """Yield the stored findings of deep checks on every reached node, with their age.

    Without findings that still hold, a check is unknown, and this is only a warning: the check was
    not run on purpose, and whether a job may start must not depend on whether a timer has run.
    Users paste remedies into a shell, so remedies come from the check and never from the node.
    """
    for node in fleet.reached:
        results = fleet.fact(node.name, FACT)
        problem = _why_unusable(results, node)
        for check in checks:
            if problem is None and check.name in results.checks:
                yield from _stored_findings(results, check, node)
            else:
                yield _no_stored_finding(check, node, problem)


def _stored_findings(results: Results, check: Check, node: Node) -> Iterable[Finding]:
    """Yield what the stored results of a node say of a check."""
    for finding in results.findings:
        if finding.check != check.name:
            continue
        remedy = NO_REMEDY
        if finding.verdict in ("fail", "unknown"):
            remedy = placed(check.remedy, NODE=node.name)
        yield replace(finding, nodes=(node.name,), remedy=remedy, age=results.age)


def _no_stored_finding(check: Check, node: Node, problem: tuple[str, str] | None) -> Finding:
    reason, message = problem or (NEVER, "the stored results do not hold this check yet")
    return Finding(
        check.name, "unknown", "warning", (node.name,), message, remedy=RENEW, reason=reason
    )


def _why_unusable(results: Results | Absent | None, node: Node) -> tuple[str, str] | None:
    """Return reason and message if stored results say nothing about this node now."""
    if isinstance(results, Absent):
        # Findings with one reason are folded into one, so a node must not use one of our own
        # reasons.
        reason = "garbled" if results.reason in (NEVER, OLD) else results.reason
        why = results.detail or results.reason
        return reason, f"the stored results in {path_of(node)} could not be used: {why}"
    if results is None:
        return NEVER, "it is not asked under a budget, and this node has no stored results"
    if results.age is None:
        return OLD, "the stored results are from before the last boot"
    if results.age > LONGEST:
        age, limit = format_duration(round(results.age)), format_duration(LONGEST)
        return OLD, f"the stored results are {age} old, and {limit} is the limit"
    if results.about != settings_digest(node):
        return OLD, "the stored results are about other settings of this node"
    return None


def cached_notice(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return a line about the checks that stored findings answered, or nothing."""
    ages: list[float] = []
    checks: set[str] = set()
    for finding in findings:
        if finding.age is not None:
            ages.append(finding.age)
            checks.add(finding.check)
    if not ages:
        return ()
    oldest = format_duration(round(max(ages)))
    return (f"{len(checks)} deep checks were not asked now: they are as of {oldest} ago",)
