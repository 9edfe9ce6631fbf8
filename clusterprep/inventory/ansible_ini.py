"""Read Ansible's INI format: hosts with variables, [group], [group:children] and [group:vars]."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Callable
from typing import Any

from clusterprep.inventory.ansible import UNGROUPED, AnsibleInventory, Group, Var

Complain = Callable[[int, str], None]  # takes a line number and a message

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_NAME = re.compile(r"([^\s:=#]+)\s*(?:#.*)?")
_KINDS = ("hosts", "children", "vars")


def read_ini(
    text: str,
    complain: Complain,
    file: str | None = None,
    into: AnsibleInventory | None = None,
) -> AnsibleInventory:
    """Return the inventory of a text. Each mistake goes to `complain`, and reading goes on.

    `into` is the inventory of the files read before it, to which this one adds.
    """
    reader = _Reader(complain, file, into or AnsibleInventory())
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            reader.read_line(number, stripped)
    reader.check_groups()
    return reader.inventory


class _Reader:
    """Reads one line after the other; `number` is that of the line.

    `group` and `kind` are those of the section that is being read.
    """

    def __init__(self, complain: Complain, file: str | None, inventory: AnsibleInventory) -> None:
        self.inventory = inventory
        self.complain = complain
        self.file = file
        self.kind = "hosts"
        self.group: Group = self.inventory.groups[UNGROUPED]
        self.wanted: list[tuple[str, int]] = []  # groups that have to be defined in the end
        self.defined = set(self.inventory.groups)

    def read_line(self, number: int, text: str) -> None:
        """Begin a section, or add what the line says to the current one.

        A line that begins with a bracket may be a host too: [2001:db8::1]:22.
        """
        if text.startswith("["):
            section = _SECTION.fullmatch(text)
            if section:
                self._begin_section(number, section[1], section[2] or "hosts")
                return
            if text.endswith("]"):  # as Ansible: rather a misspelt section than a host
                message = (
                    f"'{text}' is no section: the name of a group has no blanks and no brackets"
                )
                self.complain(number, message)
                return
        try:
            if self.kind == "hosts":
                self._add_host(number, text)
            elif self.kind == "children":
                self._add_child(number, text)
            else:
                self._add_variable(number, text)
        except ValueError as error:
            self.complain(number, str(error))

    def _begin_section(self, number: int, name: str, kind: str) -> None:
        if kind not in _KINDS:
            message = f"'[{name}:{kind}]': expected [group], [group:children] or [group:vars]"
            self.complain(number, message)
            kind = "vars"  # the lines below it are variables more often than hosts
        if kind == "vars":
            self.wanted.append((name, number))
        else:
            self.defined.add(name)
        self.kind = kind
        self.group = self.inventory.group(name, number, self.file)

    def _add_host(self, number: int, text: str) -> None:
        words = shlex.split(text, comments=True)
        if not words:
            return
        pattern, *assignments = words
        variables: dict[str, Var] = {}
        for assignment in assignments:
            key, equals, value = assignment.partition("=")
            if not equals:
                raise ValueError(f"expected key=value behind the host; seen '{assignment}'")
            variables[key] = Var(literal(value), number, self.file)
        self.inventory.add(self.group, pattern, number, variables, self.file)

    def _add_child(self, number: int, text: str) -> None:
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"expected the name of a group; seen '{text}'")
        name = match[1]
        self.wanted.append((name, number))
        self.inventory.group(name, number, self.file)
        self.group.children[name] = None

    def _add_variable(self, number: int, text: str) -> None:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"expected key=value; seen '{text}'")
        key = name.strip()
        self.group.vars[key] = Var(literal(value.strip()), number, self.file)

    def check_groups(self) -> None:
        for name, number in self.wanted:
            if name not in self.defined:
                self.complain(number, f"there is no group '{name}'")


def literal(text: str) -> Any:
    """Return the value of a Python literal, and any other text unchanged, as Ansible does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes, which are no mistake here
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
