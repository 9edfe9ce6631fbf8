"""Settings left from looking for a fault, and search paths that put other libraries first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    unknown,
)
from clusterprep.checks.env import (
    BASHRC,
    alike_in_plan,
    describe_setting,
    removal_command,
    removal_fix,
    settings_by_place,
    unread_paths,
    with_settings,
)
from clusterprep.facts.env_files import is_ours
from clusterprep.facts.environment import Setting
from clusterprep.model import EnvSetting, EnvValue, Node
from clusterprep.nccl.environment import FACTS, planned_environment
from clusterprep.nccl.lint.leftovers import cost_of_leftover
from clusterprep.remedies import shell_line

# The ten of gpud (components/accelerator/nvidia/bad-envs), and two that stop or slow every job
# that has them.
DEBUGGING: Mapping[str, str] = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "a GPU that fails waits for a debugger, and the job hangs",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a GPU that fails writes its memory to disk first",
    "CUDA_COREDUMP_FILE": "names where GPU memory is dumped",
    "CUDA_PROFILE": "every kernel is profiled",
    "COMPUTE_PROFILE": "every kernel is profiled",
    "OPENCL_PROFILE": "every kernel is profiled",
    "NSIGHT_CUDA_DEBUGGER": "programs run under a debugger",
    "CUDA_INJECTION32_PATH": "a library is put into every program that uses CUDA",
    "CUDA_INJECTION64_PATH": "a library is put into every program that uses CUDA",
    "CUDA_AUTO_BOOST": "clocks go their own way",
    "TORCH_SHOW_CPP_STACKTRACES": "every exception is followed through C++, which may take minutes",
}
OFF = ("", "0", "false", "off", "no")
FOREIGN = ("libnccl", "libcuda.so")
SYSTEM = ("/lib", "/usr/lib")

Wrong = Callable[[Setting], str | None]
"""Why a setting should go, or None."""


# ---------------------------------------------------------------- settings


def debugging(context: CheckContext) -> Iterable[Outcome]:
    """Judge that no variable of debuggers and profilers is set, unless it is declared."""
    yield from unread_paths(context)
    for nodes in context.alike("env.paths"):
        outcomes = list(_failures(context, nodes[0], _why_debugging, planned={}))
        if not outcomes:
            outcomes = [passed(nodes[0], "no variable of debuggers and profilers is set")]
        yield from about_all(nodes, outcomes)


def _why_debugging(setting: Setting) -> str | None:
    if setting.value.strip().lower() in OFF:
        return None
    return DEBUGGING.get(setting.name)


def workarounds(context: CheckContext) -> Iterable[Outcome]:
    """Judge that nothing is left from looking for faults, unless it is planned or declared."""
    yield from unread_paths(context)
    environment = planned_environment(context.fleet)
    for nodes in alike_in_plan(context, environment, "env.paths"):
        node = nodes[0]
        planned = environment.of(node.name)
        gap = environment.gaps.get(node.name)
        outcomes = list(
            _failures(
                context,
                node,
                _why_workaround,
                planned,
                gap,
            )
        )
        if not outcomes:
            outcomes = [passed(node, "nothing is left from looking for faults")]
        yield from about_all(nodes, outcomes)


def _why_workaround(setting: Setting) -> str | None:
    costs = cost_of_leftover(setting.name, setting.value)
    if not costs:
        return None
    return (
        f"{setting.name} is left from looking for a fault, "
        f"and neither planned nor declared: {costs}"
    )


def _failures(
    context: CheckContext,
    node: Node,
    wrong: Wrong,
    planned: Mapping[str, EnvValue],
    gap: str | None = None,
) -> Iterable[Outcome]:
    """Yield the settings that `wrong` objects to, except those that are planned or declared.

    `gap` says why the plan of this node is not known; then these settings may be part of it.
    """
    for setting, where in settings_by_place(context.value(node, "env.paths")).items():
        if (
            is_ours(setting.file, context.inventory)
            or _has_value(setting, planned)
            or _has_value(setting, node.env)
        ):
            continue
        why = wrong(setting)
        if why is None:
            continue
        if gap is None:
            yield failed(
                node,
                why,
                describe_setting(setting, where),
                "unset",
                removal_command(setting, context.inventory),
                fix=removal_fix(setting, context.inventory),
            )
        else:
            message = f"{setting.name} is set, and what apply would write is not known: {gap}"
            yield unknown(node, message, "the environment cannot be derived")


def _has_value(setting: Setting, values: Mapping[str, EnvSetting | EnvValue]) -> bool:
    value = values.get(setting.name)
    return value is not None and value.value == setting.value


# ---------------------------------------------------------------- search paths


def search_paths(context: CheckContext) -> Iterable[Outcome]:
    """Judge that no search path puts another NCCL or driver library before the job's own."""
    yield from unread_paths(context)
    for nodes in context.alike("env.paths", "env.libraries"):
        outcomes = list(_other_libraries(context, nodes[0]))
        if not outcomes:
            outcomes = [passed(nodes[0], "no search path holds another NCCL or driver library")]
        yield from about_all(nodes, outcomes)


def _other_libraries(context: CheckContext, node: Node) -> Iterable[Outcome]:
    """Yield a failure for each setting that puts another library first."""
    folders: Mapping[str, tuple[str, ...]] = context.value(node, "env.libraries")
    for setting, where in settings_by_place(context.value(node, "env.paths")).items():
        if where == ("nccl",):
            continue
        libraries = _shadowing(setting, folders)
        if libraries:
            names = ", ".join(libraries)
            message = f"{setting.name} puts {names} before the job's own libraries"
            yield failed(
                node,
                message,
                describe_setting(setting, where),
                "unset",
                removal_command(setting, context.inventory),
                fix=removal_fix(setting, context.inventory),
            )


def _shadowing(setting: Setting, folders: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the files of NCCL, and stubs of the driver's library, that a setting puts first.

    Toolkits bring such stubs for compilers. A libcuda.so elsewhere is the driver's own, mounted
    into a container.
    """
    if setting.name == "LD_PRELOAD":
        paths = setting.value.replace(":", " ").split()
        return [path for path in paths if _file_name(path).startswith(FOREIGN)]
    if setting.name != "LD_LIBRARY_PATH":
        return []
    libraries = []
    for folder in dict.fromkeys(setting.value.split(":")):
        is_stubs = "stubs" in folder
        if folder.startswith(SYSTEM) and not is_stubs:
            continue
        for name in folders.get(folder, ()):
            if is_stubs or name.startswith("libnccl."):
                path = folder.rstrip("/")
                libraries.append(f"{path}/{name}")
                break  # one file of a folder is enough
    return libraries


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


BAD_CUDA = Check(
    "env.bad_cuda",
    facts=("env.paths",),
    judge=debugging,
    severity="warning",
    title="Variables of debuggers and profilers",
    why="With CUDA_LAUNCH_BLOCKING a job runs at half its speed on this node; with "
    "CUDA_DEVICE_WAITS_ON_EXCEPTION a fault becomes a hang. They are easily forgotten.",
    how="The names that make CUDA wait, dump or profile, in every launch path, set to anything "
    "but 0; what `env:` declares is left alone.",
    remedy=shell_line(
        "grep -rn CUDA_LAUNCH_BLOCKING /etc/environment /etc/profile.d ~/.bashrc   # take it out"
    ),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("CUDA_LAUNCH_BLOCKING", "1", BASHRC, 3))
    ),
)
NCCL_DEBUG = Check(
    "env.nccl_debug",
    facts=("env.paths",),
    uses=FACTS,
    judge=workarounds,
    severity="warning",
    title="Leftovers of looking for a fault",
    why="NCCL_P2P_DISABLE, a forced algorithm or NCCL_DEBUG=TRACE help to find a fault; left "
    "behind they cost most of the bandwidth, and on some nodes alone they can hang the job.",
    how="Switches that turn transports off, force algorithms or write traces, in every launch "
    "path, other than what apply would write or `env:` declares.",
    remedy=shell_line(
        "grep -rn NCCL_ /etc/environment /etc/profile.d ~/.bashrc ~/.nccl.conf   # out, or "
        "declared under env:"
    ),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_P2P_DISABLE", "1", BASHRC, 3))
    ),
)
LD_PATH = Check(
    "env.ld_path",
    facts=("env.paths", "env.libraries"),
    judge=search_paths,
    severity="warning",
    title="Search paths with another NCCL",
    why="LD_PRELOAD and LD_LIBRARY_PATH put another NCCL, or the driver's stub of a toolkit, "
    "before the one that torch was built with: versions mix, on those nodes and launch paths that "
    "have the line.",
    how="LD_PRELOAD with libnccl or libcuda, and folders of LD_LIBRARY_PATH outside the system's "
    "that hold libnccl.so or a stub, in every launch path. Which NCCL torch then loads is for "
    "nccl.torch.",
    remedy=shell_line("grep -rn LD_ /etc/environment /etc/profile.d ~/.bashrc   # take it out"),
    proof=Proof(
        "env.paths",
        with_settings("login shell", Setting("LD_PRELOAD", "/opt/nccl/libnccl.so.2", BASHRC, 3)),
    ),
)
