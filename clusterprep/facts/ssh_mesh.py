"""Which other nodes the job's user gets to by ssh, where the job needs that."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, user_of_job
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.pair_schedule import ALL_PAIRS

NAME = "ssh.mesh"  # of the check, and of its key under `require:`
LIMIT = 55.0  # seconds: forty for all tries, and some for a busy machine
MEANINGS = (
    "host key changed",
    "host key not known",
    "no key",
    "refused",
    "no route",
    "no answer",
    "no name",
    "closed",
    "other",
)


class Failure(Struct, frozen=True):
    """One way in which ssh failed, a line that it printed, and to which addresses."""

    meaning: str
    said: str
    addresses: tuple[str, ...]


class Reached(Struct, frozen=True):
    """What a node tried as `user`; `untried` are the addresses for which there was no time."""

    user: str
    tried: int
    failures: tuple[Failure, ...] = ()
    untried: tuple[str, ...] = ()


class _Members:
    """The nodes of the last inventory whose jobs need ssh between nodes.

    Reads are made for one node after the other, and the whole fleet has one inventory.
    """

    def __init__(self) -> None:
        self._inventory: Inventory | None = None
        self._nodes: tuple[Node, ...] = ()

    def of(self, inventory: Inventory) -> tuple[Node, ...]:
        if self._inventory is not inventory:
            self._nodes = tuple(node for node in inventory.nodes if NAME in node.require)
            self._inventory = inventory
        return self._nodes


_members = _Members()


def peers(node: Node, inventory: Inventory) -> tuple[Node, ...]:
    """Return the nodes that a node tries.

    All others up to ALL_PAIRS nodes. Beyond that twice the logarithm of their number, drawn by the
    name of the cluster: the nodes stand in a ring, so that each is tried as often as it tries.
    """
    nodes = _members.of(inventory)
    place = bisect.bisect_left(nodes, node.index, key=lambda one: one.index)
    count = len(nodes)
    if count <= ALL_PAIRS:
        return nodes[:place] + nodes[place + 1 :]
    draw = random.Random(inventory.cluster)  # noqa: S311 - a fair schedule, not a secret
    distances = draw.sample(range(1, count), 2 * count.bit_length())
    return tuple(nodes[(place + distance) % count] for distance in distances)


def parse_mesh(answer: Mapping[str, Any] | None = None) -> Reached | None:
    """Return what a node tried, None where nothing was asked. Raises ValueError."""
    if answer is None:
        return None
    failures = []
    for meaning, said, addresses in answer["failed"]:
        if meaning not in MEANINGS or not addresses:
            raise ValueError(f"no failure of ssh: {meaning!r:.40}")
        failures.append(Failure(meaning, _text(said), tuple(map(_text, addresses))))
    tried = answer["tried"]
    if type(tried) is not int or tried < 0:
        raise ValueError("no number of tries")
    return Reached(
        _text(answer["user"]),
        tried,
        tuple(failures),
        tuple(map(_text, answer["untried"])),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r:.40}")  # noqa: TRY004 - as every parse
    return value


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return one read for all peers of a node, none where its job needs no ssh."""
    if NAME not in node.require:
        return ()
    addresses = [peer.address for peer in peers(node, inventory)]
    if not addresses:
        return ()
    by_ssh = node.transport == "ssh"
    return (Read("ssh_mesh", (user_of_job(node), by_ssh, *addresses), limit=LIMIT),)


MESH = Fact(NAME, _reads, parse_mesh, deep=True, needs=JOB_USER, moves=True)
