"""The stages in a row: look, judge, render, compare, write, look again, verify, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clusterprep import registry
from clusterprep.concluding import report_of
from clusterprep.diff import gap_code, nodes_of, rows
from clusterprep.errors import ClusterprepError, NotKnown
from clusterprep.fanout import Fanout
from clusterprep.foresight import Foreseen, foresee
from clusterprep.gates import BUSY, GATES, after_write, blocked, in_the_way, worse
from clusterprep.history.given import refuse_clashes
from clusterprep.history.samples import with_earlier
from clusterprep.job import Job
from clusterprep.judge import exit_code, fixed, judge, silenced
from clusterprep.model import (
    Finding,
    Fleet,
    Outcome,
    Report,
    VerifyResult,
)
from clusterprep.noderange import fold
from clusterprep.pairs import probe_pairs
from clusterprep.plan import Plan, Selection, make_plan, select
from clusterprep.playbook.steps import Step, fact_names, own_facts
from clusterprep.reach import FACT as PATHS
from clusterprep.render import FACTS as ENV_FACTS
from clusterprep.render import Environment, render
from clusterprep.rollback import last_run, plan_rollback
from clusterprep.stepping import Stepper, put_back
from clusterprep.stored import FACT as STORED
from clusterprep.stored import leave_deep, note, told
from clusterprep.storing import store, store_code
from clusterprep.trial import not_run, run_trial
from clusterprep.unstepping import Unstepper
from clusterprep.verify.expected import FACTS as MODEL_FACTS
from clusterprep.verify.pages import PAGES
from clusterprep.write import Writer, with_lost

if TYPE_CHECKING:  # a check in a prolog does not wait for what launches
    from clusterprep.launch.plan import Wanted
    from clusterprep.launching import Screen

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


def check(job: Job) -> Report:
    """Look and judge; nothing is written, but with --store what the nodes keep of it."""
    plan = _plan(job)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=not job.settings.store)
        stored = store(fanout, fleet, findings, plan.checks) if job.settings.store else None
    code = worse(exit_code(findings, job.settings.strict), store_code(stored))
    job.notices.extend(note(findings))
    return report_of(job, code, fleet=fleet, findings=findings, changes=stored)


def show_env(job: Job) -> tuple[Report, Environment]:
    """The environment that apply would write."""
    plan = _plan(job, only=("ssh.", "eth.iface_choice"), facts=(*ENV_FACTS, PATHS))
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    environment = render(fleet)
    code = exit_code(findings) or (3 if environment.gaps else 0)
    return report_of(job, code, fleet=fleet, findings=findings, env=environment), environment


def plan_changes(job: Job) -> Report:
    """What apply would change; nothing is written."""
    plan = _plan(job, facts=(*ENV_FACTS, PATHS), steps=job.steps)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    environment = render(fleet)
    foreseen = foresee(fleet, job.steps, environment)
    code = worse(exit_code(findings, job.settings.strict), gap_code(foreseen.gaps))
    if code == 0 and foreseen.pending and job.settings.detailed_exitcode:
        code = 5
    return report_of(job, code, fleet=fleet, findings=findings, env=environment, changes=foreseen.rows())


def apply(job: Job) -> Report:
    """Look, write on all nodes or on none, look again, verify."""
    # The environment is asked for only where it is written or used: it needs the job's interpreter on every node.
    wanted = job.settings.verify or any(step.resource.name == "env" for step in job.steps)
    plan = _plan(job, facts=(*TRIAL_FACTS, PATHS) if wanted else (), steps=job.steps)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        writer = Writer(fanout, fleet, job.run)
        if not blocked(fleet, findings, job.settings.partial) and _recover(job, writer):
            again, second = _look(job, fanout, plan)
            fleet, findings = again, fixed(findings, second)
        environment = render(fleet) if wanted else Environment((), {})
        planned = foresee(fleet, job.steps, environment)
        if blocked(fleet, findings, job.settings.partial) or planned.gaps or writer.stuck:
            changed = planned.none_started(writer.stuck)
            code = worse(exit_code(findings, job.settings.strict), gap_code(planned.gaps) or 3)
            report = report_of(job, code, fleet=fleet, findings=findings, env=environment, changes=changed)
        else:
            _refuse_clashes(job, planned, environment)
            report = _write(job, plan, writer, fleet, findings, environment, planned)
    return _remembered(job, report)


def _recover(job: Job, writer: Writer, by: str | None = None) -> bool:
    """Settle what earlier runs left, and say so; whether there was any."""
    with job.deadline.shield():
        recovered = writer.recover(job.settings.force, by)
    job.notices.extend(str(run) for run in recovered)
    for found in recovered:
        if not found.done:
            job.given.forget(job.inventory.cluster, found.run)
    return bool(recovered)


def _remembered(job: Job, report: Report) -> Report:
    """The report, after the controller has noted which nodes it went well on, and with which environment."""
    job.given.note(job.inventory.cluster, report)
    job.given.keep(job.inventory.cluster, report)
    return dataclasses.replace(report, notices=(*report.notices, *job.given.troubles))


def _refuse_clashes(job: Job, planned: Foreseen, environment: Environment) -> None:
    if job.settings.left_out:
        given = job.given.last(job.inventory.cluster)
        others = {name: given[name] for name in job.settings.left_out if name in given}
        refuse_clashes(environment, nodes_of("env", planned.files), others)


def _write(
    job: Job,
    plan: Plan,
    writer: Writer,
    fleet: Fleet,
    findings: tuple[Finding, ...],
    environment: Environment,
    planned: Foreseen,
) -> Report:
    if planned.pending and not job.confirm(planned.rows()):
        changed = planned.none_started()
        return report_of(job, 0, fleet=fleet, findings=findings, env=environment, changes=changed)
    stepper = Stepper(writer, fleet, job.steps, environment, planned)
    result: VerifyResult | None = None
    tried: tuple[Finding, ...] = ()
    try:
        job.watch.stage("write", len(fleet.reached), [node.name for node in fleet.reached])
        receipt = writer.write(planned.files, job.deadline, also=planned.nodes)
        for node in fleet.reached:
            job.watch.step(node.name, receipt.outcomes.get(node.name, "unchanged"))
        if receipt.done:
            stepper.perform(job.watch)
        else:
            stepper.leave()
        if receipt.done and receipt.outcomes:
            written = [node for node in nodes_of("env", planned.files) if node in receipt.outcomes]
            job.given.remember(job.inventory.cluster, job.run, environment, written)
        if receipt.done and receipt.outcomes and not stepper.lost:
            again, second = _look(job, writer.fanout, plan)
            fleet, findings = again, fixed(findings, second)
        # A grave finding says all there is to say; that nobody tried because GPUs are in use has to be said here.
        standing = _without_missing(job, fleet, findings)
        well = receipt.done and not stepper.failed
        if well and job.settings.verify and not in_the_way(standing, on_busy=True):
            result, tried = _verify(job, writer.fanout, fleet, environment, standing)
            findings = (*findings, *tried)
    except ClusterprepError as error:
        troubles = put_back(writer, stepper, job.deadline)
        if writer.taken_back:
            job.given.forget(job.inventory.cluster, job.run)
            error.message += "; what had been written was put back on all nodes"
        error.message += "".join(f"\n{trouble}" for trouble in troubles)
        raise
    receipt.lost |= stepper.lost
    findings = _settle(job, plan, writer, fleet, findings)
    changed = (*rows(planned.files, receipt.outcomes, receipt.details), *stepper.rows())
    code = after_write(exit_code(findings, job.settings.strict), well, result, tried)
    return report_of(job, code, fleet=fleet, findings=findings, env=environment, changes=changed, verify=result)


def _settle(job: Job, plan: Plan, writer: Writer, fleet: Fleet, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
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


def verify(job: Job) -> Report:
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


def launch(job: Job, wanted: Wanted, screen: Screen) -> Report:
    """The job's own command on all nodes, after the checks without which it could only hang."""
    from clusterprep import launching

    screen.say(launching.BESIDE)
    plan = _plan(job, only=VERIFY_NEEDS if wanted.preflight else ("ssh.",), facts=ENV_FACTS)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        gates = in_the_way(findings, job.settings.on_busy or not wanted.preflight)
        result, notices = launching.launch(fanout, fleet, render(fleet), wanted, gates, screen)
    job.notices.extend(notices)
    code = launching.code_of(result)
    code = worse(exit_code(findings), code) if gates else code
    return dataclasses.replace(report_of(job, code, fleet, findings), launch=result)


def print_launch(job: Job, wanted: Wanted, form: str) -> tuple[int, str]:
    """The same as text, for others to start; where a node is not known, neither is its part."""
    from clusterprep import launching
    from clusterprep.launch.text import text_of

    plan = _plan(job, only=("ssh.", "eth.iface_choice"), facts=ENV_FACTS)
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan, last=True)
    if gates := in_the_way(findings, on_busy=True):
        raise NotKnown(f"nothing is printed: {launching.why(gates)}")
    return exit_code(findings), text_of(
        launching.launch_plan(fleet, render(fleet), wanted), form, fleet.inventory.cluster
    )


def rollback(job: Job) -> Report:
    """Put back what this cluster's last apply replaced."""
    plan = _plan(job, only=("ssh.", "host.identity", JOURNAL))
    with job.fanout() as fanout:
        fleet, findings = _look(job, fanout, plan)
        if blocked(fleet, findings, job.settings.partial):
            return report_of(job, worse(exit_code(findings), 3), fleet=fleet, findings=findings)
        writer = Writer(fanout, fleet, job.run)
        writer.lock()
        if _recover(job, writer, by=job.run):
            again, second = _look(job, fanout, plan)
            fleet, findings = again, fixed(findings, second)
        memories = writer.memories()
        cut_off = any(run.by == job.run for runs in memories.values() for run in runs)  # and undone: that was the last
        run = None if cut_off and not job.settings.run else last_run(memories, job.inventory.cluster, job.settings.run)
        planned = () if run is None or writer.stuck else plan_rollback(memories, run, job.settings.force)
        steps = Unstepper(writer, None if writer.stuck else run, memories)
        if not job.settings.force:
            steps.refuse_built_upon(memories)
        steps.take_back(job.settings.force)
        left = steps.failed and not job.settings.force  # the files stay as they are, and the next rollback goes on
        receipt = writer.write(() if left else planned, job.deadline, undoes=run, also=() if left else steps.nodes)
        if receipt.done and not left:
            steps.run_again()
        findings = _settle(job, plan, writer, fleet, findings)
    done = receipt.done and not steps.failed
    if run is not None and done:
        job.given.forget(job.inventory.cluster, run)
    outcomes: dict[str, Outcome] = {n: ("undone" if o == "done" else o) for n, o in receipt.outcomes.items()}
    if left:
        outcomes = {change.node: "not-started" for change in planned}
    changed = (*steps.rows(), *rows(planned, outcomes, receipt.details))
    code = worse(exit_code(findings), 0 if done and not writer.stuck else 1)
    some = f"run {run} is undone" if done else f"run {run} is not undone; rollback goes on where it stopped"
    notice = some if planned or steps.nodes else "there is nothing more to undo" if cut_off else NOTHING
    job.notices.append(notice)
    for folder, nodes in writer.left.items():
        job.notices.append(f"{folder} of {fold(nodes)} stays: run {run} made it, and somebody else's files are in it")
    return report_of(job, code, fleet=fleet, findings=findings, changes=changed)


def _plan(job: Job, only: tuple[str, ...] = (), facts: Iterable[str] = (), steps: Sequence[Step] = ()) -> Plan:
    """The plan for the checks selected, or for those that a command cannot do without."""
    selection = Selection(only=only) if only else job.settings.selection
    checks = select(registry.checks(), selection, job.settings.catalogue, _always(job))
    checks, kept = leave_deep(checks, registry.facts(), job.settings)
    extra = [registry.facts()[name] for name in (*facts, *((STORED,) if kept else ()))]
    if steps:
        extra += [registry.facts()[name] for name in ("host.machine_id", *fact_names(steps))]
    return make_plan(checks, registry.facts(), (*extra, *own_facts(steps, job.inventory)), kept)


def _always(job: Job) -> set[str]:
    """What no selection leaves out: a node that was not reached is never a pass, a doubled one never written to."""
    always = {"ssh.reach"}
    if job.settings.command in ("apply", "plan", "rollback"):
        always.update(("host.identity", JOURNAL))
    if _tries(job):
        always.update((*GATES, BUSY))
    return always


def _look(job: Job, fanout: Fanout, plan: Plan, *, last: bool = False) -> tuple[Fleet, tuple[Finding, ...]]:
    fleet = fanout.survey(plan, last=last)
    if "pairs" in plan.stages:
        fleet = probe_pairs(fanout, fleet, _rendezvous(job, fleet))
    if "history" in plan.stages and job.budget is None:
        fleet = with_earlier(job.runs, fleet, job.started)
    fleet = dataclasses.replace(fleet, limited=bool(job.settings.left_out))
    planned = [name for name in job.settings.catalogue if name not in PAGES]
    today = job.started.date()
    kept = silenced(told(fleet, plan.kept), fleet.inventory, today)
    return fleet, (*judge(fleet, plan.checks, today, planned, () if _tries(job) else PAGES), *kept)


def _tries(job: Job) -> bool:
    """Whether this command runs the all-reduce, where nothing is in its way."""
    return job.settings.command == "verify" or (job.settings.command == "apply" and job.settings.verify)


def _rendezvous(job: Job, fleet: Fleet) -> str:
    """The first node; under --partial the first that was reached, for the job will go on without the others."""
    nodes = (job.settings.partial and fleet.reached) or fleet.inventory.nodes
    return nodes[0].name


def _verify(
    job: Job, fanout: Fanout, fleet: Fleet, environment: Environment, findings: Iterable[Finding]
) -> tuple[VerifyResult, tuple[Finding, ...]]:
    """The all-reduce and what it means, or why no rank was started."""
    if gates := in_the_way(findings, job.settings.on_busy):
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


def _without_missing(job: Job, fleet: Fleet, findings: Iterable[Finding]) -> list[Finding]:
    """Under --partial what is said of nodes that were not reached stands in nobody's way; here it is noted."""
    there = {node.name for node in fleet.reached}
    missing = [node.name for node in fleet.inventory.nodes if node.name not in there]
    if not (job.settings.partial and missing):
        return list(findings)
    again = f"clusterprep apply {fleet.inventory.path} --retry-failed {job.run}"
    job.notices.append(f"{fold(missing)} was not reached and keeps what it has; later: {again}")
    return [finding for finding in findings if there.intersection(finding.nodes)]
