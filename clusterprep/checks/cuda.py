"""CUDA three ways: the toolkit, what torch was built for, and what the driver can run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    names_of,
    passed,
    skipped,
    uniform_by_kind,
    unknown,
)
from clusterprep.facts.gpu import WITHOUT_UUIDS, Nvml
from clusterprep.facts.torch import Torch
from clusterprep.model import Node
from clusterprep.model.runtimes import pasted_python
from clusterprep.model.versions import conditions_of, leading_numbers, satisfies
from clusterprep.remedies import Remedy, noted, sentence, shell_line

# The oldest Linux driver that runs a major version of CUDA, by minor-version compatibility: CUDA
# release notes, table «CUDA Toolkit and Minimum Required Driver Version», and
# docs.nvidia.com/deploy/cuda-compatibility. Before CUDA 11 there is no such compatibility: the
# driver's CUDA must be as new as the program's.
MINIMUM = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
FIRST_COMPATIBLE = 11
CUDA_NOT_TOLD = "the driver does not tell its CUDA, as where libcuda.so.1 is missing"
LIBCUDA = shell_line(
    "ldconfig -p | grep libcuda.so.1   # in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


# ---------------------------------------------------------------- torch and the driver


def runtime(
    context: CheckContext, node: Node, build: Torch, nvml: Nvml | None, libcuda: str | None
) -> Outcome:
    """Judge the CUDA of torch against the inventory, then against the driver."""
    if build.version is None:
        return skipped(node, "no torch in this interpreter: see torch.version")
    wanted = context.wanted(node)
    has_gpus = _has_gpus(node, nvml)
    if build.cuda is None and not (wanted and has_gpus):
        return skipped(node, "torch is no CUDA build here")
    if wanted is not None and not satisfies(build.cuda or "none", wanted):
        message = "torch was not built for the CUDA that the inventory requires"
        seen = build.cuda or "no CUDA build"
        cure = _other_wheel(node, build.version, wanted)
        return failed(node, message, seen, wanted, cure)
    if nvml is not None and nvml.driver:
        return _compare_with_driver(node, build, nvml, libcuda)
    if not has_gpus:
        return skipped(node, "no NVIDIA driver and no GPU here")
    return _without_driver(node, build, nvml)


def _without_driver(node: Node, build: Torch, nvml: Nvml | None) -> Outcome:
    """Return that a node with GPUs has no driver, or none that tells its version."""
    seen = f"torch for CUDA {build.cuda}"
    if nvml is not None and nvml.driver is None:
        return unknown(node, "NVML does not tell the driver's version", "nvml_error", seen)
    message = "there is no driver to compare with: see nv.driver"
    return unknown(node, message, "no_driver", seen)


def _compare_with_driver(node: Node, build: Torch, nvml: Nvml, libcuda: str | None) -> Outcome:
    """Judge whether the driver runs the CUDA that torch was built for."""
    cuda = str(build.cuda)
    built = leading_numbers(cuda)
    if nvml.cuda is None:
        seen = f"torch for CUDA {cuda}"
        return unknown(node, CUDA_NOT_TOLD, "missing_tool", seen, remedy=LIBCUDA)
    supported = leading_numbers(nvml.cuda)
    driver = leading_numbers(nvml.driver or "")
    seen = f"torch for CUDA {cuda}, driver {nvml.driver} for CUDA {nvml.cuda}"
    if not (built and supported and driver):
        return unknown(node, "a version could not be understood", "garbled", seen)
    minimum = MINIMUM.get(built[0])
    wanted = f"driver {minimum} or newer" if minimum else f"a driver for CUDA {cuda}"
    if supported[:2] >= built[:2]:
        return passed(node, "the driver runs the CUDA of torch", seen, wanted)
    if _is_minor_compatible(built, supported, driver):
        message = (
            "the driver runs the CUDA of torch by minor-version compatibility; "
            "PTX of newer tools may need more"
        )
        return passed(node, message, seen, wanted)
    compat = _compat_driver(libcuda)
    if compat and minimum and compat >= leading_numbers(minimum):
        message = "CUDA's forward-compatibility package runs it, which is for data-centre GPUs only"
        return passed(node, message, f"{seen}, {libcuda}", wanted)
    needed = minimum or "one for this CUDA"
    driver_cuda = ".".join(map(str, supported))
    wheel = _other_wheel(node, build.version or "", driver_cuda)
    remedy = noted(wheel, "or upgrade the driver to {version}", version=needed)
    return failed(
        node,
        "the driver is too old for the CUDA of torch",
        seen,
        wanted,
        remedy,
    )


def _is_minor_compatible(
    built: tuple[int, ...], supported: tuple[int, ...], driver: tuple[int, ...]
) -> bool:
    """Return whether a driver runs a newer CUDA of its own major version."""
    major = built[0]
    if supported[0] != major or major < FIRST_COMPATIBLE:
        return False
    return driver >= leading_numbers(MINIMUM.get(major, "0"))


def _compat_driver(libcuda: str | None) -> tuple[int, ...]:
    """Return the driver's version of a forward-compatibility package.

    It is (580, 65, 6) for /usr/local/cuda-13.0/compat/libcuda.so.580.65.06, and empty for the
    driver's own library.
    """
    folder, _, file = (libcuda or "").rpartition("/")
    if "/compat/" not in f"{folder}/":
        return ()
    match = re.fullmatch(r"libcuda\.so\.(\d+\.[\d.]+)", file)
    return leading_numbers(match[1]) if match else ()


def _other_wheel(node: Node, torch: str, cuda: str) -> Remedy:
    numbers = leading_numbers(cuda.lstrip("=><~! "))
    release = torch.partition("+")[0]
    if not release or len(numbers) < 2:
        return sentence("install the build of the job's torch for the driver's CUDA")
    return shell_line(
        "{python} -m pip install {torch}",
        python=pasted_python(node),
        torch=f"torch=={release}+cu{numbers[0]}{numbers[1]}",
    )


def _has_gpus(node: Node, nvml: Nvml | None) -> bool:
    if node.gpus is not None:
        return bool(node.gpus.used)
    return nvml is not None and bool(nvml.gpus)


# ---------------------------------------------------------------- the toolkit


def toolkit(context: CheckContext) -> Iterable[Outcome]:
    """Judge that toolkits are equal on nodes of a kind, or as required, and fit the driver."""
    versions: dict[str, str | None] = context.values("cuda.toolkit")
    exempt = _exempt(context, versions)
    if exempt:
        names = tuple(sorted(exempt))
        message = "no toolkit in /usr/local/cuda"
        yield Outcome("skip", names, message, reason="not_applicable")
    values: dict[str, str] = {}
    undeclared: set[str] = set()
    for nodes in context.alike(parts=[WITHOUT_UUIDS]):
        node = nodes[0]
        if node.name in exempt:
            continue
        version = versions[node.name]
        values.update(dict.fromkeys(names_of(nodes), version or "none"))
        yield from about_all(nodes, _newer_than_driver(context, node, version))
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.update(names_of(nodes))
        else:
            yield from about_all(nodes, [_judge_required(node, version or "none", wanted)])
    if undeclared:
        yield from uniform_by_kind(
            context, values, "the CUDA toolkit", about=undeclared, exempt=exempt
        )


def _exempt(context: CheckContext, versions: dict[str, str | None]) -> set[str]:
    """Return the nodes that need no toolkit: without GPUs, or where no node at all has one."""
    has_any = any(versions.values())
    exempt = set()
    for node in context.nodes:
        if versions[node.name] is not None or context.wanted(node) is not None:
            continue
        without_gpus = node.gpus is not None and node.gpus.count == 0
        if without_gpus or not has_any:
            exempt.add(node.name)
    return exempt


def _judge_required(node: Node, version: str, wanted: str) -> Outcome:
    if satisfies(version, wanted):
        return passed(node, "the CUDA toolkit is as required", version, wanted)
    message = "the CUDA toolkit is not what the inventory requires"
    return failed(node, message, version, wanted)


def _newer_than_driver(context: CheckContext, node: Node, version: str | None) -> Iterable[Outcome]:
    """Yield a failure if the toolkit's CUDA is of a later major version than the driver's.

    Unknown if the driver does not tell its CUDA.
    """
    nvml: Nvml | None = context.value(node, "gpu.nvml")
    if version is None or nvml is None:
        return
    if nvml.cuda is None:
        yield unknown(node, CUDA_NOT_TOLD, "missing_tool", version, remedy=LIBCUDA)
        return
    supported = leading_numbers(nvml.cuda)
    installed = leading_numbers(version)
    if supported and installed and installed[0] > supported[0]:
        message = "the CUDA toolkit is newer than the driver: what it builds does not run here"
        wanted = f"{supported[0]}.x, as the driver's {nvml.cuda}"
        remedy = shell_line(
            "ls -d /usr/local/cuda-*; update-alternatives --config cuda"
            "   # or a driver for CUDA {version}",
            version=installed[0],
        )
        yield failed(
            node,
            message,
            version,
            wanted,
            remedy,
        )


RUNTIME = Check(
    "cuda.runtime_vs_driver",
    facts=("torch.build", "gpu.nvml", "cuda.libcuda"),
    judge=each(runtime, "torch.build", "gpu.nvml", "cuda.libcuda", parts=(WITHOUT_UUIDS,)),
    severity="error",
    title="The CUDA of torch and the driver",
    why="A torch built for a newer CUDA than the driver can run sees no GPU, or ends with «driver "
    "version is insufficient», on these nodes only.",
    how="`cuda` in torch/version.py against the CUDA and version of the driver by NVML: a driver "
    "runs older CUDA, and newer ones of its major version from 450.80.02 (11.x), 525.60.13 "
    "(12.x), 580.65.06 (13.x) on. A libcuda of the forward-compatibility package counts where the "
    "loader finds it first. `require: cuda` is the CUDA of torch.",
    remedy=sentence("upgrade the driver, or install the torch that is built for the driver's CUDA"),
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, cuda="99.0")),
)
TOOLKIT = Check(
    "cuda.toolkit",
    facts=("cuda.toolkit", "gpu.nvml"),
    judge=toolkit,
    severity="warning",
    title="The CUDA toolkit",
    why="Extensions that are compiled at the first step (fused kernels, DeepSpeed operations) are "
    "built by each node's own toolkit: one that differs fails there alone.",
    how="/usr/local/cuda/version.json (version.txt before CUDA 11.1), where the default link "
    "leads; equal on nodes of a kind, and no newer major version than the driver's CUDA. "
    "`require: {cuda.toolkit: '>=12.4'}` wants versions.",
    remedy=shell_line(
        "ls -l /usr/local/cuda; ls -d /usr/local/cuda-*   # point the link to the version of "
        "the other nodes"
    ),
    wants=conditions_of,
    proof=Proof("cuda.toolkit", lambda _: "11.8.0"),
)
