"""A search as the text of a file, so that it can go on after an end or an interruption. Pure.

What comes next follows from the outcomes alone, so these are all that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from clusterprep.errors import InputError
from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.search import Search

FORMAT = 1


class Measurement(Struct, frozen=True):
    """What is run, and on which nodes: runs can only be compared where all of it is the same."""

    nodes: tuple[str, ...]
    command: tuple[str, ...]
    least: int  # nodes of a run
    direct: bool = False
    variables: tuple[str, ...] = ()  # names of --env; values may be secrets
    folder: str | None = None
    ranks: Mapping[str, int] = {}  # declared per node


class State(Struct, frozen=True):
    """A measurement and the outcomes of its runs, in their order."""

    format: int
    measurement: Measurement
    outcomes: tuple[Outcome, ...] = ()


def encode(measurement: Measurement, outcomes: Sequence[Outcome]) -> str:
    """Return the text of the file."""
    state = State(FORMAT, measurement, tuple(outcomes))
    return msgspec.json.format(msgspec.json.encode(state)).decode() + "\n"


def decode(data: bytes, file: str) -> State:
    """Return what a file has. Raises InputError if it is not one of ours."""
    try:
        state = msgspec.json.decode(data, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError.of(f"it holds no runs: {error}", file=file, key="--resume") from None
    if state.format != FORMAT:
        message = f"format {state.format} was written by a newer clusterprep"
        raise InputError.of(message, file=file, key="--resume")
    return state


def resumed(search: Search, state: State, measurement: Measurement, file: str) -> None:
    """Give the search the outcomes of earlier runs.

    Raises InputError if they were made on other nodes, or with another command.
    """
    for name in Measurement.__struct_fields__:
        before, now = getattr(state.measurement, name), getattr(measurement, name)
        if before != now:
            message = f"its runs were made with other {_NAMES[name]}: {_shown(before)}"
            raise InputError.of(message, file=file, key="--resume")
    for outcome in state.outcomes:
        if search.found is None:
            search.take(outcome)


_NAMES = {
    "nodes": "nodes",
    "command": "words of the command",
    "least": "--min-nodes",
    "direct": "--direct",
    "variables": "variables of --env",
    "folder": "--chdir",
    "ranks": "ranks per node",
}


def _shown(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{count} on {node}" for node, count in value.items()) or "none declared"
    return str(value)
