"""Ansible's INI format: hosts with variables, [group], [group:children] and [group:vars]."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Callable
from typing import Any

from clusterprep.inventory.ansible import UNGROUPED, AnsibleInventory, Group, Var

Complain = Callable[[int, str], None]

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_NAME = re.compile(r"([^\s:=#]+)\s*(?:#.*)?")
_KINDS = ("hosts", "children", "vars")


def read_ini(text: str, complain: Complain) -> AnsibleInventory:
    """The inventory of a text; what is wrong with it is complained about by line, and reading goes on."""
    reader = _Reader(complain)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            reader.line(number, stripped)
    reader.finish()
    return reader.inventory


class _Reader:
    def __init__(self, complain: Complain) -> None:
        self.inventory = AnsibleInventory()
        self.complain = complain
        self.kind = "hosts"
        self.group: Group = self.inventory.groups[UNGROUPED]
        self.wanted: list[tuple[str, int]] = []  # groups that have to be there in the end
        self.defined = set(self.inventory.groups)

    def line(self, number: int, text: str) -> None:
        if text.startswith("[") and (section := _SECTION.fullmatch(text)):
            self.section(number, section[1], section[2] or "hosts")
            return
        if text.startswith("[") and text.endswith(
            "]"
        ):  # as Ansible: rather a misspelt section than a host
            self.complain(
                number, f"'{text}' is no section: the name of a group has no blanks and no brackets"
            )
            return
        try:
            {"hosts": self.host, "children": self.child, "vars": self.variable}[self.kind](
                number, text
            )
        except ValueError as error:
            self.complain(number, str(error))

    def section(self, number: int, name: str, kind: str) -> None:
        if kind not in _KINDS:
            self.complain(
                number, f"'[{name}:{kind}]': expected [group], [group:children] or [group:vars]"
            )
            kind = "vars"  # the lines below it are variables more often than hosts
        if kind == "vars":
            self.wanted.append((name, number))
        else:
            self.defined.add(name)
        self.kind, self.group = kind, self.inventory.group(name, number)

    def host(self, number: int, text: str) -> None:
        words = shlex.split(text, comments=True)
        if not words:
            return
        strange = [word for word in words[1:] if "=" not in word]
        if strange:
            raise ValueError(f"expected key=value behind the host; seen '{strange[0]}'")
        pairs = (word.split("=", 1) for word in words[1:])
        self.inventory.add(
            self.group, words[0], number, {key: Var(literal(value), number) for key, value in pairs}
        )

    def child(self, number: int, text: str) -> None:
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"expected the name of a group; seen '{text}'")
        self.wanted.append((found[1], number))
        self.inventory.group(found[1], number)
        self.group.children[found[1]] = None

    def variable(self, number: int, text: str) -> None:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"expected key=value; seen '{text}'")
        self.group.vars[name.strip()] = Var(literal(value.strip()), number)

    def finish(self) -> None:
        for name, number in self.wanted:
            if name not in self.defined:
                self.complain(number, f"there is no group '{name}'")


def literal(text: str) -> Any:
    """Ansible takes what Python reads as a literal for that, and everything else for text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes, which are nobody's mistake here
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
