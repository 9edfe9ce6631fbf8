"""The NCCL environment as files, each in the format of the program that reads it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, Resource, file_change
from clusterprep.errors import InputError, Problem
from clusterprep.facts import Fact, under
from clusterprep.facts.container_env import DEFAULTS
from clusterprep.facts.env_files import (
    ENROOT_ENV,
    ENV_FILE,
    NCCL_CONF,
    PAM_FILE,
    PODMAN_CONF,
    PROFILE,
    TASK_PROLOG,
    written_files,
)
from clusterprep.model import EnvValue, Inventory
from clusterprep.model.files import FileChange
from clusterprep.nccl.variables.dialects import refusal
from clusterprep.nccl.variables.variables import conf_file_has_effect

HEAD = (
    "# Written by clusterprep apply, which overwrites this file: "
    "put values under `env:` of the inventory.\n"
)
BEGIN = (
    "# BEGIN clusterprep: written by apply, which overwrites this block; "
    "values belong in the inventory\n"
)
END = "# END clusterprep\n"
# Bytes of a line that every release of pam_env reads (its buffer has 1024), with the line feed.
PAM_BUFFER = 1022
ASSIGNMENT = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=")
# How the lines of a block begin that are surely ours.
DERIVED = (b"NCCL_", b"TORCH_", b"GLOO_", b"CUDA_DEVICE_ORDER=")
# Under Slurm the scheduler hands out devices itself.
NOT_UNDER_SLURM = ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE")

Values = Mapping[str, EnvValue]


class Format(Struct, frozen=True):
    """How a file is written. `write(values, before)` returns its new content."""

    mode: int
    write: Callable[[Values, bytes | None], bytes]


def profile(values: Values, _: bytes | None) -> bytes:
    """Return a POSIX shell fragment for /etc/profile.d."""
    lines = [HEAD]
    for name, value in values.items():
        line = f"export {name}={quoted(value.value)}\n"
        if name in NOT_UNDER_SLURM:
            line = f'[ -n "${{SLURM_JOB_ID+set}}" ] || {line}'
        lines.append(line)
    return "".join(lines).encode()


def quoted(value: str) -> str:
    """Return a value quoted for shells: as shlex does it, and where it holds `=` always in quotes.

    zsh takes an unquoted =eth0 for the path of a program, and stops reading the file there.
    """
    word = shlex.quote(value)
    if "=" in value and word == value:
        return f"'{value}'"
    return word


def nccl_conf(values: Values, before: bytes | None) -> bytes:
    """Return NCCL's own file: bare NAME=value in a marked block, above all other lines.

    Inside this file the first setting of a name wins.
    """
    lines = [BEGIN]
    for name, value in values.items():
        if conf_file_has_effect(name):
            lines.append(f"{name}={value.value}\n")
    lines.append(END)
    return "".join(lines).encode() + without_block(before or b"")


def without_block(content: bytes) -> bytes:
    """Return the lines outside our block.

    A block without its last line ends before the first line that cannot be part of it.
    """
    others = []
    inside = False
    for line in content.splitlines(keepends=True):
        if line.startswith(b"# BEGIN clusterprep"):
            inside = True
            continue
        if inside and line.startswith(b"# END clusterprep"):
            inside = False
            continue
        if inside and line.startswith(b"NCCL_"):
            continue
        inside = False
        others.append(line)
    return b"".join(others)


def env_file(values: Values, _: bytes | None) -> bytes:
    """Return bare NAME=value lines, for systemd, docker and shells.

    The values are those that all of these read alike, see nccl.variables.dialects.
    """
    lines = [HEAD]
    for name, value in values.items():
        lines.append(f"{name}={value.value}\n")
    return "".join(lines).encode()


def pam_file(values: Values, before: bytes | None) -> bytes:
    """Return /etc/environment with a marked block below all other lines.

    Inside this file the last setting of a name wins.
    """
    others = without_pam_block(before or b"")
    if others and not others.endswith(b"\n"):
        others += b"\n"
    lines = [BEGIN]
    for name, value in values.items():
        lines.append(f"{name}={value.value}\n")
    lines.append(END)
    return others + "".join(lines).encode()


def without_pam_block(content: bytes) -> bytes:
    """Return the lines of /etc/environment outside our block.

    A block holds names of any kind. Of one without its last line only what is surely ours goes.
    """
    others = []
    lines = content.splitlines(keepends=True)
    index = 0
    while index < len(lines):
        if lines[index].startswith(b"# BEGIN clusterprep"):
            index = _end_of_block(lines, index + 1)
        else:
            others.append(lines[index])
            index += 1
    return b"".join(others)


def _end_of_block(lines: list[bytes], start: int) -> int:
    """Return the index behind a block whose lines begin at `start`."""
    end = start
    while end < len(lines) and ASSIGNMENT.match(lines[end]):
        end += 1
    if end < len(lines) and lines[end].startswith(b"# END clusterprep"):
        return end + 1
    end = start
    while end < len(lines) and lines[end].startswith(DERIVED):
        end += 1
    return end


def unit_drop_in(values: Values, _: bytes | None) -> bytes:
    """Return a drop-in for a unit of systemd."""
    lines = [HEAD, "[Service]\n"]
    for name, value in values.items():
        escaped = value.value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        lines.append(f'Environment="{name}={escaped}"\n')
    return "".join(lines).encode()


def slurmd_drop_in(values: Values, before: bytes | None) -> bytes:
    """Return the same for slurmd, which hands out devices itself."""
    others = {name: value for name, value in values.items() if name not in NOT_UNDER_SLURM}
    return unit_drop_in(others, before)


def containers_conf(values: Values, _: bytes | None) -> bytes:
    """Return a file for containers.conf.d, in TOML.

    A basic string of TOML has the escapes of JSON for the backslash and the quote.
    """
    lines = [HEAD, "[containers]\n", "env = [\n"]
    for name, value in values.items():
        entry = json.dumps(f"{name}={value.value}", ensure_ascii=False)
        lines.append(f"  {entry},\n")
    lines.append("]\n")
    return "".join(lines).encode()


def task_prolog(values: Values, _: bytes | None) -> bytes:
    """Return a script for Slurm, which puts each `export NAME=value` it prints into the task."""
    lines = ["#!/bin/sh\n", HEAD]
    for name, value in values.items():
        if name in NOT_UNDER_SLURM:
            continue
        export = shlex.quote(f"export {name}={value.value}")
        # Not echo: dash's echo interprets backslashes.
        lines.append(f"printf '%s\\n' {export}\n")
    return "".join(lines).encode()


FORMATS = {
    PROFILE: Format(0o644, profile),
    NCCL_CONF: Format(0o644, nccl_conf),
    ENV_FILE: Format(0o644, env_file),
    TASK_PROLOG: Format(0o755, task_prolog),
    PAM_FILE: Format(0o644, pam_file),
    PODMAN_CONF: Format(0o644, containers_conf),
    ENROOT_ENV: Format(0o644, env_file),
}
DROP_IN = Format(0o644, unit_drop_in)
SLURMD_DROP_IN = Format(0o644, slurmd_drop_in)
# Files in which only a block is ours.
BLOCKS = (NCCL_CONF, PAM_FILE)


def format_of(path: str) -> Format:
    """Return how a file of a target is written; all that are not named are drop-ins of units."""
    if "/slurmd.service.d/" in path:
        return SLURMD_DROP_IN
    return FORMATS.get(path, DROP_IN)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return tuple(written_files(inventory))


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (DEFAULTS,) if "container" in inventory.env_targets else ()


def refuse_unrepresentable(node: str, targets: Iterable[str], values: Values) -> None:
    """Raise InputError for derived values that a target cannot hold.

    An example is the name of an interface that a shell would run as a command.
    """
    problems = []
    for target in targets:
        for name, value in values.items():
            why = refusal(target, name, value.value)
            if why is not None:
                message = f"{value.value!r} ({value.why}): {why}"
                problems.append(Problem(message, key=f"{node}: {name}"))
    if problems:
        raise InputError(tuple(problems))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    """Return a block of NCCL's own file and of /etc/environment, and all of the other files."""
    owned = []
    for path in paths(params, inventory):
        part = "env" if path in BLOCKS else ""
        owned.append((path, part))
    return tuple(owned)


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    node = context.node
    files = context.files
    inventory = context.fleet.inventory
    values = context.environment.of(node.name)
    owners = {path: target for path, target in written_files(inventory).items() if path in files}
    refuse_unrepresentable(node.name, dict.fromkeys(owners.values()), values)
    if PODMAN_CONF in owners:
        _refuse_other_lists(context)
    if PAM_FILE in owners:
        refuse_swallowing(PAM_FILE, files[PAM_FILE].content)
    for path in owners:
        state = files[path]
        form = format_of(path)
        content = form.write(values, state.content)
        yield file_change(
            node,
            "env",
            state,
            content,
            form.mode,
        )


def refuse_swallowing(path: str, before: bytes | None) -> None:
    """Raise NoPlan if PAM would not read our block as it is, because of the lines above it.

    It joins a line that ends with a backslash with the next setting, over blank lines and comments,
    and reads nothing behind a line that is longer than its buffer.
    """
    joins = 0
    for number, line in enumerate(without_pam_block(before or b"").splitlines(), 1):
        if len(line) > PAM_BUFFER:
            message = f"line {number} of {path} is so long that PAM reads nothing behind it"
            raise NoPlan("cannot", f"{message}: shorten it")
        if line.strip() and not line.lstrip().startswith(b"#"):
            joins = number if b"#" not in line and line.rstrip().endswith(b"\\") else 0
    if joins:
        message = f"line {joins} of {path} ends with a backslash, so PAM takes the next one into it"
        raise NoPlan("cannot", f"{message}: take the backslash out")


def _refuse_other_lists(context: PlanContext) -> None:
    """Raise NoPlan if another file gives podman variables: it takes the last list alone."""
    lines: Mapping[str, int] = context.facts[DEFAULTS.name]
    for path, line in lines.items():
        if path != under(context.node, PODMAN_CONF):
            place = f"{path} line {line}" if line else path
            cure = "move its entries to `env:` of the inventory, or take container out of"
            message = f"{place} sets env, and podman takes only the last such list: {cure}"
            raise NoPlan("cannot", f"{message} env_targets")


RESOURCE = Resource("env", paths, plan, facts=facts, parts=parts)
