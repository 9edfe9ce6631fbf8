"""Read Ansible's YAML format: groups as mappings of hosts, children and vars."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from clusterprep.inventory.ansible import AnsibleInventory, Group, Var
from clusterprep.inventory.ansible_ini import Complain
from clusterprep.inventory.yaml_tree import STANDARD_TAG, Tree, is_merge
from clusterprep.model.nodeset import nearest_word

KEYS = ("hosts", "children", "vars")
_EMPTY = ("", "~", "null")  # spellings of an empty value


def looks_like_ansible(tree: Tree) -> bool:
    """Return True if every top-level value is a group, and one has hosts or children.

    A group has the keys hosts, children and vars and no others, or nothing at all.
    """
    if tree.kind != "mapping":
        return False
    has_members = False
    for _, group in _pairs(tree):
        if group.kind != "mapping":
            is_empty = group.kind == "scalar" and not group.text
            if not is_empty:
                return False
            continue
        keys = {key.text for key, _ in _pairs(group)}
        if not keys.issubset(KEYS):
            return False
        if "hosts" in keys or "children" in keys:
            has_members = True
    return has_members


def read_yaml(
    tree: Tree,
    complain: Complain,
    file: str | None = None,
    into: AnsibleInventory | None = None,
) -> AnsibleInventory:
    """Return the inventory of a document. Each mistake goes to `complain`, and reading goes on.

    `into` is the inventory of the files read before it, to which this one adds.
    """
    inventory = into or AnsibleInventory()
    reader = _Reader(inventory, complain, file)
    if tree.kind != "mapping":
        complain(tree.line, "expected groups at the top, such as `all:`")
    for key, value in _pairs(tree):
        reader.read_group(key, value)
    return inventory


class _Reader:
    """Adds the groups of a document to an inventory."""

    def __init__(self, inventory: AnsibleInventory, complain: Complain, file: str | None) -> None:
        self.inventory = inventory
        self.complain = complain
        self.file = file

    def read_group(self, name: Tree, value: Tree) -> None:
        group = self.inventory.group(name.text, name.line, self.file)
        for key, inner in self._read_mapping(value, f"group '{name.text}'"):
            if key.text == "hosts":
                self._read_hosts(group, inner)
            elif key.text == "children":
                self._read_children(group, inner)
            elif key.text == "vars":
                group.vars.update(self._read_vars(inner))
            else:
                self._complain_of_key(key, group)

    def _complain_of_key(self, key: Tree, group: Group) -> None:
        nearest = nearest_word(key.text, KEYS)
        hint = f" (did you mean '{nearest}'?)" if nearest else ""
        message = f"'{key.text}' in group '{group.name}': expected hosts, children or vars{hint}"
        self.complain(key.line, message)

    def _read_children(self, group: Group, tree: Tree) -> None:
        for name, value in self._read_mapping(tree, "children"):
            group.children[name.text] = None
            self.read_group(name, value)

    def _read_hosts(self, group: Group, tree: Tree) -> None:
        for pattern, value in self._read_mapping(tree, "hosts"):
            try:
                variables = self._read_vars(value)
                self.inventory.add(group, pattern.text, pattern.line, variables, self.file)
            except ValueError as error:
                self.complain(pattern.line, str(error))

    def _read_vars(self, tree: Tree) -> dict[str, Var]:
        variables: dict[str, Var] = {}
        for key, value in self._read_mapping(tree, "variables"):
            variables[key.text] = Var(_value(value), key.line, self.file)
        return variables

    def _read_mapping(self, tree: Tree, what: str) -> list[tuple[Tree, Tree]]:
        """Return the pairs of a mapping; `what` describes it in a complaint.

        An empty value is an empty mapping. Where names are expected (hosts and children), a single
        word is a name without a value.
        """
        if tree.kind == "mapping":
            return list(_pairs(tree))
        is_scalar = tree.kind == "scalar"
        if is_scalar and tree.text in _EMPTY:
            return []
        if is_scalar and what in ("hosts", "children"):
            no_value = Tree("scalar", tree.line, plain=True)
            return [(tree, no_value)]
        seen = "value" if is_scalar else "list"
        self.complain(tree.line, f"{what}: expected a mapping, seen a {seen}")
        return []


def read_variables(tree: Tree, file: str) -> dict[str, Var]:
    """Return the variables of a mapping, such as a file of group_vars holds."""
    variables: dict[str, Var] = {}
    for key, value in _pairs(tree):
        variables[key.text] = Var(_value(value), key.line, file)
    return variables


def _pairs(tree: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Yield keys with values; of equal keys the last one counts.

    What `<<` brings comes first, because the mapping's own keys win. In a list of mappings the
    first wins, so it comes last.
    """
    for key, value in tree.pairs:
        if is_merge(key):
            sources = list(value.items) if value.kind == "list" else [value]
            for source in reversed(sources):
                yield from _pairs(source)
    for key, value in tree.pairs:
        if not is_merge(key):
            yield key, value


def _value(tree: Tree) -> Any:
    """Return plain data: lists, dicts and scalars, and Unread where only Ansible can read them."""
    tag = tree.tag
    if tag is not None and not tag.startswith(STANDARD_TAG) and tag != "!":
        return Unread(tag)
    if tree.kind == "list":
        return [_value(item) for item in tree.items]
    if tree.kind == "mapping":
        return {key.text: _value(value) for key, value in _pairs(tree)}
    if tree.plain:
        return _scalar(tree.text)
    return tree.text


class Unread(str):
    """A value that only Ansible can read, such as `!vault`; the text is its tag."""

    __slots__ = ()


@functools.lru_cache(maxsize=4096)
def _scalar(text: str) -> Any:
    """Return a plain scalar as Ansible reads it: by YAML 1.1, in which yes is true and 010 is 8."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    if value is None or isinstance(value, str | int | float):
        return value
    return text
