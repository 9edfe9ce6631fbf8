"""Judges names: every node resolves them alike, and no name of a node is on loopback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, failed, uniform
from clusterprep.facts.names import names_for
from clusterprep.model import Node
from clusterprep.model.colocation import one_machine
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.nodeset import fold
from clusterprep.remedies import sentence

HOSTS = sentence(
    "edit /etc/hosts: one line per node, its address on the training network first, "
    "no 127.0.1.1 line"
)
NO_ADDRESS = "no address"
ON_LOOPBACK = ""  # the text of an answer that is not compared
AnswersByName = dict[str, dict[str, str]]
"""name → node that asked → addresses that it got, as text"""
Addresses = tuple[str, ...]
Resolved = Mapping[str, Addresses | None]
"""name → addresses, None for a name that has none"""


def resolve(context: CheckContext) -> Iterable[Outcome]:
    """Judge names on loopback, and names that nodes resolve differently."""
    nodes = context.inventory.nodes
    if len(nodes) < 2 or one_machine(nodes):
        # Debian's own 127.0.1.1 line does no harm if no other machine connects.
        names = context.names
        message = "there is no other machine that has to find this one"
        yield Outcome("skip", names, message, reason="not_applicable")
        return
    incomplete = _nodes_with_incomplete_answers(context)
    if incomplete:
        message = "the resolver's answer leaves out names that it was asked for"
        yield Outcome("unknown", tuple(incomplete), message, reason="garbled")
    bad = set(incomplete)
    on_loopback = set()
    every = _different_answers(context)
    others_may_be = _any_on_loopback(every)
    for node in context.nodes:
        outcome = _judge_loopback(context, node, others_may_be)
        if outcome is not None:
            on_loopback.add(node.name)
            yield outcome
    bad |= on_loopback
    for outcome in _judge_differences(context, every):
        bad.update(outcome.nodes)
        yield outcome
    unresolved = _nodes_without_own_address(context) - on_loopback
    bad |= unresolved
    if unresolved:
        # What this tool writes does not depend on the name, for GLOO_SOCKET_IFNAME is set. Other
        # launchers do depend on it.
        message = "the node's own host name does not resolve"
        seen, wanted = NO_ADDRESS, "an address"
        names = tuple(node.name for node in context.nodes if node.name in unresolved)
        yield Outcome(
            "fail",
            names,
            message,
            seen,
            wanted,
            HOSTS,
            severity="warning",
        )
    good = tuple(node.name for node in context.nodes if node.name not in bad)
    if good:
        answers = "same answers, none on loopback"
        yield Outcome(
            "pass",
            good,
            "names resolve alike",
            answers,
            answers,
        )


def _nodes_with_incomplete_answers(context: CheckContext) -> list[str]:
    """Return the nodes whose resolver left out names that it was asked for."""
    incomplete = []
    # Every node asks for what the first one asks for, and for its own name.
    asked = set(names_for(context.inventory.nodes[0], context.inventory))
    for name, answered in context.values("names.resolved").items():
        if name not in answered or not answered.keys() >= asked:
            incomplete.append(name)
    return incomplete


def _nodes_without_own_address(context: CheckContext) -> set[str]:
    """Return the nodes whose own host name does not resolve."""
    names = set()
    for name, (_, addresses) in context.values("names.own").items():
        if addresses is None:
            names.add(name)
    return names


def _different_answers(context: CheckContext) -> dict[str, set[Addresses]]:
    """Return for each name of the inventory the different answers that nodes got.

    Most nodes got the same for all names but their own, and these are looked at once.
    """
    different: dict[str, set[Addresses]] = {}
    equal: dict[object, Resolved] = {}
    for node, resolved in context.values("names.resolved").items():
        others = dict(resolved.items())
        if node in others:
            own = tuple(others.pop(node) or ())
            different.setdefault(node, set()).add(own)
        equal.setdefault((tuple(others), tuple(others.values())), others)
    for resolved in equal.values():
        for name, addresses in resolved.items():
            different.setdefault(name, set()).add(tuple(addresses or ()))
    return different


def _any_on_loopback(answers: Mapping[str, Collection[Addresses]]) -> bool:
    """Return whether some node got an address on loopback for some name of the inventory.

    As a rule there is none, and then the answers of thousands of nodes need no second look.
    """
    for answers_for_name in answers.values():
        for addresses in answers_for_name:
            if any(map(_is_loopback, addresses)):
                return True
    return False


def _judge_loopback(context: CheckContext, node: Node, others_may_be: bool) -> Outcome | None:
    """Return a failure if the node's own host name, or another node's name, is on loopback.

    The names of other nodes are looked at only if they may be there.
    """
    wanted = "an address of the training network"
    own_name, own_addresses = context.value(node, "names.own")
    for address in own_addresses or ():
        if _is_loopback(address):
            message = "its own host name resolves to loopback"
            return failed(
                node,
                message,
                f"{own_name} is {address}",
                wanted,
                HOSTS,
            )
    if not others_may_be:
        return None
    for name, addresses in context.value(node, "names.resolved").items():
        for address in addresses or ():
            if _is_loopback(address) and name != node.name:
                message = "the name of another node resolves to loopback"
                return failed(
                    node,
                    message,
                    f"{name} is {address}",
                    wanted,
                    HOSTS,
                )
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _judge_differences(
    context: CheckContext, every: Mapping[str, Collection[Addresses]]
) -> list[Outcome]:
    """Return failures for names whose addresses differ between the nodes that were asked.

    `every` has the different answers for each name. Names on loopback are judged by themselves.
    """
    fleet_size = len(context.inventory.nodes)
    differing = {name for name, answers in every.items() if len(answers) > 1}
    answers_by_name = _collect_answers(context, differing)
    names_by_nodes: dict[tuple[str, ...], list[str]] = {}
    for name, answers in answers_by_name.items():
        if name in answers:
            own = answers.pop(name)
            answers[name] = _own_answer(own, answers.values())
        if len(answers) < 2:
            continue
        for outcome in uniform(answers, name, fleet_size):
            if outcome.verdict == "fail":
                names_by_nodes.setdefault(outcome.nodes, []).append(name)
    failures = []
    for nodes, names in names_by_nodes.items():
        failure = _difference(nodes, names, answers_by_name[names[0]])
        failures.append(failure)
    return failures


def _collect_answers(context: CheckContext, names: Collection[str]) -> AnswersByName:
    """Return what each node answered for each of these names, without addresses on loopback."""
    answers: AnswersByName = {}
    if not names:
        return answers
    texts: dict[Addresses, str] = {}  # most nodes answer alike for a name
    for node in context.nodes:
        for name, addresses in context.value(node, "names.resolved").items():
            if name not in names:
                continue
            answer = tuple(addresses or ())
            if answer not in texts:
                texts[answer] = _describe_answer(answer)
            text = texts[answer]
            if text != ON_LOOPBACK:
                answers.setdefault(name, {})[node.name] = text
    return answers


def _describe_answer(addresses: Addresses) -> str:
    if any(map(_is_loopback, addresses)):
        return ON_LOOPBACK
    return ", ".join(sorted(addresses)) if addresses else NO_ADDRESS


def _own_answer(own: str, others: Collection[str]) -> str:
    """Return a node's answer for itself, or the others' answer that shares an address with it.

    systemd's resolver answers for its own host with all addresses that it has, and other nodes know
    one of them.
    """
    if own in others:
        return own
    own_addresses = set(own.split(", "))
    for other, _ in Counter(others).most_common():
        if own_addresses & set(other.split(", ")):
            return other
    return own


def _difference(nodes: tuple[str, ...], names: list[str], first_answers: dict[str, str]) -> Outcome:
    """Return the failure of `nodes` for `names`; `first_answers` are those for the first name."""
    first = names[0]
    elsewhere = "different answers"
    for node_name, answer in first_answers.items():
        if node_name not in nodes:
            elsewhere = answer
            break
    seen = f"{first} is {first_answers[nodes[0]]}; elsewhere {elsewhere}"
    subject = fold(names) if len(names) > 1 else first
    message = f"{subject} resolves differently than on the other nodes"
    return Outcome(
        "fail",
        nodes,
        message,
        seen,
        "the same address on all nodes",
        HOSTS,
    )


RESOLVE = Check(
    "name.resolve",
    facts=("names.own", "names.resolved"),
    judge=resolve,
    severity="error",
    title="Names resolve alike",
    why="gloo publishes the address of a node's own host name; Debian's 127.0.1.1 makes every "
    "other rank connect to itself and wait. A name with another address on one node sends that "
    "node to the wrong machine.",
    how="Each node's own resolver is asked for its own host name and for all names of the "
    "inventory (above 64 nodes a fixed sample of 64).",
    remedy=HOSTS,
    fix=fix_of(wanted_state("hosts")),
    proof=Proof("names.own", lambda own: (own[0], ["127.0.1.1"])),
)
