"""The report of a command: what was seen, found and done, with what has to be said besides."""

from __future__ import annotations

import dataclasses
import time

from clusterprep.cli.commands.session import Invocation
from clusterprep.model import ChangeRow, Finding, Fleet, NodeSnapshot, Report, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.launch_paths import launch_paths
from clusterprep.survey.judge import lapsed

VERDICTS = {
    0: "pass",
    1: "fail",
    2: "error",
    3: "unknown",
    4: "refused",
    5: "pass",
    130: "interrupted",
}


def report_of(
    job: Invocation,
    code: int,
    fleet: Fleet,
    findings: tuple[Finding, ...],
    env: Environment | None = None,
    changes: tuple[ChangeRow, ...] | None = None,
    verify: VerifyResult | None = None,
) -> Report:
    """The report of a command that came to its end, with this exit code."""
    over = lapsed(findings, job.inventory.silences, job.started.date())
    notices = [*job.inventory.warnings, *job.notices, *over]
    if fleet.limited:
        kept = fold(node.name for node in fleet.inventory.nodes)
        notices.append(f"limited to {kept}: majorities and verify are over nothing else")
    return Report(
        command=job.settings.command,
        run=job.run,
        cluster=job.inventory.cluster,
        started=f"{job.started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=round(time.monotonic() - job.clock, 3),
        verdict=VERDICTS.get(code, "error"),
        code=code,
        nodes=tuple(_without_files(s) for s in fleet.snapshots.values()),
        findings=findings,
        env=None if env is None else env.values,
        env_paths=launch_paths(fleet, writing=job.settings.command != "check"),
        changes=changes,
        verify=verify,
        notices=tuple(notices),
        strict=job.settings.strict,
    )


def _without_files(snapshot: NodeSnapshot) -> NodeSnapshot:
    """A snapshot for the report: what steps ask for themselves, such as bytes of files, are no facts to publish."""
    facts = {name: value for name, value in snapshot.facts.items() if ":" not in name}
    return dataclasses.replace(snapshot, facts=facts)
