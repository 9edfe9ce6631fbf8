"""Opens a command about an inventory: its settings, its connections and its record, in one place.

The command line and `clusterprep.api` both come this way; they differ in their `Attendance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec import Struct

from clusterprep.cli.arguments import chosen_steps, settings_of
from clusterprep.cli.commands import record
from clusterprep.cli.commands.session import Invocation, new_run_name
from clusterprep.cli.retry import History, limited_to_failed
from clusterprep.errors import ClusterprepError
from clusterprep.history import state_folder
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.inventory.demands import check_names
from clusterprep.inventory.limit import limit_to
from clusterprep.model import ChangeRow, Inventory, Node
from clusterprep.model.colocation import refuse_writing
from clusterprep.remote.transports import transports_for, usable_cores
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.fanout import Watch

# Commands that write on nodes, or say what one that does would write.
WRITING = ("apply", "plan", "fix", "rollback")
COMPARING = ("check", "verify")  # they retry failed nodes beside others


class Progress(Watch, Protocol):
    """A progress display, which is closed when the command ends."""

    def close(self) -> None: ...


class Attendance(Struct, frozen=True):
    """How a command talks with the person who started it, if there is one.

    `passphrase` returns the passphrase of a key for a prompt, `password` sudo's password for each
    of these nodes, `confirm` whether these changes may be written.
    """

    passphrase: Callable[[str], str]
    password: Callable[[Sequence[Node]], Password]
    progress: Callable[[], Progress]
    confirm: Callable[[Sequence[ChangeRow]], bool]


@contextmanager
def opened(
    command: str,
    params: Mapping[str, Any],
    inventory: Inventory,
    attendance: Attendance,
    deadline: Deadline,
    budget: Budget | None = None,
    cores: int | None = None,
) -> Iterator[Invocation]:
    """Yield what the stages of a command need. `params` are its options, named as click does.

    `inventory` is whole: --limit and --retry-failed are applied here. `cores` limits those that
    logins are spread over. Raises InputError.
    """
    if command in WRITING:
        refuse_writing(inventory)
    now = datetime.now(timezone.utc)
    steps, selection = chosen_steps(params, inventory)
    applied = AppliedEnvironments(state_folder())
    runs = Runs(state_folder())
    history = History(applied, runs, inventory.cluster)
    limited = _limited(command, inventory, params, history)
    contacted = {node.name for node in limited.nodes}
    left_out = tuple(node.name for node in inventory.nodes if node.name not in contacted)
    settings = settings_of(
        command,
        params,
        selection,
        tuple(check_names()),
        left_out,
    )
    transports = transports_for(limited, attendance.passphrase, cores or usable_cores())
    password = attendance.password(limited.nodes)
    progress = attendance.progress()
    try:
        yield Invocation(
            settings=settings,
            inventory=limited,
            steps=steps,
            transports=transports,
            password=password,
            watch=progress,
            deadline=deadline,
            confirm=attendance.confirm,
            applied=applied,
            runs=runs,
            run=new_run_name(now),
            started=now,
            budget=budget,
        )
    finally:
        progress.close()


@contextmanager
def failure_noted(invocation: Invocation) -> Iterator[None]:
    """Record the run as failed if an error ends the block."""
    try:
        yield
    except ClusterprepError as error:
        record.note_failure(invocation, error)
        raise


def _limited(
    command: str, inventory: Inventory, params: Mapping[str, Any], history: History
) -> Inventory:
    """Return the inventory with the nodes that --limit and --retry-failed select."""
    limited = inventory
    if params.get("limit"):
        limited = limit_to(inventory, params["limit"])
    run = params.get("retry_failed")
    if run:
        limited = limited_to_failed(limited, history, run, peers=command in COMPARING)
    return limited
