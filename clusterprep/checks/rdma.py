"""Judges what RDMA depends on: access to GPU memory, the cards' firmware, and the drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    as_wanted,
    failed,
    passed,
    skipped,
)
from clusterprep.checks.ib import FACTS, NONE_IN_USE, training_not_known
from clusterprep.facts.gpu import WITHOUT_UUIDS, Nvml
from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.rails import HARDWARE, TrainingSet, training_sets
from clusterprep.remedies import shell_line

# RDMA over DMA-BUF came with Linux 5.12; NVIDIA's open driver exports GPU memory by it.
DMABUF_KERNEL = (5, 12)


def peermem(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether the peer-memory module is loaded, or DMA-BUF is possible."""
    sets = training_sets(context.fleet)
    for nodes in context.alike("gpu.nvml", *context.facts, parts=[HARDWARE, WITHOUT_UUIDS]):
        outcome = _judge_peermem(context, nodes[0], sets[nodes[0].name])
        yield from about_all(nodes, [outcome])


def _judge_peermem(context: CheckContext, node: Node, training: TrainingSet | Absent) -> Outcome:
    if isinstance(training, Absent):
        return training_not_known(node, training)
    if not context.value(node, "pci.tree").gpus:
        return skipped(node, "no GPU here")
    if not training.active:
        return skipped(node, NONE_IN_USE)
    return _judge_access(context, node, training)


def _judge_access(context: CheckContext, node: Node, training: TrainingSet) -> Outcome:
    reason = _no_access_reason(context, node, training)
    if reason:
        return skipped(node, reason)
    module: str | None = context.value(node, "rdma.peermem")
    open_driver: bool = context.value(node, "nv.open_driver")
    kernel: str = context.value(node, "kernel.release")
    wanted = "nvidia_peermem, or DMA-BUF (kernel 5.12 and NVIDIA's open driver)"
    message = "RDMA cards reach the memory of GPUs"
    if module is not None:
        return passed(node, message, module, wanted)
    if open_driver and leading_numbers(kernel)[:2] >= DMABUF_KERNEL:
        return passed(node, message, "DMA-BUF", wanted)
    driver = "NVIDIA's open driver" if open_driver else "a driver without DMA-BUF"
    seen = f"no nvidia_peermem, kernel {kernel}, {driver}"
    message = "RDMA cards cannot reach the memory of GPUs; data goes through the host's"
    return failed(node, message, seen, wanted)


def _no_access_reason(context: CheckContext, node: Node, training: TrainingSet) -> str:
    """Return why neither method gives RDMA access to GPU memory here; empty if one may."""
    layers = {rail.port.link_layer for rail in training.active}
    if layers.isdisjoint({"InfiniBand", "Ethernet"}):
        return "neither InfiniBand nor RoCE: EFA and the like bring a way of their own"
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    if not isinstance(nvml, Nvml) or not nvml.gpus:
        return ""
    if all("GeForce" in gpu.name for gpu in nvml.gpus):
        return "GeForce cards do not offer their memory to RDMA"
    return ""


class Card(Struct, frozen=True):
    """An RDMA card that tells its make (board id) and its firmware."""

    name: str
    make: str
    firmware: str


def firmware(context: CheckContext) -> Iterable[Outcome]:
    """Compare the firmware of cards of one make, in a node and on all nodes."""
    versions_by_make: dict[str, Counter[str]] = {}
    classes = list(context.alike(parts=[HARDWARE]))
    for nodes in classes:
        for card in _cards(context, nodes[0]):
            versions = versions_by_make.setdefault(card.make, Counter())
            versions[card.firmware] += len(nodes)
    for nodes in classes:
        tree: PciTree = context.value(nodes[0], "pci.tree")
        if tree.virtual:
            message = "a virtual machine: the host decides about the firmware"
            outcome = skipped(nodes[0], message)
        else:
            outcome = _judge_firmware(nodes[0], _cards(context, nodes[0]), versions_by_make)
        yield from about_all(nodes, [outcome])


def _cards(context: CheckContext, node: Node) -> list[Card]:
    """Return the cards of a node; a device that hides its make or firmware is left out."""
    devices: tuple[RdmaDevice, ...] = context.value(node, "rdma.devices")
    cards = []
    for device in devices:
        if device.board is None or device.firmware is None:
            continue
        card = Card(device.name, device.board, device.firmware)
        cards.append(card)
    return cards


def _judge_firmware(
    node: Node, cards: list[Card], versions_by_make: Mapping[str, Counter[str]]
) -> Outcome:
    """Judge the cards of a node against the majority of their make in the fleet."""
    if not cards:
        return skipped(node, "no RDMA card here")
    if all(versions_by_make[card.make].total() == 1 for card in cards):
        return skipped(node, "there is no other card of the same make")
    differing: list[str] = []
    first_differing = ""
    wanted_by_make: dict[str, str] = {}
    for card in cards:
        versions = versions_by_make[card.make]
        usual, number = versions.most_common(1)[0]
        has_majority = 2 * number > versions.total()
        if len(versions) == 1 or (has_majority and card.firmware == usual):
            continue
        differing.append(f"{card.name} {card.firmware}")
        first_differing = first_differing or card.name
        wanted_by_make[card.make] = usual if has_majority else "one firmware"
    if not differing:
        versions_here = sorted({card.firmware for card in cards})
        message = "the firmware is equal on cards of one make"
        return passed(node, message, ", ".join(versions_here))
    message = "the firmware differs from that of like cards"
    seen = ", ".join(differing)
    wanted = ", ".join(f"{make}: {version}" for make, version in sorted(wanted_by_make.items()))
    cure = shell_line(
        "mlxfwmanager --query; mlxfwmanager --online -u -d {device}   # then reboot",
        device=first_differing,
    )
    return failed(
        node,
        message,
        seen,
        wanted,
        cure,
    )


def stack(context: CheckContext) -> Iterable[Outcome]:
    """Compare the RDMA drivers of the nodes that have some."""
    drivers: dict[str, str] = {}
    without = []
    for name, text in context.values("rdma.stack").items():
        if text is None:
            without.append(name)
        else:
            drivers[name] = text
    if without:
        message = "no RDMA driver is loaded here"
        yield Outcome("skip", tuple(without), message, reason="not_applicable")
    yield from as_wanted(
        context,
        drivers,
        _has_driver,
        "the RDMA driver",
        len(without),
    )


def _has_driver(drivers: str, wanted: str) -> bool:
    return wanted in drivers.split()


def _other_firmware(devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """Return the devices with an old firmware on one of them; for the proof."""
    changed = []
    for device in devices:
        if device.name == "mlx5_3":
            changed.append(replace(device, firmware="28.36.1010"))
        else:
            changed.append(device)
    return tuple(changed)


PEERMEM = Check(
    "rdma.peermem",
    facts=(*FACTS, "rdma.peermem", "nv.open_driver", "kernel.release"),
    judge=peermem,
    severity="warning",
    title="RDMA cards can reach the memory of GPUs",
    why="Without it NCCL copies everything through host memory («GPU Direct RDMA Disabled»): half "
    "the bandwidth at best, with nothing said unless NCCL_DEBUG=INFO is set.",
    how="nvidia_peermem in /proc/modules, or what DMA-BUF needs: Linux 5.12 and NVIDIA's open "
    "driver. Judged where GPUs and an active RDMA port are both there.",
    fix=fix_of(wanted_state("module", name="nvidia_peermem")),
    remedy=shell_line(
        "modprobe nvidia_peermem && echo nvidia_peermem "
        "> /etc/modules-load.d/clusterprep-nvidia-peermem.conf"
    ),
    # The other recording has the open driver.
    proof=Proof("rdma.peermem", lambda _: None, fleet="hgx-h100-roce"),
)
FIRMWARE = Check(
    "fw.nic",
    facts=FACTS,
    judge=firmware,
    severity="warning",
    title="The firmware of RDMA cards",
    why="Cards with different firmware differ in congestion control and in bugs; one of them has "
    "the time-outs.",
    how="/sys/class/infiniband/*/fw_ver, equal for cards of one make (board id) on all nodes.",
    remedy=shell_line("mlxfwmanager --query; mlxfwmanager --online -u -d DEVICE   # then reboot"),
    proof=Proof("rdma.devices", _other_firmware),
)
STACK = Check(
    "ofed.version",
    facts=("rdma.stack",),
    judge=stack,
    severity="warning",
    title="The RDMA drivers",
    why="A vendor's drivers on some nodes and the kernel's own on others differ in defaults and in "
    "what they support.",
    how="/sys/module/*/version of the RDMA drivers, which the vendor's have and the kernel's have "
    "not; equal on all nodes, or the version that `require: {ofed.version: 23.10-0.5.5}` names.",
    remedy=shell_line("ofed_info -s   # install the same MLNX_OFED or DOCA release, then reboot"),
    proof=Proof("rdma.stack", lambda _: "mlx5_core 5.8-3.0.7"),
)
