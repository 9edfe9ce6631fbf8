"""The files of an Ansible inventory: those of a folder, and group_vars and host_vars beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from clusterprep.inventory.ansible import AnsibleInventory, Var
from clusterprep.inventory.ansible_yaml import read_variables
from clusterprep.inventory.document import read_text
from clusterprep.inventory.yaml_tree import YamlError, compose

# What Ansible passes over in a folder of inventories (INVENTORY_IGNORE_EXTS of its base.yml, and
# IGNORED_ALWAYS of its inventory manager, 2.19).
_IGNORED = re.compile(
    r"\..*|host_vars|group_vars|vars_plugins"
    r"|.*(\.pyc|\.pyo|\.swp|\.bak|~|\.rpm|\.md|\.txt|\.rst|\.orig|\.cfg|\.retry)"
)
_EXTENSIONS = ("", ".yml", ".yaml", ".json")  # in this order; the first that is there counts
VAULT = "$ANSIBLE_VAULT"  # the first bytes of an encrypted file


def inventory_files(path: Path) -> list[Path]:
    """Return the file itself, or the files of a folder and of those in it, by name."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []
    for child in sorted(path.iterdir()):
        if not _IGNORED.fullmatch(child.name):
            files.extend(inventory_files(child))
    return files


class VariableFiles:
    """Reads group_vars and host_vars of one folder into an inventory.

    `problems` are (file, line, message), `notices` sentences.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[tuple[str, int, str]] = []
        self.notices: list[str] = []
        self._names = {kind: _names_in(folder / kind) for kind in ("group_vars", "host_vars")}

    def of_group(self, name: str) -> dict[str, Var]:
        """Return the variables of group_vars for a group."""
        return self._read("group_vars", name)

    def of_host(self, name: str) -> dict[str, Var]:
        """Return the variables of host_vars for a host."""
        return self._read("host_vars", name)

    def _read(self, kind: str, name: str) -> dict[str, Var]:
        variables: dict[str, Var] = {}
        for extension in _EXTENSIONS:
            if f"{name}{extension}" in self._names[kind]:
                path = self.folder / kind / f"{name}{extension}"
                for file in _variable_files(path):
                    variables.update(self._read_file(file))
                break
        return variables

    def _read_file(self, path: Path) -> dict[str, Var]:
        file = os.path.normpath(path)
        text = read_text(file, "variables of Ansible")
        if text.startswith(VAULT):
            self.notices.append(f"{file} is encrypted and is not read; passwords belong there")
            return {}
        try:
            tree = compose(text)
        except YamlError as error:
            self.problems.append((file, error.line or 1, error.message))
            return {}
        if tree is None or (tree.kind == "scalar" and not tree.text):
            return {}
        if tree.kind != "mapping":
            self.problems.append((file, tree.line, "expected a mapping of variables"))
            return {}
        return read_variables(tree, file)


def add_variables(inventory: AnsibleInventory, files: VariableFiles, *, beside_play: bool) -> None:
    """Add what the files say to groups and hosts.

    `beside_play` is for the folder in which the command is started; its files win.
    """
    for group in inventory.groups.values():
        found = files.of_group(group.name)
        (group.play_vars if beside_play else group.file_vars).update(found)
    for host in inventory.hosts.values():
        found = files.of_host(host.name)
        (host.play_vars if beside_play else host.file_vars).update(found)


def _names_in(folder: Path) -> frozenset[str]:
    try:
        return frozenset(child.name for child in folder.iterdir())
    except OSError:
        return frozenset()


def _variable_files(path: Path) -> Iterator[Path]:
    """Yield a file itself, or the files of a folder by name, without hidden ones and backups."""
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name.startswith(".") or child.name.endswith("~"):
            continue
        is_folder = child.is_dir()
        if is_folder and not child.suffix:
            yield from _variable_files(child)
        elif not is_folder and child.suffix in _EXTENSIONS:
            yield child
