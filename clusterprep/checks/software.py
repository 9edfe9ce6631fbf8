"""PyTorch, NCCL and the driver: what the job would load, the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted
from clusterprep.facts.torch import Libraries, Torch
from clusterprep.model import Node
from clusterprep.model.versions import conditions_of, satisfies

INSTALL = "{python} -m pip install torch=={version}"


def torch(context: CheckContext) -> Iterable[Outcome]:
    """Missing on some nodes fails there; missing on all is not known, for another interpreter may be meant."""
    builds: dict[str, Torch] = context.values("torch.build")
    without = tuple(name for name, build in builds.items() if build.version is None)
    if without and len(without) == len(builds):
        pythons = ", ".join(sorted({node.python for node in context.nodes}))
        message = f"no node has torch in {pythons}; set `python:` to the job's interpreter"
        yield Outcome("unknown", without, message, "no torch", "torch", reason="missing_tool")
        return
    if without:
        version = next(build.version for build in builds.values() if build.version)
        python = next(node.python for node in context.nodes if node.name in without)
        cure = INSTALL.format(python=python, version=version)
        yield Outcome(
            "fail",
            without,
            "torch is missing while other nodes have it",
            "no torch",
            version or "",
            cure,
        )
    present = [node for node in context.nodes if node.name not in without]
    versions = {name: build.version for name, build in builds.items() if build.version is not None}
    yield from as_wanted(context, versions, satisfies, "torch")
    yield from _cpu_builds(present, builds)


def _cpu_builds(nodes: list[Node], builds: dict[str, Torch]) -> Iterable[Outcome]:
    cpu_only = tuple(
        n.name
        for n in nodes
        if n.gpus is not None and n.gpus.used > 0 and builds[n.name].cuda is None
    )
    if cpu_only:
        message = "torch is a CPU build on nodes that declare GPUs"
        yield Outcome(
            "fail",
            cpu_only,
            message,
            "no CUDA",
            "a CUDA build",
            "pip install the CUDA build of torch",
        )


def nccl(context: CheckContext) -> Iterable[Outcome]:
    """The NCCL that torch would load; a CPU build needs none, which is fine where no GPU is declared."""
    builds: dict[str, Torch] = context.values("torch.build")
    without = [node for node in context.nodes if builds[node.name].nccl is None]
    idle = {node.name for node in without if _needs_none(node, builds[node.name])}
    if idle:
        yield Outcome(
            "skip",
            tuple(idle),
            "this torch brings no NCCL, and no GPU is declared",
            reason="not_applicable",
        )
    for node in without:
        if node.name not in idle:
            message = "the NCCL that torch would load was not found, or does not say its version"
            seen = context.value(node, "nccl.libraries").loaded or "no libnccl.so.2 for torch"
            yield Outcome("unknown", (node.name,), message, seen, "NCCL", reason="missing_tool")
    versions = {name: build.nccl for name, build in builds.items() if build.nccl is not None}
    yield from as_wanted(context, versions, satisfies, "NCCL", exempt=len(idle))
    yield from (
        outcome
        for node in context.nodes
        if (outcome := _shadowed(context, node, builds[node.name]))
    )


def _shadowed(context: CheckContext, node: Node, build: Torch) -> Outcome | None:
    """A warning where the environment puts another NCCL before the one that came with torch.

    What the inventory requires, and gets that way, was meant.
    """
    libraries: Libraries = context.value(node, "nccl.libraries")
    if build.nccl is None or libraries.wheel is None or libraries.loaded in (None, libraries.wheel):
        return None
    wanted = context.wanted(node)
    if wanted is not None and satisfies(build.nccl, wanted):
        return None
    preloaded = "nccl" in (libraries.preload or "")
    variable, value = (
        ("LD_PRELOAD", libraries.preload)
        if preloaded
        else ("LD_LIBRARY_PATH", libraries.library_path)
    )
    seen = f"{build.nccl} from {libraries.loaded}"
    own = f"{libraries.wheel_version or 'the NCCL'} from {libraries.wheel}"
    message = f"{variable} makes torch load another NCCL than its own"
    cure = f"grep -rn {variable} /etc/environment /etc/profile.d ~/.bashrc   # now '{value}'; take NCCL out of it"
    return Outcome("fail", (node.name,), message, seen, own, cure, severity="warning")


def _needs_none(node: Node, build: Torch) -> bool:
    return build.version is not None and build.cuda is None and not (node.gpus and node.gpus.used)


def driver(context: CheckContext) -> Iterable[Outcome]:
    """The loaded kernel module's version; none is fine where there is no GPU."""
    loaded: dict[str, str | None] = context.values("nv.driver")
    exempt = 0
    for node in context.nodes:
        if loaded[node.name] is not None:
            continue
        if context.value(node, "gpu.pci") or (node.gpus and node.gpus.count):
            message = "there are GPUs and the driver is not loaded"
            yield Outcome(
                "fail",
                (node.name,),
                message,
                "no driver",
                "a driver",
                "modprobe nvidia; dmesg | grep NVRM",
            )
        else:
            exempt += 1
            yield Outcome("skip", (node.name,), "no GPU here", reason="not_applicable")
    versions = {name: version for name, version in loaded.items() if version is not None}
    yield from as_wanted(context, versions, satisfies, "the NVIDIA driver", exempt)


TORCH = Check(
    "torch.version",
    facts=("torch.build",),
    judge=torch,
    severity="error",
    title="The job's PyTorch",
    why="Ranks of different torch versions disagree about collectives and their order: they hang or give wrong sums.",
    how="torch/version.py of the job's interpreter (`python:`), run as the job's user; torch is not imported. "
    "`require: torch` wants versions.",
    remedy="python -m pip install torch==VERSION   # in the job's environment, on the odd nodes",
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, version="2.4.1+cu124")),
)
NCCL = Check(
    "nccl.torch",
    facts=("torch.build", "nccl.libraries"),
    judge=nccl,
    severity="error",
    title="The NCCL that torch would load",
    why="Two NCCL versions in one job do not speak the same bootstrap protocol: «internal error», or a hang.",
    how="ncclGetVersion of the library that torch would load, called in the job's interpreter; needs no GPU. The file "
    "is found as the loader does it: LD_PRELOAD, DT_RPATH of libtorch_cuda, LD_LIBRARY_PATH, DT_RUNPATH, the system's "
    "folders, in the environment of a session without a terminal. Another file than the one that came with torch is "
    "a warning. `require: nccl` wants a version.",
    remedy="python -m pip install torch==VERSION   # the wheel brings its NCCL",
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, nccl="2.20.5")),
)
DRIVER = Check(
    "nv.driver",
    facts=("nv.driver", "gpu.pci"),
    judge=driver,
    severity="error",
    title="The NVIDIA driver",
    why="One node with another driver branch brings other limits of CUDA and NVLink into the job.",
    how="/proc/driver/nvidia/version, the module that is loaded, not the package that is installed. "
    "`require: driver` wants versions.",
    remedy="apt-get install --only-upgrade nvidia-driver-BRANCH && reboot",
    wants=conditions_of,
    proof=Proof("nv.driver", lambda _: "535.183.01"),
)
