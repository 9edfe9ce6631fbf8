"""Groups of nodes: the nodes that each holds, and where two of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.layers import Layer, read_layer
from clusterprep.inventory.schema import shown_value
from clusterprep.model import Gpus
from clusterprep.model.nodeset import fold, select

# A key of `Layer.flat`, a group, and a later group that sets it differently.
_Conflict = tuple[str, str, str]


class Groups:
    """The groups of an inventory by name, in file order.

    `names` are those of all nodes, and `complete` is false if some of them could not be read.
    """

    def __init__(
        self, document: Document, declared: Mapping[str, Any], names: Sequence[str], complete: bool
    ) -> None:
        self.document = document
        self.layers: dict[str, Layer] = {}
        for name, group in declared.items():
            place = ("groups", name)
            self.layers[name] = read_layer(document, group, place, f"group {name}")
        self.members: dict[str, tuple[str, ...]] = {}
        self._groups_of: dict[str, list[str]] = {}
        for name, group in declared.items():
            if "nodes" in group:
                members = self._members(name, group["nodes"], names, complete)
                self.members[name] = members
                for node in members:
                    self._groups_of.setdefault(node, []).append(name)

    def of(self, node: str) -> tuple[str, ...]:
        """Return the groups of a node, in file order."""
        return tuple(self._groups_of.get(node, ()))

    def layers_of(self, groups: Iterable[str]) -> list[Layer]:
        return [self.layers[name] for name in groups]

    def _members(
        self, group: str, text: str, names: Sequence[str], complete: bool
    ) -> tuple[str, ...]:
        """Return the nodes that `text` selects.

        While `names` is not complete, unknown ones are no mistake: they may be in an entry of
        `nodes` that could not be read.
        """
        try:
            return tuple(select(text, names, missing_ok=not complete))
        except ValueError as error:
            self.document.complain(("groups", group, "nodes"), str(error))
            return ()

    def complain_of_conflicts(self, nodes: Iterable[tuple[str, Layer | None]]) -> None:
        """Complain if two groups of a node set one key differently and the node does not set it.

        `nodes` are names with the layer of the node's own entry.
        """
        nodes_by_conflict: dict[_Conflict, list[str]] = {}
        conflicts_of: dict[tuple[str, ...], list[_Conflict]] = {}  # computed once per groups
        for node, own in nodes:
            groups = self.of(node)
            if groups not in conflicts_of:
                conflicts_of[groups] = self._conflicts(groups)
            conflicts = conflicts_of[groups]
            if not conflicts:
                continue
            own_keys = own.flat() if own else {}
            for conflict in conflicts:
                key, _, _ = conflict
                if key not in own_keys:
                    nodes_by_conflict.setdefault(conflict, []).append(node)
        for conflict, names in nodes_by_conflict.items():
            self._complain(conflict, names)

    def _conflicts(self, groups: tuple[str, ...]) -> list[_Conflict]:
        """Return where these groups contradict the first of them that sets a key."""
        first: dict[str, tuple[str, Any]] = {}  # key -> the first group that sets it, and how
        conflicts: list[_Conflict] = []
        for name in groups:
            settings = self.layers[name].flat()
            for key, value in settings.items():
                first_group, first_value = first.setdefault(key, (name, value))
                if first_value != value:
                    conflicts.append((key, first_group, name))
        return conflicts

    def _complain(self, conflict: _Conflict, nodes: Sequence[str]) -> None:
        key, first, second = conflict
        first_value = _text(self.layers[first].flat()[key])
        second_value = _text(self.layers[second].flat()[key])
        line = self.document.line(("groups", first))
        verb = "is" if len(nodes) == 1 else "are"
        message = (
            f"{second_value} here, but group {first} (line {line}) says {first_value}, "
            f"and {fold(nodes)} {verb} in both"
        )
        hint = "take the nodes out of one group, or set the key on the nodes"
        place = self.layers[second].place_of(key)
        self.document.complain(place, message, hint)


def _text(value: Any) -> str:
    """Return a setting nearly as it was written."""
    if isinstance(value, Gpus):
        return _gpus_text(value)
    if isinstance(value, tuple):
        joined = ", ".join(str(part) for part in value)
        return f"[{joined}]"
    return shown_value(value)


def _gpus_text(gpus: Gpus) -> str:
    parts = [str(gpus.count)]
    if gpus.model:
        parts.append(gpus.model)
    if gpus.use is not None:
        indices = ",".join(map(str, gpus.use))
        parts.append(f"use {indices}")
    return " ".join(parts)
