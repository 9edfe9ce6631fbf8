"""What a node remembers of the runs that wrote to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.model import Read
from clusterprep.runtime.lazy_dataclass import dataclass

STATE = "/var/lib/clusterprep"
UNSETTLED = (
    "staged",
    "committed",
    "lost",
)  # lost: the node went away while it was being written to
STATES = ("done", "undone", *UNSETTLED)


@dataclass(frozen=True)
class JournalEntry:
    """One run on one node."""

    run: str
    cluster: str
    state: str


@dataclass(frozen=True)
class Journal:
    """Runs, oldest first; `holder` is what the lock says of the run that works there at the moment."""

    entries: tuple[JournalEntry, ...] = ()
    holder: str | None = None

    @property
    def unsettled(self) -> tuple[JournalEntry, ...]:
        return tuple(entry for entry in self.entries if entry.state in UNSETTLED)

    def state(self, run: str) -> str | None:
        return next((entry.state for entry in self.entries if entry.run == run), None)


def parse_journal(answer: Mapping[str, Any]) -> Journal:
    """The agent's answer, with every run in one of the states that it writes."""
    entries = tuple(JournalEntry(*map(_text, row)) for row in answer["runs"])
    for entry in entries:
        if entry.state not in STATES:
            raise ValueError(f"run {entry.run} is in a state that is none: {entry.state!r}")
    holder = answer["holder"]
    return Journal(entries, None if holder is None else _text(holder))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


JOURNAL = Fact(
    "state.journal",
    lambda node, inventory: (Read("journal", (under(node, STATE),)),),
    parse_journal,
)
