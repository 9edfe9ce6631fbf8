"""Groups: which nodes they hold, and where two of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.layers import Layer, read_layer
from clusterprep.inventory.schema import show
from clusterprep.model import Gpus
from clusterprep.model.nodeset import fold, select


class Groups:
    """The groups of an inventory by name, in file order."""

    def __init__(
        self, document: Document, declared: Mapping[str, Any], names: Sequence[str], complete: bool
    ) -> None:
        self.document = document
        self.layers = {
            name: read_layer(document, group, ("groups", name), f"group {name}")
            for name, group in declared.items()
        }
        self.members = {
            name: self._members(name, group["nodes"], names, complete)
            for name, group in declared.items()
            if "nodes" in group
        }
        self._of: dict[str, list[str]] = {}
        for group_name, members in self.members.items():
            for node in members:
                self._of.setdefault(node, []).append(group_name)

    def of(self, node: str) -> tuple[str, ...]:
        """The groups of a node, in file order."""
        return tuple(self._of.get(node, ()))

    def layers_of(self, groups: Iterable[str]) -> list[Layer]:
        return [self.layers[name] for name in groups]

    def _members(
        self, group: str, text: str, names: Sequence[str], complete: bool
    ) -> tuple[str, ...]:
        """Nothing is unknown while an entry of `nodes` could not be read: it may have been that one."""
        try:
            return tuple(select(text, names, missing_ok=not complete))
        except ValueError as error:
            self.document.complain(("groups", group, "nodes"), str(error))
            return ()

    def contradictions(self, nodes: Iterable[tuple[str, Layer | None]]) -> None:
        """Complains where two groups of a node set one key differently and the node does not settle it."""
        found: dict[tuple[str, str, str], list[str]] = {}
        disputes: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
        for node, own in nodes:
            groups = self.of(node)
            if groups not in disputes:
                disputes[groups] = self._disputes(groups)
            settled = own.flat() if own and disputes[groups] else {}
            for dispute in disputes[groups]:
                if dispute[0] not in settled:
                    found.setdefault(dispute, []).append(node)
        for (key, first, second), blamed in found.items():
            self._complain(key, first, second, blamed)

    def _disputes(self, groups: tuple[str, ...]) -> list[tuple[str, str, str]]:
        """(key, group, later group) of every disagreement among these groups."""
        first: dict[str, tuple[str, Any]] = {}
        disputes = []
        for name in groups:
            for key, value in self.layers[name].flat().items():
                owner, said = first.setdefault(key, (name, value))
                if said != value:
                    disputes.append((key, owner, name))
        return disputes

    def _complain(self, key: str, first: str, second: str, nodes: Sequence[str]) -> None:
        values = [self.layers[name].flat()[key] for name in (first, second)]
        line = self.document.line(("groups", first))
        message = (
            f"{_text(values[1])} here, but group {first} (line {line}) says {_text(values[0])}, and {fold(nodes)} "
            f"{'is' if len(nodes) == 1 else 'are'} in both"
        )
        self.document.complain(
            self.layers[second].place_of(key),
            message,
            "take the nodes out of one group, or set the key on the nodes",
        )


def _text(value: Any) -> str:
    """A setting nearly as it was written."""
    if isinstance(value, Gpus):
        use = None if value.use is None else f"use {','.join(str(index) for index in value.use)}"
        return " ".join(part for part in (str(value.count), value.model, use) if part)
    return (
        f"[{', '.join(str(part) for part in value)}]" if isinstance(value, tuple) else show(value)
    )
