"""The stages in a row: look, judge, render, compare, write, look again, verify, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clusterprep.changes.file_plan import change_rows, gap_code, nodes_of
from clusterprep.changes.file_rollback import last_run, plan_rollback
from clusterprep.changes.findings_cache import store, store_code
from clusterprep.changes.planner import ChangePlan, predict_changes
from clusterprep.changes.playbook.steps import Step, fact_names, own_facts
from clusterprep.changes.step_rollback import StepRollback
from clusterprep.changes.step_runner import StepRunner, roll_back_run
from clusterprep.changes.transaction import Transaction, with_lost
from clusterprep.cli.commands.report import report_of
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import ClusterprepError, NotKnown
from clusterprep.history.given import refuse_clashes
from clusterprep.history.samples import with_earlier
from clusterprep.jobs.verify.expected import FACTS as MODEL_FACTS
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.stage import not_run, run_trial
from clusterprep.model import Finding, Fleet, Report, StepOutcome, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import Environment, render
from clusterprep.nccl.launch_paths import FACT as PATHS
from clusterprep.survey import registry
from clusterprep.survey.cached import FACT as STORED
from clusterprep.survey.cached import announce_cached, leave_deep, note
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import (
    BUSY,
    GATES,
    after_write,
    blocked,
    blocking_findings,
    worse_exit_code,
)
from clusterprep.survey.judge import exit_code, fixed, judge, silenced
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.selection import Selection, select_checks

if TYPE_CHECKING:  # a check in a prolog does not wait for what launches
    from clusterprep.jobs.launch.plan import LaunchRequest
    from clusterprep.jobs.launch.stage import Screen

NOTHING = "there is nothing to undo"
JOURNAL = "state.journal"
TRIAL_FACTS = tuple(dict.fromkeys((*ENV_FACTS, *MODEL_FACTS)))
VERIFY_NEEDS = (
    "ssh.",
    "host.identity",
    "torch.version",
    "nccl.torch",
    "net.ports",
    "eth.iface_choice",
    "gpu.count",
    BUSY,
)


def check(job: Invocation) -> Report:
    """Look and judge; nothing is written, but with --store what the nodes keep of it."""
    plan = _plan(job)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=not job.settings.store)
        stored = store(fanout, fleet, findings, plan.checks) if job.settings.store else None
    code = worse_exit_code(exit_code(findings, job.settings.strict), store_code(stored))
    job.notices.extend(note(findings))
    return report_of(job, code, fleet=fleet, findings=findings, changes=stored)


def show_env(job: Invocation) -> tuple[Report, Environment]:
    """The environment that apply would write."""
    plan = _plan(job, only=("ssh.", "eth.iface_choice"), facts=(*ENV_FACTS, PATHS))
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    environment = render(fleet)
    code = exit_code(findings) or (3 if environment.gaps else 0)
    return report_of(job, code, fleet=fleet, findings=findings, env=environment), environment


def plan_changes(job: Invocation) -> Report:
    """What apply would change; nothing is written."""
    plan = _plan(job, facts=(*ENV_FACTS, PATHS), steps=job.steps)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    environment = render(fleet)
    change_plan = predict_changes(fleet, job.steps, environment)
    code = worse_exit_code(exit_code(findings, job.settings.strict), gap_code(change_plan.gaps))
    if code == 0 and change_plan.pending and job.settings.detailed_exitcode:
        code = 5
    return report_of(
        job, code, fleet=fleet, findings=findings, env=environment, changes=change_plan.rows()
    )


def apply(job: Invocation) -> Report:
    """Look, write on all nodes or on none, look again, verify."""
    # The environment is asked for only where it is written or used: it needs the job's interpreter on every node.
    wanted = job.settings.verify or any(step.resource.name == "env" for step in job.steps)
    plan = _plan(job, facts=(*TRIAL_FACTS, PATHS) if wanted else (), steps=job.steps)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        writer = Transaction(fanout, fleet, job.run)
        if not blocked(fleet, findings, job.settings.partial) and _recover(job, writer):
            again, second = _look(job, fanout, plan)
            fleet, findings = again, fixed(findings, second)
        environment = render(fleet) if wanted else Environment((), {})
        planned = predict_changes(fleet, job.steps, environment)
        if blocked(fleet, findings, job.settings.partial) or planned.gaps or writer.stuck:
            changed = planned.none_started(writer.stuck)
            code = worse_exit_code(
                exit_code(findings, job.settings.strict), gap_code(planned.gaps) or 3
            )
            report = report_of(
                job, code, fleet=fleet, findings=findings, env=environment, changes=changed
            )
        else:
            _refuse_clashes(job, planned, environment)
            report = _write(job, plan, writer, fleet, findings, environment, planned)
    return _remembered(job, report)


def _recover(job: Invocation, writer: Transaction, by: str | None = None) -> bool:
    """Settle what earlier runs left, and say so; whether there was any."""
    with job.deadline.shield():
        recovered = writer.recover(job.settings.force, by)
    job.notices.extend(str(run) for run in recovered)
    for found in recovered:
        if not found.done:
            job.given.forget(job.inventory.cluster, found.run)
    return bool(recovered)


def _remembered(job: Invocation, report: Report) -> Report:
    """The report, after the controller has noted which nodes it went well on, and with which environment."""
    job.given.note(job.inventory.cluster, report)
    job.given.keep(job.inventory.cluster, report)
    return dataclasses.replace(report, notices=(*report.notices, *job.given.troubles))


def _refuse_clashes(job: Invocation, planned: ChangePlan, environment: Environment) -> None:
    if job.settings.left_out:
        given = job.given.last(job.inventory.cluster)
        others = {name: given[name] for name in job.settings.left_out if name in given}
        refuse_clashes(environment, nodes_of("env", planned.files), others)


def _write(
    job: Invocation,
    plan: QueryPlan,
    writer: Transaction,
    fleet: Fleet,
    findings: tuple[Finding, ...],
    environment: Environment,
    planned: ChangePlan,
) -> Report:
    if planned.pending and not job.confirm(planned.rows()):
        changed = planned.none_started()
        return report_of(job, 0, fleet=fleet, findings=findings, env=environment, changes=changed)
    step_runner = StepRunner(writer, fleet, job.steps, environment, planned)
    result: VerifyResult | None = None
    tried: tuple[Finding, ...] = ()
    try:
        job.watch.stage("write", len(fleet.reached), [node.name for node in fleet.reached])
        receipt = writer.write(planned.files, job.deadline, also=planned.nodes)
        for node in fleet.reached:
            job.watch.step(node.name, receipt.outcomes.get(node.name, "unchanged"))
        if receipt.done:
            step_runner.perform(job.watch)
        else:
            step_runner.leave()
        if receipt.done and receipt.outcomes:
            written = [node for node in nodes_of("env", planned.files) if node in receipt.outcomes]
            job.given.remember(job.inventory.cluster, job.run, environment, written)
        if receipt.done and receipt.outcomes and not step_runner.lost:
            again, second = _look(job, writer.fanout, plan)
            fleet, findings = again, fixed(findings, second)
        # A grave finding says all there is to say; that nobody tried because GPUs are in use has to be said here.
        standing = _without_missing(job, fleet, findings)
        well = receipt.done and not step_runner.failed
        if well and job.settings.verify and not blocking_findings(standing, on_busy=True):
            result, tried = _verify(job, writer.fanout, fleet, environment, standing)
            findings = (*findings, *tried)
    except ClusterprepError as error:
        troubles = roll_back_run(writer, step_runner, job.deadline)
        if writer.taken_back:
            job.given.forget(job.inventory.cluster, job.run)
            error.message += "; what had been written was put back on all nodes"
        error.message += "".join(f"\n{trouble}" for trouble in troubles)
        raise
    receipt.lost |= step_runner.lost
    findings = _settle(job, plan, writer, fleet, findings)
    changed = (*change_rows(planned.files, receipt.outcomes, receipt.details), *step_runner.rows())
    code = after_write(exit_code(findings, job.settings.strict), well, result, tried)
    return report_of(
        job, code, fleet=fleet, findings=findings, env=environment, changes=changed, verify=result
    )


def _settle(
    job: Invocation,
    plan: QueryPlan,
    writer: Transaction,
    fleet: Fleet,
    findings: tuple[Finding, ...],
) -> tuple[Finding, ...]:
    """Say on all nodes that what was written stays. The journal of a node that was lost meanwhile is judged anew."""
    try:
        with job.deadline.shield():
            writer.settle()
    except ClusterprepError as error:
        error.message += "; what was written stays on all nodes"
        raise
    if not writer.receipt.lost:
        return findings
    checks = [check for check in plan.checks if check.name == JOURNAL]
    again = judge(with_lost(fleet, job.run, writer.receipt.lost), checks, job.started.date())
    return (*(finding for finding in findings if finding.check != JOURNAL), *again)


def verify(job: Invocation) -> Report:
    """The cross-node all-reduce, after the checks without which it could only hang."""
    plan = _plan(job, only=VERIFY_NEEDS, facts=TRIAL_FACTS)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        environment = render(fleet)
        result, tried = _verify(job, fanout, fleet, environment, findings)
        findings = (*findings, *tried)
    code = after_write(exit_code(findings, job.settings.strict), True, result, tried)
    job.notices.extend(job.given.troubles)
    return report_of(job, code, fleet=fleet, findings=findings, env=environment, verify=result)


def launch(job: Invocation, wanted: LaunchRequest, screen: Screen) -> Report:
    """The job's own command on all nodes, after the checks without which it could only hang."""
    from clusterprep.jobs.launch import stage as launching

    screen.say(launching.BESIDE)
    plan = _plan(job, only=VERIFY_NEEDS if wanted.preflight else ("ssh.",), facts=ENV_FACTS)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        gates = blocking_findings(findings, job.settings.on_busy or not wanted.preflight)
        result, notices = launching.launch(fanout, fleet, render(fleet), wanted, gates, screen)
    job.notices.extend(notices)
    code = launching.code_of(result)
    code = worse_exit_code(exit_code(findings), code) if gates else code
    return dataclasses.replace(report_of(job, code, fleet, findings), launch=result)


def print_launch(job: Invocation, wanted: LaunchRequest, form: str) -> tuple[int, str]:
    """The same as text, for others to start; where a node is not known, neither is its part."""
    from clusterprep.jobs.launch import stage as launching
    from clusterprep.jobs.launch.text import text_of

    plan = _plan(job, only=("ssh.", "eth.iface_choice"), facts=ENV_FACTS)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    if gates := blocking_findings(findings, on_busy=True):
        raise NotKnown(f"nothing is printed: {launching.why(gates)}")
    return exit_code(findings), text_of(
        launching.launch_plan(fleet, render(fleet), wanted), form, fleet.inventory.cluster
    )


def rollback(job: Invocation) -> Report:
    """Put back what this cluster's last apply replaced."""
    plan = _plan(job, only=("ssh.", "host.identity", JOURNAL))
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        if blocked(fleet, findings, job.settings.partial):
            return report_of(
                job, worse_exit_code(exit_code(findings), 3), fleet=fleet, findings=findings
            )
        writer = Transaction(fanout, fleet, job.run)
        writer.lock()
        if _recover(job, writer, by=job.run):
            again, second = _look(job, fanout, plan)
            fleet, findings = again, fixed(findings, second)
        memories = writer.memories()
        cut_off = any(
            run.by == job.run for runs in memories.values() for run in runs
        )  # and undone: that was the last
        run = (
            None
            if cut_off and not job.settings.run
            else last_run(memories, job.inventory.cluster, job.settings.run)
        )
        planned = (
            () if run is None or writer.stuck else plan_rollback(memories, run, job.settings.force)
        )
        steps = StepRollback(writer, None if writer.stuck else run, memories)
        if not job.settings.force:
            steps.refuse_built_upon(memories)
        steps.take_back(job.settings.force)
        left = (
            steps.failed and not job.settings.force
        )  # the files stay as they are, and the next rollback goes on
        receipt = writer.write(
            () if left else planned, job.deadline, undoes=run, also=() if left else steps.nodes
        )
        if receipt.done and not left:
            steps.run_again()
        findings = _settle(job, plan, writer, fleet, findings)
    done = receipt.done and not steps.failed
    if run is not None and done:
        job.given.forget(job.inventory.cluster, run)
    outcomes: dict[str, StepOutcome] = {
        n: ("undone" if o == "done" else o) for n, o in receipt.outcomes.items()
    }
    if left:
        outcomes = {change.node: "not-started" for change in planned}
    changed = (*steps.rows(), *change_rows(planned, outcomes, receipt.details))
    code = worse_exit_code(exit_code(findings), 0 if done and not writer.stuck else 1)
    some = (
        f"run {run} is undone"
        if done
        else f"run {run} is not undone; rollback goes on where it stopped"
    )
    notice = (
        some if planned or steps.nodes else "there is nothing more to undo" if cut_off else NOTHING
    )
    job.notices.append(notice)
    for folder, nodes in writer.left.items():
        job.notices.append(
            f"{folder} of {fold(nodes)} stays: run {run} made it, and somebody else's files are in it"
        )
    return report_of(job, code, fleet=fleet, findings=findings, changes=changed)


def _plan(
    job: Invocation,
    only: tuple[str, ...] = (),
    facts: Iterable[str] = (),
    steps: Sequence[Step] = (),
) -> QueryPlan:
    """The plan for the checks selected, or for those that a command cannot do without."""
    selection = Selection(only=only) if only else job.settings.selection
    checks = select_checks(registry.checks(), selection, job.settings.catalogue, _always(job))
    checks, kept = leave_deep(checks, registry.facts(), job.settings)
    extra = [registry.facts()[name] for name in (*facts, *((STORED,) if kept else ()))]
    if steps:
        extra += [registry.facts()[name] for name in ("host.machine_id", *fact_names(steps))]
    return plan_queries(checks, registry.facts(), (*extra, *own_facts(steps, job.inventory)), kept)


def _always(job: Invocation) -> set[str]:
    """What no selection leaves out: a node that was not reached is never a pass, a doubled one never written to."""
    always = {"ssh.reach"}
    if job.settings.command in ("apply", "plan", "rollback"):
        always.update(("host.identity", JOURNAL))
    if _tries(job):
        always.update((*GATES, BUSY))
    return always


def _look(
    job: Invocation, fanout: Fanout, plan: QueryPlan, *, last: bool = False
) -> tuple[Fleet, tuple[Finding, ...]]:
    fleet = fanout.survey(plan, last=last)
    if "pairs" in plan.stages:
        fleet = probe_pairs(fanout, fleet, _rendezvous(job, fleet))
    if "history" in plan.stages and job.budget is None:
        fleet = with_earlier(job.runs, fleet, job.started)
    fleet = dataclasses.replace(fleet, limited=bool(job.settings.left_out))
    planned = [name for name in job.settings.catalogue if name not in PAGES]
    today = job.started.date()
    kept = silenced(announce_cached(fleet, plan.kept), fleet.inventory, today)
    return fleet, (*judge(fleet, plan.checks, today, planned, () if _tries(job) else PAGES), *kept)


def _tries(job: Invocation) -> bool:
    """Whether this command runs the all-reduce, where nothing is in its way."""
    return job.settings.command == "verify" or (
        job.settings.command == "apply" and job.settings.verify
    )


def _rendezvous(job: Invocation, fleet: Fleet) -> str:
    """The first node; under --partial the first that was reached, for the job will go on without the others."""
    nodes = (job.settings.partial and fleet.reached) or fleet.inventory.nodes
    return nodes[0].name


def _verify(
    job: Invocation,
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    findings: Iterable[Finding],
) -> tuple[VerifyResult, tuple[Finding, ...]]:
    """The all-reduce and what it means, or why no rank was started."""
    if gates := blocking_findings(findings, job.settings.on_busy):
        return not_run(fleet, environment, gates), ()
    job.watch.stage("verify", len(fleet.reached))
    fanout.load("ranks")
    further = job.settings
    result, tried = run_trial(
        fanout,
        fleet,
        environment,
        job.given,
        job.run,
        incident_sizes=further.incident_sizes,
        workarounds=further.workarounds,
    )
    guilty = {name for culprit in result.culprits for name in culprit.nodes}
    for node in fleet.reached:
        job.watch.step(node.name, "culprit" if node.name in guilty else "finished")
    return result, silenced(tried, fleet.inventory, job.started.date())


def _without_missing(job: Invocation, fleet: Fleet, findings: Iterable[Finding]) -> list[Finding]:
    """Under --partial what is said of nodes that were not reached stands in nobody's way; here it is noted."""
    there = {node.name for node in fleet.reached}
    missing = [node.name for node in fleet.inventory.nodes if node.name not in there]
    if not (job.settings.partial and missing):
        return list(findings)
    again = f"clusterprep apply {fleet.inventory.path} --retry-failed {job.run}"
    job.notices.append(f"{fold(missing)} was not reached and keeps what it has; later: {again}")
    return [finding for finding in findings if there.intersection(finding.nodes)]
