"""The network that NCCL's sockets use: which interface, and its MTU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, by_value, uniform
from clusterprep.model import Severity
from clusterprep.nccl.interfaces import Choice, choose, has_rdma, may_have_rdma

DECLARE = "set `interfaces: {nccl: NAME}` for these nodes in the inventory"


def iface_choice(context: CheckContext) -> Iterable[Outcome]:
    """One usable interface per node on a network that reaches all."""
    choice = choose(context.fleet)
    asked = {node.name for node in context.nodes}
    wanted = choice.network or "an interface that reaches all nodes"
    for problem, nodes in by_value({n: p for n, p in choice.problems.items() if n in asked}):
        yield Outcome("fail", nodes, "no interface can carry NCCL's sockets", problem, wanted)
    for name, nodes in by_value({n: pick.name for n, pick in choice.picks.items() if n in asked}):
        yield Outcome("pass", nodes, choice.picks[nodes[0]].why, name, wanted)


def mtu(context: CheckContext) -> Iterable[Outcome]:
    """Of the chosen interface: as declared, else equal on all nodes."""
    choice = choose(context.fleet)
    grave = any(has_rdma(context.fleet, node) for node in context.fleet.reached)
    severity: Severity = "error" if grave else "warning"
    mtus, undeclared = {}, set()
    for node in context.nodes:
        pick = choice.picks.get(node.name)
        if pick is None:
            message = "no interface is chosen, so there is no MTU to judge"
            yield Outcome(
                "unknown", (node.name,), message, reason="eth.iface_choice", severity=severity
            )
            continue
        mtus[node.name] = str(pick.mtu)
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
            continue
        good = pick.mtu == int(wanted)
        message = f"the MTU of {pick.name} is {'as required' if good else 'not what the inventory requires'}"
        cure = f"ip link set dev {pick.name} mtu {wanted}   # and in the network configuration"
        yield Outcome(
            "pass" if good else "fail", (node.name,), message, str(pick.mtu), wanted, cure
        )
    if undeclared:
        size = len(context.inventory.nodes)
        compared = uniform(mtus, "the MTU of the NCCL interface", size, about=undeclared)
        yield from (_with(outcome, severity, choice) for outcome in compared)


def parse_mtu(text: str) -> int:
    """What `require: mtu` asks for. Raises ValueError for what no interface could have."""
    if not (text.isascii() and text.isdigit() and 68 <= int(text) <= 65535):
        raise ValueError(f"expected an MTU from 68 to 65535; seen '{text}'")
    return int(text)


def _with(outcome: Outcome, severity: Severity, choice: Choice) -> Outcome:
    cure = None
    if outcome.verdict == "fail" and outcome.wanted.isdigit():
        name = choice.picks[outcome.nodes[0]].name
        cure = f"ip link set dev {name} mtu {outcome.wanted}   # and in the network configuration"
    return Outcome(
        outcome.verdict,
        outcome.nodes,
        outcome.message,
        outcome.seen,
        outcome.wanted,
        cure,
        outcome.reason,
        severity,
    )


IFACE = Check(
    "eth.iface_choice",
    facts=("net.interfaces",),
    judge=iface_choice,
    severity="error",
    title="One network carries NCCL's sockets on all nodes",
    why="Left alone NCCL takes the first interface that is not lo or docker; a bridge, a tunnel or a second network on "
    "one node, and ranks publish addresses that others cannot reach: a hang at start.",
    how="Interfaces that are up with a global IPv4 address, without bridges, container ends and tunnels; the network "
    "that reaches all nodes wins, the fastest if there are several.",
    remedy=DECLARE,
    proof=Proof("net.interfaces", lambda found: tuple(i for i in found if i.loopback)),
)
MTU = Check(
    "eth.mtu",
    facts=("net.interfaces", "rdma.devices"),
    judge=mtu,
    severity="warning",
    title="The MTU of the NCCL interface",
    why="Unequal MTUs stall big messages between these nodes, with RoCE for good: small tests pass and training hangs.",
    how="/sys/class/net/*/mtu of the chosen interface, equal on all nodes or as `require: mtu` says. An error where an "
    "RDMA device is present or declared, else a warning, for TCP adapts.",
    remedy="ip link set dev NAME mtu N   # and in the network configuration",
    grave=lambda fleet, node: any(may_have_rdma(fleet, other) for other in fleet.reached),
    wants=parse_mtu,
    proof=Proof("net.interfaces", lambda found: tuple(replace(i, mtu=1400) for i in found)),
)
