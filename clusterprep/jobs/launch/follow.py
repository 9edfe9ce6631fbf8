"""Runs a launch through the agents: one thread per node carries, the main thread listens, shows and decides."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from clusterprep.errors import ClusterprepError, LinkLost, OutOfTime
from clusterprep.jobs.launch.display import Source
from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.jobs.launch.story import Told, Why
from clusterprep.jobs.verify.frames import parse_frame
from clusterprep.jobs.verify.timeline import Event
from clusterprep.remote.transports.link import Link

START_ANSWER = 20.0  # seconds for an agent to fork its processes
ANSWER = 5.0  # seconds for the answers that need no work
POLL = 0.1  # seconds
HOLD = (
    1.0  # seconds between signs of ours to the leash of the processes (remote/children.py, LEASH)
)
GRACE = 5.0  # seconds that processes get after SIGTERM
STOP_ANSWER = 4.0  # seconds beyond it; the agent itself gives stuck processes 2
SETTLE = (
    1.0  # seconds after the first bad end, for those that follow from it and for torchrun's summary
)
QUIET = 2.5  # seconds without a word of a node, which may be about to be lost
DUMP = 1.0  # seconds for ranks to say where they are
MOST = 20_000  # events that wait to be shown; a terminal that stands still must not fill the memory
KEPT = 400  # lines of each stream for the story; a stack of every thread takes some hundred


class Hear(Protocol):
    """Takes the lines of a rank, or of a node's torchrun; some are not for the screen."""

    def __call__(self, source: Source, lines: Sequence[str], *, shown: bool) -> None: ...


def run_launch(
    links: Mapping[str, Link], plan: LaunchPlan, hear: Hear, tick: Callable[[], None]
) -> Told:
    """Start all processes and follow them until all are done, one has failed or time is up; then none runs anywhere.

    `hear` is given all lines, `tick` is called a few times a second. An interruption ends everything and goes on.
    """
    return _Launch(links, plan, hear, tick).run()


class _Launch:
    """The one that decides; the threads of the nodes only carry."""

    def __init__(
        self, links: Mapping[str, Link], plan: LaunchPlan, hear: Hear, tick: Callable[[], None]
    ) -> None:
        self._links, self._plan, self._hear, self._tick = links, plan, hear, tick
        self._began = time.monotonic()
        self._arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._events: list[Event] = []
        self._printed: dict[Source, deque[str]] = {}
        self._states: dict[int, str] = {}
        self._running = {
            share.node.name: 1 if not plan.wanted.direct else share.count for share in plan.shares
        }
        self._ranks = {share.node.name: frozenset(share.ranks) for share in plan.shares}
        self._said = dict.fromkeys(self._running, 0)
        self._missed = dict.fromkeys(self._running, 0)  # lines of each node that nobody took
        self._failed_at: float | None = None
        self._stop, self._ask = threading.Event(), threading.Event()
        self._bug: Exception | None = None

    def run(self) -> Told:
        threads = [
            threading.Thread(target=self._carry, args=(share,), daemon=True)
            for share in self._plan.shares
        ]
        for thread in threads:
            thread.start()
        why: Why = "failed"
        until = float("inf")
        ending: ClusterprepError | None = None
        try:
            why = self._follow()
        except OutOfTime:
            why, until = "timeout", self._now()
            self._ask.set()
        except ClusterprepError as interrupted:
            ending = interrupted
        finally:
            self._stop.set()
            self._wait_for(threads)
        if self._bug is not None:
            raise self._bug
        if ending is not None:
            raise ending.extended(f"; all processes on {self._where()} were ended") from ending
        return Told(tuple(self._events), self._printed, why, self._states, until)

    # ------------------------------------------------------------ deciding

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _follow(self) -> Why:
        while self._bug is None:
            self._listen_once()
            if self._failed_at is None and not any(self._running.values()):
                return "done"
            if self._failed_at is not None and self._settled():
                return "failed"
        return "failed"

    def _settled(self) -> bool:
        """Enough time for what follows from the first bad end, and nobody may be about to be lost."""
        lost = {event.node for event in self._events if event.what in ("lost", "refused")}
        silent = [
            self._links[share.node.name].silent_for()
            for share in self._plan.shares
            if share.node.name not in lost
        ]
        return self._now() - (self._failed_at or 0.0) > SETTLE and max(silent, default=0.0) < QUIET

    def _wait_for(self, threads: Sequence[threading.Thread]) -> None:
        """What comes meanwhile is heard: the last words of ranks among it."""
        while any(thread.is_alive() for thread in threads):
            self._listen_once()
        for event in self._waiting():
            self._note(event)
        self._tick()

    def _where(self) -> str:
        lost = [event.node for event in self._events if event.what in ("lost", "left_over")]
        names = [share.node.name for share in self._plan.shares if share.node.name not in lost]
        gone = f" (of {', '.join(lost)} this is not known)" if lost else ""
        return f"{', '.join(names) or 'no node'}{gone}"

    def _listen_once(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._note(self._arrived.get(timeout=POLL))
        for event in self._waiting():
            self._note(event)
        self._tick()

    def _waiting(self) -> Iterator[Event]:
        while True:
            try:
                yield self._arrived.get_nowait()
            except queue.Empty:
                return

    def _note(self, event: Event) -> None:
        if event.what == "lines":
            self._print(event)
            return
        self._events.append(event)
        bad = event.what in ("lost", "refused")
        if event.what == "exit":
            self._running[event.node] -= 1
            bad = not event.data.get("asked") and event.data.get("code") != 0
        if bad and self._failed_at is None:
            self._failed_at = self._now()

    def _print(self, event: Event) -> None:
        source: Source = (event.node, event.rank)
        lines = list(event.data["lines"])
        left_out = int(event.data.get("left_out", 0)) + self._missed[event.node]
        if left_out:
            self._missed[event.node] = 0
            lines.insert(
                0,
                f"clusterprep: about {left_out} lines are missing here: they came faster than they were taken",
            )
        self._printed.setdefault(source, deque(maxlen=KEPT)).extend(lines)
        # What torchrun says of being ended is twenty lines on every node; its log has them.
        self._hear(source, lines, shown=event.rank is not None or not self._stop.is_set())

    # ------------------------------------------------------------ carrying: one thread per node

    def _carry(self, share: Share) -> None:
        link = self._links[share.node.name]
        try:
            if self._start(link, share):
                self._listen(link)
            if self._ask.is_set():
                self._ask_where(link)
            self._end(link)
        except LinkLost as lost:
            heard = self._now() - link.silent_for()
            self._tell(
                link, "lost", {"reason": lost.reason, "detail": lost.message, "heard": heard}
            )
        except Exception as bug:  # noqa: BLE001 - raised again in the main thread, which stops the other nodes first
            self._bug = bug

    def _start(self, link: Link, share: Share) -> bool:
        answer = link.request("launch", START_ANSWER, **self._plan.request(share))
        self._tell(link, "refused" if "no" in answer else "begun", answer)
        return "no" not in answer

    def _listen(self, link: Link) -> None:
        held = self._now()
        while not self._stop.is_set():
            self._pass_on(link, link.poll(POLL))
            if self._now() - held > HOLD:
                link.request("keep", ANSWER)
                held = self._now()

    def _ask_where(self, link: Link) -> None:
        """Which rank is stopped or stuck, and where the others are: they print it."""
        answer = link.request("stacks", ANSWER)
        states = answer.get("states")
        known = {str(rank): rank for rank in self._ranks[link.node.name]}
        told = states.items() if isinstance(states, dict) else ()
        self._states.update((known[rank], str(state)) for rank, state in told if rank in known)
        until = self._now() + DUMP
        while self._now() < until:
            self._pass_on(link, link.poll(POLL))

    def _end(self, link: Link) -> None:
        answer = link.request("finish", GRACE + STOP_ANSWER, grace=GRACE)
        self._pass_on(link, link.poll(0.0))
        if answer.get("left"):
            self._tell(link, "left_over", answer)

    def _pass_on(self, link: Link, frames: Sequence[dict[str, Any]]) -> None:
        at, name = self._now(), link.node.name
        for frame in frames:
            if "what" in frame:
                try:
                    what, rank, data = parse_frame(frame, self._ranks[name])
                except ValueError as error:
                    raise LinkLost("garbled", f"no agent of ours would say this: {error}") from None
                if what == "lines" and self._arrived.qsize() > MOST:
                    self._missed[name] += len(data["lines"])
                    continue
                self._said[name] += what != "lines"
                if self._said[name] > MOST:
                    raise LinkLost(
                        "garbled",
                        f"it told of more than {MOST} things that happened to its processes",
                    )
                self._arrived.put(Event(name, what, at, rank, data))

    def _tell(self, link: Link, what: str, data: dict[str, Any]) -> None:
        self._arrived.put(Event(link.node.name, what, self._now(), None, data))
