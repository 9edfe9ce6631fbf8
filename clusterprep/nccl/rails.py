"""Which RDMA ports carry the training on each node. Pure.

They are declared, or derived from what other nodes use and from where the GPUs are. Storage cards,
front ends, unused second ports and virtual functions are left out, each with its reason. If the
facts do not decide, the answer is Absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct, field

from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.rdma import Port, RdmaDevice
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.alike import alike_nodes
from clusterprep.model.fact_columns import Part
from clusterprep.model.memoize import once_per_facts

FACTS = ("rdma.devices", "pci.tree")
"""Names of the facts that this module uses."""

TO_NVSWITCHES = "the fabric manager's way to the NVSwitches, which carries no traffic of jobs"
SOFTWARE = "no PCI card of its own: software, or a share of a card"

Value = TypeVar("Value", str, float)
# What identifies a port on all nodes of a kind: the PCI address of its card, and its number.
Key = tuple[str, int]


class RdmaRail(Struct, frozen=True):
    """One port of the training set."""

    device: RdmaDevice
    port: Port

    @property
    def name(self) -> str:
        """Return mlx5_0, or mlx5_0:1 if the device has several ports, as in NCCL_IB_HCA."""
        if len(self.device.ports) == 1:
            return self.device.name
        return self.name_with_port

    @property
    def name_with_port(self) -> str:
        return f"{self.device.name}:{self.port.number}"

    @property
    def key(self) -> Key:
        return (self.device.pci or self.device.name, self.port.number)


class TrainingSet(Struct, frozen=True):
    """The ports of one node that training uses, and why each of the others is left out."""

    rails: tuple[RdmaRail, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def active(self) -> tuple[RdmaRail, ...]:
        return tuple(rail for rail in self.rails if rail.port.active)


class UsualPort(Struct, frozen=True):
    """A port as the nodes of one kind have it.

    It is in use on `active` of `nodes`; the link layer and the rate in Gbit/s are the most common.
    """

    active: int
    nodes: int
    layer: str
    rate: float


_CARD = attrgetter("name", "pci", "board", "model", "iwarp", "firmware", "interfaces")
_PORT = attrgetter("number", "link_layer", "rate", "state", "phys_state")


def _without_addresses(devices: Iterable[RdmaDevice]) -> Hashable:
    """Return the devices without the addresses that each node has for itself."""
    rows = []
    for device in devices:
        rows.append(_CARD(device))
        for port in device.ports:
            rows.append((_PORT(port), port.addressed))
    return tuple(rows)


HARDWARE = Part("rdma.devices", _without_addresses)
"""Nodes that are alike in it and in the PCI tree have the same training set, but for addresses."""


class _Hardware(Struct, frozen=True):
    """What was seen of nodes that are alike, of which `devices` are those of the first."""

    nodes: tuple[Node, ...]
    devices: tuple[RdmaDevice, ...]
    tree: PciTree

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def rails(self) -> tuple[RdmaRail, ...]:
        return _rails(self.devices)


def _rails(devices: Iterable[RdmaDevice]) -> tuple[RdmaRail, ...]:
    """Return all ports of the devices of a node."""
    return tuple([RdmaRail(device, port) for device in devices for port in device.ports])


@once_per_facts(*FACTS)
def training_sets(fleet: Fleet) -> dict[str, TrainingSet | Absent]:
    """Return the training set of every node that was reached, or why it is not known. Pure."""
    sets: dict[str, TrainingSet | Absent] = {}
    kinds: dict[object, list[_Hardware]] = {}
    for nodes in alike_nodes(fleet, fleet.reached, (HARDWARE, "pci.tree")):
        devices = fleet.fact(nodes[0].name, "rdma.devices")
        tree = fleet.fact(nodes[0].name, "pci.tree")
        if isinstance(devices, Absent):
            sets.update(dict.fromkeys([node.name for node in nodes], devices))
        elif isinstance(tree, Absent):
            sets.update(dict.fromkeys([node.name for node in nodes], tree))
        else:
            kind = kinds.setdefault(_kind(nodes[0], tree), [])
            kind.append(_Hardware(nodes, devices, tree))
    for kind in kinds.values():
        usual = _usual_ports(kind)
        for hardware in kind:
            training = _training_set(hardware, usual)
            sets.update(_sets_of(fleet, hardware, training))
    return sets


def _sets_of(
    fleet: Fleet, hardware: _Hardware, training: TrainingSet | Absent
) -> dict[str, TrainingSet | Absent]:
    """Return the training set of the first of nodes that are alike for each, with its own ports."""
    names = [node.name for node in hardware.nodes]
    if isinstance(training, Absent) or not training.rails:
        return dict.fromkeys(names, training)
    chosen = {rail.name_with_port for rail in training.rails}
    places = []  # of devices, and of ports on them
    for place, device in enumerate(hardware.devices):
        for number, port in enumerate(device.ports):
            if RdmaRail(device, port).name_with_port in chosen:
                places.append((place, number))
    sets: dict[str, TrainingSet | Absent] = {}
    for name in names:
        own: Sequence[RdmaDevice] = fleet.fact(name, "rdma.devices")
        rails = [RdmaRail(own[place], own[place].ports[number]) for place, number in places]
        sets[name] = TrainingSet(tuple(rails), training.left_out, training.why)
    return sets


def is_rdma_switched_off(node: Node) -> bool:
    """Return whether a variable that the node declares keeps the job from using RDMA.

    That is NCCL_NET=Socket, or NCCL_IB_DISABLE with any number but 0.
    """
    net = node.env.get("NCCL_NET")
    if net is not None and net.value.lower() == "socket":
        return True
    disable = node.env.get("NCCL_IB_DISABLE")
    if disable is None:
        return False
    value = disable.value.strip()
    return value.isdecimal() and int(value) != 0


def interfaces_of(fleet: Fleet, node: Node) -> frozenset[str]:
    """Return the names of the interfaces of a node's training ports.

    Empty if they are not known, or sockets carry the data.
    """
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent) or is_rdma_switched_off(node):
        return frozenset()
    names: set[str] = set()
    for rail in training.rails:
        names.update(rail.device.interfaces)
        names.update([gid.interface for gid in rail.port.gids if gid.interface])
    return frozenset(names)


def kind_of(fleet: Fleet, node: Node) -> object:
    """Return what nodes must share to be compared: declared model, and whether GPUs are there."""
    tree = fleet.fact(node.name, "pci.tree")
    if isinstance(tree, Absent):
        tree = PciTree((), {})
    return _kind(node, tree)


def _kind(node: Node, tree: PciTree) -> object:
    """Return the same as `kind_of`, of a tree that is known."""
    model = None if node.gpus is None else node.gpus.model
    return (model, bool(tree.gpus))


def _training_set(hardware: _Hardware, usual: Mapping[Key, UsualPort]) -> TrainingSet | Absent:
    if hardware.node.interfaces.rdma is not None:
        return _declared_set(hardware, hardware.node.interfaces.rdma)
    return _derived_set(hardware, usual)


def _declared_set(hardware: _Hardware, wanted: Sequence[str]) -> TrainingSet:
    """Return the ports that the inventory names: «mlx5_0» is all of a device, «mlx5_0:1» one."""
    chosen: list[RdmaRail] = []
    left_out: dict[str, str] = {}
    for rail in hardware.rails:
        if rail.device.name in wanted or rail.name_with_port in wanted:
            chosen.append(rail)
        else:
            left_out[rail.name] = "not among the declared interfaces.rdma"
    return TrainingSet(tuple(chosen), left_out, "declared as interfaces.rdma")


def _usual_ports(kind: Sequence[_Hardware]) -> dict[Key, UsualPort]:
    """Return each port that is in use on some node of this kind."""
    in_use: dict[Key, list[tuple[Port, int]]] = {}
    for hardware in kind:
        for rail in hardware.rails:
            if _is_in_use(rail.port):
                in_use.setdefault(rail.key, []).append((rail.port, len(hardware.nodes)))
    usual = {}
    number_of_nodes = sum(len(hardware.nodes) for hardware in kind)
    for key, ports in in_use.items():
        layer = _most_common((port.link_layer, number) for port, number in ports)
        rate = _most_common((port.rate or 0.0, number) for port, number in ports)
        active = sum(number for _, number in ports)
        usual[key] = UsualPort(active, number_of_nodes, layer, rate)
    return usual


def _is_in_use(port: Port) -> bool:
    """Return whether a port is active, or waits for a subnet manager with its link up.

    Without a subnet manager all InfiniBand ports of a fleet wait.
    """
    if port.active:
        return True
    return port.link_layer == "InfiniBand" and port.phys_state == "LinkUp"


def _most_common(values: Iterable[tuple[Value, int]]) -> Value:
    """Return the value of the largest number, the first one of several."""
    counts: Counter[Value] = Counter()
    for value, number in values:
        counts[value] += number
    return counts.most_common(1)[0][0]


def _derived_set(hardware: _Hardware, usual: Mapping[Key, UsualPort]) -> TrainingSet | Absent:
    """Return the training set of a node that declares none, or why it is not known."""
    left_out: dict[str, str] = {}
    cards: dict[str, PciDevice] = {}  # rail -> its place on the PCI bus
    usable = []
    for rail in hardware.rails:
        card = _pci_device(rail.device, hardware.tree)
        reason = _why_unusable(rail, card, hardware, usual)
        if reason is not None:
            left_out[rail.name] = reason
        elif card is not None:
            cards[rail.name] = card
            usable.append(rail)
    if not usable:
        return _set_without_cards(hardware, left_out)
    near = [rail for rail in usable if _is_near_gpu(cards[rail.name], hardware.tree)]
    if not near:
        why = "the fastest RDMA ports that are in use"
        return _set_of_fastest(
            usable,
            cards,
            usual,
            left_out,
            why,
        )
    near_names = {rail.name for rail in near}
    for rail in usable:
        if rail.name not in near_names:
            left_out[rail.name] = "no GPU under its PCIe switch, while other cards have one"
    why = "the cards under one PCIe switch with a GPU"
    return _set_of_fastest(
        near,
        cards,
        usual,
        left_out,
        why,
    )


def _is_near_gpu(card: PciDevice, tree: PciTree) -> bool:
    return any(card.under_one_switch(gpu) for gpu in tree.gpus)


def _set_without_cards(hardware: _Hardware, left_out: Mapping[str, str]) -> TrainingSet:
    """Return the ports without a card: shares of one in a container, or RDMA in software.

    They are used if there is nothing else.
    """
    rails = []
    for rail in hardware.rails:
        if left_out[rail.name] == SOFTWARE and rail.port.active:
            rails.append(rail)
    if not rails:
        return TrainingSet((), left_out, "no RDMA port is in use here")
    names = {rail.name for rail in rails}
    others = {name: reason for name, reason in left_out.items() if name not in names}
    return TrainingSet(tuple(rails), others, "the only RDMA ports in use")


def _pci_device(device: RdmaDevice, tree: PciTree) -> PciDevice | None:
    """Return the device on the bus, or its address alone if no bus is visible, as in a sandbox."""
    if tree.devices or device.pci is None:
        return tree.device(device.pci)
    return PciDevice(device.pci, gpu=False, vendor="", link=PciLink(None, None, None, None))


def _why_unusable(
    rail: RdmaRail,
    card: PciDevice | None,
    hardware: _Hardware,
    usual: Mapping[Key, UsualPort],
) -> str | None:
    """Return why a port cannot be used, judged without its neighbours, or None."""
    if rail.device.iwarp:
        return "iWARP, which NCCL cannot use"
    if rail.device.pci is None:
        return SOFTWARE
    if card is None:
        return "not a network card on the PCI bus"
    return _why_not_this_card(card, hardware) or _why_not_in_use(rail, usual)


def _why_not_this_card(card: PciDevice, hardware: _Hardware) -> str | None:
    """Return why a PCI function carries no traffic of jobs, or None."""
    addresses = {device.pci for device in hardware.devices}
    if card.physical is not None and card.physical in addresses:
        return "a virtual function, whose card is here too"
    if card.manages_nvswitches:
        return TO_NVSWITCHES
    return None


def _why_not_in_use(rail: RdmaRail, usual: Mapping[Key, UsualPort]) -> str | None:
    """Return why a port counts as unused, or None if it is in use here or on most nodes."""
    if _is_in_use(rail.port):
        return None
    elsewhere = usual.get(rail.key)
    if elsewhere is not None and 2 * elsewhere.active >= elsewhere.nodes:
        return None
    return "not active, neither here nor on most nodes of this kind"


def _set_of_fastest(
    candidates: Sequence[RdmaRail],
    cards: Mapping[str, PciDevice],
    usual: Mapping[Key, UsualPort],
    left_out: dict[str, str],
    why: str,
) -> TrainingSet | Absent:
    """Return the fast ports of the most common link layer, and slow ones of the same make.

    A rail that came up slow or with the wrong link layer is still a rail, and is known by its make
    (board id). A card of the same make that differs in both is there for something else.
    """
    best = max(usual[rail.key].rate for rail in candidates)
    fast = list(candidates)
    if best:  # else no port says its rate
        fast = [rail for rail in candidates if usual[rail.key].rate > best / 2]
    layer = _usual_layer(usual[rail.key] for rail in fast)
    if layer is None:
        message = "InfiniBand and Ethernet ports are equal in speed and number"
        return Absent(f"{message}: declare interfaces.rdma")
    chosen = [rail for rail in fast if usual[rail.key].layer == layer]
    names = {rail.name for rail in chosen}
    fast_names = {rail.name for rail in fast}
    for rail in _same_make(candidates, chosen, cards):
        if rail.name in fast_names or usual[rail.key].layer == layer:
            names.add(rail.name)
    rails = []
    for rail in candidates:
        if rail.name in names:
            rails.append(rail)
            continue
        port = usual[rail.key]
        speed = f"{port.layer} at {port.rate:g} Gbit/s"
        left_out[rail.name] = f"{speed} beside {layer} at {best:g}"
    return TrainingSet(tuple(rails), left_out, why)


def _usual_layer(ports: Iterable[UsualPort]) -> str | None:
    """Return the most common link layer; None if two are equally common."""
    layers = Counter(port.layer for port in ports).most_common(2)
    (layer, count), *others = layers
    if others and others[0][1] == count:
        return None
    return layer


def _same_make(
    candidates: Sequence[RdmaRail], chosen: Sequence[RdmaRail], cards: Mapping[str, PciDevice]
) -> list[RdmaRail]:
    """Return the ports of the same make as the chosen ones, on cards of their own."""
    boards = {rail.device.board for rail in chosen} - {None}
    chosen_cards = {cards[rail.name].card for rail in chosen}
    rails = []
    for rail in candidates:
        if rail.device.board in boards and cards[rail.name].card not in chosen_cards:
            rails.append(rail)
    return rails
