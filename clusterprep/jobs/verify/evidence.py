"""Views of a timeline that several rules about culprits use, and events as sentences to quote."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from clusterprep.jobs.verify.events import OBSERVED, Event
from clusterprep.jobs.verify.tally import end_time, event_words
from clusterprep.jobs.verify.timeline import Timeline

QUOTE = 300  # characters of a text from a node
MOST = 8  # ranks quoted for one fault
OUTPUT = 3  # last lines of a rank's output


def unexpected_exits(timeline: Timeline) -> dict[int, Event]:
    """Return the ranks whose process ended without being asked to, earliest first."""
    exits = timeline.ranks_with("exit")
    return {rank: event for rank, event in exits.items() if not event.data.get("asked")}


def ranks_in_state(timeline: Timeline, *wanted: str) -> dict[int, Event]:
    """Return the ranks that were in one of the `wanted` states when they were last looked at."""
    end = end_time(timeline)
    last: dict[int, Event] = {}
    for event in timeline.of("state"):
        if event.rank is not None and event.at <= end:
            last[event.rank] = event
    ended = unexpected_exits(timeline)
    matching: dict[int, Event] = {}
    for rank, event in last.items():
        if rank in ended or event.data.get("state") not in wanted:
            continue
        matching[rank] = event
    return matching


def by_node(timeline: Timeline, events: Mapping[int, Event]) -> dict[str, list[Event]]:
    """Return events of ranks by their nodes, in inventory order."""
    if not events:
        return {}
    grouped: dict[str, list[Event]] = {name: [] for name in timeline.node_names()}
    for event in events.values():
        grouped[event.node].append(event)
    return {name: node_events for name, node_events in grouped.items() if node_events}


def end_words(timeline: Timeline, rank: int, event: Event) -> tuple[str, ...]:
    """Return how a rank ended, when, what it had done, and the last lines that it printed."""
    ended = f"rank {rank} ended with {exit_words(event)}"
    when = time_words(event.at)
    before = last_words(timeline, rank, event.at)
    output = str(event.data.get("output", ""))
    lines: list[str] = []
    for line in output.splitlines():
        if not line.strip():
            continue
        lines.append(line)
    quoted = map(quote, lines[-OUTPUT:])
    return (f"{ended} {when}, {before}", *quoted)


def exit_words(event: Event) -> str:
    """Return the name of the signal that ended a process, else its exit code."""
    name = event.data.get("name")
    if name:
        return str(name)
    return f"exit code {event.data.get('code')}"


def rank_words(timeline: Timeline, ranks: Iterable[int]) -> tuple[str, ...]:
    """Return what each rank said last: its exception if it had one."""
    sentences: list[str] = []
    for rank in itertools.islice(ranks, MOST):
        last = _exception_or_last_words(timeline, rank)
        sentences.append(f"rank {rank}: {last}")
    return tuple(sentences)


def _exception_or_last_words(timeline: Timeline, rank: int) -> str:
    for event in timeline.of_rank(rank):
        if event.what == "error":
            return quote(event.data.get("text"))
    return last_words(timeline, rank)


def last_words(timeline: Timeline, rank: int, before: float = math.inf) -> str:
    """Return the last thing that a rank did by itself until `before`, as the end of a sentence."""
    last: Event | None = None
    for event in timeline.of_rank(rank):
        if event.what not in OBSERVED and event.at <= before:
            last = event
    if last is None:
        return "never heard of"
    return f"last heard of: {event_words(last)}"


def time_words(at: float) -> str:
    return f"at +{at:.2f} s"


def quote(text: object) -> str:
    """Return a text from a node on one line, in quotation marks and cut to QUOTE characters."""
    line = " ".join(str(text or "").split())
    if len(line) > QUOTE:
        line = f"{line[:QUOTE]}…"
    return f"«{line}»"
