"""The stages that several commands share. Each one takes values and returns values.

plan_survey  →  QueryPlan     what the nodes are asked
survey       →  Survey        their answers, and what the checks say about them
run_trial    →  Trial         the all-reduce, unless a finding blocks it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from clusterprep.changes.playbook.steps import Step, fact_names, own_facts
from clusterprep.checks import Check
from clusterprep.checks.certified import CERTIFIED_PARTS
from clusterprep.checks.stress import TAG as STRESS
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import InputError, OutOfTime
from clusterprep.facts.host import BOOT_BEFORE, BOOT_ID
from clusterprep.facts.shared import SHARED
from clusterprep.history.certificate import with_certified
from clusterprep.history.samples import with_earlier
from clusterprep.jobs.verify.hardware_model import FACTS as MODEL_FACTS
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import Absent, Finding, Fleet, Inventory, VerifyResult
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import Environment
from clusterprep.survey import registry
from clusterprep.survey.cached import FACT as STORED
from clusterprep.survey.cached import cached_findings, split_deep
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import BUSY, GATES, LOGIN_CHECKS, blocking_findings
from clusterprep.survey.judge import apply_silences, judge, with_fixed, without_rest
from clusterprep.survey.node_lists import limited_fleet
from clusterprep.survey.port_matrix import probe_pairs, without_pairs
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.selection import Selection, asked_without_check, select_checks

JOURNAL = "state.journal"
READABLE = "env.readable"
# What a trial needs to know: the environment of its ranks, what speed the hardware allows, and
# where marks can be written.
TRIAL_FACTS = tuple(dict.fromkeys((*ENV_FACTS, *MODEL_FACTS, SHARED.name)))
# The checks without which a collective could only hang.
TRIAL_CHECKS = (
    *LOGIN_CHECKS,
    "host.identity",
    "torch.version",
    "nccl.torch",
    "net.ports",
    "eth.iface_choice",
    "gpu.count",
    BUSY,
)
ENTERED = "rt.engine"  # of a runtime: a collective without it would be one of the host's programs
WRITING_COMMANDS = ("apply", "plan", "fix", "rollback")


class Survey(Struct, frozen=True):
    """What all nodes answered, and what the checks say about it."""

    fleet: Fleet
    findings: tuple[Finding, ...]

    def with_findings(self, further: tuple[Finding, ...]) -> Survey:
        """Return the same with further findings at the end.

        What could not be judged at rest gives way to what was judged under load since.
        """
        return Survey(self.fleet, (*without_rest(self.findings, further), *further))


class Trial(Struct, frozen=True):
    """The result of the all-reduce and the findings that follow from it; None if none was run."""

    result: VerifyResult | None
    findings: tuple[Finding, ...] = ()


NO_TRIAL = Trial(None)


# ---------------------------------------------------------------- what is asked


def plan_survey(
    invocation: Invocation,
    only: tuple[str, ...] = (),
    facts: Iterable[str] = (),
    steps: Sequence[Step] = (),
) -> QueryPlan:
    """Return what the nodes are asked, for the checks selected or those that `only` names.

    `facts` are asked besides, and everything that the conditions and resources of `steps` need.
    """
    settings = invocation.settings
    known = registry.of(invocation.inventory)
    known_facts = known.facts
    selection = Selection(only=only) if only else settings.selection
    required = _required_checks(invocation)
    if any(step.resource.name == "env" for step in steps):
        required.add(READABLE)  # what the job cannot read is not done, whatever was selected
    checks = select_checks(known.checks, selection, settings.not_built, required)
    checks = _without_stress(invocation, checks)
    checks, cached = split_deep(checks, known_facts, settings)
    if not only:
        _refuse_empty(invocation, (*checks, *cached))
    names = list(facts)
    if cached:
        names.append(STORED)
    if settings.command in WRITING_COMMANDS:
        names.append("ssh.rights")
    if steps:
        names.append("host.machine_id")
        names.extend(fact_names(steps))
    extra = [known_facts[name] for name in names]
    extra.extend(own_facts(steps, invocation.inventory))
    return plan_queries(checks, known_facts, extra, cached)


def trial_checks(invocation: Invocation) -> tuple[str, ...]:
    """Return the checks before a trial: where no runtime is declared, none is about it."""
    if any(node.runtime is not None for node in invocation.inventory.nodes):
        return (*TRIAL_CHECKS, ENTERED)
    return TRIAL_CHECKS


def _without_stress(invocation: Invocation, checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks without those that load nodes, unless they are run or asked for by name.

    What is asked for without --stress is skipped, and the report says why.
    """
    if invocation.settings.stress:
        return tuple(checks)
    named = set(invocation.settings.selection.only)
    for node in invocation.inventory.nodes:
        named.update(node.require)
    return tuple(check for check in checks if STRESS not in check.tags or check.name in named)


def is_judged(invocation: Invocation, check: Check) -> bool:
    """Return whether this command can judge a check: without --stress no node is loaded."""
    return invocation.settings.stress or STRESS not in check.tags


def _refuse_empty(invocation: Invocation, checks: Iterable[Check]) -> None:
    """Raise InputError if the options leave no check but those that no selection leaves out."""
    if _asked_without_check(invocation) or chosen_checks(invocation, checks):
        return
    options = "--only, --skip, --tags, --skip-tags and --deep"
    raise InputError.of(f"no check is left: together {options} leave none")


def chosen_checks(invocation: Invocation, checks: Iterable[Check]) -> set[str]:
    """Return the names of those of `checks` that the user's selection has."""
    settings = invocation.settings
    known = registry.of(invocation.inventory).checks
    selected = select_checks(known, settings.selection, settings.not_built)
    return {check.name for check in selected}.intersection(check.name for check in checks)


def _asked_without_check(invocation: Invocation) -> tuple[str, ...]:
    """Return the names that --only asks for and that no check of this survey has."""
    settings = invocation.settings
    known = registry.of(invocation.inventory).checks
    return asked_without_check(known, settings.selection, settings.not_built)


def _required_checks(invocation: Invocation) -> set[str]:
    """Return the checks that no selection leaves out.

    A node that was not reached never passes, and two entries that are one machine are never
    written to.
    """
    required = {"ssh.reach"}
    if invocation.settings.command in WRITING_COMMANDS:
        required.update(("host.identity", JOURNAL))
    if invocation.runs_all_reduce:
        required.update((*GATES, BUSY))
    if invocation.settings.stress:
        required.add(BUSY)
    if invocation.settings.certificate_before is not None:
        required.add(CERTIFIED_PARTS.name)
    return required


# ---------------------------------------------------------------- looking and judging


def survey(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, *, last: bool = False
) -> Survey:
    """Ask all nodes and judge their answers.

    `last` says that nothing is asked of the nodes afterwards, so connections may be closed early.
    When the time of a check or an apply is over, what is known by then is judged; `deadline.over`
    then says so.
    """
    keeps_known = invocation.keeps_known
    fleet = _ask_nodes(invocation, fanout, query_plan, last=last, keeps_known=keeps_known)
    if invocation.settings.sorts_nodes:
        findings = _judge_reached(invocation, query_plan, fleet, keeps_known=keeps_known)
    else:
        findings = _judge(invocation, query_plan, fleet, keeps_known=keeps_known)
    return Survey(fleet, findings)


def _judge_reached(
    invocation: Invocation, query_plan: QueryPlan, fleet: Fleet, *, keeps_known: bool
) -> tuple[Finding, ...]:
    """Return the findings of the nodes that were reached as if they were the whole inventory.

    Otherwise comparisons might be unknown on all of them because of the others. Why these were not
    reached is said as always.
    """
    reached = {node.name for node in fleet.reached}
    findings = _judge(invocation, query_plan, fleet, keeps_known=keeps_known)
    if not reached or len(reached) == len(fleet.inventory.nodes):
        return findings
    about_others = [one for one in findings if one.nodes and not reached.intersection(one.nodes)]
    part = limited_fleet(fleet, reached)
    judged = _judge(invocation, query_plan, part, keeps_known=keeps_known)
    return (*judged, *about_others)


def survey_again(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    before: Survey,
    *,
    keeps_known: bool = False,
) -> Survey:
    """Survey a second time; findings of `before` that pass by now are kept and marked as fixed.

    With `keeps_known` the end of the command's time is not raised, as in `survey`.
    """
    fleet = _ask_nodes(invocation, fanout, query_plan, last=False, keeps_known=keeps_known)
    fleet = with_boots_before(fleet, before.fleet)
    findings = _judge(invocation, query_plan, fleet, keeps_known=keeps_known)
    return Survey(fleet, with_fixed(before.findings, findings))


def survey_part(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, part: Fleet
) -> Survey:
    """Survey the nodes of a part of the fleet again, and judge them as if there were no others.

    What changed for the better is not marked as fixed.
    """
    fleet = _ask_nodes(invocation, fanout, query_plan, last=False, inventory=part.inventory)
    fleet = with_boots_before(fleet, part)
    return Survey(fleet, _judge(invocation, query_plan, fleet))


def survey_ports(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, fleet: Fleet
) -> tuple[Finding, ...]:
    """Connect the nodes of this fleet once more, now with its own first node as the rendezvous.

    Returns the findings of the checks that judge connections.
    """
    pairs = ("net.listen", "net.dials")
    fleet = probe_pairs(fanout, fleet, fleet.inventory.nodes[0].name)
    checks = [check for check in query_plan.checks if set(pairs) & {*check.facts, *check.uses}]
    return judge(fleet, one_by_one(invocation, checks), invocation.started.date())


def with_boots_before(fleet: Fleet, before: Fleet) -> Fleet:
    """Return the fleet with the boot ids that an earlier look of the same run saw."""
    added = {}
    for node in fleet.reached:
        if node.name in before.snapshots:
            added[node.name] = {BOOT_BEFORE.name: before.fact(node.name, BOOT_ID.name)}
    return fleet.with_facts(added)


def _ask_nodes(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    *,
    last: bool,
    inventory: Inventory | None = None,
    keeps_known: bool = False,
) -> Fleet:
    """Ask all nodes, or those of `inventory`."""
    fleet = fanout.survey(
        query_plan,
        last=last,
        inventory=inventory,
        keeps_known=keeps_known,
    )
    fleet = msgspec.structs.replace(fleet, limited=bool(invocation.settings.left_out or inventory))
    if "pairs" in query_plan.stages:
        fleet = _with_pairs(invocation, fanout, fleet, keeps_known)
    if "history" in query_plan.stages and invocation.budget is None:
        fleet = with_earlier(invocation.runs, fleet, invocation.started)
    if "certificate" in query_plan.stages:
        fleet = with_certified(fleet, invocation.settings.certificate_before)
    return fleet


def _with_pairs(invocation: Invocation, fanout: Fanout, fleet: Fleet, keeps_known: bool) -> Fleet:
    """Return the fleet with its pairs; absent if the time is over and the rest is kept."""
    if not invocation.deadline.over:
        try:
            return probe_pairs(fanout, fleet, _rendezvous(invocation, fleet))
        except OutOfTime:
            if not keeps_known:
                raise
    why = invocation.deadline.over
    return without_pairs(fleet, Absent("timed_out", why.message if why else ""))


def _rendezvous(invocation: Invocation, fleet: Fleet) -> str:
    """Return the first node, or the first that was reached if the job may start there.

    That is so with --partial, and if nodes that are not good are left out of the job.
    """
    settings = invocation.settings
    nodes = fleet.inventory.nodes
    if (settings.partial or settings.sorts_nodes) and fleet.reached:
        nodes = fleet.reached
    return nodes[0].name


def _judge(
    invocation: Invocation, query_plan: QueryPlan, fleet: Fleet, *, keeps_known: bool = False
) -> tuple[Finding, ...]:
    """Return the findings of the checks that were asked for, and those that the nodes stored."""
    today = invocation.started.date()
    not_built = invocation.settings.not_built
    planned = [name for name in not_built if name not in PAGES]
    # Checks of the trial are skipped with a reason, unless this command runs it.
    trial_checks = () if invocation.runs_all_reduce else PAGES
    stored = cached_findings(fleet, query_plan.kept)
    cached = apply_silences(stored, fleet.inventory, today)
    judged = judge(
        fleet,
        one_by_one(invocation, query_plan.checks, keeps_known=keeps_known),
        today,
        planned,
        trial_checks,
        _asked_without_check(invocation),
    )
    return (*judged, *cached)


def one_by_one(
    invocation: Invocation, checks: Iterable[Check], *, keeps_known: bool = False
) -> Iterator[Check]:
    """Yield the checks. Between two of them the command may be ended.

    With `keeps_known` its time limit does not end it: nodes have answered, the rest is a moment.
    """
    for check in checks:
        try:
            invocation.deadline.check()
        except OutOfTime:
            if not keeps_known:
                raise
        yield check


def stress(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, surveyed: Survey
) -> Survey:
    """Load the nodes whose GPUs are free, and judge what they reach."""
    from clusterprep.jobs.stress.stage import load_nodes

    checks = tuple(check for check in query_plan.checks if STRESS in check.tags)
    names = [check.name for check in checks]
    invocation.watch.stage("stress", len(surveyed.fleet.reached))
    fleet = load_nodes(
        fanout,
        surveyed.fleet,
        surveyed.findings,
        names,
        invocation.settings.on_busy,
    )
    for node in fleet.reached:
        invocation.watch.step(node.name, "measured")
    others = [finding for finding in surveyed.findings if finding.check not in names]
    judged = judge(fleet, one_by_one(invocation, checks), invocation.started.date())
    return Survey(fleet, (*others, *judged))


# ---------------------------------------------------------------- the all-reduce


def run_trial(
    invocation: Invocation,
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    findings: Iterable[Finding],
) -> Trial:
    """Run the all-reduce and judge it, or return why no rank was started."""
    from clusterprep.jobs.verify import stage

    settings = invocation.settings
    gates = blocking_findings(findings, settings.on_busy)
    if gates:
        return Trial(stage.not_run(fleet, environment, gates))
    invocation.watch.stage("verify", len(fleet.reached))
    fanout.load("ranks")
    result, findings_of_trial = stage.run_trial(
        fanout,
        fleet,
        environment,
        invocation.applied,
        invocation.run,
        stage.TrialOptions(settings.incident_sizes, settings.workarounds, settings.baseline),
    )
    _show_culprits(invocation, fleet, result)
    today = invocation.started.date()
    return Trial(result, apply_silences(findings_of_trial, fleet.inventory, today))


def _show_culprits(invocation: Invocation, fleet: Fleet, result: VerifyResult) -> None:
    culprits: set[str] = set()
    for culprit in result.culprits:
        culprits.update(culprit.nodes)
    for node in fleet.reached:
        outcome = "culprit" if node.name in culprits else "finished"
        invocation.watch.step(node.name, outcome)
