"""The network that NCCL's sockets use: which interface, and its MTU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    by_value,
    failed,
    parse_count,
    passed,
    uniform,
    unknown,
)
from clusterprep.checks.ib import training_not_known
from clusterprep.facts.network import Family, Interface
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, Node, Severity
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import pluralize
from clusterprep.nccl.gids import roce_rails_by_node
from clusterprep.nccl.interfaces import (
    FAMILIES,
    FAMILY_NAMES,
    TAKEN,
    Choice,
    Pick,
    candidates,
    choose,
    has_rdma,
    may_have_rdma,
    plain,
)
from clusterprep.nccl.rails import RdmaRail, is_rdma_switched_off, training_sets
from clusterprep.remedies import Remedy, sentence, shell_line

# The headers that RoCE puts around 4096 bytes take up to 96 more (iboe_get_mtu of rdma/ib_addr.h).
ROCE_FLOOR = 4200
DECLARE = sentence(
    "name the interface of these nodes on the common network in the inventory: interfaces, nccl"
)


def iface_choice(context: CheckContext) -> Iterable[Outcome]:
    """Judge that each node has a usable interface on a network that reaches all."""
    choice = choose(context.fleet)
    judged = frozenset(context.names)
    wanted = choice.network or "an interface that reaches all nodes"
    for nodes in _alike_problems(context, _of_nodes(choice.problems, judged)):
        yield _no_interface(context, choice, nodes, wanted)
    interfaces = {name: pick.name for name, pick in choice.picks.items()}
    for interface, nodes in by_value(_of_nodes(interfaces, judged)):
        first = choice.picks[nodes[0]]
        yield Outcome(
            "pass",
            nodes,
            first.why,
            interface,
            wanted,
        )


def _of_nodes(values: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name in names}


def _alike_problems(
    context: CheckContext, problems: Mapping[str, str]
) -> Iterable[tuple[str, ...]]:
    """Yield the nodes of each problem: one is the same on two nodes but for their addresses."""
    shapes = {}
    for name, problem in problems.items():
        interfaces = context.fleet.fact(name, "net.interfaces")
        addresses: list[str] = []
        for each in interfaces:
            addresses.extend((*each.ipv4, *each.ipv6, *each.duplicates, each.link_local or ""))
        shape = problem
        for address in sorted(map(plain, filter(None, addresses)), key=len, reverse=True):
            shape = shape.replace(address, "ADDRESS")
        speaks_another = _has_another_family(interfaces, choose(context.fleet).family)
        shapes[name] = "another family" if speaks_another else shape
    for _, nodes in by_value(shapes):
        yield nodes


def _has_another_family(interfaces: tuple[Interface, ...], family: Family) -> bool:
    """Return whether only addresses of the other family could carry the sockets of a node."""
    _, other = _with_other(family)
    if candidates(tuple(interface.seen_in(family) for interface in interfaces)):
        return False
    return bool(candidates(tuple(interface.seen_in(other) for interface in interfaces)))


def _with_other(family: Family) -> tuple[Family, Family]:
    """Return a family of addresses and the other one."""
    first, second = FAMILIES
    return (family, second if family == first else first)


def _no_interface(
    context: CheckContext, choice: Choice, nodes: tuple[str, ...], wanted: str
) -> Outcome:
    """Return the failure of nodes that no interface will do on, for the same reason."""
    message = "no interface can carry NCCL's sockets"
    seen = choice.problems[nodes[0]]
    if len(nodes) > 1:
        seen = f"{nodes[0]}: {seen}; and the same on {pluralize(len(nodes) - 1, 'other node')}"
    remedy: Remedy | None = None
    if TAKEN in seen:
        remedy = sentence("give each of these nodes an address that no other machine has")
    if _has_another_family(context.fleet.fact(nodes[0], "net.interfaces"), choice.family):
        family, other = (FAMILY_NAMES[each] for each in _with_other(choice.family))
        message = f"no {family} address, which the sockets of a job use on the other nodes"
        wanted = f"an {family} address in {choice.network}" if choice.network else f"{family}"
        remedy = sentence(
            "give these nodes an {family} address in the network of the others, or all nodes an "
            "{other} address in one network: a job speaks one of the two",
            family=family,
            other=other,
        )
        if not choice.picks:
            message = f"no {family} address, which NCCL_SOCKET_FAMILY in `env:` asks for"
            remedy = sentence("take NCCL_SOCKET_FAMILY out of `env:` in the inventory")
    return Outcome("fail", nodes, message, seen, wanted, remedy)


def mtu(context: CheckContext) -> Iterable[Outcome]:
    """Judge the MTU of the chosen interface: as declared, else equal on all nodes."""
    choice = choose(context.fleet)
    severity = _severity_of_mtu(context)
    mtus: dict[str, str] = {}
    undeclared = set()
    for node in context.nodes:
        pick = choice.picks.get(node.name)
        if pick is None:
            message = "no interface is chosen, so there is no MTU to judge"
            yield unknown(node, message, "eth.iface_choice", severity=severity)
            continue
        mtus[node.name] = str(pick.mtu)
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        else:
            yield _judge_required(node, pick, wanted)
    if undeclared:
        fleet_size = len(context.inventory.nodes)
        what = "the MTU of the NCCL interface"
        for outcome in uniform(mtus, what, fleet_size, about=undeclared):
            remedy = _remedy_of_mtu(outcome, choice)
            fix = _fix_of_mtu(outcome, choice)
            yield replace(outcome, remedy=remedy, severity=severity, fix=fix)
    yield from _roce_floor(context)


def _roce_floor(context: CheckContext) -> Iterable[Outcome]:
    """Yield an outcome for RoCE ports of the training whose interface is too small for 4096."""
    sets = training_sets(context.fleet)
    rails_by_node = roce_rails_by_node(context.fleet)
    for node in context.nodes:
        training = sets[node.name]
        if isinstance(training, Absent):
            devices: tuple[RdmaDevice, ...] = context.value(node, "rdma.devices")
            if any(port.link_layer == "Ethernet" for device in devices for port in device.ports):
                yield training_not_known(node, training)
            continue
        names = _interfaces_of(rails_by_node[node.name])
        if not names:
            continue
        interfaces = context.value(node, "net.interfaces")
        small = [i for i in interfaces if i.name in names and i.mtu < ROCE_FLOOR]
        if small and not is_rdma_switched_off(node):
            seen = ", ".join(f"{interface.name} {interface.mtu}" for interface in small)
            message = "RoCE cannot send packets of 4096 bytes: the interface's MTU is too small"
            cure = set_mtu(small[0].name, "9000")
            wanted = f"{ROCE_FLOOR} or more"
            yield failed(node, message, seen, wanted, cure, severity="warning")


def _interfaces_of(rails: Iterable[RdmaRail]) -> set[str]:
    """Return the interfaces of the active ones of these ports."""
    names: set[str] = set()
    for rail in rails:
        if rail.port.active:
            names.update(gid.interface for gid in rail.port.gids if gid.interface)
            names.update(rail.device.interfaces)
    return names


def _severity_of_mtu(context: CheckContext) -> Severity:
    """Return "error" if a node has RDMA, which does not adapt to the MTU as TCP does."""
    fleet = context.fleet
    with_rdma = any(has_rdma(fleet, node) for node in fleet.reached)
    return "error" if with_rdma else "warning"


def _judge_required(node: Node, pick: Pick, wanted: str) -> Outcome:
    seen = str(pick.mtu)
    if pick.mtu == parse_mtu(wanted):
        return passed(node, f"the MTU of {pick.name} is as required", seen, wanted)
    message = f"the MTU of {pick.name} is not what the inventory requires"
    return failed(
        node,
        message,
        seen,
        wanted,
        set_mtu(pick.name, wanted),
        fix=_mtu(pick.name, wanted),
    )


def _remedy_of_mtu(outcome: Outcome, choice: Choice) -> Remedy | None:
    """Return a command for the nodes that differ; a sentence if none of their MTUs is usual."""
    if outcome.verdict != "fail":
        return None
    picks = [choice.picks[name] for name in outcome.nodes]
    if outcome.wanted.isdigit():
        return set_mtu(picks[0].name, outcome.wanted)
    sizes = [pick.mtu for pick in picks]
    return sentence(
        "choose one MTU for {names} of all nodes: {largest} if the switches carry it, else "
        "{smallest}",
        names=", ".join(sorted({pick.name for pick in picks})),
        largest=max(sizes),
        smallest=min(sizes),
    )


def _fix_of_mtu(outcome: Outcome, choice: Choice) -> Fix | None:
    """Return what gives the nodes that differ the usual MTU, if they name the interface alike."""
    if outcome.verdict != "fail" or not outcome.wanted.isdigit():
        return None
    names = {choice.picks[name].name for name in outcome.nodes}
    if len(names) > 1:
        return None
    return _mtu(names.pop(), outcome.wanted)


def _mtu(interface: str, size: str) -> Fix:
    return fix_of(wanted_state("mtu", interface=interface, size=size))


def set_mtu(interface: str, mtu: str) -> Remedy:
    """Return the line that sets an MTU until the next boot, with a note for the time after."""
    return shell_line(
        "ip link set dev {interface} mtu {mtu}   # and in the network configuration",
        interface=interface,
        mtu=mtu,
    )


def parse_mtu(text: str) -> int:
    """Parse what `require: mtu` asks for. Raises ValueError for what no interface could have."""
    return parse_count(text, "an MTU from 68 to 65535", minimum=68, maximum=65535)


IFACE = Check(
    "eth.iface_choice",
    facts=("net.interfaces",),
    judge=iface_choice,
    severity="error",
    title="One network carries NCCL's sockets on all nodes",
    why="Left alone NCCL takes the first interface that is not lo or docker; a bridge, a tunnel "
    "or a second network on one node, and ranks publish addresses that others cannot reach: a "
    "hang at start.",
    how="Interfaces that are up with a global address, without bridges, container ends and "
    "tunnels; the network that reaches all nodes wins, the fastest if there are several. IPv6 is "
    "taken where it reaches more nodes than IPv4, or as NCCL_SOCKET_FAMILY declares.",
    remedy=DECLARE,
    proof=Proof("net.interfaces", lambda found: tuple(i for i in found if i.loopback)),
)
MTU = Check(
    "eth.mtu",
    facts=("net.interfaces", "rdma.devices"),
    uses=("pci.tree",),
    judge=mtu,
    severity="warning",
    follows=("eth.iface_choice",),
    grade="a warning, an error with RDMA",
    title="The MTU of the NCCL interface",
    why="Unequal MTUs stall big messages between these nodes, with RoCE for good: small tests "
    "pass and training hangs.",
    how="/sys/class/net/*/mtu of the chosen interface, equal on all nodes or as `require: mtu` "
    "says. An error where an RDMA device is present or declared, else a warning, for TCP adapts. "
    f"Interfaces of RoCE ports that carry the training have at least {ROCE_FLOOR}, a warning: with "
    "less RoCE cannot send its largest packets of 4096 bytes.",
    remedy=shell_line("ip link set dev NAME mtu N   # and in the network configuration"),
    grave=lambda fleet, node: any(may_have_rdma(fleet, other) for other in fleet.reached),
    wants=parse_mtu,
    proof=Proof("net.interfaces", lambda found: tuple(replace(i, mtu=1400) for i in found)),
)
