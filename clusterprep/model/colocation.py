"""Several nodes that are this machine on purpose, so that a job of many nodes can be tried on one. Pure.

NCCL takes ranks with different host ids for ranks of different machines: it lets them share a GPU and talks over the
network between them (NCCL, src/misc/utils.cc and src/init.cc). So nodes of `transport: local` of which each declares
an NCCL_HOSTID of its own are meant. That follows from the inventory alone, since local is where this command runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold

HOST_ID = "NCCL_HOSTID"


def host_ids(nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
    """The host ids that are declared, each with its nodes; an empty one is none."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if HOST_ID in node.env and node.env[HOST_ID].value:
            found.setdefault(node.env[HOST_ID].value, []).append(node.name)
    return {value: tuple(names) for value, names in found.items()}


def have_distinct_ids(nodes: Sequence[Node]) -> bool:
    """Whether these nodes may be one machine: all are local, and each has a host id that no other of them has."""
    return all(node.transport == "local" for node in nodes) and len(host_ids(nodes)) == len(nodes)


def neighbours(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Of some nodes those that share this machine: two at least, or none."""
    local = tuple(node for node in nodes if node.transport == "local")
    return local if len(local) > 1 and have_distinct_ids(local) else ()


def one_machine(nodes: Sequence[Node]) -> bool:
    """Whether there are several nodes and all of them are this machine: loopback then leads to every one."""
    return len(nodes) > 1 and have_distinct_ids(nodes)


def refuse_writing(inventory: Inventory) -> None:
    """Raises InputError where nodes of one machine would write the same files, each its own environment."""
    roots: dict[str, list[str]] = {}
    for node in neighbours(inventory.nodes):
        roots.setdefault(node.root, []).append(node.name)
    for root, names in roots.items():
        if len(names) > 1:
            message = f"{fold(names)} are this one machine (transport: local, each with an {HOST_ID} of its own), so that"
            message += f" each would overwrite what the other has below {root}; verify, check and env work with them"
            hint = "to write, list this machine once, or give each of them a root of its own"
            raise InputError.of(message, file=inventory.path, key="nodes", hint=hint)


def largest_group(
    nodes: Iterable[Node], gpus: Mapping[str, int], env: Mapping[str, Mapping[str, str]]
) -> int:
    """How many nodes of this machine share one GPU at most; 1 where none do.

    `gpus` is the number in use per node. A node's environment says which they are, else they are the first ones.
    """
    users: dict[str, int] = {}
    for node in neighbours(nodes):
        count, visible = (
            gpus.get(node.name, 0),
            env.get(node.name, {}).get("CUDA_VISIBLE_DEVICES", ""),
        )
        named = (
            [name.strip() for name in visible.split(",")]
            if visible
            else [str(index) for index in range(count)]
        )
        for name in named[:count]:
            users[name] = users.get(name, 0) + 1
    return max(users.values(), default=1)
