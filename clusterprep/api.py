"""The Python interface: the commands as functions that return their report.

report = check("inventory.yaml", Options(only=("time.",), timeout=60))
print(report.verdict, report.to_json())

Nothing is printed, asked or read from the environment, and nothing ends the process. What ends a
command on the command line with a message is raised here: `ClusterprepError` and its subclasses. A
report is returned whatever the nodes are like, as a command shows one: `report.code` is the exit
code that the command would have had.

Names in `__all__` are stable; a release that takes one away, or changes what it means, is a major
one. `docs/howto/python.md` has examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from os import PathLike
from threading import Thread
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from clusterprep import reports
from clusterprep.cli.commands import record
from clusterprep.cli.commands.opening import Attendance, failure_noted, opened
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.unattended import Secrets, unattended
from clusterprep.cli.options import refuse_empty
from clusterprep.errors import (
    ChangeFailed,
    ClusterprepError,
    InputError,
    Interrupted,
    NotKnown,
    OutOfTime,
    Refused,
    Unreached,
)
from clusterprep.inventory.load import Overrides, load_inventory
from clusterprep.model import ChangeRow, Inventory
from clusterprep.model import Report as CommandReport
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.settings import FORKS, MOST_FORKS

__all__ = [
    "ChangeFailed",
    "ClusterprepError",
    "InputError",
    "Inventory",
    "NotKnown",
    "Options",
    "OutOfTime",
    "Refused",
    "Report",
    "Unreached",
    "apply",
    "check",
    "fix",
    "launch",
    "load",
    "plan",
    "rollback",
    "verify",
]

Path: TypeAlias = "str | PathLike[str]"
Confirm: TypeAlias = Callable[[Sequence[ChangeRow]], bool]
Work: TypeAlias = Callable[[Invocation], CommandReport]

SECRETS = ("become_password", "key_passphrase")


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the functions, named and meant as those of the commands.

    A function raises InputError for one that its command does not have.
    """

    # ---- all functions
    limit: str | None = None  # a set of nodes or a group, such as "gpu[1-8]"
    forks: int = FORKS  # nodes at once, 1 to 4096
    timeout: float | None = None  # seconds, of the whole command
    strict: bool = False
    become_password: str = ""  # of sudo
    key_passphrase: str = ""  # of each private key that has one
    # ---- check, plan, apply and fix
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    # ---- check, apply, verify and launch
    retry_failed: str | None = None  # the run whose failed nodes are meant, or "last"
    on_busy: bool = False
    # ---- check
    deep: bool = False
    stress: bool = False
    # ---- plan and apply
    playbook: str = "site"  # a name or a file
    # ---- plan, apply, fix and rollback
    partial: bool = False
    # ---- apply
    verify: bool = True
    # ---- rollback
    run: str | None = None  # the run that is undone; by default the last that changed something
    force: bool = False  # even if files were edited since
    # ---- launch
    direct: bool = False  # one process per rank, without torchrun in between
    env: dict[str, str] = {}
    chdir: str | None = None  # on the nodes; by default this folder if a node has it, else home
    log_dir: str | None = None  # on this machine; a file for each rank
    preflight: bool = True  # check first what it would hang at

    def __repr__(self) -> str:
        """Return the options without the secrets among them, and without values of `env`."""
        shown = msgspec.structs.asdict(self)
        for name in SECRETS:
            shown[name] = "…" if shown[name] else ""
        shown["env"] = dict.fromkeys(self.env, "…")
        fields = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"Options({fields})"


DEFAULTS = Options()

_FLEET = ("limit", "forks", "timeout", "strict", *SECRETS)
_SELECTING = ("only", "skip", "tags", "skip_tags")
# The options that each command has.
_TAKEN = {
    "check": (*_FLEET, *_SELECTING, "retry_failed", "on_busy", "deep", "stress"),
    "plan": (*_FLEET, *_SELECTING, "playbook", "partial"),
    "apply": (
        *_FLEET,
        *_SELECTING,
        "retry_failed",
        "on_busy",
        "playbook",
        "partial",
        "verify",
    ),
    "verify": (*_FLEET, "retry_failed", "on_busy"),
    "fix": (*_FLEET, *_SELECTING, "partial"),
    "rollback": (*_FLEET, "partial", "run", "force"),
    "launch": (
        *_FLEET,
        "retry_failed",
        "on_busy",
        "direct",
        "env",
        "chdir",
        "log_dir",
        "preflight",
    ),
}


class Report(CommandReport, frozen=True):
    """What a command reports, as a frozen value; docs/reference/report.md describes its parts.

    `code` is the exit code of the command, `verdict` says the same as a word.
    """

    def to_json(self) -> str:
        """Return the document that `--format json` prints; its schema is schemas/report.json."""
        return self.render("json")

    def to_dict(self) -> dict[str, Any]:
        """Return the content of that document."""
        content: dict[str, Any] = json.loads(self.to_json())
        return content

    def render(self, fmt: str) -> str:
        """Return the text that `--format` prints. Raises InputError for an unknown format."""
        return "".join(reports.pieces(self, fmt))


# ---------------------------------------------------------------- functions


def load(
    inventory: Path,
    *,
    become: bool | None = None,
    nproc_per_node: int | None = None,
    master_port: int | None = None,
    known_hosts: str | None = None,
    host_keys: str | None = None,
) -> Inventory:
    """Return the inventory of a file, for any number of commands about it.

    What is given besides takes the place of what the file says, as the options of the commands do.
    Raises InputError, with each mistake in `problems`.
    """
    overrides = Overrides(
        become=become,
        nproc_per_node=nproc_per_node,
        master_port=master_port,
        known_hosts=known_hosts,
        host_keys=host_keys,
    )
    return load_inventory(str(inventory), overrides)


def check(inventory: Inventory | Path, options: Options = DEFAULTS) -> Report:
    """Return what the nodes are like. Nothing is written there."""
    from clusterprep.cli.commands import check as command

    if options.deep and options.stress:
        raise InputError.of("it takes minutes; leave deep out", key="stress")
    return _run("check", inventory, options, command.run)


def plan(inventory: Inventory | Path, options: Options = DEFAULTS) -> Report:
    """Return what `apply` would change. Nothing is written on the nodes."""
    from clusterprep.cli.commands import plan as command

    return _run("plan", inventory, options, command.run)


def apply(
    inventory: Inventory | Path,
    options: Options = DEFAULTS,
    *,
    confirm: Confirm = lambda rows: True,
) -> Report:
    """Write on all nodes or on none, verify, and return what was done.

    `confirm` is called once with the changes before anything is written, from another thread; if it
    returns False nothing is.
    """
    from clusterprep.cli.commands import apply as command

    return _run(
        "apply",
        inventory,
        options,
        command.run,
        confirm=confirm,
    )


def verify(inventory: Inventory | Path, options: Options = DEFAULTS) -> Report:
    """Run the all-reduce over all ranks and return its result, with the culprit if it fails."""
    from clusterprep.cli.commands import verify as command

    return _run("verify", inventory, options, command.run)


def fix(
    inventory: Inventory | Path,
    options: Options = DEFAULTS,
    *,
    dry_run: bool = False,
    confirm: Confirm = lambda rows: True,
) -> Report:
    """Do what cures the findings, check again, and return what was cured and what is for people.

    With `dry_run` nothing is done, and the report has what would be. `confirm` is that of `apply`.
    """
    from clusterprep.cli.commands import fix as command

    return _run(
        "fix",
        inventory,
        options,
        lambda invocation: command.run(invocation, dry=dry_run),
        confirm=confirm,
    )


def rollback(inventory: Inventory | Path, options: Options = DEFAULTS) -> Report:
    """Put back, byte for byte, what an apply or a fix replaced, and return what was undone.

    That is the run that `options.run` names, or the last one of this cluster that changed
    something. Where there is none nothing is done, and the code is 0.
    """
    from clusterprep.cli.commands import rollback as command

    return _run("rollback", inventory, options, command.run)


def launch(
    inventory: Inventory | Path,
    command: Sequence[str],
    options: Options = DEFAULTS,
    *,
    on_line: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run a command on all nodes with ranks assigned, and return how each of them ended.

    `on_line` is called from another thread with each line that `clusterprep launch` would show.
    """
    from clusterprep.cli import arguments
    from clusterprep.cli.commands import launch as launching

    if isinstance(command, str):
        raise InputError.of("give its words one by one: ['train.py', '--lr', '1']", key="command")
    _refuse_options("launch", options)
    params = {
        "command": tuple(command),
        "direct": options.direct,
        "variables": tuple(f"{name}={value}" for name, value in options.env.items()),
        "chdir": options.chdir,
        "log_dir": options.log_dir,
        "preflight": options.preflight,
        "timeout": None,
        "form": None,
        "image": None,
        "seed": None,
        "fold": False,
    }
    request = arguments.launch_request(params)
    request = msgspec.structs.replace(request, limit=options.timeout)

    def work(invocation: Invocation) -> CommandReport:
        screen = arguments.launch_screen(params, invocation.run, on_line)
        return launching.run(invocation, request, screen)

    return _run("launch", inventory, options, work)


# ---------------------------------------------------------------- running one command


def _run(
    command: str,
    inventory: Inventory | Path,
    options: Options,
    work: Work,
    *,
    confirm: Confirm = lambda rows: True,
) -> Report:
    """Run a command in a thread of its own and return its report.

    So a handler of a signal that raises in the calling thread, as that of Ctrl-C does in the main
    one, never cuts a commit in two: the command is told to end, which it does in order, and then
    what was raised goes on.
    """
    _refuse_options(command, options)
    given = inventory if isinstance(inventory, Inventory) else load(inventory)
    secrets = Secrets(options.become_password, options.key_passphrase, "become_password")
    attendance = unattended(secrets, confirm)
    deadline = Deadline(options.timeout, f"timeout of {options.timeout or 0:g} s")
    answer: Future[CommandReport] = Future()

    def run() -> None:
        try:
            report = _report_of(
                command,
                given,
                options,
                attendance,
                deadline,
                work,
            )
            answer.set_result(report)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            answer.set_exception(error)

    thread = Thread(target=run, name=f"clusterprep {command}")
    try:
        thread.start()
        answer.exception()
    except BaseException:
        deadline.stop(Interrupted("interrupted by the program that called it"))
        _wait(answer, deadline)
        raise
    report = answer.result()
    return Report(**{name: getattr(report, name) for name in report.__struct_fields__})


def _wait(answer: Future[CommandReport], deadline: Deadline) -> None:
    """Wait until the command has ended, not for nodes that are silent if it is asked again."""
    while not answer.done():
        try:
            answer.exception()
        except BaseException:  # noqa: BLE001 - the first one is on its way
            deadline.hurry()


def _report_of(
    command: str,
    inventory: Inventory,
    options: Options,
    attendance: Attendance,
    deadline: Deadline,
    work: Work,
) -> CommandReport:
    """Return the report of a command, which is in the history then."""
    params = _params(command, options)
    with deadline:
        opening = opened(
            command,
            params,
            inventory,
            attendance,
            deadline,
        )
        with opening as invocation, failure_noted(invocation):
            report = work(invocation)
    return record.recorded(invocation, report)


def _refuse_options(command: str, options: Options) -> None:
    """Raise InputError for options of wrong types, and for those that the command does not have."""
    given = msgspec.structs.asdict(options)
    try:
        msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise InputError.of(str(error), key="options") from None
    _refuse_numbers(options)
    for name, value in given.items():
        if name not in _TAKEN[command] and value != getattr(DEFAULTS, name):
            raise InputError.of(f"{command} has no such option", key=name)
    refuse_empty(given)


def _refuse_numbers(options: Options) -> None:
    """Raise InputError for a number of nodes at once, or for a limit, that no command can have.

    Not declared as `msgspec.Meta`: types that carry it can crash an interpreter that ends.
    """
    if not 1 <= options.forks <= MOST_FORKS:
        raise InputError.of(f"{options.forks} is not in 1 to {MOST_FORKS}", key="forks")
    if options.timeout is not None and not options.timeout > 0:
        raise InputError.of(f"{options.timeout} is not above 0 seconds", key="timeout")


def _params(command: str, options: Options) -> dict[str, Any]:
    """Return the options as the command line would have them."""
    given = msgspec.structs.asdict(options)
    params = {name: given[name] for name in _TAKEN[command] if name not in SECRETS}
    for name in _SELECTING:
        params[name] = ",".join(given[name])
    params["undo"] = options.run
    params["no_verify"] = command == "fix" or not options.verify
    return params
