"""GPUs: as many as declared, on the bus as in the driver."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, Outcome, Scene, each, uniform
from clusterprep.facts.gpu import Nvml
from clusterprep.model import Node


def count(scene: Scene, node: Node, nvml: Nvml | None, pci: tuple[str, ...]) -> Outcome:
    """NVML, PCI and the inventory must say the same number."""
    declared = None if node.gpus is None else node.gpus.count
    visible = _visible(nvml)
    seen = f"{visible} by NVML, {len(pci)} on PCI"
    wanted = f"{declared} declared" if declared is not None else "as many by NVML as on PCI"
    if not declared and not pci and not visible:
        return Outcome("skip", (node.name,), "no GPU here", seen, wanted, reason="not_applicable")
    if nvml is not None and nvml.lost:
        return Outcome("fail", (node.name,), "; ".join(nvml.lost), seen, wanted, "nvidia-smi --gpu-reset, or reboot")
    # A container may be given GPUs and no view of the bus; a bus that is seen never has fewer functions than NVML.
    expected = (len(pci) or visible) if declared is None else declared
    if visible == expected and (not pci or len(pci) >= visible):
        return Outcome("pass", (node.name,), "all GPUs are there", seen, wanted)
    message = "GPUs are missing from the driver" if visible < expected else "there are more GPUs than declared"
    cure = "dmesg | grep -e NVRM -e Xid   # fell off the bus: reseat or power cycle"
    return Outcome("fail", (node.name,), message, seen, wanted, cure if visible < expected else "set `gpus:` right")


def counts(scene: Scene) -> Iterable[Outcome]:
    """Each node by itself; where nothing is declared, nodes with GPUs must have equally many."""
    yield from each(count, "gpu.nvml", "gpu.pci")(scene)
    undeclared = {n.name: _visible(scene.value(n, "gpu.nvml")) for n in scene.nodes if n.gpus is None}
    with_gpus = {name: str(number) for name, number in undeclared.items() if number}
    if len(with_gpus) > 1:
        compared = uniform(with_gpus, "the number of GPUs", len(scene.inventory.nodes), "lspci -d 10de:; set `gpus:`")
        yield from (outcome for outcome in compared if outcome.verdict == "fail")


def _visible(nvml: Nvml | None) -> int:
    return 0 if nvml is None else len(nvml.gpus)


COUNT = Check(
    "gpu.count",
    facts=("gpu.nvml", "gpu.pci"),
    judge=counts,
    severity="error",
    title="The number of GPUs",
    why="A launcher starts one rank per visible GPU: seven of eight on one node, and torchrun waits for ever.",
    how="NVML's count, NVIDIA display and 3D controllers on the PCI bus, and `gpus:` of the inventory; without "
    "it the nodes that have GPUs must have equally many.",
    remedy="nvidia-smi -L; lspci -d 10de:",
)
