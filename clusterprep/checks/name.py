"""Names: the same answer on every node, and nobody's own name on loopback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof, uniform
from clusterprep.facts.names import names_for
from clusterprep.model import Node
from clusterprep.model.colocation import one_machine
from clusterprep.model.nodeset import fold

HOSTS = "edit /etc/hosts: one line per node, its address on the training network first, no 127.0.1.1 line"


def resolve(context: CheckContext) -> Iterable[Outcome]:
    """Any node's name on loopback fails; so does one that nodes resolve differently, blamed on the minority."""
    nodes = context.inventory.nodes
    if len(nodes) < 2 or one_machine(nodes):
        # Debian's own 127.0.1.1 line does no harm while nobody else connects.
        names = tuple(node.name for node in context.nodes)
        yield Outcome(
            "skip",
            names,
            "there is no other machine that has to find this one",
            reason="not_applicable",
        )
        return
    silent = tuple(
        n.name
        for n in context.nodes
        if set(names_for(n, context.inventory)) - set(context.value(n, "names.resolved"))
    )
    if silent:
        yield Outcome(
            "unknown",
            silent,
            "the resolver's answer leaves out names that it was asked for",
            reason="garbled",
        )
    wrong = {
        node.name: trouble for node in context.nodes if (trouble := _on_loopback(context, node))
    }
    differing = _differing(context)
    unresolved = tuple(
        n.name
        for n in context.nodes
        if context.value(n, "names.own")[1] is None and n.name not in wrong
    )
    for node_name, (seen, message) in wrong.items():
        yield Outcome(
            "fail", (node_name,), message, seen, "an address of the training network", HOSTS
        )
    yield from differing
    bad = {*wrong, *silent, *unresolved} | {node for outcome in differing for node in outcome.nodes}
    if unresolved:
        # Nothing we write depends on the name: GLOO_SOCKET_IFNAME is set. Launchers of others do depend on it.
        message = "the node's own host name does not resolve"
        yield Outcome(
            "fail", unresolved, message, "no address", "an address", HOSTS, severity="warning"
        )
    good = tuple(node.name for node in context.nodes if node.name not in bad)
    if good:
        yield Outcome(
            "pass",
            good,
            "names resolve alike",
            "same answers, none on loopback",
            "same answers, none on loopback",
        )


def _on_loopback(context: CheckContext, node: Node) -> tuple[str, str] | None:
    """What is seen and what it means: the node's own host name, or another node's name, is on loopback."""
    name, own = context.value(node, "names.own")
    for address in own or ():
        if _loopback(address):
            return f"{name} is {address}", "its own host name resolves to loopback"
    for other, addresses in context.value(node, "names.resolved").items():
        for address in addresses or ():
            if other != node.name and _loopback(address):
                return f"{other} is {address}", "the name of another node resolves to loopback"
    return None


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _differing(context: CheckContext) -> list[Outcome]:
    """Names whose addresses are not the same on all nodes that were asked.

    Loopback is judged by itself.
    """
    asked: dict[str, dict[str, str]] = {}
    for node in context.nodes:
        for name, addresses in context.value(node, "names.resolved").items():
            if not any(_loopback(address) for address in addresses or ()):
                asked.setdefault(name, {})[node.name] = (
                    ", ".join(sorted(addresses)) if addresses else "no address"
                )
    outcomes: dict[tuple[str, ...], list[str]] = {}
    for name, answers in asked.items():
        if name in answers:
            answers[name] = _for_itself(answers.pop(name), answers.values())
        for outcome in (
            uniform(answers, name, len(context.inventory.nodes)) if len(answers) > 1 else ()
        ):
            if outcome.verdict == "fail":
                outcomes.setdefault(outcome.nodes, []).append(name)
    return [_one(context, nodes, names, asked) for nodes, names in outcomes.items()]


def _for_itself(own: str, others: Collection[str]) -> str:
    """A node's answer for itself, or that of others with which it shares an address.

    systemd's resolver answers for its own host with all addresses that it has, and others know one of them.
    """
    alike = (
        other
        for other, _ in Counter(others).most_common()
        if set(other.split(", ")) & set(own.split(", "))
    )
    return own if own in others else next(alike, own)


def _one(
    context: CheckContext,
    nodes: tuple[str, ...],
    names: list[str],
    asked: dict[str, dict[str, str]],
) -> Outcome:
    first = names[0]
    others = next((a for n, a in asked[first].items() if n not in nodes), "different answers")
    seen = f"{first} is {asked[first][nodes[0]]}; elsewhere {others}"
    message = (
        f"{fold(names) if len(names) > 1 else first} resolves differently than on the other nodes"
    )
    return Outcome("fail", nodes, message, seen, "the same address on all nodes", HOSTS)


RESOLVE = Check(
    "name.resolve",
    facts=("names.own", "names.resolved"),
    judge=resolve,
    severity="error",
    title="Names resolve alike",
    why="gloo publishes the address of a node's own host name; Debian's 127.0.1.1 makes every other rank connect to "
    "itself and wait. A name with another address on one node sends that node to the wrong machine.",
    how="Each node's own resolver is asked for its own host name and for all names of the inventory (above 64 nodes a "
    "fixed sample of 64).",
    remedy=HOSTS,
    proof=Proof("names.own", lambda own: (own[0], ["127.0.1.1"])),
)
