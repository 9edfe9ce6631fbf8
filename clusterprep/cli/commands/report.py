"""Makes the report of every command; `new_report` is the only place that constructs one.

new_report("validate", 0, cluster="demo")  →  Report(command="validate", verdict="pass", …)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from clusterprep.cli.exit_codes import verdict_of
from clusterprep.errors import ClusterprepError, InputError
from clusterprep.model import (
    ChangeRow,
    Finding,
    Inventory,
    Json,
    NodeGroup,
    NodeSnapshot,
    Report,
    VerifyResult,
)
from clusterprep.model.extensions import Extensions, SiteCheck
from clusterprep.model.nodeset import fold, nearest

if TYPE_CHECKING:  # reports of `validate` and of usage errors need none of these
    from clusterprep.cli.commands.session import Invocation
    from clusterprep.cli.commands.stages import Survey
    from clusterprep.nccl.environment import Environment
    from clusterprep.survey.gates import Obstacle


def new_report(
    command: str,
    code: int,
    *,
    cluster: str = "",
    run: str = "",
    started: datetime | None = None,
    seconds: float = 0.0,
    **sections: Any,
) -> Report:
    """Return a report with the verdict of its exit code; `sections` are further fields of Report.

    It starts now unless `started` says otherwise.
    """
    moment = datetime.now(timezone.utc) if started is None else started
    return Report(
        command=command,
        run=run,
        cluster=cluster,
        started=f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        seconds=seconds,
        verdict=verdict_of(code),
        code=code,
        **sections,
    )


def survey_report(
    invocation: Invocation,
    code: int,
    surveyed: Survey,
    env: Environment | None = None,
    changes: tuple[ChangeRow, ...] | None = None,
    verify: VerifyResult | None = None,
) -> Report:
    """Return the report of a command that surveyed the nodes and ran to its end."""
    from clusterprep.jobs.verify.pages import PAGES
    from clusterprep.nccl.launch_paths import launch_paths
    from clusterprep.survey.culprit_findings import with_findings
    from clusterprep.survey.rank_places import gpu_seats, rank_places

    settings = invocation.settings
    fleet = surveyed.fleet
    nodes = [_without_step_facts(snapshot) for snapshot in fleet.snapshots.values()]
    env_values = None if env is None else env.values
    env_paths = launch_paths(fleet, writing=settings.command != "check")
    notices = _notices(invocation, surveyed)
    findings = with_causes_of(invocation.inventory, surveyed.findings)
    if verify is not None:
        culprits = with_findings(verify.culprits, findings, PAGES)
        verify = msgspec.structs.replace(verify, culprits=culprits)
    places: dict[str, Any] = {}
    if settings.command == "check":
        places = {"gpus": gpu_seats(fleet), "ranks": rank_places(fleet)}
    return _invocation_report(
        invocation,
        code,
        nodes=tuple(nodes),
        findings=findings,
        env=env_values,
        env_paths=env_paths,
        changes=changes,
        verify=verify,
        notices=notices,
        strict=settings.strict,
        site_checks=_site_checks(invocation.inventory.extensions, surveyed.findings),
        groups=_groups(invocation.inventory, fleet.snapshots),
        **places,
    )


def held_report(report: Report, obstacle: Obstacle | None, outcome: str) -> Report:
    """Return the report with a note that says why nothing may be written, unless it may.

    `outcome` begins the note: `nothing was started`.
    """
    if obstacle is None:
        return report
    notice = f"{outcome}: {obstacle.sentence}"
    return msgspec.structs.replace(
        report, notices=(notice, *report.notices), held_by=obstacle.unreached
    )


def with_causes_of(inventory: Inventory, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of the survey and of the trial, each with what it follows from."""
    from clusterprep.jobs.verify.pages import PAGES
    from clusterprep.survey import registry
    from clusterprep.survey.consequences import rules_of, with_causes

    known = registry.of(inventory)
    declared = rules_of(known.checks.values(), known.facts)
    of_trial = {page.name: page.follows for page in PAGES.values()}
    rules = msgspec.structs.replace(
        declared,
        follows={**declared.follows, **of_trial},
        between=declared.between.union(PAGES),
    )
    return with_causes(findings, rules)


def cut_report(
    invocation: Invocation,
    error: ClusterprepError,
    surveyed: Survey,
    env: Environment | None = None,
    changes: tuple[ChangeRow, ...] | None = None,
    verify: VerifyResult | None = None,
) -> Report:
    """Return the report of a command that `error` ended, with what was known by then.

    The code is that of the error. Where it is the time limit, a check that has failed makes it 1.
    """
    from clusterprep.cli.exit_codes import cut_code, findings_code

    code = cut_code(error, findings_code(surveyed.findings, invocation.settings.strict))
    report = survey_report(
        invocation,
        code,
        surveyed,
        env=env,
        changes=changes,
        verify=verify,
    )
    return msgspec.structs.replace(report, error=_error_details(error))


def findings_report(whole: Report, check: str) -> Report:
    """Return what a check found in an earlier run, without the other sections of its report.

    `check` may be an area, such as `time.`. Raises InputError if nothing has that name.
    """
    from clusterprep.cli.exit_codes import findings_code
    from clusterprep.survey.selection import matches

    findings = whole.findings or ()
    chosen = tuple(finding for finding in findings if matches(check, finding.check))
    if not chosen:
        names = sorted({finding.check for finding in findings})
        hint = nearest(check, names) or f"`clusterprep report {whole.run}` shows the whole run"
        raise InputError.of(f"run {whole.run} has no finding of {check!r}", key="CHECK", hint=hint)
    report = new_report(
        "explain",
        findings_code(chosen, whole.strict),
        cluster=whole.cluster,
        run=whole.run,
        findings=chosen,
        strict=whole.strict,
        inventory=whole.inventory,
        site_checks=whole.site_checks,
    )
    return msgspec.structs.replace(report, started=whole.started)


def _site_checks(
    extensions: Extensions, findings: Iterable[Finding]
) -> tuple[SiteCheck, ...] | None:
    """Return what to say of the site's checks that have findings; None if the site has none."""
    if not extensions.checks:
        return None
    pages = []
    for name in dict.fromkeys(finding.check for finding in findings):
        check = extensions.checks.get(name)
        if check is not None:
            facts = (*check.facts, *check.uses)
            site_facts = [extensions.facts[fact] for fact in facts if fact in extensions.facts]
            moving = tuple(fact.name for fact in site_facts if fact.moves)
            page = SiteCheck(name, check.title, check.why, check.how, check.source, facts, moving)
            pages.append(page)
    return tuple(pages)


def _groups(inventory: Inventory, nodes: Collection[str]) -> tuple[NodeGroup, ...] | None:
    """Return the groups of the inventory, each with those of its nodes that the report has."""
    groups = []
    for name, members in inventory.groups.items():
        present = tuple(member for member in members if member in nodes)
        if present:
            groups.append(NodeGroup(name, present))
    return tuple(groups) or None


def failure_report(invocation: Invocation, error: ClusterprepError) -> Report:
    """Return the report of an invocation that an error ended, for the history."""
    return _invocation_report(
        invocation,
        error.code,
        error=_error_details(error),
        notices=tuple(invocation.notices),
    )


def error_report(error: ClusterprepError, command: str) -> Report:
    """Return the report of a command that an error ended, for the terminal.

    It says where the mistake in the input is, if the error knows.
    """
    details = _error_details(error)
    if isinstance(error, InputError):
        problem = error.problems[0]
        details.update(file=problem.file, line=problem.line, key=problem.key)
    return new_report(command, error.code, error=details)


def _invocation_report(invocation: Invocation, code: int, **sections: Any) -> Report:
    return new_report(
        invocation.settings.command,
        code,
        cluster=invocation.inventory.cluster,
        run=invocation.run,
        started=invocation.started,
        seconds=invocation.seconds,
        inventory=invocation.inventory.path,
        **sections,
    )


def _error_details(error: ClusterprepError) -> dict[str, Json]:
    """Return the section `error` of the report, as its schema has it, without a place."""
    return {
        "code": error.code,
        "message": error.message,
        "file": None,
        "line": None,
        "key": None,
    }


def _notices(invocation: Invocation, surveyed: Survey) -> tuple[str, ...]:
    """Return warnings of the inventory, notices of the stages, lapsed silences and the limit."""
    from clusterprep.survey.judge import lapsed_silences

    inventory = invocation.inventory
    today = invocation.started.date()
    notices = [*inventory.warnings, *invocation.notices]
    notices.extend(lapsed_silences(surveyed.findings, inventory.silences, today))
    fleet = surveyed.fleet
    if fleet.limited:
        names = fold(node.name for node in fleet.inventory.nodes)
        notices.append(f"limited to {names}: other nodes are neither compared nor verified")
    return tuple(notices)


def _without_step_facts(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return the snapshot without facts that only steps ask for, such as the bytes of files.

    Their names have a colon. They are not published in reports.
    """
    facts = {name: value for name, value in snapshot.facts.items() if ":" not in name}
    return msgspec.structs.replace(snapshot, facts=facts)
