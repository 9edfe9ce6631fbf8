"""A command, run unless the path `creates` exists or the command `unless` succeeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from clusterprep.changes.resources import NoPlan, Params, PlanContext, StepResource, time_limit
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Read
from clusterprep.model.operations import RunCommand, StepAction

LIMIT = 600.0  # seconds for a command
ASKING = 30.0  # seconds for the command that says whether it is needed
COMMANDS = ("run", "undo", "unless")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_NAME = re.compile(r"(?<!\\)\{\{\s*(\S+?)\s*\}\}")


def split_command(command: Any) -> tuple[str, ...]:
    """Return the words of a command: a list as it is, a text as a shell would split it.

    A variable is one word however it is written. It is filled in later, so no value is ever split.
    Raises ValueError for an open quote.
    """
    if not isinstance(command, str):
        return tuple(map(str, command))
    compact = _NAME.sub(r"{{\1}}", command)
    escaped = compact.replace("\\{{", "\\\\{{")
    return tuple(shlex.split(escaped))


def normal(params: Params) -> Params:
    """Return the parameters with each command as a tuple of words."""
    split = dict(params)
    for key in COMMANDS:
        if key in params:
            split[key] = split_command(params[key])
    return split


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    for key in COMMANDS:
        if key not in params:
            continue
        message = _wrong_command(params[key])
        if message:
            yield key, message
    try:
        time_limit(params, LIMIT)
    except ValueError as error:
        yield "limit", str(error)


def _wrong_command(command: Any) -> str:
    """Return what is wrong with a command, or an empty text."""
    try:
        argv = split_command(command)
    except ValueError as error:
        return f"expected the words of a command; {str(error).lower()}"
    if not argv or not argv[0]:
        return "expected a command; seen nothing"
    script = _script_with_variable(argv)
    if script is None:
        return ""
    return (
        f"a value inside a shell's text could become code: {script!r}; give it as a word of its "
        "own, as in [sh, -c, 'echo \"$1\"', sh, '{{ node }}']"
    )


def _script_with_variable(argv: tuple[str, ...]) -> str | None:
    """Return the text that a shell is given with -c, if it holds a variable."""
    for program, option, script in zip(argv, argv[1:], argv[2:], strict=False):
        name = program.rsplit("/", 1)[-1]
        if name not in _SHELLS or not re.fullmatch(r"-\w*c", option):
            continue
        if _NAME.search(script):
            return script
    return None


def only_handles(params: Params) -> str:
    if {"creates", "unless"} & set(params):
        return ""
    return (
        "expected creates or unless, which say when there is nothing to do; "
        "only a handler is run without"
    )


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    conditions = []
    if "creates" in params:
        conditions.append(_path_exists(str(params["creates"])))
    if "unless" in params:
        conditions.append(_command_succeeds(split_command(params["unless"])))
    return tuple(conditions)


def _path_exists(path: str) -> Fact:
    reads = (Read("command", ("test", "-e", path)),)
    return Fact(f"exists:{path}", lambda node, _: reads, succeeded)


def _command_succeeds(argv: tuple[str, ...]) -> Fact:
    name = f"unless:{shlex.join(argv)}"
    reads = (Read("alone", argv, ASKING),)
    return Fact(name, lambda node, _: reads, succeeded, lenient=True)


def succeeded(answer: Any) -> bool | Absent:
    """Return whether a command ended with 0.

    A program that is missing has not succeeded. Of a command that did not end it is not known.
    """
    if isinstance(answer, Absent):
        return False if answer.reason == "missing_tool" else answer
    return int(answer["code"]) == 0


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    argv = tuple(params["run"])
    if "\0" in "".join(argv):
        raise NoPlan("cannot", "a word of a command holds a zero byte")
    limit = time_limit(params, LIMIT)
    undo = None
    if "undo" in params:
        undo = (RunCommand(tuple(params["undo"]), limit),)
    needed = context.notified
    if context.facts:
        needed = not any(context.facts.values())
    operations: tuple[RunCommand, ...] = ()
    if needed:
        # A command that ends with an exit code for failure says that it did nothing (`halfway` is
        # False): its undo might then remove what others made.
        operations = (RunCommand(argv, limit, undo=undo, halfway=False),)
    yield StepAction(
        context.node.name,
        "command",
        shlex.join(argv),
        "run",
        operations,
    )


RESOURCE = StepResource(
    "command",
    plan,
    facts=facts,
    wrong=wrong,
    normal=normal,
    variables=("run", "undo"),
    texts=True,
    handles=True,
    only_handles=only_handles,
)
