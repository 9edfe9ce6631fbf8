"""The stages that several commands share. Each one takes values and returns values.

plan_survey  →  QueryPlan     what the nodes are asked
survey       →  Survey        their answers, and what the checks say about them
run_trial    →  Trial         the all-reduce, unless a finding blocks it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from clusterprep.changes.playbook.steps import Step, fact_names, own_facts
from clusterprep.checks import Check
from clusterprep.checks.stress import TAG as STRESS
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import InputError
from clusterprep.facts.host import BOOT_BEFORE, BOOT_ID
from clusterprep.history.samples import with_earlier
from clusterprep.jobs.verify.hardware_model import FACTS as MODEL_FACTS
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import Finding, Fleet, VerifyResult
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import Environment
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey import registry
from clusterprep.survey.cached import FACT as STORED
from clusterprep.survey.cached import cached_findings, split_deep
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import BUSY, GATES, blocking_findings
from clusterprep.survey.judge import apply_silences, judge, with_fixed, without_rest
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.selection import Selection, asked_without_check, select_checks

JOURNAL = "state.journal"
# What a trial needs to know: the environment of its ranks, and what speed the hardware allows.
TRIAL_FACTS = tuple(dict.fromkeys((*ENV_FACTS, *MODEL_FACTS)))
# The checks without which a collective could only hang.
TRIAL_CHECKS = (
    "ssh.",
    "host.identity",
    "torch.version",
    "nccl.torch",
    "net.ports",
    "eth.iface_choice",
    "gpu.count",
    BUSY,
)
WRITING_COMMANDS = ("apply", "plan", "rollback")


@dataclass(frozen=True)
class Survey:
    """What all nodes answered, and what the checks say about it."""

    fleet: Fleet
    findings: tuple[Finding, ...]

    def with_findings(self, further: tuple[Finding, ...]) -> Survey:
        """Return the same with further findings at the end.

        What could not be judged at rest gives way to what was judged under load since.
        """
        return Survey(self.fleet, (*without_rest(self.findings, further), *further))


@dataclass(frozen=True)
class Trial:
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
    known_facts = registry.facts()
    selection = Selection(only=only) if only else settings.selection
    required = _required_checks(invocation)
    checks = select_checks(registry.checks(), selection, settings.not_built, required)
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
    selected = select_checks(registry.checks(), settings.selection, settings.not_built)
    return {check.name for check in selected}.intersection(check.name for check in checks)


def _asked_without_check(invocation: Invocation) -> tuple[str, ...]:
    """Return the names that --only asks for and that no check of this survey has."""
    settings = invocation.settings
    return asked_without_check(registry.checks(), settings.selection, settings.not_built)


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
    return required


# ---------------------------------------------------------------- looking and judging


def survey(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, *, last: bool = False
) -> Survey:
    """Ask all nodes and judge their answers.

    `last` says that nothing is asked of the nodes afterwards, so connections may be closed early.
    """
    fleet = _ask_nodes(invocation, fanout, query_plan, last=last)
    return Survey(fleet, _judge(invocation, query_plan, fleet))


def survey_again(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, before: Survey
) -> Survey:
    """Survey a second time; findings of `before` that pass by now are kept and marked as fixed."""
    fleet = _ask_nodes(invocation, fanout, query_plan, last=False)
    fleet = with_boots_before(fleet, before.fleet)
    findings = _judge(invocation, query_plan, fleet)
    return Survey(fleet, with_fixed(before.findings, findings))


def with_boots_before(fleet: Fleet, before: Fleet) -> Fleet:
    """Return the fleet with the boot ids that an earlier look of the same run saw."""
    added = {}
    for node in fleet.reached:
        if node.name in before.snapshots:
            added[node.name] = {BOOT_BEFORE.name: before.fact(node.name, BOOT_ID.name)}
    return fleet.with_facts(added)


def _ask_nodes(
    invocation: Invocation, fanout: Fanout, query_plan: QueryPlan, *, last: bool
) -> Fleet:
    fleet = fanout.survey(query_plan, last=last)
    if "pairs" in query_plan.stages:
        fleet = probe_pairs(fanout, fleet, _rendezvous(invocation, fleet))
    if "history" in query_plan.stages and invocation.budget is None:
        fleet = with_earlier(invocation.runs, fleet, invocation.started)
    return dataclasses.replace(fleet, limited=bool(invocation.settings.left_out))


def _rendezvous(invocation: Invocation, fleet: Fleet) -> str:
    """Return the first node; with --partial the first that was reached, as the job starts there."""
    nodes = fleet.inventory.nodes
    if invocation.settings.partial and fleet.reached:
        nodes = fleet.reached
    return nodes[0].name


def _judge(invocation: Invocation, query_plan: QueryPlan, fleet: Fleet) -> tuple[Finding, ...]:
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
        _one_by_one(invocation, query_plan.checks),
        today,
        planned,
        trial_checks,
        _asked_without_check(invocation),
    )
    return (*judged, *cached)


def _one_by_one(invocation: Invocation, checks: Iterable[Check]) -> Iterator[Check]:
    """Yield the checks. Between two of them the command may be ended."""
    for check in checks:
        invocation.deadline.check()
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
    judged = judge(fleet, _one_by_one(invocation, checks), invocation.started.date())
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
