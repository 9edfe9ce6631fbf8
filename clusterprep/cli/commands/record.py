"""Compares a report with the previous run and writes it to the history.

The history serves people. A failure to read or write it becomes a notice in the report, and never
a reason for a command to fail.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from clusterprep import __version__
from clusterprep.cli.commands.report import failure_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import ClusterprepError, InputError
from clusterprep.history import compare as compared
from clusterprep.history.blame import blamed
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs, packed
from clusterprep.model import Finding, Report, Severity
from clusterprep.model.history import RecordedRun, Since
from clusterprep.survey.consequences import standing

COMMANDS = ("check", "plan", "apply", "fix", "verify", "rollback", "launch", "bisect")
LOOKED_THROUGH = 20  # runs among which the one to compare with is chosen


def recorded(invocation: Invocation, report: Report) -> Report:
    """Write the report to the history and return it with what changed since the previous run.

    What earlier runs tell of failing parts becomes notices. With --budget none of it is done: the
    time is for the nodes, and the state folder may be what hangs.
    """
    if not _is_recorded(invocation):
        return report
    troubles: list[str] = []
    try:
        if report.findings is not None:
            notices = (*report.notices, *blamed(invocation.runs, report))
            since = _since(invocation.runs, report)
            report = replace(report, since=since, notices=notices)
    except Unusable as error:
        troubles.append(str(error))
    trouble = _record(invocation, report)
    if trouble:
        troubles.append(trouble)
    # Both failures have the same cause, so one sentence is enough.
    return replace(report, notices=(*report.notices, *troubles[-1:]))


def note_failure(invocation: Invocation, error: ClusterprepError) -> None:
    """Record a run that an error ended: refused, interrupted, out of time.

    Wrong input is not recorded: the last run stays the one that did something. A history that
    cannot be written is not reported here: the error is more important.
    """
    if isinstance(error, InputError) or not _is_recorded(invocation):
        return
    report = failure_report(invocation, error)
    with suppress(Unusable):
        _write(invocation, report)


def _is_recorded(invocation: Invocation) -> bool:
    return invocation.settings.command in COMMANDS and invocation.budget is None


def _record(invocation: Invocation, report: Report) -> str:
    """Write the report to the history; return why that failed, or nothing."""
    try:
        _write(invocation, report)
    except Unusable as error:
        return f"this run is not in the history: {error}"
    except Exception as error:  # noqa: BLE001 - a finished run reports what it did in any case
        bug = f"{type(error).__name__}: {error}"
        return f"this run is not in the history because of a bug in clusterprep: {bug}"
    return ""


def _write(invocation: Invocation, report: Report) -> None:
    line = line_of(report, invocation.inventory.path)
    invocation.runs.record(packed(report, line))


def _since(runs: Runs, report: Report) -> Since | None:
    """Return what changed since the newest run of this cluster that judged the same checks.

    None if there is no such run.
    """
    findings = report.findings or ()
    checks = frozenset(finding.check for finding in findings)
    recent = runs.checks(report.cluster, LOOKED_THROUGH)
    previous = compared.best(recent, report.command, checks, _reached(report))
    if previous is None:
        return None
    before = runs.report(previous.run, only=("findings",))
    return compared.since(previous, before, findings)


def line_of(report: Report, inventory: str) -> RecordedRun:
    """Return the run as the list of runs shows it."""
    failed, unknown = _counted_failures(report.findings or ())
    nodes = report.nodes or ()
    errors = failed.count("error")
    warnings = failed.count("warning")
    return RecordedRun(
        run=report.run,
        command=report.command,
        cluster=report.cluster,
        inventory=inventory,
        started=report.started,
        seconds=report.seconds,
        verdict=report.verdict,
        code=report.code,
        nodes=len(nodes),
        reached=_reached(report),
        errors=errors,
        warnings=warnings,
        unknown=unknown,
        tool=__version__,
    )


def _reached(report: Report) -> int:
    return sum(node.reached for node in report.nodes or ())


def _counted_failures(findings: tuple[Finding, ...]) -> tuple[list[Severity], int]:
    """Return the severity of every failure, and the number of unknown findings.

    Findings of several nodes with the same check, verdict, severity and reason count once;
    silenced and fixed ones do not count, nor does what follows from others.
    """
    distinct = set()
    for finding in standing(findings):
        if finding.silenced or finding.fixed:
            continue
        if finding.verdict in ("fail", "unknown"):
            distinct.add((finding.check, finding.verdict, finding.severity, finding.reason))
    failed = [severity for _, verdict, severity, _ in distinct if verdict == "fail"]
    return failed, len(distinct) - len(failed)
