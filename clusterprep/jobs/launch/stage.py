"""The launch stage: plan the processes, follow them, keep their logs and have these diagnosed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose import command as diagnose_command
from clusterprep.jobs.launch.display import Folded, Prefixed, Source, visible
from clusterprep.jobs.launch.follow import run_launch
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.launch.outcome import LONGEST_PATH, LaunchRecord, judge
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.summary import summary_lines
from clusterprep.jobs.verify.stage import culprit_of, given_environment, gpus_in_use, rendezvous_of
from clusterprep.model import Absent, Culprit, Finding, Fleet, Inventory, Json, LaunchResult
from clusterprep.model.nodeset import fold
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.environment import Environment
from clusterprep.remote.untrusted import shortened
from clusterprep.survey.fanout import Fanout

INTERACTIVE_NOTICE = (
    "clusterprep: launch is for interactive runs: they end with this command "
    "and are not restarted. Long jobs belong to the scheduler: --print sbatch"
)
# The first version of torch whose torchrun takes /dev/null for «no logs» and leaves nothing in
# /tmp.
WITHOUT_LOGS = (2, 3)
SCRIPT_ANSWER = 10.0  # seconds for all nodes to say whether they have the script
_SCRIPT_PROBLEMS = {"missing": "does not exist", "unreadable": "cannot be read by the job's user"}
FLUSH_EVERY = 1.0  # seconds: users who follow a log file see it grow


class Screen(Struct, frozen=True):
    """Where lines go: `say` shows one, `folded` has equal lines of several ranks shown once."""

    say: Callable[[str], None]
    folded: bool
    logs: Path


def launch_plan(fleet: Fleet, environment: Environment, wanted: LaunchRequest) -> LaunchPlan:
    """Return which of the nodes reached runs which rank, and how."""
    env = given_environment(fleet, environment)
    gpus = gpus_in_use(fleet)
    rendezvous = rendezvous_of(fleet)
    quiet: list[str] = []
    for node in fleet.reached:
        if _needs_no_folder(fleet, node.name):
            quiet.append(node.name)
    return plan_launch(
        fleet.reached,
        env,
        gpus,
        rendezvous,
        wanted,
        quiet,
    )


def _needs_no_folder(fleet: Fleet, node: str) -> bool:
    build = fleet.fact(node, "torch.build")
    if build is None or isinstance(build, Absent) or build.version is None:
        return False
    version = leading_numbers(build.version)
    return bool(version[:2] >= WITHOUT_LOGS)


def launch(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    wanted: LaunchRequest,
    gates: Sequence[Finding],
    screen: Screen,
    check: Callable[[], None] | None = None,
) -> tuple[LaunchResult, tuple[str, ...]]:
    """Run the job if nothing prevents it. Return the result, and notices for the report.

    `gates` are the findings that prevent it. `check` raises what ends it before it is done, by
    default what ends the whole command.
    """
    plan = launch_plan(fleet, environment, wanted)
    if gates:
        return not_launched(plan, gates), ()
    if wanted.preflight and not plan.even:
        return uneven(plan), ()
    if wanted.preflight and wanted.program.kind == "script":
        missing = missing_scripts(plan, _script_answers(fanout, plan))
        if missing is not None:
            return missing, ()
    result, trouble = follow(
        fanout,
        fleet.inventory,
        plan,
        screen,
        check or fanout.check,
    )
    if trouble:
        return result, (trouble,)
    return result, ()


def _script_answers(fanout: Fanout, plan: LaunchPlan) -> dict[str, Mapping[str, Any]]:
    """Return what each node says of the script that it is to start; nothing of those lost.

    A node whose job runs in a container is not asked: there the script may be in the image.
    """
    fanout.load("job")
    bodies = {}
    for share in plan.shares:
        runtime = share.node.runtime
        if runtime is None or runtime.container is None:
            bodies[share.node.name] = plan.script_request(share)
    answers: dict[str, Mapping[str, Any]] = {}
    for name, answer in fanout.ask("script", bodies, SCRIPT_ANSWER).items():
        if isinstance(answer, Mapping):
            answers[name] = answer
    return answers


def describe_gates(gates: Sequence[Finding]) -> str:
    """Return the findings that prevent a launch, in one line."""
    reasons: dict[str, None] = {}  # a set that keeps the order
    for gate in gates:
        reasons[f"{gate.check} {gate.verdict} on {fold(gate.nodes)}"] = None
    return "; ".join(reasons)


def follow(
    fanout: Fanout,
    inventory: Inventory,
    plan: LaunchPlan,
    screen: Screen,
    check: Callable[[], None],
) -> tuple[LaunchResult, str]:
    """Run the job. Return the result, and why logs lack lines; empty if they lack none."""
    logs = Logs(screen.logs)
    output = _Output(plan, screen, logs)
    fanout.load("job")
    links = {share.node.name: fanout.links[share.node.name] for share in plan.shares}
    try:
        record = run_launch(links, plan, output.hear, output.tick, check)
    finally:
        output.tick(last=True)
        paths = logs.close()
    result = replace(judge(plan, record), logs=str(logs.folder))
    paths = (*paths, *logs.write_summary(summary_lines(result)))
    if result.verdict != "pass":
        misleading = _logs_of_ended_torchruns(plan, record, logs)
        telling = [path for path in paths if path not in misleading]
        result = replace(result, causes=_causes(telling, plan, inventory))
    return result, logs.trouble


def _logs_of_ended_torchruns(plan: LaunchPlan, record: LaunchRecord, logs: Logs) -> set[Path]:
    """Return the logs of each torchrun that launch ended.

    They tell of a SIGTERM, which `diagnose` would take for one from outside.
    """
    nodes_with_own_exit = {event.node for event in record.own_exits()}
    paths: set[Path] = set()
    for share in plan.shares:
        name = share.node.name
        if name not in nodes_with_own_exit:
            paths.add(logs.path((name, None)))
    return paths


class _Output:
    """Writes every line to its file, and shows it behind the name of its rank."""

    def __init__(self, plan: LaunchPlan, screen: Screen, logs: Logs) -> None:
        self._display = Folded(plan.world_size) if screen.folded else Prefixed()
        self._say = screen.say
        self._logs = logs
        self._flushed_at = 0.0

    def hear(self, source: Source, lines: Sequence[str], *, shown: bool) -> None:
        was_full = self._logs.is_full(source)
        self._logs.write(source, lines)
        if not shown or was_full:
            return
        shown_lines = list(lines)
        if self._logs.is_full(source):
            shown_lines.append("clusterprep: its log is full; its further lines are not shown")
        now = time.monotonic()
        for line in shown_lines:
            due = self._display.add(source, visible(line), now)
            self._show(due)

    def tick(self, *, last: bool = False) -> None:
        now = time.monotonic()
        due = self._display.due(now, flush=last)
        self._show(due)
        if now - self._flushed_at > FLUSH_EVERY:
            self._flushed_at = now
            self._logs.flush()

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._say(line)


def _causes(
    paths: Sequence[Path], plan: LaunchPlan, inventory: Inventory
) -> tuple[Mapping[str, Json], ...]:
    """Return what `diagnose` says of the logs, with the nodes of ranks.

    Harmless lines are left to that command.
    """
    if not paths:
        return ()
    try:
        diagnosis, _ = diagnose_command.diagnose([str(path) for path in paths])
    except InputError:
        return ()  # a rank printed what is no text; the logs are there
    launched = _launched_inventory(plan, inventory)
    diagnosis = diagnose_command.with_nodes(diagnosis, launched)
    rows: list[Mapping[str, Json]] = []
    for found in diagnosis.causes:
        if found.severity == "benign":
            continue
        row = {
            "cause": found.cause.name,
            "severity": found.severity,
            "confidence": found.confidence,
            "culprit": found.culprit,
            "message": found.message,
            "remedy": str(found.cause.remedy),
        }
        if found.cause.remedy.note:
            row["note"] = found.cause.remedy.note
        rows.append(row)
    return tuple(rows)


def _launched_inventory(plan: LaunchPlan, inventory: Inventory) -> Inventory:
    """Return the inventory with the nodes of the launch alone, and the processes of each."""
    counts = {share.node.name: share.count for share in plan.shares}
    nodes = []
    for node in inventory.nodes:
        if node.name in counts:
            nodes.append(replace(node, nproc_per_node=counts[node.name]))
    return replace(inventory, nodes=tuple(nodes))


# ---------------------------------------------------------------- what was not begun


def not_launched(plan: LaunchPlan, gates: Sequence[Finding]) -> LaunchResult:
    """Return the result of a launch that could only have hung.

    The findings that prevent it name the culprits.
    """
    check_names = dict.fromkeys(gate.check for gate in gates)  # each once, in order
    culprits: list[Culprit] = []
    for gate in gates:
        if gate.verdict == "fail" and gate.severity == "error":
            culprits.append(culprit_of(gate))
    message = f"no process was started: {', '.join(check_names)}"
    return _nothing_started(plan, tuple(culprits), message)


def uneven(plan: LaunchPlan) -> LaunchResult:
    """Return the result if nodes would start different numbers of processes.

    The culprits are the nodes that differ from the majority; all nodes if there is none.
    """
    groups = _nodes_by_count(plan)
    _, majority = groups[0]
    if 2 * len(majority) <= len(plan.shares):
        majority = []
    culprit_names: list[str] = []
    for share in plan.shares:
        if share.node.name not in majority:
            culprit_names.append(share.node.name)
    descriptions: list[str] = []
    for count, nodes in groups:
        descriptions.append(f"{count} on {fold(nodes)}")
    description = "; ".join(descriptions)
    cause = f"nodes would start different numbers of processes: {description}"
    evidence = ("nproc_per_node of the inventory, or the number of GPUs in use (launch.nproc)",)
    culprit = Culprit(
        "node",
        tuple(culprit_names),
        0.99,
        cause,
        evidence,
    )
    return _nothing_started(plan, (culprit,), "no process was started: launch.nproc")


def missing_scripts(
    plan: LaunchPlan, answers: Mapping[str, Mapping[str, Any]]
) -> LaunchResult | None:
    """Return the result if a node lacks the script, or its user cannot read it; else None.

    If all nodes lack it no node is at fault, and none is named as the culprit.
    """
    script = plan.wanted.program.command[0]
    descriptions: dict[str, list[str]] = {}
    for name, answer in answers.items():
        folder = shortened(answer.get("folder", ""), LONGEST_PATH)
        place = "" if script.startswith("/") else f" in {folder}"
        problem = _SCRIPT_PROBLEMS.get(str(answer.get("script")))
        if problem is not None:
            descriptions.setdefault(f"{script} {problem}{place}", []).append(name)
    if not descriptions:
        return None
    sentences = [f"{words} on {fold(names)}" for words, names in descriptions.items()]
    message = f"no process was started: {'; '.join(sentences)}"
    lacking = [name for names in descriptions.values() for name in names]
    if len(lacking) == len(plan.shares):
        return replace(_nothing_started(plan, (), message), verdict="fail")
    cause = "; ".join(sentences)
    culprit = Culprit("node", tuple(sorted(lacking)), 0.99, cause)
    return _nothing_started(plan, (culprit,), message)


def _nodes_by_count(plan: LaunchPlan) -> list[tuple[int, list[str]]]:
    """Return numbers of processes with the names of nodes that start so many, most nodes first."""
    nodes_by_count: dict[int, list[str]] = {}
    for share in plan.shares:
        names = nodes_by_count.setdefault(share.count, [])
        names.append(share.node.name)
    return sorted(nodes_by_count.items(), key=lambda group: -len(group[1]))


def _nothing_started(plan: LaunchPlan, culprits: tuple[Culprit, ...], message: str) -> LaunchResult:
    """Return the result of a launch without a process; it has failed only if culprits are known."""
    return LaunchResult(
        verdict="fail" if culprits else "unknown",
        mode=plan.wanted.mode,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        culprits=culprits,
        message=message,
    )
