"""Judges flow control, trust and congestion control of RoCE ports, and the class NCCL sends in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    skipped,
)
from clusterprep.checks.ib import FACTS, LabelledPorts, UsedPorts, compare_ports, of_ports
from clusterprep.facts.environment import Paths, in_effect
from clusterprep.facts.roce_qos import RoceQos
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import RdmaRail, kind_of
from clusterprep.remedies import Remedy, sentence, shell_line

NAME = "NCCL_IB_TC"
Settings = Mapping[str, RoceQos]


def qos(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Compare the settings of all RoCE ports, then hold NCCL's traffic class against them."""
    groups: dict[object, LabelledPorts] = {}
    for nodes, training in used:
        known: Settings = context.value(nodes[0], "roce.qos")
        found = []
        for rail in training.active:
            if rail.port.link_layer == "Ethernet":
                found += [(rail, name, own) for name, own in known.items() if _is_of(own, rail)]
        told = [(rail, name, own) for rail, name, own in found if own.told]
        if not told:
            message = "no RoCE port of the training says what it does with priorities"
            yield from about_all(nodes, [skipped(nodes[0], message)])
            continue
        lossy = _judge_class(context, nodes[0], told)
        if lossy is not None:
            yield from about_all(nodes, [lossy])
        kind = kind_of(context.fleet, nodes[0])
        names = names_of(nodes)
        for rail, _, own in found:
            groups.setdefault(kind, []).append((names, rail, _describe(own)))
    yield from compare_ports(groups.values(), "quality of service", _remedy)


def _is_of(settings: RoceQos, rail: RdmaRail) -> bool:
    return settings.device == rail.device.name


def _judge_class(
    context: CheckContext, node: Node, told: Iterable[tuple[RdmaRail, str, RoceQos]]
) -> Outcome | None:
    """Return a failure if NCCL's packets have a priority without flow control, else None.

    Where no priority has it, the network is meant to lose packets.
    """
    number = _traffic_class(context, node)
    if number is None:
        return None
    for _, name, own in told:
        sent = own.tclass if own.tclass is not None else number
        priority = own.priority(sent)
        if not own.pfc or priority is None or priority in own.pfc:
            continue
        lossless = _join(own.pfc)
        seen = f"{name}: traffic class {sent} is priority {priority}, flow control on {lossless}"
        message = "NCCL sends in a priority that the network does not keep from losses"
        cure = sentence(
            "set `env: {{NCCL_IB_TC: {value}}}` in the inventory, or what else the network keeps "
            "from losses",
            value=str(_class_of(own, own.pfc[0])),
        )
        return failed(node, message, seen, f"priority {lossless}", cure)
    return None


def _traffic_class(context: CheckContext, node: Node) -> int | None:
    """Return what NCCL puts on its packets: 0 by default, None where it is not known."""
    paths: Paths | Absent = context.value(node, "env.paths")
    text = "0"
    if NAME in node.env:
        text = node.env[NAME].value
    elif isinstance(paths, Absent) or isinstance(paths.get("ssh command"), Absent):
        return None
    elif NAME in (settings := in_effect(paths, "ssh command")):
        text = settings[NAME].value
    text = text.strip()
    if not text.isdecimal() or int(text) > 255:
        return None
    return int(text)


def _class_of(own: RoceQos, priority: int) -> int:
    """Return a traffic class whose packets have this priority."""
    for traffic_class in range(0, 256, 4):
        if own.priority(traffic_class) == priority:
            return traffic_class
    return priority << 5


def _describe(own: RoceQos) -> str:
    parts = [f"PFC {_join(own.pfc)}", f"trust {own.trust or 'not told'}", f"ECN {_join(own.ecn)}"]
    if own.tclass is not None:
        parts.append(f"traffic class {own.tclass}")
    return ", ".join(parts)


def _join(priorities: tuple[int, ...] | None) -> str:
    if priorities is None:
        return "not told"
    return " ".join(map(str, priorities)) or "off"


def _remedy(rail: RdmaRail, usual: str) -> Remedy:
    interface = rail.device.interfaces[0] if rail.device.interfaces else "NAME"
    return shell_line(
        "mlnx_qos -i {name}   # then set it as on the others: {usual}", name=interface, usual=usual
    )


def _without_pfc(settings: Settings) -> dict[str, RoceQos]:
    """Return the settings with one interface without flow control, for the proof."""
    changed = dict(settings)
    name = next(iter(changed))
    changed[name] = replace(changed[name], pfc=())
    return changed


QOS = Check(
    "roce.qos",
    facts=(*FACTS, "roce.qos"),
    uses=("env.paths",),
    judge=of_ports(qos),
    severity="warning",
    title="Flow control and priorities of RoCE ports",
    why="Under load RoCE loses packets where a port or the job's traffic class is left out of flow "
    "control, and each loss is sent again after a time-out: half the rate, and no link is down.",
    how="Priorities with flow control (PFC), trust in DSCP and its table from the kernel (DCB over "
    "netlink), ecn/ and qos/ of the interface, tc/1/traffic_class of the device: equal on all "
    "RoCE ports of the training. Where some priorities have flow control and DSCP is trusted, the "
    "one of NCCL_IB_TC must be among them.",
    remedy=shell_line("mlnx_qos -i NAME; cat /sys/class/net/NAME/ecn/roce_rp/enable/*"),
    proof=Proof("roce.qos", _without_pfc, fleet="hgx-h100-roce"),
)
