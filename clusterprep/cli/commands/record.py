"""What becomes of a run's report once there is one: what turned since the last run is said, and all of it is kept.

The history serves people. Whatever is wrong with it is a notice in the report and never a reason for a run to fail.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from clusterprep import __version__
from clusterprep.cli.commands.report import VERDICTS
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import ENDINGS, ClusterprepError
from clusterprep.history import compare as compared
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs, packed
from clusterprep.model import Report
from clusterprep.model.history import RecordedRun, Since

COMMANDS = ("check", "plan", "apply", "verify", "rollback", "launch")
LOOKED_THROUGH = 20  # runs among which the one to compare with is chosen


def recorded(job: Invocation, report: Report) -> Report:
    """The report with what turned since the last run, after it was written to the history.

    Under a budget neither: the time is for the nodes, and the state folder may be what hangs.
    """
    if report.command not in COMMANDS or job.budget is not None:
        return report
    troubles: list[str] = []
    try:
        if report.findings is not None:
            report = replace(report, since=_since(job.runs, report))
    except Unusable as error:
        troubles.append(str(error))
    try:
        job.runs.record(packed(report, line_of(report, job.inventory.path)))
    except Unusable as error:
        troubles.append(f"this run is not in the history: {error}")
    except ENDINGS:
        raise
    except Exception as error:  # noqa: BLE001 - a run that is through says what it did, whatever becomes of the record
        troubles.append(
            f"this run is not in the history, by a bug of ours: {type(error).__name__}: {error}"
        )
    return replace(report, notices=(*report.notices, *troubles[-1:]))


def note_failure(job: Invocation, error: ClusterprepError) -> None:
    """Record a run that an error ended: refused, interrupted, out of time. What is wrong with that is not said."""
    if job.settings.command not in COMMANDS or job.budget is not None:
        return
    details = {
        "code": error.code,
        "message": error.message,
        "file": None,
        "line": None,
        "key": None,
    }
    report = Report(
        command=job.settings.command,
        run=job.run,
        cluster=job.inventory.cluster,
        started=f"{job.started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=round(time.monotonic() - job.clock, 3),
        verdict=VERDICTS.get(error.code, "error"),
        code=error.code,
        error=details,
        notices=tuple(job.notices),
    )
    with suppress(Unusable):
        job.runs.record(packed(report, line_of(report, job.inventory.path)))


def _since(runs: Runs, report: Report) -> Since | None:
    """What turned since the newest run of this cluster that judged the same; None where there is none."""
    checks = frozenset(finding.check for finding in report.findings or ())
    reached = sum(node.reached for node in report.nodes or ())
    run = compared.best(
        runs.checks(report.cluster, LOOKED_THROUGH), report.command, checks, reached
    )
    if run is None:
        return None
    return compared.since(run, runs.report(run.run, only=("findings",)), report.findings or ())


def line_of(report: Report, inventory: str) -> RecordedRun:
    """The run as the list of runs shows it."""
    counting = [
        finding for finding in report.findings or () if not finding.silenced and not finding.fixed
    ]
    found = {
        (f.check, f.verdict, f.severity, f.reason)
        for f in counting
        if f.verdict in ("fail", "unknown")
    }
    failed = [severity for _, verdict, severity, _ in found if verdict == "fail"]
    return RecordedRun(
        run=report.run,
        command=report.command,
        cluster=report.cluster,
        inventory=inventory,
        started=report.started,
        seconds=report.seconds,
        verdict=report.verdict,
        code=report.code,
        nodes=len(report.nodes or ()),
        reached=sum(node.reached for node in report.nodes or ()),
        errors=failed.count("error"),
        warnings=failed.count("warning"),
        unknown=len(found) - len(failed),
        tool=__version__,
    )
