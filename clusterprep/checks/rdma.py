"""What RDMA stands on: the way to GPU memory, the cards' firmware, and the drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted
from clusterprep.checks.ib import FACTS, NONE_IN_USE, NOT_KNOWN
from clusterprep.facts.gpu import Nvml
from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.rails import TrainingSet, training_sets

DMABUF_KERNEL = (
    5,
    12,
)  # RDMA over DMA-BUF came with Linux 5.12; NVIDIA's open driver exports GPU memory by it


def peermem(context: CheckContext) -> Iterable[Outcome]:
    """The peer-memory module is loaded, or DMA-BUF is possible."""
    sets = training_sets(context.fleet)
    for node in context.nodes:
        training = sets[node.name]
        if isinstance(training, Absent):
            yield Outcome(
                "unknown", (node.name,), training.detail or NOT_KNOWN, reason=training.reason
            )
        elif not context.value(node, "pci.tree").gpus:
            yield Outcome("skip", (node.name,), "no GPU here", reason="not_applicable")
        elif not training.active:
            yield Outcome("skip", (node.name,), NONE_IN_USE, reason="not_applicable")
        elif why := _no_direct_way(context, node.name, training):
            yield Outcome("skip", (node.name,), why, reason="not_applicable")
        else:
            facts = (
                context.value(node, name)
                for name in ("rdma.peermem", "nv.open_driver", "kernel.release")
            )
            yield _reached(node.name, *facts)


def _no_direct_way(context: CheckContext, name: str, training: TrainingSet) -> str:
    """Why RDMA to GPU memory is not to be had here by these means; empty where it is."""
    if not any(rail.port.link_layer in ("InfiniBand", "Ethernet") for rail in training.active):
        return "neither InfiniBand nor RoCE: EFA and the like bring a way of their own"
    nvml = context.fleet.fact(name, "gpu.nvml")
    if isinstance(nvml, Nvml) and nvml.gpus and all("GeForce" in gpu.name for gpu in nvml.gpus):
        return "GeForce cards do not offer their memory to RDMA"
    return ""


def _reached(name: str, module: str | None, open_driver: bool, kernel: str) -> Outcome:
    wanted = "nvidia_peermem, or DMA-BUF (kernel 5.12 and NVIDIA's open driver)"
    if module is not None:
        return Outcome("pass", (name,), "RDMA cards reach the memory of GPUs", module, wanted)
    if open_driver and leading_numbers(kernel)[:2] >= DMABUF_KERNEL:
        return Outcome("pass", (name,), "RDMA cards reach the memory of GPUs", "DMA-BUF", wanted)
    driver = "NVIDIA's open driver" if open_driver else "a driver without DMA-BUF"
    message = "RDMA cards cannot reach the memory of GPUs; data goes through the host's"
    return Outcome(
        "fail", (name,), message, f"no nvidia_peermem, kernel {kernel}, {driver}", wanted
    )


def firmware(context: CheckContext) -> Iterable[Outcome]:
    """Cards of one make (board id) run one firmware, in a node and on all nodes."""
    makes: dict[str, Counter[str]] = {}
    for node in context.nodes:
        for make, version, _ in _cards(context, node.name):
            makes.setdefault(make, Counter())[version] += 1
    for node in context.nodes:
        tree: PciTree = context.fleet.fact(node.name, "pci.tree")
        if tree.virtual:
            message = "a virtual machine: the host decides about the firmware"
            yield Outcome("skip", (node.name,), message, reason="not_applicable")
        else:
            yield _firmware(node.name, _cards(context, node.name), makes)


def _cards(context: CheckContext, name: str) -> list[tuple[str, str, str]]:
    """Make, firmware and name of the cards of a node that say both."""
    devices: tuple[RdmaDevice, ...] = context.fleet.fact(name, "rdma.devices")
    return [
        (d.board, d.firmware, d.name)
        for d in devices
        if d.board is not None and d.firmware is not None
    ]


def _firmware(
    name: str, cards: list[tuple[str, str, str]], makes: Mapping[str, Counter[str]]
) -> Outcome:
    if not any(makes[make].total() > 1 for make, _, _ in cards):
        message = "there is no other card of the same make" if cards else "no RDMA card here"
        return Outcome("skip", (name,), message, reason="not_applicable")
    odd, wanted = [], {}
    for make, version, device in cards:
        usual, number = makes[make].most_common(1)[0]
        sure = 2 * number > makes[make].total()
        if len(makes[make]) > 1 and (not sure or version != usual):
            odd.append(f"{device} {version}")
            wanted[make] = usual if sure else "one firmware"
    if not odd:
        versions = sorted({version for _, version, _ in cards})
        return Outcome(
            "pass", (name,), "the firmware is equal on cards of one make", ", ".join(versions)
        )
    text = ", ".join(f"{make}: {version}" for make, version in sorted(wanted.items()))
    cure = f"mlxfwmanager --query; mlxfwmanager --online -u -d {odd[0].split()[0]}   # then reboot"
    return Outcome(
        "fail", (name,), "the firmware differs from that of like cards", ", ".join(odd), text, cure
    )


def stack(context: CheckContext) -> Iterable[Outcome]:
    """The RDMA drivers, equal on the nodes that have some."""
    found: dict[str, str | None] = context.values("rdma.stack")
    without = tuple(name for name, drivers in found.items() if drivers is None)
    if without:
        yield Outcome("skip", without, "no RDMA driver is loaded here", reason="not_applicable")
    drivers = {name: value for name, value in found.items() if value is not None}
    yield from as_wanted(
        context,
        drivers,
        lambda seen, wanted: wanted in seen.split(),
        "the RDMA driver",
        len(without),
    )


PEERMEM = Check(
    "rdma.peermem",
    facts=(*FACTS, "rdma.peermem", "nv.open_driver", "kernel.release"),
    judge=peermem,
    severity="warning",
    title="RDMA cards can reach the memory of GPUs",
    why="Without it NCCL copies everything through host memory («GPU Direct RDMA Disabled»): half the bandwidth at "
    "best, with nothing said unless NCCL_DEBUG=INFO is set.",
    how="nvidia_peermem in /proc/modules, or what DMA-BUF needs: Linux 5.12 and NVIDIA's open driver. Judged where "
    "GPUs and an active RDMA port are both there.",
    remedy="modprobe nvidia_peermem && echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf",
    proof=Proof(
        "rdma.peermem", lambda _: None, fleet="hgx-h100-roce"
    ),  # the other has the open driver
)
FIRMWARE = Check(
    "fw.nic",
    facts=FACTS,
    judge=firmware,
    severity="warning",
    title="The firmware of RDMA cards",
    why="Cards with different firmware differ in congestion control and in bugs; one of them has the time-outs.",
    how="/sys/class/infiniband/*/fw_ver, equal for cards of one make (board id) on all nodes.",
    remedy="mlxfwmanager --query; mlxfwmanager --online -u -d DEVICE   # then reboot",
    proof=Proof(
        "rdma.devices",
        lambda devices: tuple(
            replace(d, firmware="28.36.1010") if d.name == "mlx5_3" else d for d in devices
        ),
    ),
)
STACK = Check(
    "ofed.version",
    facts=("rdma.stack",),
    judge=stack,
    severity="warning",
    title="The RDMA drivers",
    why="A vendor's drivers on some nodes and the kernel's own on others differ in defaults and in what they support.",
    how="/sys/module/*/version of the RDMA drivers, which the vendor's have and the kernel's have not; equal on all "
    "nodes, or the version that `require: {ofed.version: 23.10-0.5.5}` names.",
    remedy="ofed_info -s; install the same MLNX_OFED or DOCA release, then reboot",
    proof=Proof("rdma.stack", lambda _: "mlx5_core 5.8-3.0.7"),
)
