"""Settings of Ansible itself that say how to log in: ansible.cfg and variables ANSIBLE_…."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from clusterprep.inventory.ansible import Var
from clusterprep.inventory.document import read_text

HOST_KEY_CHECKING = "ansible_host_key_checking"
# Section and key of ansible.cfg, the variable of the environment, and that of an inventory.
_SETTINGS = (
    ("defaults", "remote_user", "ANSIBLE_REMOTE_USER", "ansible_user"),
    ("defaults", "remote_port", "ANSIBLE_REMOTE_PORT", "ansible_port"),
    (
        "defaults",
        "private_key_file",
        "ANSIBLE_PRIVATE_KEY_FILE",
        "ansible_ssh_private_key_file",
    ),
    ("defaults", "timeout", "ANSIBLE_TIMEOUT", "ansible_ssh_timeout"),
    ("defaults", "transport", "ANSIBLE_TRANSPORT", "ansible_connection"),
    (
        "defaults",
        "interpreter_python",
        "ANSIBLE_PYTHON_INTERPRETER",
        "ansible_python_interpreter",
    ),
    ("defaults", "host_key_checking", "ANSIBLE_HOST_KEY_CHECKING", HOST_KEY_CHECKING),
    ("ssh_connection", "ssh_args", "ANSIBLE_SSH_ARGS", "ansible_ssh_args"),
    ("ssh_connection", "ssh_common_args", "ANSIBLE_SSH_COMMON_ARGS", "ansible_ssh_common_args"),
    ("ssh_connection", "ssh_extra_args", "ANSIBLE_SSH_EXTRA_ARGS", "ansible_ssh_extra_args"),
    ("ssh_connection", "timeout", "ANSIBLE_SSH_TIMEOUT", "ansible_ssh_timeout"),
    ("privilege_escalation", "become", "ANSIBLE_BECOME", "ansible_become"),
    ("privilege_escalation", "become_user", "ANSIBLE_BECOME_USER", "ansible_become_user"),
    ("privilege_escalation", "become_method", "ANSIBLE_BECOME_METHOD", "ansible_become_method"),
)
_SECTION = re.compile(r"\[([^\]]+)\]")
_ASSIGNMENT = re.compile(r"([\w.]+)\s*[=:]\s*(.*)")


def config_file(environment: Mapping[str, str], folder: Path) -> Path | None:
    """Return the one ansible.cfg that counts, as Ansible looks for it; None if there is none.

    In a folder that all users may write to it does not count: any of them may have put it there.
    """
    named = environment.get("ANSIBLE_CONFIG")
    candidates: list[Path] = []
    if named:
        path = Path(named).expanduser()
        candidates.append(path / "ansible.cfg" if path.is_dir() else path)
    if not _is_open_to_all(folder):
        candidates.append(folder / "ansible.cfg")
    candidates.append(Path("~/.ansible.cfg").expanduser())
    candidates.append(Path("/etc/ansible/ansible.cfg"))
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.R_OK):
            return candidate
    return None


def read_settings(environment: Mapping[str, str], folder: Path) -> dict[str, Var]:
    """Return the settings under the names that an inventory has for them.

    The environment wins over the file. Raises InputError if the file is no text.
    """
    path = config_file(environment, folder)
    written = _assignments(path, folder) if path is not None else {}
    settings: dict[str, Var] = {}
    for section, key, variable, name in _SETTINGS:
        if variable in environment:
            settings[name] = Var(environment[variable], 0, variable)
        elif (section, key) in written:
            settings[name] = written[section, key]
    return settings


def _assignments(path: Path, folder: Path) -> dict[tuple[str, str], Var]:
    """Return the values of a file by section and key, each with its line."""
    file = str(path.relative_to(folder)) if path.parent == folder else str(path)
    assignments: dict[tuple[str, str], Var] = {}
    section = ""
    for number, line in enumerate(read_text(str(path), "ansible.cfg").splitlines(), 1):
        stripped = line.strip()
        header = _SECTION.fullmatch(stripped)
        if header:
            section = header[1]
            continue
        match = _ASSIGNMENT.fullmatch(stripped)
        if match is None or stripped[0] in "#;":
            continue
        # As ConfigParser reads it: a comment behind the value, and %% for one %.
        value = re.split(r"\s;", match[2], maxsplit=1)[0].strip().replace("%%", "%")
        if match[1] == "private_key_file":
            value = _beside(path, value)
        assignments[section, match[1]] = Var(value, number, file)
    return assignments


def _beside(config: Path, value: str) -> str:
    """Return a path of ansible.cfg; one that is not absolute begins at the file's folder."""
    if value.startswith(("~", "/")):
        return value
    return str(config.parent / value)


def _is_open_to_all(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True
