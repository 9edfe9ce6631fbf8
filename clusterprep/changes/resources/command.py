"""A command, run where what it is for is not there: `creates` names a path, `unless` a command that then succeeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from clusterprep.changes.resources import NoPlan, Params, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Read
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.model.units import parse_duration

LIMIT, ASKING = 600.0, 30.0  # seconds for a command, and for the one that says whether it is needed
COMMANDS = ("run", "undo", "unless")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_NAME = re.compile(r"(?<!\\)\{\{\s*(\S+?)\s*\}\}")


def words(command: Any) -> tuple[str, ...]:
    """The words of a command: a list as it is, a text as a shell would split it. Raises ValueError for an open quote.

    A variable is one word however it is written, and stays to be put in later, so that no value is ever split.
    """
    if not isinstance(command, str):
        return tuple(map(str, command))
    kept = _NAME.sub(r"{{\1}}", command).replace("\\{{", "\\\\{{")
    return tuple(shlex.split(kept))


def normal(params: Params) -> Params:
    """The same with its commands as words."""
    return {key: words(value) if key in COMMANDS else value for key, value in params.items()}


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    for key in COMMANDS:
        if key not in params:
            continue
        try:
            found = words(params[key])
        except ValueError as error:
            yield key, f"expected the words of a command; {str(error).lower()}"
            continue
        if not found or not found[0]:
            yield key, "expected a command; seen nothing"
        elif script := _with_variable(found):
            yield (
                key,
                (
                    f"a value inside a shell's text could become code: {script!r}; give it as a word of its own, "
                    "as in [sh, -c, 'echo \"$1\"', sh, '{{ node }}']"
                ),
            )
    if "limit" in params:
        try:
            parse_duration(str(params["limit"]))
        except ValueError as error:
            yield "limit", str(error)


def _with_variable(found: tuple[str, ...]) -> str | None:
    """The text that a shell is given with -c, if a variable stands in it."""
    for at, word in enumerate(found[:-2]):
        if (
            word.rsplit("/", 1)[-1] in _SHELLS
            and re.fullmatch(r"-\w*c", found[at + 1])
            and _NAME.search(found[at + 2])
        ):
            return found[at + 2]
    return None


def only_handles(params: Params) -> str:
    if {"creates", "unless"} & set(params):
        return ""
    return "expected creates or unless, which say when there is nothing to do; only a handler is run without"


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    found = []
    if "creates" in params:
        path = str(params["creates"])
        found.append(
            Fact(
                f"exists:{path}",
                lambda node, _: (Read("command", ("test", "-e", path)),),
                succeeded,
            )
        )
    if "unless" in params:
        argv = words(params["unless"])
        name = f"unless:{shlex.join(argv)}"
        found.append(
            Fact(name, lambda node, _: (Read("alone", argv, ASKING),), succeeded, lenient=True)
        )
    return tuple(found)


def succeeded(answer: Any) -> bool | Absent:
    """Whether a command ended with 0. One that is not there has not; one that did not end is not known."""
    if isinstance(answer, Absent):
        return False if answer.reason == "missing_tool" else answer
    return int(answer["code"]) == 0


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    argv = tuple(params["run"])
    if "\0" in "".join(argv):
        raise NoPlan("cannot", "a word of a command holds a zero byte")
    limit = parse_duration(str(params["limit"])) if "limit" in params else LIMIT
    undo = (RunCommand(tuple(params["undo"]), limit),) if "undo" in params else None
    needed = not any(known.facts.values()) if known.facts else known.notified
    # What failed by its exit code says that it did nothing: its undo might then take away what others made.
    operations = (RunCommand(argv, limit, undo=undo, halfway=False),) if needed else ()
    yield StepAction(known.node.name, "command", shlex.join(argv), "run", operations)


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
