"""The batches of an apply: which nodes are written first, and what each node has afterwards. Pure.

split(["n1", "n2", "n3", "n4"], canary="1", sizes=("50%", "rest"))  →  n1; n[2-3]; n4
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from clusterprep.changes.transaction import Transaction
from clusterprep.errors import InputError
from clusterprep.facts.journal import Journal
from clusterprep.model import Fleet, StepOutcome
from clusterprep.model.files import FileChange
from clusterprep.model.nodeset import fold, select

CANARY = "canary"
REST = "rest"
_SIZE = re.compile(r"([0-9]{1,7})(%?)")
# Of a batch the outcome of the node for which it went worst.
_WORST_FIRST: tuple[StepOutcome, ...] = (
    "unanswered",
    "failed",
    "rolled-back",
    "undone",
    "not-started",
    "planned",
    "done",
    "unchanged",
)

# What a node has of what this apply writes: all of it, what it had before, or one of the two.
Content = Literal["new", "old", "unknown"]


class Batch(Struct, frozen=True):
    """Nodes that are written together, all or none. `number` counts from 1."""

    number: int
    name: str
    nodes: tuple[str, ...]


# ---------------------------------------------------------------- which nodes


def split(
    names: Sequence[str],
    canary: str = "",
    sizes: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Batch, ...]:
    """Return the nodes in batches, each in the order of `names`.

    `canary` is the first batch, as a number of nodes or their names. `sizes` are the batches of the
    others: a number, a share of all nodes in percent, or `rest`; the last of them repeats until no
    node is left, and without any the rest is one batch. Raises InputError, which names the option.
    """
    remaining = list(names)
    found: list[Batch] = []
    if canary:
        first = _canary_nodes(names, canary, groups)
        found.append(Batch(1, CANARY, first))
        remaining = [name for name in names if name not in frozenset(first)]
    steps = [_size(text, len(names), sizes) for text in sizes] or [None]
    position = 0
    while remaining:
        size = steps[min(position, len(steps) - 1)] or len(remaining)
        number = len(found) + 1
        found.append(Batch(number, str(number), tuple(remaining[:size])))
        remaining = remaining[size:]
        position += 1
    return tuple(found)


def _canary_nodes(
    names: Sequence[str], canary: str, groups: Mapping[str, Sequence[str]] | None
) -> tuple[str, ...]:
    if canary.isdigit():
        if int(canary) < 1:
            raise InputError.of("0 is no number of nodes", key="--canary", hint="1, or their names")
        return tuple(names[: int(canary)])
    try:
        chosen = select(canary, names, groups, whole="among the nodes of this apply")
    except ValueError as error:
        raise InputError.of(str(error), key="--canary") from None
    if not chosen:
        raise InputError.of("names no node", key="--canary")
    return tuple(chosen)


def _size(text: str, whole: int, sizes: Sequence[str]) -> int | None:
    """Return the number of nodes of a batch, None for all that are left. Raises InputError.

    A share is at least one node, as in Ansible's `serial`.
    """
    if text == REST:
        if sizes[-1] != REST or sizes.count(REST) > 1:
            raise InputError.of("rest has to be the last size", key="--batches")
        return None
    match = _SIZE.fullmatch(text)
    number = int(match[1]) if match else 0
    is_percent = match is not None and bool(match[2])
    if number < 1 or (is_percent and number > 100):
        raise InputError.of(
            f"'{text}' is no size of a batch",
            key="--batches",
            hint="a number of nodes, a share from 1% to 100%, or rest, as in 1,10%,rest",
        )
    return max(1, whole * number // 100) if is_percent else number


def unwritten(changes: Iterable[FileChange], states: Mapping[tuple[str, str], object]) -> list[str]:
    """Return the files that do not have what was written to them, as «path on node».

    `states` has what the nodes were found to have: (node, path) → bytes, None for no file. What was
    not seen is passed over. Two changes of one file count as the later one.
    """
    wanted = {}
    for change in changes:
        if not change.running:
            wanted[change.node, change.path] = change.after
    differing = []
    for (node, path), after in wanted.items():
        if (node, path) in states and states[node, path] != after:
            differing.append(f"{path} on {node}")
    return differing


# ---------------------------------------------------------------- nodes that differ


class Uneven(Struct, frozen=True):
    """A run in batches that some nodes have and others do not."""

    run: str
    having: tuple[str, ...]
    lacking: tuple[str, ...]


def uneven_run(fleet: Fleet) -> Uneven | None:
    """Return the newest run in batches that only some of the nodes reached have, if there is one.

    A later apply may have made them equal all the same: what they have decides.
    """
    states: dict[tuple[int, str], dict[str, str]] = {}
    known = []
    for node in fleet.reached:
        journal = fleet.fact(node.name, "state.journal")
        if not isinstance(journal, Journal):
            continue
        known.append(node.name)
        for entry in journal.entries:
            if entry.batch and entry.cluster == fleet.inventory.cluster:
                states.setdefault((entry.number, entry.run), {})[node.name] = entry.state
    for (_, run), by_node in sorted(states.items(), reverse=True):
        having = tuple(name for name in known if by_node.get(name) in ("done", "committed"))
        if having and len(having) < len(known):
            lacking = tuple(name for name in known if name not in having)
            return Uneven(run, having, lacking)
    return None


# ---------------------------------------------------------------- what became of them


def worst_outcome(outcomes: Iterable[StepOutcome]) -> StepOutcome:
    """Return the outcome of a batch: that of the node for which it went worst."""
    seen = set(outcomes)
    for outcome in _WORST_FIRST:
        if outcome in seen:
            return outcome
    return "unchanged"


def contents_of(
    part: Transaction, names: Iterable[str], written: Iterable[str]
) -> dict[str, Content]:
    """Return what the nodes of a batch have, by what they answered to its transaction.

    `written` are those on which there was something to write. The others had it before.
    """
    contents: dict[str, Content] = {}
    pending = frozenset(written)
    doubtful: dict[str, str] = {}
    if part.rolled_back or part.committed:
        doubtful = {**part.put_back.refused, **part.put_back.lost}
    for name in names:
        if name not in pending or part.receipt.outcomes.get(name) == "done":
            contents[name] = "new"
        else:
            contents[name] = "unknown" if name in doubtful else "old"
    return contents


def contents_text(contents: Mapping[str, Content]) -> str:
    """Return a sentence that says which nodes have what this apply writes, and which do not."""
    by_content: dict[str, list[str]] = {}
    for name, content in contents.items():
        by_content.setdefault(content, []).append(name)
    parts = []
    if "new" in by_content:
        parts.append(f"{fold(by_content['new'])} has what this apply writes")
    if "old" in by_content:
        parts.append(f"{fold(by_content['old'])} has what was there before")
    if "unknown" in by_content:
        parts.append(f"of {fold(by_content['unknown'])} it is not known which of both")
    return "; ".join(parts)
