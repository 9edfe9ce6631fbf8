"""Variables of the job that its runtime takes away or changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    container,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.env import must_match, place
from clusterprep.checks.rt_engine import ON_THE_NODE
from clusterprep.facts.container import Inside
from clusterprep.facts.environment import Paths, Setting
from clusterprep.facts.runtime import Setup
from clusterprep.model import Absent, EnvValue, Node, Runtime, Severity
from clusterprep.nccl.environment import FACTS, planned_environment
from clusterprep.remedies import Remedy, sentence, shell_line


def judge(context: CheckContext) -> Iterable[Outcome]:
    """Compare what apply writes, and what the inventory declares, with what the runtime leaves."""
    environment = planned_environment(context.fleet)
    for node in context.nodes:
        setup: Setup | None = context.value(node, "rt.setup")
        look: Inside | Absent | None = context.value(node, "rt.inside")
        if isinstance(look, Inside):
            yield from container.variables(context, node, look)
        elif isinstance(look, Absent) and container.container_of(node) is not None:
            yield unknown(node, f"the container is not known: {look.detail}", look.reason)
        elif setup is None:
            yield skipped(node, ON_THE_NODE)
        elif setup.reason:
            message = f"the job's runtime cannot be entered: {setup.why}"
            yield unknown(node, message, setup.reason)
        else:
            values = environment.of(node.name)
            outcomes = list(_lost(context, node, setup, values))
            gap = environment.gaps.get(node.name)
            if gap is not None and not values.keys() >= set(setup.unset):
                message = f"what apply would write is not known: {gap}"
                outcomes.append(unknown(node, message, "the environment cannot be derived"))
            yield from outcomes
            if not outcomes:
                yield passed(node, "the job's runtime keeps the variables that apply writes")


def _lost(
    context: CheckContext, node: Node, setup: Setup, values: Mapping[str, EnvValue]
) -> Iterable[Outcome]:
    """Yield a failure for each variable that has not its value inside."""
    settings = _settings_inside(context, node)
    for name in sorted(values):
        wanted = f"{name}={values[name].value}"
        severity: Severity | None = None
        if name in node.env or must_match(name):
            severity = "error"
        if name in setup.unset:
            message = f"the job's runtime unsets {name}, so jobs run without it"
            yield failed(node, message, f"{name} unset", wanted, _find(node, name), severity)
            continue
        inside = setup.env.get(name)
        if inside is None or inside == values[name].value:
            continue
        setting = settings.get(name) or Setting(name, inside)
        message = f"the job's runtime sets another {name} than apply writes"
        where = "" if setting.file is None else f" from {place(setting)}"
        yield failed(node, message, f"{name}={inside}{where}", wanted, _find(node, name), severity)


def _settings_inside(context: CheckContext, node: Node) -> dict[str, Setting]:
    """Return the settings of the launch path «runtime» by name; none where they are not known."""
    paths: Paths | Absent = context.value(node, "env.paths")
    if isinstance(paths, Absent):
        return {}
    settings = paths.get("runtime", ())
    if isinstance(settings, Absent):
        return {}
    return {setting.name: setting for setting in settings}


def _find(node: Node, name: str) -> Remedy:
    """Return a command that shows where the runtime touches a variable."""
    runtime = node.runtime or Runtime()
    if runtime.activate is not None:
        return shell_line("grep -n {name} {file}", name=name, file=runtime.activate)
    if runtime.venv is not None:
        return shell_line("grep -n {name} {file}", name=name, file=f"{runtime.venv}/bin/activate")
    if runtime.conda is not None and runtime.conda.startswith("/"):
        folder = f"{runtime.conda}/etc/conda"
        return shell_line("grep -rn {name} {folder}", name=name, folder=folder)
    if runtime.modules:
        modules = " ".join(runtime.modules)
        return sentence(
            "look where {name} is touched, with `module show` of {modules}: take it out, or "
            "declare that value under env: of the inventory",
            name=name,
            modules=modules,
        )
    return shell_line("conda env config vars list   # and etc/conda of it, for {name}", name=name)


CHECK = Check(
    "rt.env",
    facts=("rt.setup",),
    uses=("env.paths", "rt.inside", *FACTS),
    judge=judge,
    severity="warning",
    grade="an error for a variable that the inventory declares or that must be equal on all ranks, "
    "else a warning",
    title="Variables that the runtime takes away",
    why="Modules and activation files set variables of NCCL for another cluster, or clear them. A "
    "job that is started by hand then runs on other values than apply wrote. `launch` and `verify` "
    "set theirs again inside, so there it does not show.",
    how="Each variable that apply derives or the inventory declares is set outside, and looked at "
    "by the job's interpreter inside. A container is looked into for the variables that a login of "
    "the job's user has on the host, in its environment or in its /etc/nccl.conf.",
    remedy=sentence("take the variable out of the module or the activation file"),
    proof=Proof(
        "rt.setup",
        lambda setup: Setup(
            python="/opt/venv/bin/python3", prefix="/opt/venv", unset=("NCCL_SOCKET_IFNAME",)
        ),
    ),
)
