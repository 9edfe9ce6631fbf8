"""CUDA three ways: the toolkit, what torch was built for, and what the driver can run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, uniform_by_kind
from clusterprep.facts.gpu import Nvml
from clusterprep.facts.torch import Torch
from clusterprep.model import Node
from clusterprep.model.versions import conditions_of, leading_numbers, satisfies

# The oldest Linux driver that runs a major version of CUDA, by minor-version compatibility: CUDA release notes, table
# «CUDA Toolkit and Minimum Required Driver Version», and docs.nvidia.com/deploy/cuda-compatibility. Before CUDA 11
# there is no such compatibility: the driver's CUDA must be as new as the program's.
MINIMUM = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
FIRST_COMPATIBLE = 11


def runtime(
    context: CheckContext, node: Node, build: Torch, nvml: Nvml | None, libcuda: str | None
) -> Outcome:
    """What torch was built for against the driver, and against what the inventory requires."""
    if build.version is None:
        return _skip(node, "no torch in this interpreter: see torch.version")
    wanted, gpus = context.wanted(node), _has_gpus(node, nvml)
    if build.cuda is None and not (wanted and gpus):
        return _skip(node, "torch is no CUDA build here")
    if wanted is not None and not satisfies(build.cuda or "none", wanted):
        message = "torch was not built for the CUDA that the inventory requires"
        return Outcome(
            "fail",
            (node.name,),
            message,
            build.cuda or "no CUDA build",
            wanted,
            _other_wheel(node, wanted),
        )
    if nvml is None or not nvml.driver:
        if gpus:
            message = "there is no driver to compare with: see nv.driver"
            return Outcome(
                "unknown", (node.name,), message, f"torch for CUDA {build.cuda}", reason="no_driver"
            )
        return _skip(node, "no NVIDIA driver and no GPU here")
    return _against_driver(node, str(build.cuda), nvml, libcuda)


def _against_driver(node: Node, cuda: str, nvml: Nvml, libcuda: str | None) -> Outcome:
    built, able, driver = (
        leading_numbers(cuda),
        leading_numbers(nvml.cuda),
        leading_numbers(nvml.driver),
    )
    seen = f"torch for CUDA {cuda}, driver {nvml.driver} for CUDA {nvml.cuda}"
    if not (built and able and driver):
        return Outcome(
            "unknown", (node.name,), "a version could not be understood", seen, reason="garbled"
        )
    minimum = MINIMUM.get(built[0])
    wanted = f"driver {minimum} or newer" if minimum else f"a driver for CUDA {cuda}"
    if able[:2] >= built[:2]:
        return Outcome("pass", (node.name,), "the driver runs the CUDA of torch", seen, wanted)
    if (
        able[0] == built[0]
        and built[0] >= FIRST_COMPATIBLE
        and driver >= leading_numbers(minimum or "0")
    ):
        message = "the driver runs the CUDA of torch by minor-version compatibility; PTX of newer tools may need more"
        return Outcome("pass", (node.name,), message, seen, wanted)
    compat = _compat_driver(libcuda)
    if compat and minimum and compat >= leading_numbers(minimum):
        message = "CUDA's forward-compatibility package runs it, which is for data-centre GPUs only"
        return Outcome("pass", (node.name,), message, f"{seen}, {libcuda}", wanted)
    cure = f"upgrade the driver to {minimum or 'one for this CUDA'}; or {_other_wheel(node, '.'.join(map(str, able)))}"
    return Outcome(
        "fail", (node.name,), "the driver is too old for the CUDA of torch", seen, wanted, cure
    )


def _compat_driver(libcuda: str | None) -> tuple[int, ...]:
    """(580, 65, 6) of /usr/local/cuda-13.0/compat/libcuda.so.580.65.06; nothing for the driver's own library."""
    match = re.search(r"/compat(?:/\S+)?/libcuda\.so\.(\d+\.[\d.]+)$", libcuda or "")
    return leading_numbers(match[1]) if match else ()


def _other_wheel(node: Node, cuda: str) -> str:
    numbers = leading_numbers(cuda.lstrip("=><~! "))
    build = (
        f"the +cu{numbers[0]}{numbers[1]} build"
        if len(numbers) > 1
        else "a build for an older CUDA"
    )
    return f"{node.python} -m pip install torch==VERSION   # {build}"


def _has_gpus(node: Node, nvml: Nvml | None) -> bool:
    return bool(node.gpus.used) if node.gpus is not None else bool(nvml and nvml.gpus)


def _skip(node: Node, message: str) -> Outcome:
    return Outcome("skip", (node.name,), message, reason="not_applicable")


def toolkit(context: CheckContext) -> Iterable[Outcome]:
    """Equal on nodes of a kind, as required, and not of a newer major version than the driver's."""
    found: dict[str, str | None] = context.values("cuda.toolkit")
    exempt = {
        node.name
        for node in context.nodes
        if found[node.name] is None and _needs_none(context, node)
    }
    if not any(found.values()):
        exempt |= {node.name for node in context.nodes if context.wanted(node) is None}
    if exempt:
        yield Outcome(
            "skip", tuple(sorted(exempt)), "no toolkit in /usr/local/cuda", reason="not_applicable"
        )
    values = {name: version or "none" for name, version in found.items() if name not in exempt}
    undeclared = set()
    for node in context.nodes:
        if node.name not in values:
            continue
        yield from _newer_than_driver(context, node, found[node.name])
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        else:
            good = satisfies(values[node.name], wanted)
            message = f"the CUDA toolkit is {'as required' if good else 'not what the inventory requires'}"
            yield Outcome(
                "pass" if good else "fail", (node.name,), message, values[node.name], wanted
            )
    if undeclared:
        yield from uniform_by_kind(
            context, values, "the CUDA toolkit", about=undeclared, exempt=exempt
        )


def _needs_none(context: CheckContext, node: Node) -> bool:
    return node.gpus is not None and node.gpus.count == 0 and context.wanted(node) is None


def _newer_than_driver(context: CheckContext, node: Node, version: str | None) -> Iterable[Outcome]:
    nvml: Nvml | None = context.value(node, "gpu.nvml")
    if version is None or nvml is None:
        return
    able, have = leading_numbers(nvml.cuda), leading_numbers(version)
    if able and have and have[0] > able[0]:
        message = "the CUDA toolkit is newer than the driver: what it builds does not run here"
        cure = f"ls -d /usr/local/cuda-*; update-alternatives --config cuda   # or a driver for CUDA {have[0]}"
        yield Outcome(
            "fail",
            (node.name,),
            message,
            version,
            f"{able[0]}.x, as the driver's {nvml.cuda}",
            cure,
        )


RUNTIME = Check(
    "cuda.runtime_vs_driver",
    facts=("torch.build", "gpu.nvml", "cuda.libcuda"),
    judge=each(runtime, "torch.build", "gpu.nvml", "cuda.libcuda"),
    severity="error",
    title="The CUDA of torch and the driver",
    why="A torch built for a newer CUDA than the driver can run sees no GPU, or ends with «driver version is "
    "insufficient», on these nodes only.",
    how="`cuda` in torch/version.py against the CUDA and version of the driver by NVML: a driver runs older CUDA, and "
    "newer ones of its major version from 450.80.02 (11.x), 525.60.13 (12.x), 580.65.06 (13.x) on. A libcuda of the "
    "forward-compatibility package counts where the loader finds it first. `require: cuda` is the CUDA of torch.",
    remedy="upgrade the driver, or install the torch that is built for the driver's CUDA",
    wants=conditions_of,
    proof=Proof("torch.build", lambda build: replace(build, cuda="99.0")),
)
TOOLKIT = Check(
    "cuda.toolkit",
    facts=("cuda.toolkit", "gpu.nvml"),
    judge=toolkit,
    severity="warning",
    title="The CUDA toolkit",
    why="Extensions that are compiled at the first step (fused kernels, DeepSpeed operations) are built by each node's "
    "own toolkit: one that differs fails there alone.",
    how="/usr/local/cuda/version.json (version.txt before CUDA 11.1), where the default link leads; equal on nodes of "
    "a kind, and no newer major version than the driver's CUDA. `require: {cuda.toolkit: '>=12.4'}` wants versions.",
    remedy="ls -l /usr/local/cuda; ls -d /usr/local/cuda-*   # point the link to the version of the other nodes",
    wants=conditions_of,
    proof=Proof("cuda.toolkit", lambda _: "11.8.0"),
)
