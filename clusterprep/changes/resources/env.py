"""The NCCL environment as files, each in the format of the program that reads it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping

from clusterprep.changes.resources import Params, Part, PlanContext, Resource, file_change
from clusterprep.errors import InputError, Problem
from clusterprep.model import EnvValue, Inventory
from clusterprep.model.files import FileChange
from clusterprep.nccl.variables.dialects import refusal
from clusterprep.nccl.variables.variables import conf_file_has_effect
from clusterprep.runtime.lazy_dataclass import dataclass

HEAD = (
    "# Written by clusterprep apply, which overwrites this file: "
    "put values under `env:` of the inventory.\n"
)
BEGIN = (
    "# BEGIN clusterprep: written by apply, which overwrites this block; "
    "values belong into the inventory\n"
)
END = "# END clusterprep\n"
# Under Slurm the scheduler hands out devices itself.
NOT_UNDER_SLURM = ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE")

Values = Mapping[str, EnvValue]


@dataclass(frozen=True)
class Target:
    """A file for the environment. `write(values, before)` returns its new content."""

    path: str
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


TARGETS = {
    "profile.d": Target("/etc/profile.d/clusterprep-nccl.sh", 0o644, profile),
    "nccl.conf": Target("/etc/nccl.conf", 0o644, nccl_conf),
    "env-file": Target("/etc/clusterprep/nccl.env", 0o644, env_file),
    "slurm-task-prolog": Target("/etc/clusterprep/task_prolog.sh", 0o755, task_prolog),
}


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return tuple(TARGETS[name].path for name in inventory.env_targets)


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
    """Return a block of NCCL's own file, and all of the other files."""
    owned = []
    for path in paths(params, inventory):
        part = "env" if path == TARGETS["nccl.conf"].path else ""
        owned.append((path, part))
    return tuple(owned)


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    node = context.node
    files = context.files
    values = context.environment.of(node.name)
    targets = {name: target for name, target in TARGETS.items() if target.path in files}
    refuse_unrepresentable(node.name, targets, values)
    for target in targets.values():
        state = files[target.path]
        content = target.write(values, state.content)
        yield file_change(
            node,
            "env",
            state,
            content,
            target.mode,
        )


RESOURCE = Resource("env", paths, plan, parts=parts)
