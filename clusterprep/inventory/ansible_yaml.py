"""Ansible's YAML format: groups as mappings of hosts, children and vars."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from clusterprep.inventory.ansible import AnsibleInventory, Group, Var
from clusterprep.inventory.ansible_ini import Complain
from clusterprep.inventory.yaml_tree import Tree, is_merge
from clusterprep.model.nodeset import nearest_word

KEYS = ("hosts", "children", "vars")


def looks_like_ansible(tree: Tree) -> bool:
    """Whether every top-level value is a group: nothing else but hosts, children and vars, and some of them."""
    groups = [value for _, value in _pairs(tree)] if tree.kind == "mapping" else []
    inside = [{key.text for key, _ in _pairs(value)} for value in groups if value.kind == "mapping"]
    empty = all(
        value.kind == "mapping" or (value.kind == "scalar" and not value.text) for value in groups
    )
    return (
        empty
        and all(found <= set(KEYS) for found in inside)
        and any(found & set(KEYS[:2]) for found in inside)
    )


def read_yaml(tree: Tree, complain: Complain) -> AnsibleInventory:
    """The inventory of a document; what is wrong with it is complained about by line, and reading goes on."""
    inventory = AnsibleInventory()
    reader = _Reader(inventory, complain)
    if tree.kind != "mapping":
        complain(tree.line, "expected groups at the top, such as `all:`")
    for key, value in _pairs(tree):
        reader.group(key, value)
    return inventory


class _Reader:
    def __init__(self, inventory: AnsibleInventory, complain: Complain) -> None:
        self.inventory, self.complain = inventory, complain

    def group(self, key: Tree, value: Tree) -> None:
        group = self.inventory.group(key.text, key.line)
        for word, inner in self.mapping(value, f"group '{key.text}'"):
            if word.text == "hosts":
                self.hosts(group, inner)
            elif word.text == "children":
                for child, below in self.mapping(inner, "children"):
                    group.children[child.text] = None
                    self.group(child, below)
            elif word.text == "vars":
                group.vars.update(self.vars(inner))
            else:
                meant = nearest_word(word.text, KEYS)
                hint = f" (did you mean '{meant}'?)" if meant else ""
                self.complain(
                    word.line,
                    f"'{word.text}' in group '{key.text}': expected hosts, children or vars{hint}",
                )

    def hosts(self, group: Group, tree: Tree) -> None:
        for name, variables in self.mapping(tree, "hosts"):
            try:
                self.inventory.add(group, name.text, name.line, self.vars(variables))
            except ValueError as error:
                self.complain(name.line, str(error))

    def vars(self, tree: Tree) -> dict[str, Var]:
        return {
            key.text: Var(_value(value), key.line) for key, value in self.mapping(tree, "variables")
        }

    def mapping(self, tree: Tree, what: str) -> list[tuple[Tree, Tree]]:
        """Pairs of a mapping; an empty value is an empty mapping, one word a key without a value."""
        if tree.kind == "mapping":
            return list(_pairs(tree))
        if tree.kind == "scalar" and what != "variables" and not what.startswith("group"):
            nothing = Tree("scalar", tree.line, plain=True)
            return [(tree, nothing)] if tree.text not in ("", "~", "null") else []
        if tree.kind != "scalar" or tree.text not in ("", "~", "null"):
            self.complain(
                tree.line,
                f"{what}: expected a mapping, seen a {'value' if tree.kind == 'scalar' else 'list'}",
            )
        return []


def _pairs(tree: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Keys with values; what `<<` brings comes first, so that the mapping's own keys win."""
    for key, value in tree.pairs:
        if is_merge(key):
            sources = value.items if value.kind == "list" else [value]
            for source in reversed(list(sources)):
                yield from _pairs(source)
    yield from ((key, value) for key, value in tree.pairs if not is_merge(key))


def _value(tree: Tree) -> Any:
    if tree.tag is not None and not tree.tag.startswith("tag:yaml.org,2002:") and tree.tag != "!":
        return Unread(tree.tag)
    if tree.kind == "list":
        return [_value(item) for item in tree.items]
    if tree.kind == "mapping":
        return {key.text: _value(value) for key, value in _pairs(tree)}
    return _scalar(tree.text) if tree.plain else tree.text


class Unread(str):
    """A value that only Ansible can read, such as `!vault`; the text is its tag."""

    __slots__ = ()


@functools.lru_cache(maxsize=4096)
def _scalar(text: str) -> Any:
    """A plain scalar as Ansible reads it: by YAML 1.1, in which yes is true and 010 is 8."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, str | int | float | bool | None) else text
