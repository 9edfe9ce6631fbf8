"""The journal that a node keeps of the runs that wrote to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, under
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.nodeset import expand
from clusterprep.remote.untrusted import require_integer, require_text

STATE = "/var/lib/clusterprep"
# States of a run that neither succeeded nor was rolled back. «lost»: the node went away while it
# was written to.
UNSETTLED = ("staged", "committed", "lost")
STATES = ("done", "undone", *UNSETTLED)
LARGEST_NUMBER = 1 << 62  # of a run; a number that a node made up must not exceed JSON's integers
LONGEST_NODES = 1 << 20  # characters of the names of a run's nodes, folded: 100,000 of ten letters


class JournalEntry(Struct, frozen=True):
    """One run on one node.

    `number` orders the runs of a node; runs of old releases have 0. `nodes` are the names
    of all nodes of the run, and `node` is the name that this one had among them; they are empty for
    runs of old releases. `batch` counts the batches of a run from 1, and `nodes` are then those of
    this batch; 0 is a run without batches.
    """

    run: str
    cluster: str
    state: str
    number: int = 0
    nodes: tuple[str, ...] = ()
    node: str = ""
    batch: int = 0


class DamagedRun(Struct, frozen=True):
    """A run of which the record cannot be read, or no longer has the old bytes; `why` names it."""

    run: str
    why: str


class Journal(Struct, frozen=True):
    """The runs, oldest first, and those that are damaged.

    `holder` is what the lock says of the run that is at work there now.
    """

    entries: tuple[JournalEntry, ...] = ()
    holder: str | None = None
    damaged: tuple[DamagedRun, ...] = ()

    @property
    def unsettled(self) -> tuple[JournalEntry, ...]:
        return tuple(entry for entry in self.entries if entry.state in UNSETTLED)

    def state(self, run: str) -> str | None:
        for entry in self.entries:
            if entry.run == run:
                return entry.state
        return None


def parse_journal(answer: Mapping[str, Any]) -> Journal:
    """Parse the agent's answer. Raises ValueError for a run in a state that no run has."""
    entries = tuple(_entry(row) for row in answer["runs"])
    holder = answer["holder"]
    if holder is not None:
        holder = _text(holder)
    damaged = tuple(DamagedRun(_text(run), _text(why)) for run, why in answer.get("damaged", ()))
    return Journal(entries, holder, damaged)


def _entry(row: Any) -> JournalEntry:
    run, cluster, state, *further = row
    number, nodes, node, *batch = further or (0, "", "")
    entry = JournalEntry(
        _text(run),
        _text(cluster),
        _text(state),
        require_integer(number, most=LARGEST_NUMBER),
        parse_nodes(nodes),
        require_text(node, LONGEST_NODES),
        require_integer(batch[0], most=LARGEST_NUMBER) if batch else 0,
    )
    if entry.state not in STATES:
        raise ValueError(f"run {entry.run} is in a state that is none: {entry.state!r}")
    return entry


def parse_nodes(folded: object) -> tuple[str, ...]:
    """Return the names of the nodes of a run, as a journal has them. Raises ValueError."""
    text = require_text(folded, LONGEST_NODES)
    return tuple(expand(text)) if text else ()


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


def _journal_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("journal", (under(node, STATE),)),)


JOURNAL = Fact("state.journal", _journal_reads, parse_journal)
