"""The verify stage: plan the ranks, have the agents run them, and return the judged result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.history.applied import AppliedEnvironments
from clusterprep.jobs.verify.group_verdicts import culprit_nodes
from clusterprep.jobs.verify.speed_records import SpeedRecords
from clusterprep.jobs.verify.tally import all_finished
from clusterprep.jobs.verify.workaround_trials import with_workarounds
from clusterprep.model import Absent, Culprit, Finding, Fleet, Node, Verdict, VerifyResult
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.transports.link import SILENCE_LIMIT
from clusterprep.survey.fanout import Fanout

if TYPE_CHECKING:
    from clusterprep.jobs.verify.blame import Judged
    from clusterprep.jobs.verify.link_verdicts import MeasuredLinks
    from clusterprep.jobs.verify.schedule import TrialPlan
    from clusterprep.jobs.verify.speed import Yardsticks

NODE_CONFIDENCE = 0.99
LINK_CONFIDENCE = 0.9  # which of the two ends drops the packets is not known


class TrialOptions(Struct, frozen=True):
    """The options of `verify` that change the trial."""

    incident_sizes: bool = False  # also the sizes of jobs that are known to have hung
    workarounds: bool = False  # repeat a failed trial with settings that may help
    baseline: bool = False  # record the speed as normal


def run_trial(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    applied: AppliedEnvironments,
    run: str,
    options: TrialOptions,
) -> tuple[VerifyResult, tuple[Finding, ...]]:
    """Run collectives over all ranks of the nodes reached, and measure the links between nodes.

    The ranks get the environment that apply writes. If the trial fails or is slow and no culprit is
    known, groups of nodes are tried until one is found.

    Returns the result, and the findings (nccl.hang, nccl.correct and so on) that follow from it.
    """
    from clusterprep.jobs.load import sampling
    from clusterprep.jobs.verify import blame, collect, group_verdicts, link_verdicts, schedule
    from clusterprep.jobs.verify.gpudirect_check import gpudirect_findings
    from clusterprep.jobs.verify.group_measurement import screen_groups
    from clusterprep.jobs.verify.link_measurement import measure_first, measure_links
    from clusterprep.jobs.verify.nvls_check import nvls_findings
    from clusterprep.jobs.verify.shared_marks import mark_findings

    plan = plan_of(fleet, environment, options.incident_sizes)
    # All files are written by now: a node that falls silent is a finding here, and no reason to
    # stop.
    fanout.bear_silence(SILENCE_LIMIT)
    links = [fanout.links[node.name] for node in plan.nodes]
    first = None
    if len(fleet.reached) > 1:
        first = measure_first(fanout, fleet)
        usual = link_verdicts.usual_speed(first.pairs, first.rated)
        plan = schedule.with_link_speed(plan, usual)
    load = sampling.begin(fanout, fleet)
    timeline = collect.run_verify(links, plan, check=fanout.check)
    load_findings = sampling.end(fanout, load, on_gpus=plan.backend == "nccl")
    trial = blame.judge(timeline)
    result = with_reach(trial.without_timeline(), fleet)
    measured = None
    link_findings: tuple[Finding, ...] = ()
    if first is not None:
        measured = measure_links(fanout, fleet, first)
        result = link_verdicts.with_links(result, measured)
        link_findings = tuple(link_verdicts.findings(measured))
    speeds = SpeedRecords(fleet, plan, trial, applied, run, options.baseline)
    yardsticks = speeds.yardsticks(measured)
    yardsticks = with_peers(
        fanout,
        fleet,
        yardsticks,
        (first, measured),
        result,
    )
    findings = blame.findings(trial, yardsticks)
    shares_gpus = plan.most_sharing > 1
    screened = None
    if not shares_gpus and group_verdicts.is_worthwhile(result, findings, len(plan.nodes)):
        screened = screen_groups(fanout, fleet, plan)
        result = group_verdicts.with_groups(result, screened)
    yardsticks = group_verdicts.with_confirmed(yardsticks, result, screened)
    findings = (
        *blame.with_speed(findings, trial, yardsticks),
        *nvls_findings(timeline, fleet),
        *gpudirect_findings(timeline, fleet),
        *_node_findings(fanout, fleet, plan, trial, speeds),
    )
    result = limited_by_speed(result, findings)
    result = speeds.remember(result, findings)
    if options.workarounds:
        result = with_workarounds(
            fanout,
            fleet,
            plan,
            trial,
            result,
        )
    marks = mark_findings(fanout, fleet)
    return result, (*findings, *link_findings, *load_findings, *marks)


def _node_findings(
    fanout: Fanout, fleet: Fleet, plan: TrialPlan, trial: Judged, speeds: SpeedRecords
) -> Sequence[Finding]:
    """Measure the nodes by themselves where that is wanted, and judge them.

    A trial that failed has said enough. One node alone was measured by the trial itself.
    """
    from clusterprep.jobs.verify.node_measurement import measure_nodes
    from clusterprep.jobs.verify.node_speed import NodeSpeeds, node_speed_findings, nodes_to_measure
    from clusterprep.jobs.verify.speed import largest

    names = nodes_to_measure(plan)
    if not names or trial.timeline is None or not all_finished(trial.timeline):
        return ()
    if len(plan.nodes) == 1:
        measured = NodeSpeeds({names[0]: largest(trial.collectives)})
    else:
        measured = measure_nodes(fanout, fleet, plan, names)
    return tuple(node_speed_findings(trial.timeline, fleet, speeds.node_speeds(measured)))


def with_peers(
    fanout: Fanout,
    fleet: Fleet,
    yardsticks: Yardsticks,
    measurements: Sequence[MeasuredLinks | None],
    result: VerifyResult,
) -> Yardsticks:
    """Return the yardsticks with the speed of each node's links in bytes/s.

    A node that is slower than its peers and no culprit yet is measured again, as a busy processor
    makes links slow for a moment.
    """
    from clusterprep.jobs.verify.link_measurement import LOOKS, measure_again
    from clusterprep.jobs.verify.link_verdicts import peer_speeds
    from clusterprep.jobs.verify.speed import slow_peers

    known = [measured for measured in measurements if measured is not None]
    if result.backend != "gloo" or not known:
        return yardsticks
    rated = known[-1].rated
    looks = [measured.pairs for measured in known]
    culprits = culprit_nodes(result)
    for _ in range(LOOKS):
        accused = [name for name in slow_peers(peer_speeds(rated, *looks)) if name not in culprits]
        if not accused:
            break
        looks.append(measure_again(fanout, fleet, accused))
    return replace(yardsticks, peers=peer_speeds(rated, *looks))


def limited_by_speed(result: VerifyResult, findings: Sequence[Finding]) -> VerifyResult:
    """Return a result and stages that are no better than what the findings say of the speed."""
    from clusterprep.jobs.verify.speed import NAME
    from clusterprep.jobs.verify.stage_verdicts import limited_by_findings

    verdict = result.verdict
    for finding in findings:
        if finding.check != NAME or finding.severity != "error":
            continue
        if finding.verdict == "fail":
            verdict = "fail"
        elif finding.verdict == "unknown" and verdict == "pass":
            verdict = "unknown"
    stages = limited_by_findings(result.stages, findings)
    return replace(result, verdict=verdict, stages=stages)


def with_reach(result: VerifyResult, fleet: Fleet) -> VerifyResult:
    """Return the result with the stage before all others: the logins."""
    from clusterprep.jobs.verify.stage_verdicts import reach_stage

    limits = [node.ssh.connect_timeout for node in fleet.inventory.nodes]
    limit = max(limits, default=0.0)
    logins = reach_stage(fleet.snapshots.values(), limit)
    return replace(result, stages=(logins, *result.stages))


def plan_of(fleet: Fleet, environment: Environment, incident_sizes: bool = False) -> TrialPlan:
    """Return the trial over the nodes that were reached, as the inventory declares it."""
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
    plan = plan_of(fleet, environment)
    culprits: list[Culprit] = []
    for finding in gates:
        if finding.verdict != "fail" or finding.severity != "error":
            continue
        culprits.append(culprit_of(finding))
    verdict: Verdict = "fail" if culprits else "unknown"
    checks = dict.fromkeys(finding.check for finding in gates)
    message = f"no rank was started: {', '.join(checks)}"
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
