"""Every node gets to every other by ssh as the job's user, where the job needs that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, passed, skipped, unknown
from clusterprep.facts.ssh_mesh import NAME, Failure, Reached
from clusterprep.model import Node
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, sentence, shell_line

SHOWN = 4  # pairs in one finding
WANTED = "a login without a password, to a host whose key is known"
_CURES: Mapping[str, Remedy] = {
    "no key": sentence("the step `ssh_mesh` of a playbook gives the job's user one key everywhere"),
    "host key not known": sentence(
        "the step `ssh_mesh` of a playbook writes the keys of all nodes"
    ),
    "host key changed": sentence(
        "compare the key on that node's console; a step `ssh_mesh` then writes it"
    ),
}

Pair = tuple[str, str]  # names: from, to


def mesh(context: CheckContext) -> Iterable[Outcome]:
    """Judge the pairs that failed, and name the node that most failures have in common."""
    names = {node.address: node.name for node in context.fleet.inventory.nodes}
    asked: dict[str, Reached] = {}
    for node in context.nodes:
        value = context.value(node, NAME)
        if value is None:
            yield skipped(node, _why_not_asked(node))
        else:
            asked[node.name] = value
    tried = _tries(asked)
    failed_pairs: dict[str, dict[Pair, tuple[str, str]]] = {}
    for dialer, value in asked.items():
        for failure in value.failures:
            pairs = failed_pairs.setdefault(failure.meaning, {})
            for address in failure.addresses:
                pair = (dialer, names.get(address, address))
                pairs[pair] = (failure.said, address)
    blamed: set[str] = set()
    for meaning, pairs in sorted(failed_pairs.items()):
        outcome = _judge(context, asked, meaning, pairs, tried)
        blamed.update(outcome.nodes)
        yield outcome
    for node in context.nodes:
        if node.name in asked:
            yield from _rest(node, asked[node.name], node.name in blamed)


def _why_not_asked(node: Node) -> str:
    if NAME in node.require:
        return "there is no other node to get to"
    return f"no job that needs it is declared: `require: {{{NAME}: yes}}`"


def _tries(asked: Mapping[str, Reached]) -> dict[str, int]:
    return {name: value.tried for name, value in asked.items()}


def _judge(
    context: CheckContext,
    asked: Mapping[str, Reached],
    meaning: str,
    pairs: Mapping[Pair, tuple[str, str]],
    tried: Mapping[str, int],
) -> Outcome:
    """Return the failure of all pairs that fail in one way."""
    culprits = _culprits(pairs, tried)
    rows = []
    for (dialer, listener), (said, _) in list(pairs.items())[:SHOWN]:
        rows.append(f"{dialer} to {listener}: {said}")
    more = f", and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    (dialer, _), (_, address) = next(iter(pairs.items()))
    user = asked[dialer].user
    message = f"{user} does not get from node to node by ssh: {meaning}"
    attempt = shell_line(
        "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {address} true   # as {user} on {node}",
        address=address,
        user=user,
        node=dialer,
    )
    known = [name for name in culprits if name in context.fleet.snapshots]
    return Outcome(
        "fail",
        tuple(known) or (dialer,),
        message,
        "; ".join(rows) + more,
        WANTED,
        _CURES.get(meaning, attempt),
    )


def _culprits(pairs: Mapping[Pair, tuple[str, str]], tried: Mapping[str, int]) -> list[str]:
    """Return the nodes from which, or to which, most tries fail; all nodes of the pairs if none.

    A node that fails with most others is at fault, and not those that it fails with.
    """
    failed_from = Counter(dialer for dialer, _ in pairs)
    failed_to = Counter(listener for _, listener in pairs)
    guilty = set()
    for name, count in failed_from.items():
        if 2 * count > tried.get(name, 0):
            guilty.add(name)
    for name, count in failed_to.items():
        # Each node is tried as often as it tries itself.
        if 2 * count > tried.get(name, len(pairs)):
            guilty.add(name)
    if not guilty or 2 * len(guilty) > len(tried):
        return list(dict.fromkeys([*failed_from, *failed_to]))
    culprits = set(guilty)
    for pair in pairs:
        if guilty.isdisjoint(pair):  # what no guilty node explains
            culprits.update(pair)
    return sorted(culprits)


def _rest(node: Node, value: Reached, is_blamed: bool) -> Iterable[Outcome]:
    """Yield that a node is well, or that there was no time to find out."""
    if value.untried:
        message = f"there was no time to try {fold(value.untried)}"
        yield unknown(node, message, "timed_out", pluralize(value.tried, "node") + " tried", WANTED)
    elif not is_blamed and not value.failures:
        seen = f"{pluralize(value.tried, 'node')} as {value.user}"
        yield passed(node, "the job's user gets to the other nodes by ssh", seen, WANTED)


def parse_wanted(text: str) -> str:
    """Return «yes», the only value of `require: {ssh.mesh: yes}`. Raises ValueError."""
    if text.lower() != "yes":
        raise ValueError(f"expected yes; seen '{text}'")
    return "yes"


def _bad(value: Reached | None) -> Reached:
    """Return what a node says whose user has no key."""
    said = "trainer@10.0.0.9: Permission denied (publickey)."
    return Reached("trainer", 1, (Failure("no key", said, ("10.0.0.9",)),))


CHECK = Check(
    NAME,
    facts=(NAME,),
    judge=mesh,
    severity="error",
    title="Nodes reach each other by ssh",
    why="mpirun and the launchers of DeepSpeed start ranks by ssh from node to node. One pair "
    "without a login ends the job, or leaves it waiting for a password.",
    how="Only where `require: {ssh.mesh: yes}` says that the job needs it. Every node runs the "
    "system's ssh as job_user to the address of every other one, above 64 nodes to a share of them "
    "drawn by the name of the cluster: BatchMode, StrictHostKeyChecking=yes, 5 s to connect, four "
    "at a time, the command is `true`. Nothing is written, not even known_hosts.",
    remedy=shell_line("ssh -o BatchMode=yes -o StrictHostKeyChecking=yes ADDRESS true"),
    wants=parse_wanted,
    proof=Proof(NAME, _bad),
)
