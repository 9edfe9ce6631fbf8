"""An inventory of Ansible's as one of ours: the same nodes, groups and logins, with the lines of Ansible's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterprep.errors import Problem
from clusterprep.inventory.ansible import ALL, UNGROUPED, AnsibleInventory, Var
from clusterprep.inventory.ansible_ini import read_ini
from clusterprep.inventory.ansible_yaml import Unread, looks_like_ansible, read_yaml
from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Tree, Written, YamlError, compose

_SECTION_LINE = re.compile(r"^\[[^\[\],]+\]\s*(?:#.*)?$", re.MULTILINE)
_OURS = re.compile(r"^[ \t{\"']*nodes[\"']?\s*:", re.MULTILINE)
_GROUP_WORDS = re.compile(r"(?:hosts|children)[\"']?\s*:")
_JINJA = re.compile(r"\{[{%#]")
_TRUE, _FALSE = (
    frozenset({"yes", "true", "on", "1", "y", "t"}),
    frozenset({"no", "false", "off", "0", "n", "f", ""}),
)
_CONNECTIONS = {
    "ssh": "ssh",
    "smart": "ssh",
    "paramiko": "ssh",
    "paramiko_ssh": "ssh",
    "local": "local",
}
_PASSWORDS = (
    "ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ansible_become_password", "ansible_become_pass",
    "ansible_sudo_pass", "ansible_private_key_passphrase",
)  # fmt: skip
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")


class _Refused(Exception):
    """A variable whose value means nothing here."""


def ansible_document(
    file: str, text: str, written: Written, surely: bool = False
) -> Document | None:
    """The document of a text that is an inventory of Ansible's; None where it looks like something else.

    `surely` is for a file that somebody called one.
    """
    problems: list[Problem] = []

    def complain(line: int, message: str) -> None:
        problems.append(Problem(message, file, line))

    inventory = _read(text, complain, surely)
    if inventory is None:
        return None
    if (circle := inventory.circle()) is not None:
        complain(inventory.groups[circle].line, f"the group '{circle}' is below itself")
        inventory = AnsibleInventory()
    inventory.settle()
    made = _Nodes(inventory, complain)
    document = Document(file, made.tree(), written)
    if not inventory.hosts and not problems:
        complain(1, "an inventory of Ansible's without a host")
    document.problems += problems
    document.notices = (*made.notices, *_beside(file))
    return document


def _read(text: str, complain: Callable[[int, str], None], surely: bool) -> AnsibleInventory | None:
    if _SECTION_LINE.search(text) and not _OURS.search(text):
        return read_ini(text, complain)
    if not surely and (_OURS.search(text) or not _GROUP_WORDS.search(text)):
        return None
    try:
        tree = compose(text)
    except YamlError:
        return (
            read_ini(text, complain) if surely else None
        )  # whose reader says what is wrong with it
    if tree is not None and (looks_like_ansible(tree) or (surely and tree.kind == "mapping")):
        return read_yaml(tree, complain)
    return read_ini(text, complain) if surely else None


def _beside(file: str) -> list[str]:
    """Ansible also reads folders of variables beside the file."""
    folders = [name for name in ("group_vars", "host_vars") if (Path(file).parent / name).is_dir()]
    return [f"{' and '.join(folders)} beside {file} are not read"] if folders else []


class _Nodes:
    """Builds the tree that our own schema describes."""

    def __init__(self, inventory: AnsibleInventory, complain: Callable[[int, str], None]) -> None:
        self.inventory, self.complain = inventory, complain
        self.notices: dict[str, None] = {}

    def tree(self) -> Tree:
        nodes = [self.node(name) for name in self.inventory.hosts]
        pairs = [(_text("nodes", 1), Tree("list", 1, items=nodes))]
        groups = [
            (
                _text(name, group.line),
                _mapping(group.line, {"nodes": _text(",".join(members), group.line)}),
            )
            for name, group in self.inventory.groups.items()
            if name not in (ALL, UNGROUPED) and (members := self.inventory.members(name))
        ]
        if groups:
            pairs.append((_text("groups", 1), Tree("mapping", 1, pairs=groups)))
        return Tree("mapping", 1, pairs=pairs)

    def node(self, name: str) -> Tree:
        line, known = self.inventory.hosts[name].line, self.inventory.variables(name)
        self.ignored(known)
        ssh = {
            "user": self.get(known, _word, "ansible_user", "ansible_ssh_user"),
            "port": self.get(known, _number, "ansible_port", "ansible_ssh_port"),
            "identity_file": self.get(
                known, _word, "ansible_ssh_private_key_file", "ansible_private_key_file"
            ),
        }
        settings = {
            "name": _text(name, line),
            "address": self.get(known, _word, "ansible_host", "ansible_ssh_host"),
            "ssh": _mapping(line, ssh) if any(ssh.values()) else None,
            "become": self.get(known, _truth, "ansible_become"),
            "transport": self.get(known, _transport, "ansible_connection"),
            "python": self.get(known, _path, "ansible_python_interpreter"),
        }
        self.get(known, _only("root"), "ansible_become_user")
        self.get(known, _only("sudo"), "ansible_become_method")
        return _mapping(line, settings)

    def get(
        self, known: Mapping[str, Var], read: Callable[[Any], str | None], *names: str
    ) -> Tree | None:
        """The value of the first of these names that is set, as a scalar of our own file."""
        name = next((name for name in names if name in known), None)
        if name is None or known[name].value is None:
            return None
        var = known[name]
        try:
            _plain_value(var.value)
            text = read(var.value)
        except _Refused as refused:
            self.complain(var.line, f"{name}: {refused}")
            return None
        return None if text is None else _text(text, var.line, plain=read in (_number, _truth))

    def ignored(self, known: Mapping[str, Var]) -> None:
        for name in (*_PASSWORDS, *_ARGUMENTS):
            if name in known:
                instead = (
                    "use a key, or --ask-become-pass"
                    if name in _PASSWORDS
                    else "such options belong in ssh_config"
                )
                self.notices[f"{name} is not read: {instead}"] = None


def _plain_value(value: Any) -> None:
    if isinstance(value, Unread):
        raise _Refused(f"only Ansible can read {value}; write the value itself")
    if isinstance(value, str) and _JINJA.search(value):
        raise _Refused(
            f"'{value}' is a template, which only Ansible can fill in; write the value itself"
        )


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Refused(f"expected a word; seen {value!r}")
    return str(value)


def _number(value: Any) -> str:
    if isinstance(value, bool) or not str(value).isdecimal():
        raise _Refused(f"expected a number; seen '{value}'")
    return str(int(str(value)))


def _truth(value: Any) -> str:
    word = str(value).lower()
    if word not in _TRUE | _FALSE:
        raise _Refused(f"expected yes or no; seen '{value}'")
    return "true" if word in _TRUE else "false"


def _transport(value: Any) -> str:
    if str(value) not in _CONNECTIONS:
        raise _Refused(f"'{value}' is no connection that there is here: ssh or local")
    return _CONNECTIONS[str(value)]


def _path(value: Any) -> str | None:
    """An interpreter by its path; Ansible's ways to find one say nothing about the job's."""
    return str(value) if str(value).startswith("/") else None


def _only(wanted: str) -> Callable[[Any], str | None]:
    def read(value: Any) -> str | None:
        if value != wanted:
            raise _Refused(f"'{value}' cannot be done here, only {wanted}")
        return None

    return read


def _text(text: str, line: int, plain: bool = False) -> Tree:
    return Tree("scalar", line, text, plain=plain)


def _mapping(line: int, settings: Mapping[str, Tree | None]) -> Tree:
    pairs = [
        (_text(key, value.line), value) for key, value in settings.items() if value is not None
    ]
    return Tree("mapping", line, pairs=pairs)
