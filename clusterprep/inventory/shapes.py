"""The schema check of a whole inventory: equal-looking entries are judged once, since fleets repeat themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.schema import check
from clusterprep.inventory.yaml_tree import Place

_FREE = frozenset({"name", "address"})  # any text will do for the schema
_FREE_INSIDE = frozenset({"env", "require"})
_SECTIONS = frozenset(
    {"env", "require", "groups", "silence", "ssh", "interfaces", "ports", "verify"}
)


def valid_part(document: Document) -> dict[str, Any]:
    """What the schema allows of the document's data. Everything else has been complained about and is left out.

    An entry of a list that had to go leaves None behind, so that the others keep their places.
    """
    data: dict[str, Any] = document.data
    _drop_empty_sections(data)
    where: dict[Place, list[Place]] = {}
    judged = dict(data)
    if isinstance(entries := data.get("nodes"), list):
        judged["nodes"], where = _distinct(entries)
    _remove(data, check(document, "inventory", judged, where))
    return data


def _drop_empty_sections(data: dict[str, Any]) -> None:
    """A section of which every line is commented out says nothing, which is no mistake."""
    entries, groups = data.get("nodes"), data.get("groups")
    layers = [data, *(entries if isinstance(entries, list) else ())]
    layers += groups.values() if isinstance(groups, dict) else ()
    for layer in layers:
        if isinstance(layer, dict):
            for key in _SECTIONS & layer.keys():
                if layer[key] is None:
                    del layer[key]


def _distinct(entries: list[Any]) -> tuple[list[Any], dict[Place, list[Place]]]:
    """One entry of each shape, and where the entries of that shape stand."""
    places: dict[str, list[Place]] = {}
    kept: list[Any] = []
    for number, entry in enumerate(entries):
        shape = _shape(entry)
        if shape not in places:
            places[shape] = []
            kept.append(entry)
        places[shape].append(("nodes", number))
    return kept, {("nodes", number): found for number, found in enumerate(places.values())}


def _shape(entry: Any) -> str:
    """Equal for two entries exactly if the schema cannot tell them apart."""
    if not isinstance(entry, dict):
        return repr(entry)
    return repr([(key, _blank(key, value)) for key, value in entry.items()])


def _blank(key: str, value: Any) -> Any:
    if key in _FREE and value and isinstance(value, str):
        return True
    if key in _FREE_INSIDE and isinstance(value, Mapping):
        return {name: isinstance(text, str) or text for name, text in value.items()}
    return value


def _remove(data: Any, places: Iterable[Place]) -> None:
    for place in sorted(set(places), key=len, reverse=True):
        parent = _at(data, place[:-1]) if place else None
        if isinstance(parent, dict):
            parent.pop(place[-1], None)
        elif isinstance(parent, list) and isinstance(place[-1], int):
            parent[place[-1]] = None


def _at(data: Any, place: Place) -> Any:
    for step in place:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int):
            data = data[step]
    return data
