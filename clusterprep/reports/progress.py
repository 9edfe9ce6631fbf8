"""Print progress to stderr: the stage, how many nodes are done, and which of them are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from time import monotonic
from types import TracebackType
from typing import TextIO

from clusterprep.reports.plain import (
    clean,
    distinct,
    fold_nodes,
    format_elapsed,
    safe_text,
    to_ascii,
)

Clock = Callable[[], float]

SLOW = 2.0  # seconds; nodes that are quicker are never called slow
TIMES = 3  # a node is slow beyond this many times the median
SLOWEST = 3  # nodes named

# Outcomes that are as expected, so that the line does not name them.
_WELL = frozenset({"", "ok", "pass", "done", "reached", "unchanged", "finished"})
# Raised when stderr has no reader any more. That is no reason to stop between two commits.
READER_GONE = (OSError, ValueError)


class Progress:
    """Follows the stages of a run and prints nothing; the subclasses print.

    Steps may come from any thread. A stage ends when each of `total` nodes has stepped, when the
    next stage begins, or at `close`.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = RLock()
        self._name = ""
        self._total = 0
        self._nodes: tuple[str, ...] = ()
        self._outcomes: dict[str, str] = {}
        self._took: dict[str, float] = {}
        self._began = 0.0

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None:
        """Begin a stage over `total` nodes; their names are for saying which are pending."""
        with self._lock:
            self._end()
            self._name = name
            self._total = total
            self._nodes = tuple(nodes)
            self._outcomes = {}
            self._took = {}
            self._began = self._clock()
            self._stage_began()

    def step(self, node: str, outcome: str = "ok", seconds: float | None = None) -> None:
        """Record that one node is done after `seconds`.

        `outcome` is "ok" or the word for what went wrong.
        """
        with self._lock:
            self._outcomes[node] = outcome
            if seconds is not None:
                self._took[node] = seconds
            if self._name and len(self._outcomes) >= self._total:
                self._end()

    def note(self, text: str) -> None:
        """Print a sentence that stays on the screen."""
        with self._lock:
            self._say(f"note: {safe_text(text)}")

    def close(self) -> None:
        """End the running stage and release the terminal. May be called twice."""
        with self._lock:
            self._end()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _end(self) -> None:
        if not self._name:
            return
        summary = self._summary()
        self._name = ""
        self._stage_ended()
        self._say(summary)

    def _summary(self) -> str:
        """Return `look: 3/4 nodes, 10.0 s; timed_out: n4`."""
        nodes_by_outcome: dict[str, list[str]] = {}
        well = 0
        for node, outcome in self._outcomes.items():
            nodes_by_outcome.setdefault(outcome, []).append(node)
            if outcome in _WELL:
                well += 1
        name = safe_text(self._name, 40)
        took = format_elapsed(self._seconds())
        parts = [f"{name}: {well}/{self._total} nodes, {took}"]
        for outcome in distinct(nodes_by_outcome):
            if outcome in _WELL:
                continue
            nodes = fold_nodes(nodes_by_outcome[outcome])
            parts.append(f"{safe_text(outcome, 80)}: {nodes}")
        pending = self._pending()
        if pending:
            parts.append(f"no answer yet: {fold_nodes(pending)}")
        slowest = self._slowest()
        if slowest:
            parts.append(f"slowest: {slowest}")
        return "; ".join(parts)

    def _slowest(self) -> str:
        """Return `n7 4.1 s, n3 3.9 s`: nodes that ended well, but far later than most."""
        took = {}
        for node, seconds in self._took.items():
            outcome = self._outcomes.get(node)
            if outcome in _WELL:
                took[node] = seconds
        # Of two nodes there is no usual time.
        if len(took) < 3:
            return ""
        median = sorted(took.values())[len(took) // 2]
        limit = max(SLOW, TIMES * median)
        slowest_first = sorted(took, key=lambda node: -took[node])
        parts = []
        for node in slowest_first[:SLOWEST]:
            seconds = took[node]
            if seconds > limit:
                parts.append(f"{safe_text(node, 64)} {format_elapsed(seconds)}")
        return ", ".join(parts)

    def _troubles(self) -> str:
        """Return `3 timed_out, 1 refused`: what has gone wrong until now."""
        counts: Counter[str] = Counter()
        # Of a copy, because other threads add outcomes at the same time.
        for outcome in list(self._outcomes.values()):
            if outcome not in _WELL:
                counts[outcome] += 1
        parts = []
        for outcome, number in counts.most_common(2):
            parts.append(f"{number} {safe_text(outcome, 20)}")
        return ", ".join(parts)

    def _pending(self) -> tuple[str, ...]:
        return tuple(node for node in self._nodes if node not in self._outcomes)

    def _seconds(self) -> float:
        return self._clock() - self._began

    def _stage_began(self) -> None:
        """Start to draw; for subclasses."""

    def _stage_ended(self) -> None:
        """Stop drawing; for subclasses."""

    def _say(self, line: str) -> None:
        """Print the line; for subclasses."""


class Lines(Progress):
    """Prints one short line at the end of each stage: for log files, CI and pipes."""

    def __init__(self, stream: TextIO, clock: Clock = monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def _say(self, line: str) -> None:
        with suppress(*READER_GONE):
            self._stream.write(f"{encodable(self._stream, clean(line))}\n")
            self._stream.flush()


def encodable(stream: TextIO, text: str) -> str:
    """Return the text as the stream can show it: in ASCII unless its encoding is UTF-8."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "") in ("utf8", "utf8sig"):
        return text
    return to_ascii(text)
