"""Check a whole inventory against its schema.

Entries of the same shape are judged once, since those of a fleet are mostly alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.schema import check_against_schema
from clusterprep.inventory.yaml_tree import Place

_FREE = frozenset({"name", "address"})  # the schema allows any text that is not empty
_FREE_INSIDE = frozenset({"env", "require"})  # mappings with any texts
_SECTIONS = frozenset(
    {"env", "require", "groups", "silence", "ssh", "interfaces", "ports", "verify"}
    | {"endpoints", "shared", "runtime", "plugins"}
)


def valid_part(document: Document) -> dict[str, Any]:
    """Return what the schema allows of the document's data.

    Everything else is complained about and left out. An item of a list is replaced by None, so that
    the others keep their places.
    """
    data: dict[str, Any] = document.data
    _drop_empty_sections(data)
    originals: dict[Place, list[Place]] = {}
    judged = dict(data)
    entries = data.get("nodes")
    if isinstance(entries, list):
        judged["nodes"], originals = _one_of_each_shape(entries)
    invalid = check_against_schema(document, "inventory", judged, originals)
    _remove(data, invalid)
    return data


def _drop_empty_sections(data: dict[str, Any]) -> None:
    """Drop sections without a value: a user who comments out all their lines makes no mistake."""
    layers: list[Any] = [data]
    entries = data.get("nodes")
    if isinstance(entries, list):
        layers.extend(entries)
    groups = data.get("groups")
    if isinstance(groups, dict):
        layers.extend(groups.values())
    for layer in layers:
        if not isinstance(layer, dict):
            continue
        for key in _SECTIONS & layer.keys():
            if layer[key] is None:
                del layer[key]


def _one_of_each_shape(entries: list[Any]) -> tuple[list[Any], dict[Place, list[Place]]]:
    """Return one entry of each shape, and the places of all entries of that shape.

    The places are found by that of the one entry in the list that is returned.
    """
    places_by_shape: dict[str, list[Place]] = {}
    representatives: list[Any] = []
    for number, entry in enumerate(entries):
        place: Place = ("nodes", number)
        shape = _shape(entry)
        if shape in places_by_shape:
            places_by_shape[shape].append(place)
        else:
            places_by_shape[shape] = [place]
            representatives.append(entry)
    originals: dict[Place, list[Place]] = {}
    for number, places in enumerate(places_by_shape.values()):
        originals["nodes", number] = places
    return representatives, originals


def _shape(entry: Any) -> str:
    """Return a text that is equal for two entries exactly if the schema cannot distinguish them."""
    if not isinstance(entry, dict):
        return repr(entry)
    return repr([(key, _blank(key, value)) for key, value in entry.items()])


def _blank(key: str, value: Any) -> Any:
    """Return a value with True in place of texts that the schema does not look at."""
    if key in _FREE and value and isinstance(value, str):
        return True
    if key in _FREE_INSIDE and isinstance(value, Mapping):
        return {name: isinstance(text, str) or text for name, text in value.items()}
    return value


def _remove(data: Any, places: Iterable[Place]) -> None:
    """Remove the values at these places; an item of a list is replaced by None."""
    # The deepest first: their parents are still there.
    for place in sorted(set(places), key=len, reverse=True):
        if not place:
            continue
        parent = _at(data, place[:-1])
        step = place[-1]
        if isinstance(parent, dict):
            parent.pop(step, None)
        elif isinstance(parent, list) and isinstance(step, int):
            parent[step] = None


def _at(data: Any, place: Place) -> Any:
    """Return the value at a place."""
    for step in place:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int):
            data = data[step]
    return data
