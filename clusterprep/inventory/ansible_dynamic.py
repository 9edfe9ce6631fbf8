"""Inventories that a program makes: scripts and plug-ins, through `ansible-inventory --list`."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterprep.errors import InputError
from clusterprep.inventory.ansible import ALL, AnsibleInventory, Host, Var
from clusterprep.inventory.ansible_yaml import Unread
from clusterprep.inventory.document import MAX_BYTES

PROGRAM = "ansible-inventory"
LIMIT = 300.0  # seconds; a cloud with thousands of machines is listed page by page


def list_inventory(path: Path) -> AnsibleInventory:
    """Return what `ansible-inventory --list` says of a file or folder.

    Raises InputError if it is not installed, fails, or prints something else.
    """
    _refuse_open_files(path)
    program = shutil.which(PROGRAM)
    if program is None:
        raise InputError.of(
            f"this inventory is made by a program, which {PROGRAM} runs; it is not installed here",
            file=str(path),
            hint=f"install ansible-core, or save it elsewhere: {PROGRAM} -i {path} --list > FILE",
        )
    argv = [program, "-i", str(path), "--list"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"{PROGRAM} --list gave no answer in {LIMIT:g} s"
        raise InputError.of(message, file=str(path)) from None
    stderr = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode:
        raise InputError.of(f"{PROGRAM} --list failed: {stderr[-500:]}", file=str(path))
    if len(done.stdout) > MAX_BYTES:
        raise InputError.of(f"{PROGRAM} --list printed too much", file=str(path))
    return read_listing(done.stdout.decode("utf-8", "replace"), f"{PROGRAM} -i {path} --list")


def read_listing(text: str, file: str) -> AnsibleInventory:
    """Return the inventory of such a text. Raises InputError if it is something else."""
    try:
        answer = json.loads(text)
        hostvars = answer["_meta"]["hostvars"]
        groups = {name: group for name, group in answer.items() if name != "_meta"}
        return _inventory(groups, hostvars, file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"this is not what {PROGRAM} --list prints"
        raise InputError.of(message, file=file) from None


def _inventory(
    groups: Mapping[str, Any], hostvars: Mapping[str, Any], file: str
) -> AnsibleInventory:
    inventory = AnsibleInventory()
    for name, content in groups.items():
        group = inventory.group(name, 0, file)
        for child in content.get("children", ()):
            inventory.group(child, 0, file)
            group.children[child] = None
        for host in content.get("hosts", ()):
            _add_host(inventory, host, file)
            if name != ALL:
                group.hosts[host] = None
    for host, variables in hostvars.items():
        _add_host(inventory, host, file)
        for key, value in variables.items():
            inventory.hosts[host].vars[key] = Var(_plain(value), 0, file)
    return inventory


def _add_host(inventory: AnsibleInventory, name: str, file: str) -> None:
    if not isinstance(name, str):
        raise TypeError(name)
    inventory.hosts.setdefault(name, Host(name, 0, file))


def _plain(value: Any) -> Any:
    """Return a value without the wrappers that Ansible puts around encrypted and unsafe ones."""
    if isinstance(value, dict):
        if "__ansible_vault" in value:
            return Unread("!vault")
        if "__ansible_unsafe" in value:
            return value["__ansible_unsafe"]
    return value


def _refuse_open_files(path: Path) -> None:
    """Raise InputError if any user may write to the program, or put another in its place."""
    for place in _places(path):
        mode = place.stat().st_mode
        is_sticky = place.is_dir() and mode & stat.S_ISVTX
        if mode & stat.S_IWOTH and not is_sticky:
            message = f"every user may write to {place}, so no program of it is run"
            raise InputError.of(message, file=str(path), hint=f"chmod o-w {place}")


def _places(path: Path) -> Sequence[Path]:
    if path.is_dir():
        return [path, *(child for child in path.iterdir() if child.is_file())]
    return [path.parent, path]
