"""Several nodes that are this machine on purpose, to try a job of many nodes on one machine. Pure.

NCCL takes ranks with different host ids for ranks of different machines: it lets them share a GPU
and uses the network between them (NCCL, src/misc/utils.cc and src/init.cc). So several nodes of
`transport: local`, each with an NCCL_HOSTID of its own, are intended. That follows from the
inventory alone, because local is where this command runs.

On such nodes loopback leads to every node, an address tells nothing of a node, and where they share
a GPU no speed is judged. Each node has its own agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold

HOST_ID = "NCCL_HOSTID"


def host_ids(nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
    """Return the declared host ids, each with the names of its nodes.

    An empty id counts as none.
    """
    by_id: dict[str, list[str]] = {}
    for node in nodes:
        declared = node.env.get(HOST_ID)
        if declared is None or not declared.value:
            continue
        by_id.setdefault(declared.value, []).append(node.name)
    return {host_id: tuple(names) for host_id, names in by_id.items()}


def have_distinct_ids(nodes: Sequence[Node]) -> bool:
    """Return whether all nodes are local and each has a host id that no other of them has."""
    if any(node.transport != "local" for node in nodes):
        return False
    return len(host_ids(nodes)) == len(nodes)


def neighbours(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return those of the nodes that share this machine: two at least, or none."""
    local = tuple(node for node in nodes if node.transport == "local")
    if not one_machine(local):
        return ()
    return local


def one_machine(nodes: Sequence[Node]) -> bool:
    """Return whether there are several nodes and all are this machine.

    Then 127.0.0.1 leads to every one of them.
    """
    return len(nodes) > 1 and have_distinct_ids(nodes)


def refuse_writing(inventory: Inventory) -> None:
    """Raise InputError if nodes of one machine would write the same files, each its own values."""
    roots: dict[str, list[str]] = {}
    for node in neighbours(inventory.nodes):
        roots.setdefault(node.root, []).append(node.name)
    for root, names in roots.items():
        if len(names) < 2:
            continue
        message = (
            f"{fold(names)} are this one machine"
            f" (transport: local, each with an {HOST_ID} of its own),"
            f" so that each would overwrite what the other has below {root};"
            " verify, check and env work with them"
        )
        hint = "to write, list this machine once, or give each of them a root of its own"
        raise InputError.of(message, file=inventory.path, key="nodes", hint=hint)


def largest_group(
    nodes: Iterable[Node], gpus: Mapping[str, int], env: Mapping[str, Mapping[str, str]]
) -> int:
    """Return how many nodes of this machine share one GPU at most; 1 if none do.

    `gpus` is the number of GPUs in use per node. Which ones these are a node's CUDA_VISIBLE_DEVICES
    says, else they are the first ones.
    """
    users: dict[str, int] = {}
    for node in neighbours(nodes):
        count = gpus.get(node.name, 0)
        variables = env.get(node.name, {})
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        if visible:
            names = [name.strip() for name in visible.split(",")]
        else:
            names = [str(index) for index in range(count)]
        for name in names[:count]:
            users[name] = users.get(name, 0) + 1
    return max(users.values(), default=1)
