"""GPUs and the RDMA cards of the training: near each other, or at least as near as on the other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.ib import FACTS, NOT_KNOWN
from clusterprep.facts.pci import PciDevice, PciTree
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import RdmaRail, kind_of, training_sets

# How far it is from a GPU to the nearest card, in the words of `nvidia-smi topo -m`.
SWITCH, SOCKET, ACROSS = "PXB", "NODE", "SYS"
ORDER = (SWITCH, SOCKET, ACROSS)
WORDS = {SWITCH: "under one switch", SOCKET: "on one socket", ACROSS: "across sockets"}

Distances = dict[str, str]  # GPU address -> distance


def gpu_nic(context: CheckContext) -> Iterable[Outcome]:
    """Each GPU's nearest card of the training set: no worse than its peers on the other nodes and in its own."""
    measured = dict(_measure(context))
    usual = _usual(context, measured)
    for node in context.nodes:
        found = measured[node.name]
        yield (
            found
            if isinstance(found, Outcome)
            else _judge(node, found, usual.get(kind_of(context.fleet, node), {}))
        )


def _measure(context: CheckContext) -> Iterable[tuple[str, Distances | Outcome]]:
    sets = training_sets(context.fleet)
    for node in context.nodes:
        training, tree = sets[node.name], context.value(node, "pci.tree")
        if isinstance(training, Absent):
            message = training.detail or NOT_KNOWN
            yield node.name, Outcome("unknown", (node.name,), message, reason=training.reason)
        elif not tree.gpus or not training.rails:
            message = "there are not both GPUs and RDMA cards of the training"
            yield node.name, Outcome("skip", (node.name,), message, reason="not_applicable")
        else:
            yield node.name, _distances(node, tree, training.rails)


def _distances(node: Node, tree: PciTree, rails: Iterable[RdmaRail]) -> Distances | Outcome:
    cards = [card for rail in rails if (card := tree.device(rail.device.pci)) is not None]
    near = any(gpu.under_one_switch(card) for gpu in tree.gpus for card in cards)
    if not near and (tree.virtual or any(device.numa is None for device in (*tree.gpus, *cards))):
        message = (
            "the tree of devices does not show how far they are apart, as in a virtual machine"
        )
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    return {
        gpu.at: min((_distance(gpu, card) for card in cards), key=ORDER.index) for gpu in tree.gpus
    }


def _distance(gpu: PciDevice, card: PciDevice) -> str:
    if gpu.under_one_switch(card):
        return SWITCH
    return SOCKET if gpu.numa == card.numa else ACROSS


def _usual(
    context: CheckContext, measured: Mapping[str, Distances | Outcome]
) -> dict[object, Distances]:
    """For each GPU the distance that most nodes of a kind have, where most agree."""
    counts: dict[object, dict[str, Counter[str]]] = {}
    for node in context.nodes:
        found = measured[node.name]
        for gpu, distance in ({} if isinstance(found, Outcome) else found).items():
            counts.setdefault(kind_of(context.fleet, node), {}).setdefault(gpu, Counter())[
                distance
            ] += 1
    return {
        kind: {
            gpu: distance
            for gpu, count in gpus.items()
            for distance, number in count.most_common(1)
            if 2 * number > count.total() > 1
        }
        for kind, gpus in counts.items()
    }


def _judge(node: Node, found: Distances, usual: Distances) -> Outcome:
    seen = ", ".join(f"GPU {gpu} {distance}" for gpu, distance in found.items())
    behind = [
        gpu for gpu, own in found.items() if ORDER.index(own) > ORDER.index(usual.get(gpu, own))
    ]
    mixed = [gpu for gpu, own in found.items() if own == ACROSS and SWITCH in found.values()]
    if behind or mixed:
        gpu = (behind or mixed)[0]
        wanted = (
            f"{usual[gpu]}, as on the other nodes"
            if behind
            else f"{SWITCH}, as other GPUs of the node"
        )
        seen = ", ".join(f"GPU {bad} {found[bad]}" for bad in behind or mixed)
        return Outcome(
            "fail", (node.name,), "GPUs are far from the RDMA cards of the training", seen, wanted
        )
    if set(found.values()) == {SWITCH}:
        return Outcome(
            "pass", (node.name,), "every GPU has an RDMA card under its switch", seen, SWITCH
        )
    if not usual:
        message = "not every GPU has a card under its switch, and no other node of this kind is there to compare with"
        return Outcome("skip", (node.name,), message, seen, reason="not_applicable")
    farthest = max(found.values(), key=ORDER.index)
    message = f"GPUs and RDMA cards are {WORDS[farthest]} at worst, as on the other nodes"
    return Outcome("pass", (node.name,), message, seen, "as on the other nodes")


def _moved(tree: PciTree) -> PciTree:
    """For the proof: one GPU away from its switch, in a slot of the other socket."""
    first = tree.gpus[0]
    bad = replace(first, above=first.above[-1:], numa=1)
    return replace(
        tree, devices=tuple(bad if device is first else device for device in tree.devices)
    )


GPU_NIC = Check(
    "numa.gpu_nic",
    facts=FACTS,
    judge=gpu_nic,
    severity="warning",
    title="The distance from GPUs to RDMA cards",
    why="A GPU whose card sits at the other socket sends everything through both processors: its rank is the slow one, "
    "and NCCL may pair it with another's card.",
    how="The nearest common bridge of each GPU and the cards of the training set in sysfs (PXB: under one switch, "
    "NODE: on one socket, SYS: across), compared with the same GPU on the other nodes and the other GPUs of the node.",
    remedy="nvidia-smi topo -m   # a card in the wrong slot: move it; a card that is missing: ib.present",
    proof=Proof("pci.tree", _moved),
)
