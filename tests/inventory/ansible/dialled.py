"""What is dialled for an inventory: by Ansible, as its ssh is called, and by us, as routes say.

Ansible runs a program of ours as its ssh, which writes down its arguments and carries out what it
is sent here; `ssh -G` then says what they mean. `python -m tests.inventory.ansible.dialled FOLDER`
records the answers with the programs in FOLDER.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterprep.inventory.load import load_inventory
from clusterprep.remote.transports.ssh_config import local_user
from clusterprep.remote.transports.ssh_route import Route, RouteMap
from tests.inventory.ansible.shapes import SHAPES, Shape

RECORDED = Path(__file__).with_name("dialled.json")
_SSH = """#!/bin/sh
exec {python} -S -c '
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
os.environ["PATH"] = os.environ["STUBS"] + ":" + os.environ["PATH"]
os.execv("/bin/sh", ["sh", "-c", sys.argv[-1]])
' "$@"
"""
_SUDO = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in -u|-p) shift 2;; -*) shift;; *) break;; esac; done
exec "$@"
"""
_DEFAULT_KEY = re.compile(r"~/\.ssh/id_\w+")


def lay(shape: Shape, folder: Path) -> None:
    """Write the files of a shape."""
    for name, text in shape.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def by_us(shape: Shape) -> list[dict[str, Any]]:
    """Return what we dial for a shape that lies in the current folder, sorted."""
    routes = RouteMap()
    dialled = []
    for node in load_inventory(shape.inventory).nodes:
        if node.transport == "ssh":
            entry = _of_route(routes.to(node))
            entry["become"] = node.ssh.become
            dialled.append(entry)
    return sorted(dialled, key=str)


def _of_route(route: Route) -> dict[str, Any]:
    jumps: list[list[Any]] = []
    behind = route.via
    while behind is not None:
        jumps.insert(0, [_named(behind.user), behind.host, behind.port])
        behind = behind.via
    return {
        "host": route.host,
        "port": route.port,
        "user": _named(route.user),
        "keys": [_short(key) for key in route.identities] if route.named else [],
        "only": route.identities_only,
        "jumps": jumps,
        "command": route.command,
    }


def by_ansible(shape: Shape, folder: Path, programs: Path) -> list[dict[str, Any]]:
    """Return what `ansible -m ping` dials for a shape that lies in a folder, sorted."""
    with tempfile.TemporaryDirectory() as other:
        stubs = Path(other)
        for name, text in (("ssh", _SSH.format(python=sys.executable)), ("sudo", _SUDO)):
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
        environment = {
            **os.environ,
            **shape.environment,
            "HOME": str(stubs),
            "RECORD": str(stubs / "record"),
            "STUBS": str(stubs),
            "ANSIBLE_SSH_EXECUTABLE": str(stubs / "ssh"),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_REMOTE_TEMP": str(stubs / "tmp"),
        }
        argv = [str(programs / "ansible"), "all", "-i", shape.inventory, "-m", "ping"]
        subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=False)
        record = (stubs / "record").read_text().splitlines()
        return _of_record([json.loads(line) for line in record], str(stubs))


def _of_record(calls: list[list[str]], home: str) -> list[dict[str, Any]]:
    """Return what the calls of ssh mean, one entry for each host."""
    become: dict[str, bool] = {}
    for *options, host, command in calls:
        without_terminal = [option for option in options if option != "-tt"]
        key = json.dumps([*without_terminal, host])
        become[key] = become.get(key, False) or "sudo " in command
    dialled = []
    for key, uses_sudo in become.items():
        entry = _of_options(_explained(json.loads(key)), home)
        entry["become"] = uses_sudo
        dialled.append(entry)
    return sorted(dialled, key=str)


def _explained(argv: list[str]) -> Mapping[str, list[str]]:
    """Return the options that `ssh -G` prints for arguments, by name."""
    done = subprocess.run(["ssh", "-G", *argv], capture_output=True, text=True, check=True)
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name, []).append(value)
    return options


def _of_options(options: Mapping[str, list[str]], home: str) -> dict[str, Any]:
    host, port = options["hostname"][0], options["port"][0]
    command = options.get("proxycommand", ["none"])[0].replace("%h", host).replace("%p", port)
    keys = [key for key in options["identityfile"] if not _DEFAULT_KEY.fullmatch(key)]
    return {
        "host": host,
        "port": int(port),
        "user": _named(options["user"][0]),
        "keys": [key.replace(home, "~") for key in keys],
        "only": options["identitiesonly"][0] == "yes",
        "jumps": [_jump(jump) for jump in options.get("proxyjump", [""])[0].split(",") if jump],
        "command": None if command == "none" else command,
    }


def _jump(text: str) -> list[Any]:
    user, _, place = text.rpartition("@")
    host, _, port = place.partition(":")
    return [user or None, host.strip("[]"), int(port or 22)]  # it prints [192.0.2.1]


def _named(user: str) -> str | None:
    """Return a user, None for the one that ssh takes by itself."""
    return None if user == local_user() else user


def _short(path: str) -> str:
    return path.replace(str(Path.home()), "~")


def record(programs: Path) -> None:
    """Write down what Ansible dials for every shape."""
    answers = {}
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            lay(shape, Path(folder))
            answers[name] = by_ansible(shape, Path(folder), programs)
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
