"""Judges what the subnet manager gave to InfiniBand ports, and that no two cards share a GUID."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.ib import FACTS, LabelledPorts, UsedPorts, compare_ports, of_ports
from clusterprep.facts.ib_fabric import ENTRIES, FabricDevice, FabricPort
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.nccl.rails import RdmaRail, TrainingSet, kind_of
from clusterprep.remedies import Remedy, shell_line

Fabric = Mapping[str, FabricDevice]
NOT_INFINIBAND = "no active InfiniBand port in the training set"
FULL = 0x8000  # the membership bit of a partition key: InfiniBand specification, 10.9.1.2
NOTHING = FabricPort()


def _without_guids(fabric: Fabric) -> Hashable:
    """Return what the subnet manager gave to the ports, which is alike on most nodes."""
    rows = []
    for name, device in fabric.items():
        for number, port in device.ports.items():
            keys = None if port.pkeys is None else tuple(port.pkeys.items())
            rows.append((name, number, port.sm_lid, port.subnet, keys))
    return tuple(rows)


_GIVEN = Part("ib.fabric", _without_guids)


def _infiniband(training: TrainingSet) -> list[RdmaRail]:
    return [rail for rail in training.active if rail.port.link_layer == "InfiniBand"]


def _port(fabric: Fabric, rail: RdmaRail) -> FabricPort:
    device = fabric.get(rail.device.name)
    if device is None:
        return NOTHING
    return device.ports.get(rail.port.number, NOTHING)


# ---------------------------------------------------------------- the subnet manager


def subnet(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Judge that a subnet manager serves each port, the same one for a rail on all nodes."""
    groups: dict[object, LabelledPorts] = {}
    for nodes, training in used:
        fabric: Fabric = context.value(nodes[0], "ib.fabric")
        rails = _infiniband(training)
        outcome = _judge_managed(nodes[0], rails, fabric)
        if outcome is not None:
            yield from about_all(nodes, [outcome])
            continue
        kind = kind_of(context.fleet, nodes[0])
        names = names_of(nodes)
        for rail in rails:
            port = _port(fabric, rail)
            label = f"subnet {port.subnet}, manager at LID {port.sm_lid}"
            groups.setdefault((kind, rail.key), []).append((names, rail, label))
    if len({entry[2] for group in groups.values() for entry in group}) == 1:
        yield _one_subnet(groups)
        return
    yield from compare_ports(groups.values(), "subnet", _subnet_remedy)


def _judge_managed(node: Node, rails: list[RdmaRail], fabric: Fabric) -> Outcome | None:
    """Return the outcome of a node whose ports cannot be compared, else None."""
    if not rails:
        return skipped(node, NOT_INFINIBAND)
    silent = []
    unmanaged = []
    for rail in rails:
        port = _port(fabric, rail)
        if port.sm_lid is None or port.subnet is None:
            silent.append(rail.name)
        elif port.sm_lid == 0:
            unmanaged.append(rail)
    if unmanaged:
        names = ", ".join(rail.name for rail in unmanaged)
        first = unmanaged[0]
        remedy = shell_line(
            "sminfo -C {name} -P {number}   # the subnet manager must answer",
            name=first.device.name,
            number=first.port.number,
        )
        message = f"{names}: no subnet manager is known to the port"
        return failed(node, message, "sm_lid 0", "the LID of a subnet manager", remedy)
    if silent:
        message = f"{', '.join(silent)}: subnet or subnet manager cannot be read"
        return unknown(node, message, "garbled")
    return None


def _one_subnet(groups: Mapping[object, LabelledPorts]) -> Outcome:
    """Return the pass of nodes whose ports are all in one subnet."""
    entries = [entry for group in groups.values() for entry in group]
    names: dict[str, None] = {}
    for names_of_class in {entry[0][0]: entry[0] for entry in entries}.values():
        names.update(dict.fromkeys(names_of_class))
    label = entries[0][2]
    return Outcome("pass", tuple(names), "all ports are in one subnet", label, label)


def _subnet_remedy(rail: RdmaRail, usual: str) -> Remedy:
    return shell_line(
        "ibnetdiscover -C {name} -P {number} | head"
        "   # the cable leads to another fabric, or its subnet manager differs",
        name=rail.device.name,
        number=rail.port.number,
    )


# ---------------------------------------------------------------- partitions


def partition(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Judge the partition key that NCCL uses: there, of a full member, equal on all ports."""
    groups: dict[object, LabelledPorts] = {}
    for nodes, training in used:
        rails = _infiniband(training)
        fabric: Fabric = context.value(nodes[0], "ib.fabric")
        outcome = _judge_keys(context, nodes[0], rails, fabric)
        if outcome is not None:
            yield from about_all(nodes, [outcome])
            continue
        kind = kind_of(context.fleet, nodes[0])
        names = names_of(nodes)
        index = _index(nodes[0]) or 0
        for rail in rails:
            pkey = (_port(fabric, rail).pkeys or {})[index]
            groups.setdefault(kind, []).append((names, rail, f"{pkey | FULL:#06x}"))
    yield from compare_ports(groups.values(), "partition key", _partition_remedy)


def _index(node: Node) -> int | None:
    """Return the row of the table that NCCL_IB_PKEY declares, 0 by default, None for no number."""
    declared = node.env.get("NCCL_IB_PKEY")
    if declared is None:
        return 0
    text = declared.value.strip()
    return int(text) if text.isdecimal() and len(text) < 6 else None


def _judge_keys(
    context: CheckContext, node: Node, rails: list[RdmaRail], fabric: Fabric
) -> Outcome | None:
    """Return the outcome of a node whose keys need no comparison, else None."""
    if not rails:
        return skipped(node, NOT_INFINIBAND)
    index = _index(node)
    tables = {rail.name: _port(fabric, rail).pkeys for rail in rails}
    if index is None or index >= ENTRIES:
        message = f"NCCL_IB_PKEY names a row of the table that is not read: {ENTRIES} are"
        return unknown(node, message, "not_applicable")
    silent = [name for name, table in tables.items() if table is None]
    if silent:
        return unknown(node, f"{', '.join(silent)}: no partition key can be read", "garbled")
    keys = {name: (table or {}).get(index, 0) for name, table in tables.items()}
    wanted = context.wanted(node)
    if wanted is not None:
        outcome = _judge_required(node, tables, parse_pkey(wanted), wanted)
        return replace(outcome, remedy=_partition_remedy(rails[0], wanted))
    empty = [name for name, key in keys.items() if not key]
    if empty:
        message = f"{', '.join(empty)}: row {index} of the partition table is empty"
        remedy = _partition_remedy(rails[0], "")
        return failed(node, message, "0x0000", "a partition key", remedy)
    limited = [f"{name} {key:#06x}" for name, key in keys.items() if not key & FULL]
    if limited:
        message = "a port is a limited member of its partition, and reaches no other such member"
        remedy = _partition_remedy(rails[0], "")
        return failed(node, message, ", ".join(limited), "full membership (0x8000 is set)", remedy)
    return None


def _judge_required(
    node: Node, tables: Mapping[str, Mapping[int, int] | None], key: int, wanted: str
) -> Outcome:
    lacking = []
    for name, table in tables.items():
        if key | FULL not in (table or {}).values():
            lacking.append(name)
    if not lacking:
        return passed(node, "the ports are full members of the partition", wanted, wanted)
    seen = []
    for name in lacking:
        keys = (tables[name] or {}).values()
        seen.append(f"{name} {' '.join(f'{value:#06x}' for value in keys)}")
    message = f"{', '.join(lacking)}: not a full member of the partition"
    return failed(node, message, "; ".join(seen), wanted)


def parse_pkey(text: str) -> int:
    """Return the key in `require: {ib.pkey: 0x8021}`. Raises ValueError for anything else."""
    try:
        key = int(text, 16)
    except ValueError:
        key = 0
    if not text.lower().startswith("0x") or not 0 < key <= 0xFFFF:
        raise ValueError(f"expected a partition key, such as 0x8021; seen '{text}'")
    return key


def _partition_remedy(rail: RdmaRail, usual: str) -> Remedy:
    return shell_line(
        "smpquery -C {name} -P {number} pkeys -D 0"
        "   # then the partition's members in the subnet manager's configuration",
        name=rail.device.name,
        number=rail.port.number,
    )


# ---------------------------------------------------------------- GUIDs


def guids(context: CheckContext) -> Iterable[Outcome]:
    """Judge that each device of the fleet has GUIDs of its own."""
    fabrics: dict[str, Fabric] = context.values("ib.fabric")
    by_node = {name: _guids(fabric) for name, fabric in fabrics.items()}
    places = _places_of_doubled(context, fabrics) if _may_be_doubled(by_node) else {}

    def told(node: Node) -> tuple[tuple[str, ...], tuple[str, ...], int]:
        """Return the GUIDs that others have too, what is unread, and how many are known."""
        known = set(by_node[node.name])
        shared = sorted(known & places.keys()) if places else ()
        return tuple(shared), tuple(_unread(fabrics[node.name])), len(known)

    for nodes in context.alike_by(told):
        node = nodes[0]
        shared, unread, number = told(node)
        if shared:
            texts = [f"{guid} is {', '.join(places[guid])}" for guid in shared]
            message = "RDMA devices share a GUID, which should tell them apart"
            outcome = failed(node, message, "; ".join(texts), "one device each")
        elif unread:
            outcome = unknown(node, f"{', '.join(unread)} cannot be read", "garbled")
        elif not number:
            outcome = skipped(node, "no RDMA device with a GUID here")
        else:
            outcome = passed(node, "no other device has the GUIDs of this node's", str(number))
        yield from about_all(nodes, [outcome])


def _may_be_doubled(by_node: Mapping[str, Sequence[str]]) -> bool:
    """Return whether one of these GUIDs is there twice, which they mostly are not."""
    every = list(itertools.chain.from_iterable(by_node.values()))
    return len(set(every)) < len(every)


def _places_of_doubled(
    context: CheckContext, fabrics: Mapping[str, Fabric]
) -> dict[str, list[str]]:
    """Return the devices of each GUID that several have, as in «mlx5_0 of n1»."""
    places: dict[str, list[str]] = {}
    by_node = {name: _guids_with_device(fabric) for name, fabric in fabrics.items()}
    first_owner: dict[str, tuple[object, str]] = {}
    doubled: set[str] = set()
    for node in context.nodes:
        machine = _machine(context, node)
        for guid, device in by_node[node.name]:
            owner = (machine, device)
            if first_owner.setdefault(guid, owner) != owner:
                doubled.add(guid)
    for node in context.nodes:
        for guid, devices in _doubled_devices(by_node[node.name], doubled).items():
            places.setdefault(guid, []).append(f"{devices} of {node.name}")
    return places


def _unread(fabric: Fabric) -> list[str]:
    """Return which GUIDs could not be read, as in «node_guid of mlx5_0»."""
    return [f"{what} of {name}" for name, device in fabric.items() for what in device.unread]


def _machine(context: CheckContext, node: Node) -> object:
    """Return what is equal for containers of one machine, which see the same devices."""
    boot = context.value(node, "host.boot_id")
    return node.name if isinstance(boot, Absent) else boot


def _guids(fabric: Fabric) -> list[str]:
    """Return the GUIDs of the devices of a node, and those of ports that have another one."""
    guids = [device.guid for device in fabric.values()]
    for device in fabric.values():
        own = device.guid
        guids += [port.guid for port in device.ports.values() if port.guid != own]
    return [guid for guid in guids if guid is not None]


def _guids_with_device(fabric: Fabric) -> list[tuple[str, str]]:
    """Return each GUID of a node with the name of the device that has it."""
    guids = []
    for name, device in fabric.items():
        guids.extend([(guid, name) for guid in dict.fromkeys(_guids({name: device}))])
    return guids


def _doubled_devices(guids: Iterable[tuple[str, str]], doubled: Collection[str]) -> dict[str, str]:
    """Return the devices of a node by each of these GUIDs; several that share one, with commas."""
    devices: dict[str, list[str]] = {}
    for guid, name in guids:
        if guid in doubled:
            devices.setdefault(guid, []).append(name)
    return {guid: ", ".join(names) for guid, names in devices.items()}


def _turned(**fields: Any) -> Callable[[Any], Any]:
    """Return a function for proofs that sets fields of all ports of one training device."""

    def turn(fabric: Fabric) -> Fabric:
        device = fabric["mlx5_3"]
        ports = {number: replace(port, **fields) for number, port in device.ports.items()}
        return {**fabric, "mlx5_3": replace(device, ports=ports)}

    return turn


SM = Check(
    "ib.sm",
    facts=(*FACTS, "ib.fabric"),
    judge=of_ports(subnet, _GIVEN),
    severity="warning",
    title="A subnet manager serves every InfiniBand port, the same for a rail",
    why="A port in another subnet, after a cable went to the wrong switch, is active and green and "
    "reaches none of the others.",
    how="sm_lid and the prefix of gids/0 of the active InfiniBand ports of the training set: a "
    "LID, and for each rail the same on all nodes of a kind.",
    remedy=shell_line("sminfo -C DEVICE; ibnetdiscover -C DEVICE | head   # cable, subnet manager"),
    proof=Proof("ib.fabric", _turned(sm_lid=0)),
)
PKEY = Check(
    "ib.pkey",
    facts=(*FACTS, "ib.fabric"),
    judge=of_ports(partition, _GIVEN),
    severity="warning",
    title="The partition keys of InfiniBand ports",
    why="Ports in different partitions, and limited members among themselves, exchange nothing: "
    "queue pairs time out with error 12 though every port is active.",
    how="The row of ports/*/pkeys that NCCL_IB_PKEY names, the first by default: there, with full "
    "membership, and equal on all ports. `require: {ib.pkey: 0x8021}` wants this key in the table.",
    remedy=shell_line(
        "smpquery -C DEVICE pkeys -D 0   # then the partitions of the subnet manager"
    ),
    wants=parse_pkey,
    proof=Proof("ib.fabric", _turned(pkeys={0: 0x7FFF})),
)
GUID_DUP = Check(
    "ib.guid_dup",
    facts=("ib.fabric",),
    uses=("host.boot_id",),
    judge=guids,
    severity="warning",
    title="No two RDMA devices have one GUID",
    why="A GUID that was copied with a virtual function's settings, or burnt twice, makes the "
    "subnet manager give one address to two ports: each breaks the other's connections.",
    how="node_guid and the GUIDs of ports in /sys/class/infiniband, over all nodes. Containers of "
    "one machine (equal boot id) share its devices and are no fault.",
    remedy=shell_line(
        "ip link show   # give each virtual function a GUID of its own; for a card ask its vendor"
    ),
    proof=Proof("ib.fabric", lambda fabric: dict.fromkeys(fabric, fabric["mlx5_3"])),
)
