"""The NCCL environment as files, each in the dialect of those who read it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping

from clusterprep.changes.resources import Params, Part, PlanContext, Resource, file_change
from clusterprep.errors import InputError, Problem
from clusterprep.model import EnvValue, Inventory
from clusterprep.model.files import FileChange
from clusterprep.nccl.variables.dialects import refusal
from clusterprep.nccl.variables.variables import nccl_reads
from clusterprep.runtime.lazy_dataclass import dataclass

HEAD = "# Written by clusterprep apply, which overwrites this file: put values under `env:` of the inventory.\n"
BEGIN = "# BEGIN clusterprep: written by apply, which overwrites this block; values belong into the inventory\n"
END = "# END clusterprep\n"
NOT_UNDER_SLURM = (
    "CUDA_VISIBLE_DEVICES",
    "NPROC_PER_NODE",
)  # the scheduler hands out devices itself

Values = Mapping[str, EnvValue]


@dataclass(frozen=True)
class Target:
    path: str
    mode: int
    write: Callable[[Values, bytes | None], bytes]


def profile(values: Values, _: bytes | None) -> bytes:
    """A POSIX shell fragment for /etc/profile.d."""
    lines = []
    for name, value in values.items():
        line = f"export {name}={quoted(value.value)}\n"
        lines.append(
            f'[ -n "${{SLURM_JOB_ID+set}}" ] || {line}' if name in NOT_UNDER_SLURM else line
        )
    return (HEAD + "".join(lines)).encode()


def quoted(value: str) -> str:
    """As shlex does it, but for `=`: zsh takes an unquoted =eth0 for the path of a program, and ends reading there."""
    return f"'{value}'" if "=" in value and shlex.quote(value) == value else shlex.quote(value)


def nccl_conf(values: Values, before: bytes | None) -> bytes:
    """Bare NAME=value in a marked block on top: inside this file the first setting of a name wins."""
    block = "".join(f"{name}={value.value}\n" for name, value in values.items() if nccl_reads(name))
    return (BEGIN + block + END).encode() + without_block(before or b"")


def without_block(content: bytes) -> bytes:
    """The lines that are not ours. A block whose end is missing ends where the next line cannot be of ours."""
    kept, inside = [], False
    for line in content.splitlines(keepends=True):
        if line.startswith(b"# BEGIN clusterprep"):
            inside = True
        elif inside and line.startswith(b"# END clusterprep"):
            inside = False
        elif inside and not line.startswith(b"NCCL_"):
            inside = False
            kept.append(line)
        elif not inside:
            kept.append(line)
    return b"".join(kept)


def env_file(values: Values, _: bytes | None) -> bytes:
    """Bare NAME=value, for systemd, docker and whoever sources it: of values on which they agree, see dialects."""
    return (HEAD + "".join(f"{name}={value.value}\n" for name, value in values.items())).encode()


def task_prolog(values: Values, _: bytes | None) -> bytes:
    """A script whose output Slurm takes into the task's environment: one `export NAME=value` a line."""
    exports = (f"export {n}={v.value}" for n, v in values.items() if n not in NOT_UNDER_SLURM)
    # Not echo: that of dash takes backslashes for its own.
    return (
        "#!/bin/sh\n" + HEAD + "".join(f"printf '%s\\n' {shlex.quote(line)}\n" for line in exports)
    ).encode()


TARGETS = {
    "profile.d": Target("/etc/profile.d/clusterprep-nccl.sh", 0o644, profile),
    "nccl.conf": Target("/etc/nccl.conf", 0o644, nccl_conf),
    "env-file": Target("/etc/clusterprep/nccl.env", 0o644, env_file),
    "slurm-task-prolog": Target("/etc/clusterprep/task_prolog.sh", 0o755, task_prolog),
}


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return tuple(TARGETS[name].path for name in inventory.env_targets)


def refuse_unheld(node: str, targets: Iterable[str], values: Values) -> None:
    """InputError for derived values that a target cannot hold, such as an interface whose name a shell would run."""
    found = [
        Problem(f"{value.value!r} ({value.why}): {why}", key=f"{node}: {name}")
        for target in targets
        for name, value in values.items()
        if (why := refusal(target, name, value.value)) is not None
    ]
    if found:
        raise InputError(tuple(found))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    """Of NCCL's own file a block, of the others all."""
    conf = TARGETS["nccl.conf"].path
    return tuple((path, "env" if path == conf else "") for path in paths(params, inventory))


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    node, files, values = known.node, known.files, known.environment.of(known.node.name)
    refuse_unheld(
        node.name, (name for name, target in TARGETS.items() if target.path in files), values
    )
    for target in TARGETS.values():
        if target.path in files:
            state = files[target.path]
            yield file_change(node, "env", state, target.write(values, state.content), target.mode)


RESOURCE = Resource("env", paths, plan, parts=parts)
