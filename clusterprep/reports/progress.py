"""What a waiting person sees on stderr: which stage, how far, for whom; never on stdout, which is the report's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from time import monotonic
from types import TracebackType
from typing import TextIO

from clusterprep.reports.plain import ascii_of, distinct, elapsed, field, folded

Clock = Callable[[], float]

SLOW = 2.0  # seconds; quicker nodes are not worth a word
TIMES = 3  # the median's; what is slower than that stands out
SLOWEST = 3  # nodes named

_WELL = frozenset(
    {"", "ok", "pass", "done", "reached", "unchanged", "finished"}
)  # outcomes not worth a word
GONE = (OSError, ValueError)  # nobody reads stderr any more: no reason to stop between two commits


class Progress:
    """Follows the stages of a run and says nothing; the variants below say it. Steps may come from any thread.

    A stage ends when each of `total` nodes has stepped, when the next stage begins, or at `close`.
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
        """Begin a stage over `total` nodes; with their names, those still waited for can be told."""
        with self._lock:
            self._end()
            self._name, self._total, self._nodes = name, total, tuple(nodes)
            self._outcomes, self._took, self._began = {}, {}, self._clock()
            self._stage_began()

    def step(self, node: str, outcome: str = "ok", seconds: float | None = None) -> None:
        """One node is through, with `outcome`: "ok", or the word for what went wrong; `seconds`: what it took."""
        with self._lock:
            self._outcomes[node] = outcome
            if seconds is not None:
                self._took[node] = seconds
            if self._name and len(self._outcomes) >= self._total:
                self._end()

    def note(self, text: str) -> None:
        """A sentence that should stay on the screen."""
        with self._lock:
            self._say(f"note: {field(text)}")

    def close(self) -> None:
        """End the running stage and give the terminal back. May be called twice."""
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
        """`look: 3/4 nodes, 10.0 s; timed_out: n4`."""
        well = sum(outcome in _WELL for outcome in self._outcomes.values())
        parts = [f"{field(self._name, 40)}: {well}/{self._total} nodes, {elapsed(self._seconds())}"]
        for outcome in distinct(self._outcomes.values()):
            if outcome not in _WELL:
                nodes = folded(node for node, said in self._outcomes.items() if said == outcome)
                parts.append(f"{field(outcome, 80)}: {nodes}")
        if pending := self._pending():
            parts.append(f"no answer yet: {folded(pending)}")
        if slowest := self._slowest():
            parts.append(f"slowest: {slowest}")
        return "; ".join(parts)

    def _slowest(self) -> str:
        """`n7 4.1 s, n3 3.9 s`: nodes that answered well, and far later than most."""
        well = {
            node: took for node, took in self._took.items() if self._outcomes.get(node) in _WELL
        }
        if len(well) < 3:
            return ""
        late = max(SLOW, TIMES * sorted(well.values())[len(well) // 2])
        last = sorted(
            (node for node, took in well.items() if took > late), key=lambda node: -well[node]
        )
        return ", ".join(f"{field(node, 64)} {elapsed(well[node])}" for node in last[:SLOWEST])

    def _troubles(self) -> str:
        """`3 timed_out, 1 refused`: what has gone wrong so far."""
        counts = Counter(
            outcome for outcome in list(self._outcomes.values()) if outcome not in _WELL
        )
        return ", ".join(
            f"{number} {field(outcome, 20)}" for outcome, number in counts.most_common(2)
        )

    def _pending(self) -> tuple[str, ...]:
        return tuple(node for node in self._nodes if node not in self._outcomes)

    def _seconds(self) -> float:
        return self._clock() - self._began

    def _stage_began(self) -> None:
        """A variant may start to draw."""

    def _stage_ended(self) -> None:
        """A variant stops drawing."""

    def _say(self, line: str) -> None:
        """A variant writes the line."""


class Lines(Progress):
    """One short line at the end of each stage: for log files, CI and pipes."""

    def __init__(self, stream: TextIO, clock: Clock = monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def _say(self, line: str) -> None:
        with suppress(*GONE):
            self._stream.write(f"{in_encoding_of(self._stream, line)}\n")
            self._stream.flush()


def progress_on(stream: TextIO | None, *, quiet: bool = False, color: bool = True) -> Progress:
    """The variant that suits the stream: live on a terminal, lines elsewhere, silent when there is no stream."""
    if quiet or stream is None:
        return Progress()
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        from clusterprep.reports.live import LiveLine

        return LiveLine(stream, color=color)
    return Lines(stream)


def in_encoding_of(stream: TextIO, text: str) -> str:
    """The text as the stream can show it."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    return text if encoding in ("utf8", "utf8sig") else ascii_of(text)
