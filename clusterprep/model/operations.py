"""What cannot be all or none, as plain data: a deed on one node, made of few kinds of operations that the agent knows.

A resource that is not files (a package, a service, a reboot) says what is to be done as `StepAction`s. Each is a list of
operations, done one after the other; the agent notes every one, with the way back, before it does it. So a new
resource needs no new code on the nodes.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from clusterprep.runtime.lazy_dataclass import dataclass

Action = Literal["create", "update", "delete", "run", "restart", "reboot", "none"]


@dataclass(frozen=True)
class RunCommand:
    """A command, as its words: there is no shell in it.

    It fails after `limit` seconds, when all that descends from it is killed, or with an exit code that is none of
    `codes`. `env` is given besides PATH and the C locale. `undo` are the commands that take it back, in their order;
    None says that nothing does. `halfway`: they are run, too, where the command failed or was cut off in the middle,
    for it may have done a part. `again` are commands for after an undo has put everything else back, files too, such as
    a restart that reads what is there then; with them it needs no `undo`.
    """

    argv: tuple[str, ...]
    limit: float = 60.0
    codes: tuple[int, ...] = (0,)
    env: tuple[tuple[str, str], ...] = ()
    undo: tuple[RunCommand, ...] | None = None
    halfway: bool = True
    again: tuple[RunCommand, ...] = ()


@dataclass(frozen=True)
class Write:
    """A file from what it was planned against to what is wanted, None for no file, whole or not at all.

    One that exists keeps owner and mode, a new one is root's with `mode`. The old bytes come back by an undo. It
    fails where the file is another one by now, or anything but a regular file.
    """

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644


@dataclass(frozen=True)
class OperationValue:
    """A value of the running kernel at its path below /proc/sys; it is read back, and comes back by an undo."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Reboot:
    """The node goes down and has to be back, with another boot id, `limit` seconds later. There is no way back."""

    argv: tuple[str, ...]
    limit: float = 600.0


Operation = RunCommand | Write | OperationValue | Reboot


@dataclass(frozen=True)
class StepAction:
    """What one step does about one thing on one node. Without operations it is as wanted already.

    `target` names the thing for people, such as «chrony» or a path; `diff` says in a line or more what becomes of it.
    Both are what `plan` shows, so they hold nothing that only shows once an earlier step has been done.
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
    """An operation as the agent takes it, bytes in base64."""
    if isinstance(operation, RunCommand):
        row: dict[str, Any] = {
            "do": "run",
            "argv": operation.argv,
            "limit": operation.limit,
            "codes": operation.codes,
        }
        undo = None if operation.undo is None else [wire(run) for run in operation.undo]
        again = [wire(run) for run in operation.again]
        return {
            **row,
            "env": dict(operation.env),
            "undo": undo,
            "halfway": operation.halfway,
            "again": again,
        }
    if isinstance(operation, Reboot):
        return {"do": "reboot", "argv": operation.argv, "limit": operation.limit}
    bytes_of = {
        "path": operation.path,
        "before": _text(operation.before),
        "after": _text(operation.after),
    }
    if isinstance(operation, Write):
        return {"do": "write", "mode": operation.mode, **bytes_of}
    return {"do": "value", **bytes_of}


def seconds_limit(step_action: StepAction) -> float:
    """Seconds that a deed may take at most, files and their fsyncs included."""
    return sum(
        each.limit if isinstance(each, RunCommand) else 10.0 for each in step_action.operations
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
