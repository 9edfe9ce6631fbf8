"""Judges PyTorch, NCCL and the driver: what the job would load should be equal on all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    as_wanted,
    failed,
    skipped,
    unknown,
)
from clusterprep.facts.torch import Libraries, Torch
from clusterprep.model import Node
from clusterprep.model.runtimes import pasted_python
from clusterprep.model.versions import conditions_of, satisfies
from clusterprep.remedies import Remedy, sentence, shell_line

OTHER_NCCL = sentence(
    "install in the job's environment the torch whose wheel brings this NCCL, and no other NCCL"
)


def torch(context: CheckContext) -> Iterable[Outcome]:
    """Compare the versions of torch.

    Torch missing on some nodes is a failure there. Missing on all it is unknown, for another
    interpreter may be meant.
    """
    builds: dict[str, Torch] = context.values("torch.build")
    versions = {}
    missing = []
    for name, build in builds.items():
        if build.version is None:
            missing.append(name)
        else:
            versions[name] = build.version
    if missing and not versions:
        pythons = ", ".join(sorted({node.python for node in context.nodes}))
        message = f"no node has torch in {pythons}; set `python:` to the job's interpreter"
        names = tuple(missing)
        yield Outcome(
            "unknown",
            names,
            message,
            "no torch",
            "torch",
            reason="missing_tool",
        )
        return
    if missing:
        version = next(filter(None, versions.values()))
        yield _missing_torch(context, tuple(missing), version)
    python = pasted_python(context.nodes[0])
    yield from as_wanted(
        context,
        versions,
        satisfies,
        "torch",
        cure=lambda version: _install_torch(python, version),
    )
    yield from _judge_cpu_builds(context, builds)


def _install_torch(python: Sequence[str] | str, version: str) -> Remedy:
    """Return the command for a version, or for conditions such as >=2.6."""
    wanted = version if version[:1] in "<>=!~" else f"=={version}"
    return shell_line(
        "{python} -m pip install {torch}   # in the job's environment, on the odd nodes",
        python=python,
        torch=f"torch{wanted}",
    )


def _missing_torch(context: CheckContext, names: tuple[str, ...], version: str) -> Outcome:
    """Return the failure of nodes without torch; `version` is that of another node."""
    python = next(pasted_python(node) for node in context.nodes if node.name in names)
    cure = shell_line("{python} -m pip install torch=={version}", python=python, version=version)
    message = "torch is missing while other nodes have it"
    return Outcome(
        "fail",
        names,
        message,
        "no torch",
        version,
        cure,
    )


def _judge_cpu_builds(context: CheckContext, builds: dict[str, Torch]) -> Iterable[Outcome]:
    """Yield a failure for the nodes that declare GPUs and whose torch has no CUDA."""
    names = []
    for node in context.nodes:
        build = builds[node.name]
        if build.version is None or build.cuda is not None:
            continue
        if node.gpus is not None and node.gpus.used > 0:
            names.append(node.name)
    if names:
        message = "torch is a CPU build on nodes that declare GPUs"
        cure = sentence("replace torch by its CUDA build")
        yield Outcome(
            "fail",
            tuple(names),
            message,
            "no CUDA",
            "a CUDA build",
            cure,
        )


def nccl(context: CheckContext) -> Iterable[Outcome]:
    """Compare the NCCL that torch would load.

    A CPU build needs none, which is fine where no GPU is declared.
    """
    builds: dict[str, Torch] = context.values("torch.build")
    versions = {}
    without = []
    exempt = []
    for node in context.nodes:
        build = builds[node.name]
        if build.nccl is not None:
            versions[node.name] = build.nccl
        elif _needs_no_nccl(node, build):
            exempt.append(node.name)
        else:
            without.append(node)
    if exempt:
        message = "this torch brings no NCCL, and no GPU is declared"
        yield Outcome("skip", tuple(exempt), message, reason="not_applicable")
    for node in without:
        libraries: Libraries = context.value(node, "nccl.libraries")
        seen = libraries.loaded or "no libnccl.so.2 for torch"
        message = "the NCCL that torch would load was not found, or does not say its version"
        yield unknown(
            node,
            message,
            "missing_tool",
            seen,
            "NCCL",
        )
    yield from as_wanted(
        context,
        versions,
        satisfies,
        "NCCL",
        exempt=len(exempt),
        cure=lambda version: _install_nccl(context, builds, version),
    )
    for node in context.nodes:
        outcome = _judge_replaced(context, node, builds[node.name])
        if outcome is not None:
            yield outcome


def _install_nccl(context: CheckContext, builds: dict[str, Torch], version: str) -> Remedy:
    """Return what brings an NCCL: the torch of a node that has it, whose wheel brings it."""
    for build in builds.values():
        if build.nccl == version and build.version is not None:
            return shell_line(
                "{python} -m pip install --force-reinstall {torch}   # the wheel brings its NCCL",
                python=pasted_python(context.nodes[0]),
                torch=f"torch=={build.version}",
            )
    return OTHER_NCCL


def _judge_replaced(context: CheckContext, node: Node, build: Torch) -> Outcome | None:
    """Return a warning if the environment replaces the NCCL that came with torch.

    A version that the inventory requires, and gets that way, is meant so.
    """
    libraries: Libraries = context.value(node, "nccl.libraries")
    if build.nccl is None or libraries.wheel is None:
        return None
    if libraries.loaded is None or libraries.loaded == libraries.wheel:
        return None
    required = context.wanted(node)
    if required is not None and satisfies(build.nccl, required):
        return None
    variable = "LD_LIBRARY_PATH"
    value = libraries.library_path
    if "nccl" in (libraries.preload or ""):
        variable = "LD_PRELOAD"
        value = libraries.preload
    message = f"{variable} makes torch load another NCCL than its own"
    seen = f"{build.nccl} from {libraries.loaded}"
    wanted = f"{libraries.wheel_version or 'the NCCL'} from {libraries.wheel}"
    cure = shell_line(
        "grep -rn {variable} /etc/environment /etc/profile.d ~/.bashrc"
        "   # now {value}; take NCCL out of it",
        variable=variable,
        value=value or "unset",
    )
    return failed(
        node,
        message,
        seen,
        wanted,
        cure,
        severity="warning",
    )


def _needs_no_nccl(node: Node, build: Torch) -> bool:
    if build.version is None or build.cuda is not None:
        return False
    return node.gpus is None or not node.gpus.used


def driver(context: CheckContext) -> Iterable[Outcome]:
    """Compare the loaded kernel module's version; none is fine where there is no GPU."""
    versions = {}
    exempt = 0
    for node in context.nodes:
        version: str | None = context.value(node, "nv.driver")
        if version is not None:
            versions[node.name] = version
        elif context.value(node, "gpu.pci") or (node.gpus and node.gpus.count):
            message = "there are GPUs and the driver is not loaded"
            if not context.value(node, "gpu.pci"):
                message = "the inventory declares GPUs, and no driver is loaded"
            cure = shell_line("modprobe nvidia; dmesg | grep NVRM")
            yield failed(
                node,
                message,
                "no driver",
                "a driver",
                cure,
            )
        else:
            exempt += 1
            yield skipped(node, "no GPU here")
    yield from as_wanted(
        context,
        versions,
        satisfies,
        "the NVIDIA driver",
        exempt,
        _upgrade_driver,
    )


def _upgrade_driver(version: str) -> Remedy:
    branch = version.lstrip("<>=!~ ").partition(".")[0]
    return shell_line(
        "apt-get install --only-upgrade {package}   # then reboot",
        package=f"nvidia-driver-{branch}",
    )


TORCH = Check(
    "torch.version",
    facts=("torch.build",),
    judge=torch,
    severity="error",
    title="The job's PyTorch",
    why="Ranks of different torch versions disagree about collectives and their order: they hang "
    "or give wrong sums.",
    how="torch/version.py of the job's interpreter (`python:`), run as the job's user; torch is "
    "not imported. `require: torch` wants versions.",
    remedy=sentence(
        "set `python:` to the interpreter of the job, or install in it the torch of the other nodes"
    ),
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, version="2.4.1+cu124")),
)
NCCL = Check(
    "nccl.torch",
    facts=("torch.build", "nccl.libraries"),
    judge=nccl,
    severity="error",
    follows=("torch.version", "env.ld_path"),
    title="The NCCL that torch would load",
    why="Two NCCL versions in one job do not speak the same bootstrap protocol: «internal error», "
    "or a hang.",
    how="ncclGetVersion of the library that torch would load, called in the job's interpreter; "
    "needs no GPU. The file is found as the loader does it: LD_PRELOAD, DT_RPATH of libtorch_cuda, "
    "LD_LIBRARY_PATH, DT_RUNPATH, the system's folders, in the environment of a session without a "
    "terminal. Another file than the one that came with torch is a warning. `require: nccl` wants "
    "a version.",
    remedy=OTHER_NCCL,
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, nccl="2.22.3")),
)
DRIVER = Check(
    "nv.driver",
    facts=("nv.driver", "gpu.pci"),
    judge=driver,
    severity="error",
    title="The NVIDIA driver",
    why="One node with another driver branch brings other limits of CUDA and NVLink into the job.",
    how="/proc/driver/nvidia/version, the module that is loaded, not the package that is "
    "installed. `require: driver` wants versions.",
    remedy=sentence("install the driver of the other nodes, and reboot"),
    wants=conditions_of,
    proof=Proof("nv.driver", lambda _: "535.183.01"),
)
