"""Convert an inventory of Ansible to one of ours.

The nodes, groups and logins are the same, and keep the line numbers of Ansible's file.

Variables are resolved as Ansible does, and the results are put on the nodes: our groups may not
contradict each other, and Ansible's may. `make test` compares recorded answers of
`ansible-inventory`, and `make test-all` the program itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterprep.errors import Problem
from clusterprep.inventory.ansible import ALL, UNGROUPED, AnsibleInventory, Var
from clusterprep.inventory.ansible_ini import Complain, read_ini
from clusterprep.inventory.ansible_yaml import Unread, looks_like_ansible, read_yaml
from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Tree, Written, YamlError, compose

_SECTION_LINE = re.compile(r"^\[[^\[\],]+\]\s*(?:#.*)?$", re.MULTILINE)
_OURS = re.compile(r"^[ \t{\"']*nodes[\"']?\s*:", re.MULTILINE)
_GROUP_WORDS = re.compile(r"(?:hosts|children)[\"']?\s*:")
_JINJA = re.compile(r"\{[{%#]")
_TRUE = frozenset({"yes", "true", "on", "1", "y", "t"})
_FALSE = frozenset({"no", "false", "off", "0", "n", "f", ""})
_CONNECTIONS = {
    "ssh": "ssh",
    "smart": "ssh",
    "paramiko": "ssh",
    "paramiko_ssh": "ssh",
    "local": "local",
}
_PASSWORDS = (
    "ansible_password",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_become_password",
    "ansible_become_pass",
    "ansible_sudo_pass",
    "ansible_private_key_passphrase",
)
_SSH_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")

Convert = Callable[[Any], "str | None"]  # raises _Refused; None: the value says nothing here


class _Refused(Exception):
    """A variable whose value means nothing here."""


def ansible_document(
    file: str, text: str, written: Written, surely: bool = False
) -> Document | None:
    """Return the document of a text that is an inventory of Ansible; None if it looks different.

    `surely` is for a file that the user called one.
    """
    problems: list[Problem] = []

    def complain(line: int, message: str) -> None:
        problems.append(Problem(message, file, line))

    inventory = _read(text, complain, surely)
    if inventory is None:
        return None
    circle = inventory.circle()
    if circle is not None:
        line = inventory.groups[circle].line
        complain(line, f"the group '{circle}' is below itself")
        inventory = AnsibleInventory()
    inventory.settle()
    converter = _Converter(inventory, complain)
    document = Document(file, converter.tree(), written)
    if not inventory.hosts and not problems:
        complain(1, "an inventory of Ansible's without a host")
    document.problems += problems
    document.notices = (*converter.notices, *_folder_notices(file))
    return document


def _read(text: str, complain: Complain, surely: bool) -> AnsibleInventory | None:
    """Return what either format holds; None if the text is not Ansible's."""
    is_ours = _OURS.search(text) is not None
    if _SECTION_LINE.search(text) and not is_ours:
        return read_ini(text, complain)
    # Composing YAML is slow: a text that cannot be Ansible's is not composed here.
    may_be_yaml = _GROUP_WORDS.search(text) and not is_ours
    if not surely and not may_be_yaml:
        return None
    tree = _compose_mapping(text)
    if tree is not None and (surely or looks_like_ansible(tree)):
        return read_yaml(tree, complain)
    if surely:
        return read_ini(text, complain)  # which says what is wrong
    return None


def _compose_mapping(text: str) -> Tree | None:
    """Return the mapping that a YAML text holds; None if it is no YAML, or holds no mapping."""
    try:
        tree = compose(text)
    except YamlError:
        return None
    if tree is None or tree.kind != "mapping":
        return None
    return tree


def _folder_notices(file: str) -> list[str]:
    """Return a notice about folders of variables beside the file, which Ansible reads too."""
    parent = Path(file).parent
    folders = [name for name in ("group_vars", "host_vars") if (parent / name).is_dir()]
    if not folders:
        return []
    joined = " and ".join(folders)
    return [f"{joined} beside {file} are not read"]


class _Converter:
    """Builds the tree that our own schema describes."""

    def __init__(self, inventory: AnsibleInventory, complain: Complain) -> None:
        self.inventory = inventory
        self.complain = complain
        self.notices: dict[str, None] = {}  # each once, in order

    def tree(self) -> Tree:
        nodes = [self._node(name) for name in self.inventory.hosts]
        pairs = [(_text("nodes", 1), Tree("list", 1, items=nodes))]
        groups = self._groups()
        if groups:
            pairs.append((_text("groups", 1), Tree("mapping", 1, pairs=groups)))
        return Tree("mapping", 1, pairs=pairs)

    def _groups(self) -> list[tuple[Tree, Tree]]:
        """Return the pairs of our `groups:`: each name with the nodes of it and of its children."""
        pairs: list[tuple[Tree, Tree]] = []
        for name, group in self.inventory.groups.items():
            if name in (ALL, UNGROUPED):
                continue
            members = self.inventory.members(name)
            if members:
                nodes = _text(",".join(members), group.line)
                settings = _mapping(group.line, {"nodes": nodes})
                pairs.append((_text(name, group.line), settings))
        return pairs

    def _node(self, name: str) -> Tree:
        """Return our entry of `nodes:` for a host."""
        line = self.inventory.hosts[name].line
        variables = self.inventory.variables(name)
        self._note_ignored(variables)
        key_names = ("ansible_ssh_private_key_file", "ansible_private_key_file")
        ssh = {
            "user": self._setting(variables, _word, "ansible_user", "ansible_ssh_user"),
            "port": self._setting(variables, _number, "ansible_port", "ansible_ssh_port"),
            "identity_file": self._setting(variables, _word, *key_names),
        }
        settings: dict[str, Tree | None] = {
            "name": _text(name, line),
            "address": self._setting(variables, _word, "ansible_host", "ansible_ssh_host"),
        }
        if any(ssh.values()):
            settings["ssh"] = _mapping(line, ssh)
        settings["become"] = self._setting(variables, _truth, "ansible_become")
        settings["transport"] = self._setting(variables, _transport, "ansible_connection")
        settings["python"] = self._setting(variables, _path, "ansible_python_interpreter")
        # These two have one possible value here; others are complained about.
        self._setting(variables, _only("root"), "ansible_become_user")
        self._setting(variables, _only("sudo"), "ansible_become_method")
        return _mapping(line, settings)

    def _setting(self, variables: Mapping[str, Var], convert: Convert, *names: str) -> Tree | None:
        """Return the value of the first of `names` that is set, as a scalar of our own file."""
        name = next((name for name in names if name in variables), None)
        if name is None:
            return None
        var = variables[name]
        if var.value is None:
            return None
        try:
            _refuse_template(var.value)
            text = convert(var.value)
        except _Refused as refused:
            self.complain(var.line, f"{name}: {refused}")
            return None
        if text is None:
            return None
        is_plain = convert in (_number, _truth)
        return _text(text, var.line, plain=is_plain)

    def _note_ignored(self, variables: Mapping[str, Var]) -> None:
        for name in _PASSWORDS:
            if name in variables:
                self.notices[f"{name} is not read: use a key, or --ask-become-pass"] = None
        for name in _SSH_ARGUMENTS:
            if name in variables:
                self.notices[f"{name} is not read: such options belong in ssh_config"] = None


def _refuse_template(value: Any) -> None:
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
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise _Refused(f"expected a number; seen '{value}'")
    return str(int(text))


def _truth(value: Any) -> str:
    word = str(value).lower()
    if word in _TRUE:
        return "true"
    if word in _FALSE:
        return "false"
    raise _Refused(f"expected yes or no; seen '{value}'")


def _transport(value: Any) -> str:
    transport = _CONNECTIONS.get(str(value))
    if transport is None:
        raise _Refused(f"'{value}' is no connection that there is here: ssh or local")
    return transport


def _path(value: Any) -> str | None:
    """Return the path of an interpreter.

    None for `auto` and the like: how Ansible finds one says nothing about the job's.
    """
    text = str(value)
    if text.startswith("/"):
        return text
    return None


def _only(wanted: str) -> Convert:
    def refuse_others(value: Any) -> str | None:
        if value != wanted:
            raise _Refused(f"'{value}' cannot be done here, only {wanted}")
        return None

    return refuse_others


def _text(text: str, line: int, plain: bool = False) -> Tree:
    return Tree("scalar", line, text, plain=plain)


def _mapping(line: int, settings: Mapping[str, Tree | None]) -> Tree:
    pairs: list[tuple[Tree, Tree]] = []
    for key, value in settings.items():
        if value is not None:
            pairs.append((_text(key, value.line), value))
    return Tree("mapping", line, pairs=pairs)
