"""The launch stage: plans the processes from what was seen, follows them, keeps their logs and has them diagnosed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose import command as diagnosed
from clusterprep.jobs.launch.display import Folded, Prefixed, Source, visible
from clusterprep.jobs.launch.follow import run_launch
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.story import judge
from clusterprep.jobs.verify.stage import culprit_of, given_environment, gpus_in_use, rendezvous_of
from clusterprep.model import Absent, Culprit, Finding, Fleet, Inventory, Json, LaunchResult
from clusterprep.model.nodeset import fold
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.environment import Environment
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.fanout import Fanout

BESIDE = (
    "clusterprep: launch is for runs that one sits beside: they end with this command, and nobody starts them again. "
    "Long jobs belong to the scheduler: --print sbatch"
)
WITHOUT_LOGS = (
    2,
    3,
)  # torch from which on torchrun takes /dev/null for «no logs» and leaves nothing in /tmp


@dataclass(frozen=True)
class Screen:
    """Where lines go: `say` shows one, `folded` has equal lines of several ranks shown once."""

    say: Callable[[str], None]
    folded: bool
    logs: Path


def launch_plan(fleet: Fleet, environment: Environment, wanted: LaunchRequest) -> LaunchPlan:
    """Who runs which rank, on the nodes reached."""
    env = given_environment(fleet, environment)
    quiet = [node.name for node in fleet.reached if _needs_no_folder(fleet, node.name)]
    return plan_launch(fleet.reached, env, gpus_in_use(fleet), rendezvous_of(fleet), wanted, quiet)


def _needs_no_folder(fleet: Fleet, node: str) -> bool:
    build = fleet.fact(node, "torch.build")
    if build is None or isinstance(build, Absent) or build.version is None:
        return False
    return bool(leading_numbers(build.version)[:2] >= WITHOUT_LOGS)


def launch(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    wanted: LaunchRequest,
    gates: Sequence[Finding],
    screen: Screen,
) -> tuple[LaunchResult, tuple[str, ...]]:
    """Run the job where nothing is in its way. The result, and notices for the report."""
    plan = launch_plan(fleet, environment, wanted)
    if gates:
        return not_launched(plan, gates), ()
    if wanted.preflight and not plan.even:
        return uneven(plan), ()
    result, trouble = follow(fanout, fleet.inventory, plan, screen)
    return result, (trouble,) if trouble else ()


def why(gates: Sequence[Finding]) -> str:
    """What is in the way, in one line."""
    return "; ".join(
        dict.fromkeys(f"{gate.check} {gate.verdict} on {fold(gate.nodes)}" for gate in gates)
    )


def follow(
    fanout: Fanout, inventory: Inventory, plan: LaunchPlan, screen: Screen
) -> tuple[LaunchResult, str]:
    """Run it. The result, and why logs lack lines where they do."""
    logs = Logs(screen.logs)
    shown = _Shown(plan, screen, logs)
    fanout.load("job")
    links = {share.node.name: fanout.links[share.node.name] for share in plan.shares}
    try:
        told = run_launch(links, plan, shown.hear, shown.tick)
    finally:
        shown.tick(last=True)
        paths = logs.close()
    result = replace(judge(plan, told), logs=str(logs.folder))
    if result.verdict != "pass":
        # What torchrun says of being ended by us would be taken for somebody's SIGTERM.
        theirs = {event.node for event in told.exits()}
        ours = {
            logs.path((share.node.name, None))
            for share in plan.shares
            if share.node.name not in theirs
        }
        result = replace(
            result, causes=_causes([path for path in paths if path not in ours], plan, inventory)
        )
    return result, logs.trouble


class _Shown:
    """Every line goes to its file, and to the screen behind the name of its rank."""

    def __init__(self, plan: LaunchPlan, screen: Screen, logs: Logs) -> None:
        self._display = Folded(plan.world_size) if screen.folded else Prefixed()
        self._say, self._logs = screen.say, logs
        self._flushed = 0.0

    def hear(self, source: Source, lines: Sequence[str], *, shown: bool) -> None:
        self._logs.write(source, lines)
        now = time.monotonic()
        for line in lines if shown else ():
            self._show(self._display.add(source, visible(line), now))

    def tick(self, *, last: bool = False) -> None:
        now = time.monotonic()
        self._show(self._display.due(now, all_of_them=last))
        if now - self._flushed > 1.0:  # whoever follows a file sees it grow
            self._flushed = now
            self._logs.flush()

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._say(line)


def _causes(
    paths: Sequence[Path], plan: LaunchPlan, inventory: Inventory
) -> tuple[Mapping[str, Json], ...]:
    """What `diagnose` says of the logs, with the nodes of ranks; harmless lines are left to that command."""
    if not paths:
        return ()
    try:
        diagnosis, _ = diagnosed.diagnose([str(path) for path in paths])
    except InputError:
        return ()  # somebody printed what is no text; the logs are there
    counts = {share.node.name: share.count for share in plan.shares}
    nodes = tuple(
        replace(n, nproc_per_node=counts[n.name]) for n in inventory.nodes if n.name in counts
    )
    diagnosis = diagnosed.with_nodes(diagnosis, replace(inventory, nodes=nodes))
    return tuple(
        {
            "cause": found.cause.name,
            "severity": found.severity,
            "confidence": found.confidence,
            "culprit": found.culprit,
            "message": found.message,
            "remedy": found.cause.remedy,
        }
        for found in diagnosis.causes
        if found.severity != "benign"
    )


# ---------------------------------------------------------------- what was not begun


def not_launched(plan: LaunchPlan, gates: Sequence[Finding]) -> LaunchResult:
    """The result of a launch that could only have hung: the findings in its way name the culprits."""
    failed = [
        finding for finding in gates if finding.verdict == "fail" and finding.severity == "error"
    ]
    message = (
        f"no process was started: {', '.join(dict.fromkeys(finding.check for finding in gates))}"
    )
    return _nothing(plan, tuple(culprit_of(finding) for finding in failed), message)


def uneven(plan: LaunchPlan) -> LaunchResult:
    """Nodes would start different numbers of processes: one inventory is one job."""
    by_count: dict[int, list[str]] = {}
    for share in plan.shares:
        by_count.setdefault(share.count, []).append(share.node.name)
    counts = sorted(by_count, key=lambda count: -len(by_count[count]))
    most = by_count[counts[0]]
    majority = 2 * len(most) > len(plan.shares)
    odd = tuple(s.node.name for s in plan.shares if not (majority and s.count == counts[0]))
    seen = "; ".join(f"{count} on {fold(by_count[count])}" for count in counts)
    cause = f"nodes would start different numbers of processes: {seen}"
    evidence = ("nproc_per_node of the inventory, or the number of GPUs in use (launch.nproc)",)
    return _nothing(
        plan, (Culprit("node", odd, 0.99, cause, evidence),), "no process was started: launch.nproc"
    )


def _nothing(plan: LaunchPlan, culprits: tuple[Culprit, ...], message: str) -> LaunchResult:
    return LaunchResult(
        verdict="fail" if culprits else "unknown",
        mode="direct" if plan.wanted.direct else "torchrun",
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        culprits=culprits,
        message=message,
    )
