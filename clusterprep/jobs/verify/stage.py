"""The verify stage: plans the ranks from what was seen, has the agents run them, and gives the judged result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterprep.history.given import AppliedEnvironments
from clusterprep.jobs.verify.workaround_stage import with_workarounds
from clusterprep.model import Absent, Culprit, Finding, Fleet, Node, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.transports.link import SILENCE_LIMIT
from clusterprep.survey.fanout import Fanout

if TYPE_CHECKING:
    from clusterprep.jobs.verify.links import MeasuredLinks
    from clusterprep.jobs.verify.schedule import TrialPlan
    from clusterprep.jobs.verify.speed import Yardsticks


def run_trial(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    given: AppliedEnvironments,
    run: str,
    *,
    incident_sizes: bool = False,
    workarounds: bool = False,
) -> tuple[VerifyResult, tuple[Finding, ...]]:
    """Collectives over all ranks of the nodes reached, with the environment that apply writes, then their links.

    Where all together fail or are slow and nobody is to blame for it, groups of nodes are tried until somebody is.
    With `workarounds` the settings that would help where it failed.

    The result, and what it means as findings of nccl.hang, nccl.correct and their like.
    """
    from clusterprep.jobs.verify import blame, collect, groups, links
    from clusterprep.jobs.verify.group_stage import screen_groups
    from clusterprep.jobs.verify.link_stage import measure_links

    plan = _plan(fleet, environment, incident_sizes)
    fanout.bear_silence(
        SILENCE_LIMIT
    )  # what was written is there, and here a node that falls silent is the finding
    timeline = collect.run_verify([fanout.links[node.name] for node in plan.nodes], plan)
    first = blame.judge(timeline)
    measured = measure_links(fanout, fleet) if len(fleet.reached) > 1 else None
    tried = blame.findings(first, _yardsticks(fleet, plan, first, measured, given))
    _remember(fleet, plan, first, tried, given, run)
    result = _as_slow_as_found(with_reach(first, fleet), tried)
    if measured is not None:
        result, tried = links.with_links(result, measured), (*tried, *links.findings(measured))
    if plan.most_sharing == 1 and groups.worth(result, tried, len(plan.nodes)):
        result = groups.with_groups(result, screen_groups(fanout, fleet, plan))
    return with_workarounds(fanout, fleet, plan, first, result) if workarounds else result, tried


def _yardsticks(
    fleet: Fleet,
    plan: TrialPlan,
    result: VerifyResult,
    measured: MeasuredLinks | None,
    given: AppliedEnvironments,
) -> Yardsticks:
    from clusterprep.jobs.verify.expected import expected
    from clusterprep.jobs.verify.links import best_speeds
    from clusterprep.jobs.verify.speed import Yardsticks

    ranks = {name: len(mine) for name, mine in plan.ranks_by_node.items()}
    model = (
        expected(fleet, ranks, {rank.node: rank.env for rank in plan.ranks})
        if plan.backend == "nccl"
        else None
    )
    trial = comparable(plan, result)
    earlier = given.speeds(fleet.inventory.cluster, trial) if trial else ()
    return Yardsticks(
        plan.min_busbw, model, earlier, best_speeds(measured.ways) if measured else {}
    )


def comparable(plan: TrialPlan, result: VerifyResult) -> str | None:
    """What makes two trials comparable: nodes and ranks, backend, collective and size. None where they share GPUs."""
    from clusterprep.jobs.verify.speed import largest

    row = largest(result.collectives)
    nodes = fold(node.name for node in plan.nodes)
    return (
        None
        if row is None or plan.most_sharing > 1
        else f"{nodes} {plan.world_size} ranks {plan.backend} {row.op} {row.bytes}"
    )


def _remember(
    fleet: Fleet,
    plan: TrialPlan,
    result: VerifyResult,
    tried: Sequence[Finding],
    given: AppliedEnvironments,
    run: str,
) -> None:
    """A run that worked and was not slow says what is normal, from the third on."""
    from clusterprep.jobs.verify.speed import NAME, largest

    row, trial = largest(result.collectives), comparable(plan, result)
    slow = any(f.check == NAME and (f.verdict == "fail" or f.reason == "busy") for f in tried)
    if row and trial and result.verdict == "pass" and not slow:
        given.note_speed(fleet.inventory.cluster, trial, run, row.busbw_gbs)


def _as_slow_as_found(result: VerifyResult, tried: Sequence[Finding]) -> VerifyResult:
    """A result fails where its speed does, by whatever yardstick, and no stage is better than its finding."""
    from clusterprep.jobs.verify.speed import NAME
    from clusterprep.jobs.verify.stages import as_found

    slow = any(f.check == NAME and (f.verdict, f.severity) == ("fail", "error") for f in tried)
    return replace(
        result, verdict="fail" if slow else result.verdict, stages=as_found(result.stages, tried)
    )


def with_reach(result: VerifyResult, fleet: Fleet) -> VerifyResult:
    """With the stage before all others: the logins."""
    from clusterprep.jobs.verify.stages import reach

    limit = max((node.ssh.connect_timeout for node in fleet.inventory.nodes), default=0.0)
    return replace(result, stages=(reach(fleet.snapshots.values(), limit), *result.stages))


def _plan(fleet: Fleet, environment: Environment, incident_sizes: bool = False) -> TrialPlan:
    from clusterprep.jobs.verify import schedule

    settings = fleet.inventory.verify
    env, gpus = given_environment(fleet, environment), gpus_in_use(fleet)
    further = schedule.other_steps(settings)
    plan = schedule.plan_trial(fleet.reached, env, rendezvous_of(fleet), settings, gpus, further)
    return schedule.with_incidents(plan) if incident_sizes else plan


def given_environment(fleet: Fleet, environment: Environment) -> dict[str, dict[str, str]]:
    """What the processes of each node are given: all that apply writes, whatever a login would give."""
    return {
        node.name: {n: v.value for n, v in environment.of(node.name).items()}
        for node in fleet.reached
    }


def rendezvous_of(fleet: Fleet) -> tuple[str, int]:
    """Where ranks meet: the first node's address on the network that was chosen."""
    nodes = fleet.reached
    pick = choose(fleet).picks.get(nodes[0].name) if nodes else None
    return (pick.address if pick else fleet.inventory.nodes[0].address, fleet.inventory.master_port)


def gpus_in_use(fleet: Fleet) -> dict[str, int]:
    return {node.name: _gpus(fleet, node) for node in fleet.reached}


def not_run(fleet: Fleet, environment: Environment, gates: Sequence[Finding]) -> VerifyResult:
    """The result of a verify that could only have hung: the findings in its way name the culprits.

    GPUs in use are nobody's fault: then it is only not known whether the all-reduce would work.
    """
    plan = _plan(fleet, environment)
    failed = [
        finding for finding in gates if finding.verdict == "fail" and finding.severity == "error"
    ]
    result = VerifyResult(
        verdict="fail" if failed else "unknown",
        backend=plan.backend,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        culprits=tuple(culprit_of(finding) for finding in failed),
        message=f"no rank was started: {', '.join(dict.fromkeys(finding.check for finding in gates))}",
    )
    return with_reach(result, fleet)


def culprit_of(finding: Finding) -> Culprit:
    """A failed gate as a culprit: a blocked pair is a link from its dialer to its listener, all else are nodes."""
    pair = finding.check == "net.ports" and len(finding.nodes) == 2
    evidence = (f"{finding.check}: {finding.seen}",)
    if pair:
        dialer, listener = _ends(finding)
        return Culprit(
            "link", finding.nodes, 0.9, finding.message, evidence, None, dialer, listener
        )
    return Culprit("node", finding.nodes, 0.99, finding.message, evidence)


def _ends(finding: Finding) -> tuple[str, str]:
    """Dialer and listener of a pair, whose message begins with the dialer."""
    first, second = finding.nodes
    return (first, second) if finding.message.startswith(f"{first} ") else (second, first)


def _gpus(fleet: Fleet, node: Node) -> int:
    """GPUs of this job on a node: as declared, else as many as NVML shows."""
    if node.gpus is not None:
        return node.gpus.used
    nvml = fleet.fact(node.name, "gpu.nvml")
    return 0 if nvml is None or isinstance(nvml, Absent) else len(nvml.gpus)
