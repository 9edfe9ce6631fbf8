"""What a look keeps for each node alone, of a fleet in which no two nodes answer alike."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import astuple

from benchmarks import simulated
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Fleet
from clusterprep.model.joined import Joined
from clusterprep.model.node_facts import NodeFacts
from clusterprep.survey.queries import Queries
from tests.support import grown

NODES = 600


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    path = tmp_path_factory.mktemp("fleet") / "inventory.yaml"
    path.write_text(grown.inventory_text(NODES))
    inventory = load_inventory(path)
    queries = Queries(simulated.everything(inventory), inventory)
    return grown.looked(queries, inventory, grown.Fates())


def parts_of(thing: Any) -> Iterator[Any]:
    """What an object refers to that it has for itself, if nothing else refers to it."""
    if isinstance(thing, dict):
        yield from thing
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, Joined):
        yield from (thing.own, thing.shared)
    elif isinstance(thing, NodeFacts):
        yield from (thing.places, thing.row)
    elif isinstance(thing, Struct):
        yield from astuple(thing)
    elif not isinstance(thing, type):
        yield from gc.get_referents(thing)


def own_objects(fleet: Fleet) -> list[Any]:
    """The objects of the second half of the nodes that none of the first half has."""
    nodes = list(fleet.snapshots.values())
    seen: dict[int, Any] = {}
    own: list[Any] = []
    for place, node in enumerate(nodes):
        waiting: list[Any] = [node]
        while waiting:
            thing = waiting.pop()
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            waiting.extend(parts_of(thing))
            if place >= len(nodes) // 2:
                own.append(thing)
    return own


def per_node(number: float) -> float:
    return number / (NODES // 2)


def test_a_node_has_few_objects_that_are_searched_for_cycles(fleet: Fleet) -> None:
    """Values of which a node has a dozen say `gc=False`: to search them took a tenth of a look."""
    gc.collect()  # from then on it passes by tuples of texts and numbers, too
    tracked = list(filter(gc.is_tracked, own_objects(fleet)))
    assert per_node(len(tracked)) < 32


def test_a_node_keeps_few_kilobytes_for_itself(fleet: Fleet) -> None:
    size = sum(map(sys.getsizeof, own_objects(fleet)))
    assert per_node(size) < 23_000
