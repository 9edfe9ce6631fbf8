"""Judges ports: the rendezvous port is free, and every node reaches it and the other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.dials import Dials, dials_of
from clusterprep.checks.neigh import raise_limits
from clusterprep.checks.pair_causes import Explanation, explain
from clusterprep.facts.pairs import TABLE, Listen, TableWhileDialling
from clusterprep.model import Absent
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, Word, placed, shell_line

OPEN = shell_line(
    "nft list ruleset   # and the security group: allow TCP PORT and the ephemeral range "
    "between the nodes"
)


def ports(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether the rendezvous port is free, and whether nodes reach it and each other."""
    number = context.inventory.master_port
    rendezvous = f"the rendezvous port {number} free"
    wanted = f"{rendezvous}; all nodes reach it and the ephemeral ports"
    blamed: set[str] = set()
    port_is_taken = False
    for node in context.nodes:
        listen: Listen | None = context.value(node, "net.listen")
        if listen is not None and listen.word != "ok":
            port_is_taken = True
            blamed.add(listen.host)
            yield _port_taken(listen, wanted)
    dials = dials_of(context)
    tables = _tables(context)
    for explanation in explain(dials.all, context.inventory.groups, tables, dials.failed):
        blamed.update(explanation.nodes)
        blamed.update(dial.dialer for dial in explanation.failed)
        yield _failure(context, explanation, tables, wanted)
    if not port_is_taken:
        # Otherwise it cannot be told whether the other nodes would get through to that port.
        yield from _reachable(context, dials, blamed, wanted)


def _tables(context: CheckContext) -> dict[str, TableWhileDialling]:
    """Return the tables of neighbours of the nodes that know theirs."""
    tables = {}
    for name, table in context.values(TABLE.name).items():
        if not isinstance(table, Absent):
            tables[name] = table
    return tables


def _reachable(
    context: CheckContext, dials: Dials, blamed: set[str], wanted: str
) -> Iterable[Outcome]:
    """Return the outcomes of nodes that nothing is known against."""
    others = [node.name for node in context.nodes if node.name not in blamed]
    if len(context.inventory.nodes) == 1:
        if others:
            message = "the rendezvous port can be opened, and there is no other node"
            yield Outcome("pass", tuple(others), message, "open", wanted)
        return
    good = [name for name in others if name in dials.ends]
    untried = [name for name in others if name not in dials.ends]
    if untried:
        message = "it could dial no other node, and none dialled it"
        reason = "no other node was tried"
        yield Outcome("unknown", tuple(untried), message, wanted=wanted, reason=reason)
    if good:
        tried = dials.describe_tried(len(context.inventory.nodes))
        message = "the rendezvous port and the others' ephemeral ports can be reached"
        yield Outcome(
            "pass",
            tuple(good),
            message,
            f"open; {tried}",
            wanted,
        )


def _port_taken(listen: Listen, wanted: str) -> Outcome:
    """Return the failure of the node that could not listen on the rendezvous port."""
    state = "in use" if listen.word == "in_use" else listen.word
    seen = f"port {listen.port} is {state}"
    if listen.owner:
        seen = f"{seen} by {listen.owner}"
    cure = shell_line(
        "ss -ltnp {filter}   # end that process, or set ports: {{master: …}}",
        filter=f"sport = :{listen.port}",
    )
    message = "the rendezvous port cannot be opened"
    return Outcome(
        "fail",
        (listen.host,),
        message,
        seen,
        wanted,
        cure,
    )


def _failure(
    context: CheckContext,
    explanation: Explanation,
    tables: Mapping[str, TableWhileDialling],
    wanted: str,
) -> Outcome:
    """Return the failure of one explanation."""
    if explanation.kind == "table":
        return _full_table(context, explanation, tables, wanted)
    cure = _open_ports(context, explanation)
    if explanation.kind == "pair":
        return _unreachable_pair(explanation, wanted, cure)
    if explanation.kind == "nodes" and len(explanation.nodes) == len(explanation.roles) == 1:
        return _unreachable(explanation, wanted, cure)
    return Outcome(
        "fail",
        explanation.nodes,
        _message(explanation),
        f"{_counts(explanation)}, such as {_example(context, explanation)}",
        wanted,
        cure,
    )


def _full_table(
    context: CheckContext,
    explanation: Explanation,
    tables: Mapping[str, TableWhileDialling],
    wanted: str,
) -> Outcome:
    """Return the failure of nodes whose kernel had no place for a neighbour."""
    full = [tables[name] for name in explanation.nodes]
    most = min(table.most for table in full)
    refused = max(table.refused for table in full)
    # Namespaces of one host share its table, so the entries say more than the number of nodes.
    needed = max(len(context.inventory.nodes), *(table.entries for table in full))
    is_ipv6 = any(table.is_ipv6 for table in full)
    kind = "IPv6 neighbours" if is_ipv6 else "neighbours"
    message = f"the kernel's table of {kind} is full, so nodes cannot be reached: see net.neigh"
    seen = f"gc_thresh3 {most}, no place {refused:,} times while dialling; {_counts(explanation)}"
    return Outcome(
        "fail",
        explanation.nodes,
        message,
        seen,
        wanted,
        raise_limits(needed, most, is_ipv6),
    )


def _counts(explanation: Explanation) -> str:
    return f"{len(explanation.failed):,} of {explanation.tried:,} dials fail"


def _example(context: CheckContext, explanation: Explanation) -> str:
    """Return the failed dial of the first dialer of the inventory."""
    position = {node.name: node.index for node in context.inventory.nodes}
    dial = min(
        explanation.failed,
        key=lambda dial: (position.get(dial.dialer, 0), position.get(dial.listener, 0)),
    )
    return f"{dial.dialer} to {dial.endpoint} {dial.word.replace('_', ' ')}"


def _message(explanation: Explanation) -> str:
    """Return what many failed dials have in common."""
    subjects = explanation.subjects
    kind = explanation.kind
    if kind == "everywhere":
        return "no node reaches another"
    if kind == "between":
        return f"{subjects[0]} and {subjects[1]} do not reach each other"
    if kind == "apart":
        return f"{subjects[0]} and the other nodes do not reach each other"
    if kind == "ports":
        return f"ports {subjects[0]} to {subjects[1]} are reached on no node"
    if kind == "nodes":
        return _message_of_nodes(explanation)
    if subjects:
        return f"{subjects[0]} and some other nodes do not reach each other"
    return "pairs do not reach each other that have no node, group or port in common"


def _message_of_nodes(explanation: Explanation) -> str:
    nodes = pluralize(len(explanation.nodes), "node")
    if len(explanation.nodes) == 1:
        nodes = explanation.nodes[0]
    if explanation.subjects:
        nodes = f"{nodes}, which are {explanation.subjects[0]},"
    if explanation.roles == ("listener",):
        return f"{nodes} cannot be reached by the others"
    if explanation.roles == ("dialer",):
        return f"{nodes} cannot reach the others"
    return f"{nodes} cannot reach the others, nor be reached by them"


def _open_ports(context: CheckContext, explanation: Explanation) -> Remedy:
    """Return what to allow: the rendezvous port and the ephemeral range, or a range that is closed.

    The ports that were dialled are drawn from the ephemeral range and mean nothing by themselves.
    """
    port: Word = context.inventory.master_port
    if explanation.kind == "ports":
        port = f"{explanation.subjects[0]} to {explanation.subjects[1]}"
    return placed(OPEN, PORT=port)


def _unreachable_pair(explanation: Explanation, wanted: str, cure: Remedy) -> Outcome:
    """Return the failure of two nodes, in one direction or in both."""
    first = explanation.failed[0]
    one_of_direction = {dial.dialer: dial for dial in reversed(explanation.failed)}
    seen = []
    for dialer in sorted(one_of_direction, key=explanation.nodes.index):
        dial = one_of_direction[dialer]
        word = dial.word.replace("_", " ")
        seen.append(f"{dialer} to {dial.endpoint} {word}")
    message = f"{first.dialer} cannot reach {first.listener} at {first.endpoint}"
    if len(seen) > 1:
        message = f"{first.dialer} and {first.listener} cannot reach each other"
    return Outcome(
        "fail",
        explanation.nodes,
        message,
        "; ".join(seen),
        wanted,
        cure,
    )


def _unreachable(explanation: Explanation, wanted: str, cure: Remedy) -> Outcome:
    """Return the failure of a listener or of a dialer."""
    first = explanation.failed[0]
    dialers = set()
    listeners = set()
    failures = set()
    for dial in explanation.failed:
        dialers.add(dial.dialer)
        listeners.add(dial.listener)
        failures.add(dial.word.replace("_", " "))
    endpoint = first.endpoint
    seen = f"{endpoint} {', '.join(sorted(failures))}"
    if explanation.roles == ("listener",):
        message = f"{pluralize(len(dialers), 'node')} cannot reach {first.listener} at {endpoint}"
    else:
        message = f"{first.dialer} cannot reach {pluralize(len(listeners), 'listener')}"
    return Outcome(
        "fail",
        explanation.nodes,
        message,
        seen,
        wanted,
        cure,
    )


PORTS = Check(
    "net.ports",
    facts=("net.listen", "net.dials"),
    uses=(TABLE.name,),
    judge=ports,
    severity="error",
    follows=("eth.iface_choice", "net.firewall", "net.neigh"),
    title="The rendezvous port is free, and the nodes reach each other",
    why="All ranks meet at one host and port, and then connect to each other on ports that each "
    "node's kernel chooses. If one is taken or filtered they wait until a time-out of half an hour "
    "says nothing about ports.",
    how="The agent of the first node listens on the rendezvous port at the address that NCCL would "
    "use and every other node dials it. Every agent also listens for a moment on three ports of "
    "its ephemeral range, one in each third of it, and the others dial these in turn: a firewall "
    "that is open for part of the range is met. All directed pairs are dialled up to 64 nodes. "
    "Above that it is a sample, drawn with a fixed seed: twice the logarithm of their number for "
    "each node as dialer and as listener, some from each group to each other one, and more around "
    "what failed; the report says how many, and docs/why/performance.md what it finds. What gives "
    "no answer within three seconds is dialled eight times more. Failures with a cause in common "
    "are one: a table of neighbours that was full meanwhile, groups, a range of ports, nodes.",
    remedy=placed(OPEN, PORT=29500),
    proof=Proof(
        "net.dials", lambda dials: tuple(replace(dial, word="timed_out") for dial in dials)
    ),
)
