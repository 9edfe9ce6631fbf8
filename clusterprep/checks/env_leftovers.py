"""What somebody set once to find a fault, and what puts other libraries before the job's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.env import BASHRC, OURS, by_place, cure, holes, planted, said
from clusterprep.facts.environment import Setting
from clusterprep.model import EnvValue
from clusterprep.nccl.environment import FACTS, planned_environment
from clusterprep.nccl.lint.leftovers import left_behind

# The ten of gpud (components/accelerator/nvidia/bad-envs), and two that stop or slow every job that has them.
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


def _each(
    context: CheckContext, wrong: Wrong, good: str, planning: bool = False
) -> Iterable[Outcome]:
    """Settings of which `wrong` says why they should go, but for those that are declared, or planned where asked."""
    yield from holes(context)
    for node in context.nodes:
        values: Mapping[str, EnvValue] = (
            planned_environment(context.fleet).of(node.name) if planning else {}
        )
        gap = planned_environment(context.fleet).gaps.get(node.name) if planning else None
        bad = False
        for setting, where in by_place(context.value(node, "env.paths")).items():
            plan, declared = values.get(setting.name), node.env.get(setting.name)
            if (
                setting.value in (plan and plan.value, declared and declared.value)
                or setting.file in OURS
            ):
                continue
            if (why := wrong(setting)) is not None and gap is not None:
                bad = True
                message = f"{setting.name} is set, and what apply would write is not known: {gap}"
                yield Outcome(
                    "unknown", (node.name,), message, reason="the environment cannot be derived"
                )
            elif why is not None:
                bad = True
                yield Outcome(
                    "fail", (node.name,), why, said(setting, where), "unset", cure(setting)
                )
        if not bad:
            yield Outcome("pass", (node.name,), good)


def debugging(context: CheckContext) -> Iterable[Outcome]:
    def wrong(setting: Setting) -> str | None:
        return None if setting.value.strip().lower() in OFF else DEBUGGING.get(setting.name)

    return _each(context, wrong, "no variable of debuggers and profilers is set")


def workarounds(context: CheckContext) -> Iterable[Outcome]:
    def wrong(setting: Setting) -> str | None:
        costs = left_behind(setting.name, setting.value)
        if not costs:
            return None
        return f"{setting.name} is left from looking for a fault, and neither planned nor declared: {costs}"

    return _each(context, wrong, "nothing is left from looking for faults", planning=True)


def search_paths(context: CheckContext) -> Iterable[Outcome]:
    yield from holes(context)
    for node in context.nodes:
        folders: Mapping[str, tuple[str, ...]] = context.value(node, "env.libraries")
        bad = False
        for setting, where in by_place(context.value(node, "env.paths")).items():
            if where != ("nccl",) and (shadowing := _shadowing(setting, folders)):
                bad = True
                message = (
                    f"{setting.name} puts {', '.join(shadowing)} before the job's own libraries"
                )
                yield Outcome(
                    "fail", (node.name,), message, said(setting, where), "unset", cure(setting)
                )
        if not bad:
            yield Outcome(
                "pass", (node.name,), "no search path holds another NCCL or driver library"
            )


def _shadowing(setting: Setting, folders: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Files of NCCL, and the stub of the driver's library that toolkits bring for compilers.

    A libcuda.so elsewhere is the driver's own, mounted into a container.
    """
    if setting.name == "LD_PRELOAD":
        words = setting.value.replace(":", " ").split()
        return [word for word in words if word.rpartition("/")[2].startswith(FOREIGN)]
    if setting.name != "LD_LIBRARY_PATH":
        return []
    found = []
    for folder in dict.fromkeys(setting.value.split(":")):
        if folder.startswith(SYSTEM) and "stubs" not in folder:
            continue
        names = folders.get(folder, ())
        mine = [name for name in names if name.startswith("libnccl.") or "stubs" in folder]
        found += [f"{folder.rstrip('/')}/{name}" for name in mine[:1]]
    return found


BAD_CUDA = Check(
    "env.bad_cuda",
    facts=("env.paths",),
    judge=debugging,
    severity="warning",
    title="Variables of debuggers and profilers",
    why="With CUDA_LAUNCH_BLOCKING a job runs at half its speed on this node; with CUDA_DEVICE_WAITS_ON_EXCEPTION a "
    "fault becomes a hang. Nobody remembers that they were set.",
    how="The names that make CUDA wait, dump or profile, in every launch path, set to anything but 0; what `env:` "
    "declares is left alone.",
    remedy="grep -rn CUDA_LAUNCH_BLOCKING /etc/environment /etc/profile.d ~/.bashrc   # take it out",
    proof=Proof(
        "env.paths", planted("login shell", Setting("CUDA_LAUNCH_BLOCKING", "1", BASHRC, 3))
    ),
)
NCCL_DEBUG = Check(
    "env.nccl_debug",
    facts=("env.paths",),
    uses=FACTS,
    judge=workarounds,
    severity="warning",
    title="Leftovers of looking for a fault",
    why="NCCL_P2P_DISABLE, a forced algorithm or NCCL_DEBUG=TRACE help to find a fault; left behind they cost most of "
    "the bandwidth, and on some nodes alone they can hang the job.",
    how="Switches that turn transports off, force algorithms or write traces, in every launch path, other than what "
    "apply would write or `env:` declares.",
    remedy="grep -rn NCCL_ /etc/environment /etc/profile.d ~/.bashrc ~/.nccl.conf   # out, or declared under env:",
    proof=Proof("env.paths", planted("login shell", Setting("NCCL_P2P_DISABLE", "1", BASHRC, 3))),
)
LD_PATH = Check(
    "env.ld_path",
    facts=("env.paths", "env.libraries"),
    judge=search_paths,
    severity="warning",
    title="Search paths with another NCCL",
    why="LD_PRELOAD and LD_LIBRARY_PATH put another NCCL, or the driver's stub of a toolkit, before the one that torch "
    "was built with: versions mix, on those nodes and launch paths that have the line.",
    how="LD_PRELOAD with libnccl or libcuda, and folders of LD_LIBRARY_PATH outside the system's that hold libnccl.so "
    "or a stub, in every launch path. Which NCCL torch then loads is for nccl.torch.",
    remedy="grep -rn LD_ /etc/environment /etc/profile.d ~/.bashrc   # take it out",
    proof=Proof(
        "env.paths",
        planted("login shell", Setting("LD_PRELOAD", "/opt/nccl/libnccl.so.2", BASHRC, 3)),
    ),
)
