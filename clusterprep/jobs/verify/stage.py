"""The verify stage: plan the ranks, have the agents run them, and return the judged result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterprep.history.applied import AppliedEnvironments
from clusterprep.jobs.verify.workaround_trials import with_workarounds
from clusterprep.model import Absent, Culprit, Finding, Fleet, Node, Verdict, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.transports.link import SILENCE_LIMIT
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import NO_IPV6, needs_ipv6

if TYPE_CHECKING:
    from clusterprep.jobs.verify.hardware_model import Expected
    from clusterprep.jobs.verify.link_verdicts import MeasuredLinks
    from clusterprep.jobs.verify.schedule import TrialPlan
    from clusterprep.jobs.verify.speed import Yardsticks

NODE_CONFIDENCE = 0.99
LINK_CONFIDENCE = 0.9  # which of the two ends drops the packets is not known


def run_trial(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    applied: AppliedEnvironments,
    run: str,
    *,
    incident_sizes: bool = False,
    workarounds: bool = False,
) -> tuple[VerifyResult, tuple[Finding, ...]]:
    """Run collectives over all ranks of the nodes reached, then measure the links between nodes.

    The ranks get the environment that apply writes. If the trial fails or is slow and no culprit is
    known, groups of nodes are tried until one is found. With `workarounds` a failed trial is
    repeated with settings that may help.

    Returns the result, and the findings (nccl.hang, nccl.correct and so on) that follow from it.
    """
    from clusterprep.jobs.load import sampling
    from clusterprep.jobs.verify import blame, collect, group_verdicts, link_verdicts
    from clusterprep.jobs.verify.group_measurement import screen_groups
    from clusterprep.jobs.verify.link_measurement import measure_links

    plan = _plan(fleet, environment, incident_sizes)
    # All files are written by now: a node that falls silent is a finding here, and no reason to
    # stop.
    fanout.bear_silence(SILENCE_LIMIT)
    links = [fanout.links[node.name] for node in plan.nodes]
    load = sampling.begin(fanout, fleet)
    timeline = collect.run_verify(links, plan, check=fanout.check)
    load_findings = sampling.end(fanout, load, on_gpus=plan.backend == "nccl")
    trial = blame.judge(timeline)
    measured = None
    if len(fleet.reached) > 1:
        measured = measure_links(fanout, fleet)
    yardsticks = _yardsticks(
        fleet,
        plan,
        trial,
        measured,
        applied,
    )
    findings = blame.findings(trial, yardsticks)
    link_findings: tuple[Finding, ...] = ()
    if _shows_normal_speed(trial, findings):
        _remember_speed(
            fleet,
            plan,
            trial,
            applied,
            run,
        )
    result = with_reach(trial, fleet)
    result = _limited_by_findings(result, findings)
    if measured is not None:
        result = link_verdicts.with_links(result, measured)
        link_findings = tuple(link_verdicts.findings(measured))
    shares_gpus = plan.most_sharing > 1
    if not shares_gpus and group_verdicts.is_worthwhile(result, findings, len(plan.nodes)):
        screened = screen_groups(fanout, fleet, plan)
        result = group_verdicts.with_groups(result, screened)
        if group_verdicts.finds_all_alike(screened):
            # A moment's load makes links look slow, and collectives with these nodes were not.
            findings = blame.findings(trial, replace(yardsticks, peers={}))
    if workarounds:
        result = with_workarounds(
            fanout,
            fleet,
            plan,
            trial,
            result,
        )
    return result, (*findings, *link_findings, *load_findings)


def _yardsticks(
    fleet: Fleet,
    plan: TrialPlan,
    trial: VerifyResult,
    measured: MeasuredLinks | None,
    applied: AppliedEnvironments,
) -> Yardsticks:
    from clusterprep.jobs.verify.link_verdicts import best_speeds
    from clusterprep.jobs.verify.speed import Yardsticks

    model = None
    if plan.backend == "nccl":
        model = _hardware_model(fleet, plan)
    earlier: tuple[float, ...] = ()
    key = comparable(plan, trial)
    if key is not None:
        earlier = applied.speeds(fleet.inventory.cluster, key)
    peers: dict[str, float] = {}
    if measured is not None:
        peers = best_speeds(measured.pairs)
    return Yardsticks(plan.min_busbw, model, earlier, peers)


def _hardware_model(fleet: Fleet, plan: TrialPlan) -> Expected:
    from clusterprep.jobs.verify.hardware_model import expected

    counts = {name: len(ranks) for name, ranks in plan.ranks_by_node.items()}
    env = {rank.node: rank.env for rank in plan.ranks}
    return expected(fleet, counts, env)


def comparable(plan: TrialPlan, result: VerifyResult) -> str | None:
    """Return a key that is equal for trials whose speeds can be compared.

    It has nodes, ranks, backend, collective and size. None if no collective was timed, or if ranks
    share GPUs.
    """
    from clusterprep.jobs.verify.speed import largest

    row = largest(result.collectives)
    if row is None or plan.most_sharing > 1:
        return None
    nodes = fold(node.name for node in plan.nodes)
    return f"{nodes} {plan.world_size} ranks {plan.backend} {row.op} {row.bytes}"


def _shows_normal_speed(trial: VerifyResult, findings: Iterable[Finding]) -> bool:
    """Whether later runs may be compared with this one: it passed and was not slow."""
    from clusterprep.jobs.verify.speed import NAME

    for finding in findings:
        is_slow = finding.verdict == "fail" or finding.reason == "busy"
        if finding.check == NAME and is_slow:
            return False
    return trial.verdict == "pass"


def _remember_speed(
    fleet: Fleet, plan: TrialPlan, trial: VerifyResult, applied: AppliedEnvironments, run: str
) -> None:
    """Store the speed of this run; three stored runs tell what is normal (speed.RUNS)."""
    from clusterprep.jobs.verify.speed import largest

    row = largest(trial.collectives)
    key = comparable(plan, trial)
    if row is not None and key is not None:
        applied.record_speed(fleet.inventory.cluster, key, run, row.busbw_gbs)


def _limited_by_findings(result: VerifyResult, findings: Sequence[Finding]) -> VerifyResult:
    """Fail the result if its speed failed as an error; no stage is better than its finding."""
    from clusterprep.jobs.verify.speed import NAME
    from clusterprep.jobs.verify.stage_verdicts import limited_by_findings

    verdict = result.verdict
    for finding in findings:
        is_error = finding.verdict == "fail" and finding.severity == "error"
        if finding.check == NAME and is_error:
            verdict = "fail"
    stages = limited_by_findings(result.stages, findings)
    return replace(result, verdict=verdict, stages=stages)


def with_reach(result: VerifyResult, fleet: Fleet) -> VerifyResult:
    """Return the result with the stage before all others: the logins."""
    from clusterprep.jobs.verify.stage_verdicts import reach_stage

    limits = [node.ssh.connect_timeout for node in fleet.inventory.nodes]
    limit = max(limits, default=0.0)
    logins = reach_stage(fleet.snapshots.values(), limit)
    return replace(result, stages=(logins, *result.stages))


def _plan(fleet: Fleet, environment: Environment, incident_sizes: bool = False) -> TrialPlan:
    from clusterprep.jobs.verify import schedule

    settings = fleet.inventory.verify
    env = given_environment(fleet, environment)
    gpus = gpus_in_use(fleet)
    rendezvous = rendezvous_of(fleet)
    further = schedule.other_steps(settings)
    plan = schedule.plan_trial(
        fleet.reached,
        env,
        rendezvous,
        settings,
        gpus,
        further,
    )
    if incident_sizes:
        return schedule.with_incident_sizes(plan)
    return plan


def given_environment(fleet: Fleet, environment: Environment) -> dict[str, dict[str, str]]:
    """Return the variables that apply writes, for the ranks of each node that was reached.

    What a login shell would set is not among them.
    """
    given: dict[str, dict[str, str]] = {}
    for node in fleet.reached:
        values = environment.of(node.name)
        given[node.name] = {name: value.value for name, value in values.items()}
    return given


def rendezvous_of(fleet: Fleet) -> tuple[str, int]:
    """Return address and port where ranks meet: the first node's address on the chosen network."""
    port = fleet.inventory.master_port
    nodes = fleet.reached
    if nodes:
        pick = choose(fleet).picks.get(nodes[0].name)
        if pick:
            return pick.address, port
    first = fleet.inventory.nodes[0]
    return first.address, port


def gpus_in_use(fleet: Fleet) -> dict[str, int]:
    """Return how many GPUs the job uses on each node that was reached."""
    counts: dict[str, int] = {}
    for node in fleet.reached:
        counts[node.name] = _count_gpus(fleet, node)
    return counts


def _count_gpus(fleet: Fleet, node: Node) -> int:
    """Return the declared number of GPUs, else as many as NVML shows."""
    if node.gpus is not None:
        return node.gpus.used
    nvml = fleet.fact(node.name, "gpu.nvml")
    if nvml is None or isinstance(nvml, Absent):
        return 0
    return len(nvml.gpus)


def not_run(fleet: Fleet, environment: Environment, gates: Sequence[Finding]) -> VerifyResult:
    """Return the result of a verify that was not started, as the findings in `gates` forbid it.

    Findings that failed as errors name the culprits. Without them, as with GPUs in use, the verdict
    is unknown.
    """
    plan = _plan(fleet, environment)
    culprits: list[Culprit] = []
    for finding in gates:
        if finding.verdict != "fail" or finding.severity != "error":
            continue
        culprits.append(culprit_of(finding))
    verdict: Verdict = "fail" if culprits else "unknown"
    checks = dict.fromkeys(finding.check for finding in gates)
    message = f"no rank was started: {', '.join(checks)}"
    if needs_ipv6(gates):
        message = f"{message}; {NO_IPV6}"
    result = VerifyResult(
        verdict=verdict,
        backend=plan.backend,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        culprits=tuple(culprits),
        message=message,
    )
    return with_reach(result, fleet)


def culprit_of(finding: Finding) -> Culprit:
    """Return a failed gate as a culprit.

    A blocked pair is a link from its dialer to its listener; all other findings accuse nodes.
    """
    evidence = (f"{finding.check}: {finding.seen}",)
    nodes, cause = finding.nodes, finding.message
    if finding.check != "net.ports" or len(nodes) != 2:
        return Culprit(
            kind="node",
            nodes=nodes,
            confidence=NODE_CONFIDENCE,
            cause=cause,
            evidence=evidence,
        )
    dialer, listener = _dialer_and_listener(finding)
    return Culprit(
        kind="link",
        nodes=nodes,
        confidence=LINK_CONFIDENCE,
        cause=cause,
        evidence=evidence,
        source=dialer,
        target=listener,
    )


def _dialer_and_listener(finding: Finding) -> tuple[str, str]:
    """Return both ends of a pair; its message begins with the dialer."""
    first, second = finding.nodes
    if finding.message.startswith(f"{first} "):
        return first, second
    return second, first
