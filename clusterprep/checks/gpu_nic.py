"""GPUs and the RDMA cards of the training: close together, or as close as on the other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.ib import FACTS, NOT_KNOWN
from clusterprep.facts.pci import PciDevice, PciTree
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import HARDWARE, RdmaRail, TrainingSet, kind_of, training_sets
from clusterprep.remedies import shell_line

# The distance from a GPU to the nearest card, in the words of `nvidia-smi topo -m`.
SWITCH, SOCKET, ACROSS = "PXB", "NODE", "SYS"
ORDER = (SWITCH, SOCKET, ACROSS)
DESCRIPTIONS = {SWITCH: "under one switch", SOCKET: "on one socket", ACROSS: "across sockets"}

Distances = dict[str, str]
"""Address of a GPU → its distance."""


def gpu_nic(context: CheckContext) -> Iterable[Outcome]:
    """Judge each GPU's distance to its nearest card of the training set.

    It must not be farther than that of the same GPU on the other nodes, or of others in its node.
    """
    sets = training_sets(context.fleet)
    measured: dict[str, Distances | Outcome] = {}
    classes = list(context.alike(parts=[HARDWARE]))
    for nodes in classes:
        name = nodes[0].name
        tree = context.value(nodes[0], "pci.tree")
        measured[name] = _measure(nodes[0], tree, sets[name])
    usual = _usual_distances(context, classes, measured)
    for nodes in classes:
        distances = measured[nodes[0].name]
        if isinstance(distances, Outcome):
            outcome = distances
        else:
            kind = kind_of(context.fleet, nodes[0])
            outcome = _judge(nodes[0], distances, usual.get(kind, {}))
        yield from about_all(nodes, [outcome])


def _measure(node: Node, tree: PciTree, training: TrainingSet | Absent) -> Distances | Outcome:
    """Return the distance of each GPU, or the outcome of a node where there are none to judge."""
    if isinstance(training, Absent):
        return unknown(node, training.detail or NOT_KNOWN, training.reason)
    cards = _cards(tree, training.rails)
    if not tree.gpus or not cards:
        return skipped(node, "there are not both GPUs and RDMA cards of the training")
    odd = [device for device in (*tree.gpus, *cards) if device.unread]
    if odd:
        seen = f"{odd[0].at} {', '.join(odd[0].unread)}"
        return unknown(node, "where a device sits cannot be read", "garbled", seen)
    if not _shows_distances(tree, cards):
        message = (
            "the tree of devices does not show how far they are apart, as in a virtual machine"
        )
        return skipped(node, message)
    distances = {}
    for gpu in tree.gpus:
        to_cards = [_distance(gpu, card) for card in cards]
        distances[gpu.at] = min(to_cards, key=ORDER.index)
    return distances


def _cards(tree: PciTree, rails: Iterable[RdmaRail]) -> list[PciDevice]:
    """Return the PCI cards of the ports; RDMA in software, and a share of a card, have none."""
    cards = []
    for rail in rails:
        card = tree.device(rail.device.pci)
        if card is not None:
            cards.append(card)
    return cards


def _shows_distances(tree: PciTree, cards: list[PciDevice]) -> bool:
    """Return whether the tree has switches with GPUs and cards, or the sockets of real hardware."""
    for gpu in tree.gpus:
        if any(gpu.under_one_switch(card) for card in cards):
            return True
    if tree.virtual:
        return False
    devices = [*tree.gpus, *cards]
    return all(device.numa is not None for device in devices)


def _distance(gpu: PciDevice, card: PciDevice) -> str:
    if gpu.under_one_switch(card):
        return SWITCH
    return SOCKET if gpu.numa == card.numa else ACROSS


def _usual_distances(
    context: CheckContext,
    classes: Iterable[tuple[Node, ...]],
    measured: Mapping[str, Distances | Outcome],
) -> dict[object, Distances]:
    """Return for each kind of node and GPU the distance that more than half of the nodes have.

    `measured` has those of the first node of each class. A GPU that only one node has is left out.
    """
    counters: dict[tuple[object, str], Counter[str]] = {}
    for nodes in classes:
        distances = measured[nodes[0].name]
        if isinstance(distances, Outcome):
            continue
        kind = kind_of(context.fleet, nodes[0])
        for gpu, distance in distances.items():
            counter = counters.setdefault((kind, gpu), Counter())
            counter[distance] += len(nodes)
    usual: dict[object, Distances] = {}
    for (kind, gpu), counter in counters.items():
        distance, number = counter.most_common(1)[0]
        total = counter.total()
        if total > 1 and 2 * number > total:
            usual.setdefault(kind, {})[gpu] = distance
    return usual


def _judge(node: Node, distances: Distances, usual: Distances) -> Outcome:
    far = _farther_than_usual(distances, usual)
    if far:
        wanted = f"{usual[far[0]]}, as on the other nodes"
        return _failure(node, distances, far, wanted)
    if SWITCH in distances.values():
        far = [gpu for gpu, distance in distances.items() if distance == ACROSS]
        if far:
            return _failure(node, distances, far, f"{SWITCH}, as other GPUs of the node")
    seen = _describe(distances, distances)
    if set(distances.values()) == {SWITCH}:
        return passed(node, "every GPU has an RDMA card under its switch", seen, SWITCH)
    if not usual:
        message = (
            "not every GPU has a card under its switch, "
            "and no other node of this kind is there to compare with"
        )
        return skipped(node, message, seen)
    farthest = max(distances.values(), key=ORDER.index)
    description = DESCRIPTIONS[farthest]
    message = f"GPUs and RDMA cards are {description} at worst, as on the other nodes"
    return passed(node, message, seen, "as on the other nodes")


def _failure(node: Node, distances: Distances, gpus: Iterable[str], wanted: str) -> Outcome:
    message = "GPUs are far from the RDMA cards of the training"
    return failed(node, message, _describe(distances, gpus), wanted)


def _farther_than_usual(distances: Distances, usual: Distances) -> list[str]:
    farther = []
    for gpu, distance in distances.items():
        usual_distance = usual.get(gpu, distance)
        if ORDER.index(distance) > ORDER.index(usual_distance):
            farther.append(gpu)
    return farther


def _describe(distances: Distances, gpus: Iterable[str]) -> str:
    return ", ".join(f"GPU {gpu} {distances[gpu]}" for gpu in gpus)


def _with_moved_gpu(tree: PciTree) -> PciTree:
    """Return a tree with one GPU in a slot of the other socket, for the proof."""
    first = tree.gpus[0]
    moved = replace(first, above=first.above[-1:], numa=1)
    devices = [moved if device is first else device for device in tree.devices]
    return replace(tree, devices=tuple(devices))


GPU_NIC = Check(
    "numa.gpu_nic",
    facts=FACTS,
    judge=gpu_nic,
    severity="warning",
    follows=("ib.present",),
    title="The distance from GPUs to RDMA cards",
    why="A GPU whose card sits at the other socket sends everything through both processors: its "
    "rank is the slow one, and NCCL may pair it with another's card.",
    how="The nearest common bridge of each GPU and the cards of the training set in sysfs (PXB: "
    "under one switch, NODE: on one socket, SYS: across), compared with the same GPU on the other "
    "nodes and the other GPUs of the node.",
    remedy=shell_line(
        "nvidia-smi topo -m   # a card in the wrong slot: move it; a card that is missing: "
        "ib.present"
    ),
    proof=Proof("pci.tree", _with_moved_gpu),
)
