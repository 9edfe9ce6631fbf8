"""Views of a timeline that more than one rule of blame looks at, and events as sentences to quote."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from clusterprep.jobs.verify.tally import end_of, in_words
from clusterprep.jobs.verify.timeline import OUTSIDE, Event, Timeline

QUOTE = 300  # characters of a text from a node
MOST = 8  # ranks quoted for one fault
OUTPUT = 3  # last lines of a rank's output


def ends(timeline: Timeline) -> dict[int, Event]:
    """Ranks whose process ended without being asked to, earliest first."""
    return {
        rank: event
        for rank, event in timeline.ranks_with("exit").items()
        if not event.data.get("asked")
    }


def states(timeline: Timeline, *wanted: str) -> dict[int, Event]:
    """Ranks that were in one of the `wanted` states when they were last looked at."""
    ended, end = ends(timeline), end_of(timeline)
    last = {
        event.rank: event
        for event in timeline.of("state")
        if event.rank is not None and event.at <= end
    }
    return {
        rank: event
        for rank, event in last.items()
        if event.data.get("state") in wanted and rank not in ended
    }


def by_node(timeline: Timeline, events: Mapping[int, Event]) -> dict[str, list[Event]]:
    """Events of ranks under their nodes, in inventory order."""
    grouped: dict[str, list[Event]] = (
        {node.name: [] for node in timeline.plan.nodes} if events else {}
    )
    for event in events.values():
        grouped[event.node].append(event)
    return {name: found for name, found in grouped.items() if found}


def end_words(timeline: Timeline, rank: int, event: Event) -> tuple[str, ...]:
    """How a rank ended, when, what it had done, and the last lines that it printed."""
    lines = [line for line in str(event.data.get("output", "")).splitlines() if line.strip()]
    head = f"rank {rank} ended with {how(event)} {moment(event.at)}, {last_words(timeline, rank, event.at)}"
    return (head, *(quote(line) for line in lines[-OUTPUT:]))


def how(event: Event) -> str:
    return str(event.data.get("name") or f"exit code {event.data.get('code')}")


def rank_words(timeline: Timeline, ranks: Iterable[int]) -> tuple[str, ...]:
    """What each rank said last: its exception where it had one."""
    return tuple(f"rank {rank}: {_said(timeline, rank)}" for rank in itertools.islice(ranks, MOST))


def _said(timeline: Timeline, rank: int) -> str:
    errors = [event for event in timeline.by_rank.get(rank, ()) if event.what == "error"]
    return quote(errors[0].data.get("text")) if errors else last_words(timeline, rank)


def last_words(timeline: Timeline, rank: int, before: float = math.inf) -> str:
    own = [e for e in timeline.by_rank.get(rank, ()) if e.what not in OUTSIDE and e.at <= before]
    return f"last heard of: {in_words(own[-1])}" if own else "never heard of"


def moment(at: float) -> str:
    return f"at +{at:.2f} s"


def quote(text: object) -> str:
    line = " ".join(str(text or "").split())
    return f"«{line[:QUOTE]}{'…' if len(line) > QUOTE else ''}»"
