"""Which RDMA ports carry the training on each node: declared, or derived from what its peers use and where GPUs sit.

Storage cards, front ends, second ports that nobody uses and virtual functions are left out, each with its reason.
Where the facts do not decide, the answer is that it is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.rdma import Port, RdmaDevice
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.memoize import once_per_fleet
from clusterprep.runtime.lazy_dataclass import dataclass

FACTS = ("rdma.devices", "pci.tree")
"""Names of the facts that this looks at."""

SOFTWARE = "no PCI card of its own: software, or a share of a card"

Value = TypeVar("Value", str, float)
Key = tuple[
    str, int
]  # what a port is known by on all nodes of a kind: the card's place, and the port's number


@dataclass(frozen=True)
class RdmaRail:
    """One port of the training set."""

    device: RdmaDevice
    port: Port

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA writes it; the port is named where the device has several."""
        return (
            self.device.name
            if len(self.device.ports) == 1
            else f"{self.device.name}:{self.port.number}"
        )

    @property
    def key(self) -> Key:
        return (self.device.pci or self.device.name, self.port.number)


@dataclass(frozen=True)
class TrainingSet:
    """The ports of one node that training uses, and why each of the others is left out."""

    rails: tuple[RdmaRail, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def active(self) -> tuple[RdmaRail, ...]:
        return tuple(rail for rail in self.rails if rail.port.active)


@dataclass(frozen=True)
class Usual:
    """How nodes of one kind have a port: on how many of them it is in use, and with which link layer and rate."""

    active: int
    nodes: int
    layer: str
    rate: float


@dataclass(frozen=True)
class _Look:
    node: Node
    devices: tuple[RdmaDevice, ...]
    tree: PciTree

    @property
    def rails(self) -> tuple[RdmaRail, ...]:
        return tuple(RdmaRail(device, port) for device in self.devices for port in device.ports)


def training_set(fleet: Fleet, node: str) -> TrainingSet | Absent:
    """The set of one node; of all nodes at once `training_sets` costs no more."""
    return training_sets(fleet)[node]


@once_per_fleet
def training_sets(fleet: Fleet) -> dict[str, TrainingSet | Absent]:
    """The set of every node reached, or why it is not known. Pure."""
    answers: dict[str, TrainingSet | Absent] = {}
    groups: dict[object, list[_Look]] = {}
    for node in fleet.reached:
        devices, tree = (fleet.fact(node.name, name) for name in FACTS)
        absent = next((value for value in (devices, tree) if isinstance(value, Absent)), None)
        if absent is None:
            groups.setdefault(_kind(node, tree), []).append(_Look(node, devices, tree))
        else:
            answers[node.name] = absent
    for group in groups.values():
        usual = _usual(group)
        answers.update((look.node.name, _of(look, usual)) for look in group)
    return answers


def switched_off(node: Node) -> bool:
    """Whether the inventory takes RDMA from the job by a variable: sockets, or any number but 0 at its switch."""
    net, off = node.env.get("NCCL_NET"), node.env.get("NCCL_IB_DISABLE")
    if net is not None and net.value.lower() == "socket":
        return True
    return off is not None and off.value.strip().isdecimal() and int(off.value) != 0


def interfaces_of(fleet: Fleet, node: Node) -> frozenset[str]:
    """Names of the interfaces of a node's training ports; none where they are not known, or sockets carry the data."""
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent) or switched_off(node):
        return frozenset()
    own = {name for rail in training.rails for name in rail.device.interfaces}
    return frozenset(
        own | {gid.interface for rail in training.rails for gid in rail.port.gids if gid.interface}
    )


def kind_of(fleet: Fleet, node: Node) -> object:
    """What nodes must share to be compared: the declared model, and whether there are GPUs."""
    tree = fleet.fact(node.name, "pci.tree")
    return _kind(node, PciTree((), {}) if isinstance(tree, Absent) else tree)


def _kind(node: Node, tree: PciTree) -> object:
    return (node.gpus.model if node.gpus else None, bool(tree.gpus))


def _of(look: _Look, usual: Mapping[Key, Usual]) -> TrainingSet | Absent:
    if look.node.interfaces.rdma is not None:
        return _declared(look, look.node.interfaces.rdma)
    return _derived(look, usual)


def _declared(look: _Look, wanted: Sequence[str]) -> TrainingSet:
    chosen, left_out = [], {}
    for rail in look.rails:
        if {rail.device.name, f"{rail.device.name}:{rail.port.number}"} & set(wanted):
            chosen.append(rail)
        else:
            left_out[rail.name] = "not among the declared interfaces.rdma"
    return TrainingSet(tuple(chosen), left_out, "declared as interfaces.rdma")


def _usual(group: Sequence[_Look]) -> dict[Key, Usual]:
    """Each port that is in use as the nodes of this kind have it."""
    active: dict[Key, list[Port]] = {}
    for look in group:
        for rail in look.rails:
            active.setdefault(rail.key, []).extend([rail.port] if _in_use(rail.port) else [])
    return {
        key: Usual(
            len(ports),
            len(group),
            _most(p.link_layer for p in ports),
            _most(p.rate or 0.0 for p in ports),
        )
        for key, ports in active.items()
        if ports
    }


def _in_use(port: Port) -> bool:
    """Active, or InfiniBand that waits for a subnet manager with its link up: without one all ports of a fleet do."""
    return port.active or (port.link_layer == "InfiniBand" and port.phys_state == "LinkUp")


def _most(values: Iterable[Value]) -> Value:
    return Counter(values).most_common(1)[0][0]


def _derived(look: _Look, usual: Mapping[Key, Usual]) -> TrainingSet | Absent:
    left_out: dict[str, str] = {}
    places: dict[str, PciDevice] = {}
    used = []
    for rail in look.rails:
        place = _place(rail.device, look.tree)
        reason = _unusable(rail, place, look, usual)
        if reason is not None:
            left_out[rail.name] = reason
        elif place is not None:
            places[rail.name] = place
            used.append(rail)
    if not used:
        return _without_cards(look, left_out)
    near = [
        rail
        for rail in used
        if any(places[rail.name].under_one_switch(gpu) for gpu in look.tree.gpus)
    ]
    close = {rail.name for rail in near}
    far = [rail for rail in used if near and rail.name not in close]
    left_out.update(
        (rail.name, "no GPU under its PCIe switch, while other cards have one") for rail in far
    )
    why = (
        "the cards under one PCIe switch with a GPU"
        if near
        else "the fastest RDMA ports that are in use"
    )
    return _fastest(near or used, places, usual, left_out, why)


def _without_cards(look: _Look, left_out: Mapping[str, str]) -> TrainingSet:
    """Shares of a card in a container, or RDMA in software: in use where there is nothing else."""
    rails = tuple(
        rail for rail in look.rails if left_out[rail.name] == SOFTWARE and rail.port.active
    )
    others = {
        name: reason
        for name, reason in left_out.items()
        if name not in {rail.name for rail in rails}
    }
    return TrainingSet(
        rails, others, "the only RDMA ports in use" if rails else "no RDMA port is in use here"
    )


def _place(device: RdmaDevice, tree: PciTree) -> PciDevice | None:
    """The device on the bus; where no bus is visible, as in a sandbox, its address alone."""
    if tree.devices or device.pci is None:
        return tree.device(device.pci)
    return PciDevice(device.pci, gpu=False, vendor="", link=PciLink(None, None, None, None))


def _unusable(
    rail: RdmaRail, place: PciDevice | None, look: _Look, usual: Mapping[Key, Usual]
) -> str | None:
    """Why a port is nobody's, judged without its neighbours; None where it may be used."""
    if rail.device.iwarp:
        return "iWARP, which NCCL cannot use"
    if rail.device.pci is None:
        return SOFTWARE
    if place is None:
        return "not a network card on the PCI bus"
    if place.physical is not None and place.physical in {device.pci for device in look.devices}:
        return "a virtual function, whose card is here too"
    seen = usual.get(rail.key)
    if _in_use(rail.port) or (seen is not None and 2 * seen.active >= seen.nodes):
        return None
    return "not active, neither here nor on most nodes of this kind"


def _fastest(
    pool: Sequence[RdmaRail],
    places: Mapping[str, PciDevice],
    usual: Mapping[Key, Usual],
    left_out: dict[str, str],
    why: str,
) -> TrainingSet | Absent:
    """The fast ports of the commonest link layer, and their fellows of the same make that lag behind.

    A rail that came up slow or with the wrong link layer is still a rail: it is known by its make (board id). One that
    has both otherwise is a card of the same make for something else.
    """
    best = max(usual[rail.key].rate for rail in pool)
    fast = [
        rail for rail in pool if usual[rail.key].rate > best / 2 or not best
    ]  # not best: no port says its rate
    layers = Counter(usual[rail.key].layer for rail in fast).most_common()
    if len(layers) > 1 and layers[0][1] == layers[1][1]:
        return Absent(
            "InfiniBand and Ethernet ports are equal in speed and number: declare interfaces.rdma"
        )
    layer = layers[0][0]
    kept = [rail for rail in fast if usual[rail.key].layer == layer]
    makes = {rail.device.board for rail in kept} - {None}
    cards = {places[rail.name].card for rail in kept}
    quick, taken = {rail.name for rail in fast}, {rail.name for rail in kept}
    for rail in pool:
        lagging = usual[rail.key].layer == layer or rail.name in quick
        if lagging and rail.device.board in makes and places[rail.name].card not in cards:
            taken.add(rail.name)
    for rail in pool:
        if rail.name not in taken:
            seen = usual[rail.key]
            left_out[rail.name] = f"{seen.layer} at {seen.rate:g} Gbit/s beside {layer} at {best:g}"
    return TrainingSet(tuple(rail for rail in pool if rail.name in taken), left_out, why)
