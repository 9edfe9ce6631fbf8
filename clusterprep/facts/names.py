"""The addresses that each node's own resolver returns for the names of the nodes."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.colocation import one_machine
from clusterprep.model.joined import Joined

# Up to this many nodes, every node resolves every name. In a larger fleet each resolves a sample of
# about as many.
FULL_MESH_LIMIT = 64


def names_for(node: Node, inventory: Inventory) -> tuple[str, ...]:
    """Return the names this node resolves.

    They are all names in a small fleet, else its own, the first and a sample. There are none where
    all nodes are one machine: no other machine uses their names.
    """
    nodes = inventory.nodes
    if one_machine(nodes):
        return ()
    if len(nodes) <= FULL_MESH_LIMIT:
        return tuple(other.name for other in nodes)
    names = [node.name, nodes[0].name]
    names += [nodes[position].name for position in _sample(len(nodes))]
    return tuple(dict.fromkeys(names))


@functools.cache
def _sample(count: int) -> tuple[int, ...]:
    """Return random positions in an inventory of `count` nodes.

    They are the same for all nodes, so that the answers can be compared.
    """
    generator = random.Random(count)  # noqa: S311 - a fair choice, not a secret
    return tuple(generator.sample(range(count), FULL_MESH_LIMIT - 2))


def parse_names(answer: Mapping[str, Any]) -> Mapping[str, tuple[str, ...] | None]:
    """Return addresses by name, None for a name that has none."""
    names = tuple(answer)
    lists = tuple(addresses for _, addresses in answer.items())
    if not _ADDRESSES.issuperset(map(type, lists)):
        lists = tuple(map(parse_addresses, lists))
    # In a large fleet a node resolves its own name first, and then names that most resolve alike.
    return Joined(_by_name(names[:1], lists[:1]), _known_by_name(names[1:], lists[1:]))


_ADDRESSES = frozenset((tuple, type(None)))  # in which only pieces of an answer come


def _by_name(
    names: tuple[str, ...], lists: tuple[tuple[str, ...] | None, ...]
) -> Mapping[str, tuple[str, ...] | None]:
    """Return addresses by name, None for a name that has none. It must not be changed."""
    return {name: addresses or None for name, addresses in zip(names, lists, strict=True)}


# Of the nodes of a large fleet, and of those in the sample.
_known_by_name = functools.lru_cache(64)(_by_name)


def parse_addresses(answer: Any) -> tuple[str, ...] | None:
    """Return the addresses of one name, None if it has none."""
    if answer is None:
        return None
    if not isinstance(answer, list):
        raise ValueError("no list of addresses")  # noqa: TRY004 - garbled
    for address in answer:
        if not isinstance(address, str):
            raise ValueError("no list of addresses")  # noqa: TRY004 - as above
    return tuple(answer) or None


def parse_own_name(name: str, answer: Any) -> tuple[str, tuple[str, ...] | None]:
    """Return the node's host name, and its addresses by the node's own resolver."""
    return name.strip(), parse_addresses(answer)


def _name_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("resolve", names_for(node, inventory), limit=10.0),)


def _own_name_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    host_name = Read("file", ("/proc/sys/kernel/hostname",))
    return (host_name, Read("own_name", (), limit=10.0))


NAMES = Fact(
    "names.resolved",
    _name_reads,
    parse_names,
    apiece=True,
    pieces=(dict[str, tuple[str, ...] | None],),
    typed=True,
)
OWN_NAME = Fact("names.own", _own_name_reads, parse_own_name)
