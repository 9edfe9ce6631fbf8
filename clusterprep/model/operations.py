"""Actions of steps as plain data: lists of the few kinds of operations that the agent can do.

A resource that is not files (a package, a service, a reboot) cannot be on all nodes or on none. It
returns `StepAction`s. Each is a list of operations, done one after the other. The agent notes every
operation, with the commands that undo it, before it begins. A new resource needs no new code on
nodes.

Set `halfway=False` for a command that does nothing when it fails: its undo could take away what was
there before. A half is more likely after an installation that was cut off.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from msgspec import Struct

Action = Literal["create", "update", "delete", "run", "restart", "reboot", "none"]


class RunCommand(Struct, frozen=True):
    """A command as a list of words, run without a shell.

    It fails with an exit code that is not in `codes`, or after `limit` seconds; then its whole
    process tree is killed. `env` is added to PATH and the C locale. `undo` are the commands that
    take it back, in their order; None means that nothing does. `halfway`: they run as well if the
    command failed or was interrupted, because it may have done a part. `again` are commands that
    run after everything else is undone, files too, such as a restart that reads the old files; with
    them no `undo` is needed.
    """

    argv: tuple[str, ...]
    limit: float = 60.0
    codes: tuple[int, ...] = (0,)
    env: tuple[tuple[str, str], ...] = ()
    undo: tuple[RunCommand, ...] | None = None
    halfway: bool = True
    again: tuple[RunCommand, ...] = ()


class Write(Struct, frozen=True):
    """Write a file, whole or not at all; None means no file.

    An existing file keeps its owner and mode, a new one belongs to root and gets `mode`. Undo puts
    the old bytes back. It fails if the file is not `before` any more, or is not a regular file.
    """

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644


class OperationValue(Struct, frozen=True):
    """Set a value of the running kernel, at its path below /proc/sys, and read it back.

    Undo sets the old value.
    """

    path: str
    before: bytes
    after: bytes


class Reboot(Struct, frozen=True):
    """Reboot the node, which has `limit` seconds to come back with another boot id. No undo."""

    argv: tuple[str, ...]
    limit: float = 600.0


Operation = RunCommand | Write | OperationValue | Reboot


class StepAction(Struct, frozen=True):
    """What one step does to one thing on one node. Without operations it is as wanted already.

    `target` names the thing for people, such as «chrony» or a path; `diff` says in a line or more
    what changes. `plan` shows both, so they do not depend on what an earlier step will have done.
    """

    node: str
    resource: str
    target: str
    does: Action
    operations: tuple[Operation, ...] = ()
    diff: str = ""

    @property
    def action(self) -> Action:
        return self.does if self.operations else "none"


def wire(operation: Operation) -> dict[str, Any]:
    """Return an operation as the agent takes it, with bytes in base64."""
    if isinstance(operation, RunCommand):
        return _wire_command(operation)
    if isinstance(operation, Reboot):
        return {
            "do": "reboot",
            "argv": operation.argv,
            "limit": operation.limit,
        }
    row: dict[str, Any] = {"do": "value"}
    if isinstance(operation, Write):
        row = {
            "do": "write",
            "mode": operation.mode,
        }
    row["path"] = operation.path
    row["before"] = _base64(operation.before)
    row["after"] = _base64(operation.after)
    return row


def _wire_command(command: RunCommand) -> dict[str, Any]:
    """Return a command as the agent takes it, with the commands that undo it."""
    undo = None
    if command.undo is not None:
        undo = [_wire_command(each) for each in command.undo]
    again = [_wire_command(each) for each in command.again]
    return {
        "do": "run",
        "argv": command.argv,
        "limit": command.limit,
        "codes": command.codes,
        "env": dict(command.env),
        "undo": undo,
        "halfway": command.halfway,
        "again": again,
    }


def seconds_limit(step_action: StepAction) -> float:
    """Return how many seconds an action may take at most."""
    limit = 0.0
    for operation in step_action.operations:
        # Ten seconds for a file with its fsyncs, or for starting a reboot.
        limit += operation.limit if isinstance(operation, RunCommand) else 10.0
    return limit


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
