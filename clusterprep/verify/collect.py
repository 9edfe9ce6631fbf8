"""Runs a trial through the agents: one thread per node, so that a node that falls silent holds up no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote import boot
from clusterprep.verify.pace import Decision, Pace
from clusterprep.verify.schedule import TrialPlan
from clusterprep.verify.timeline import Event, Timeline, in_order

START_ANSWER = 20.0  # seconds for an agent to fork its ranks
ANSWER = 5.0  # seconds for the answers that need no work
STOP_ANSWER = 3.0  # seconds; the agent itself gives stuck processes 2
POLL = 0.1  # seconds; also how late «go» and «stop» can reach a node
HOLD = 1.0  # seconds between signs of ours to the ranks' leash (remote/ranks.py, LEASH)
PARTING = 1.0  # seconds that ranks get to leave a group that worked
FRAME_KEYS = ("rank", "what", "mono", "wall")


class NodeLink(Protocol):
    """What a trial needs of a conversation with one agent; every call may raise LinkLost."""

    node: Node

    def request(self, op: str, timeout: float, **body: Any) -> dict[str, Any]: ...
    def poll(self, timeout: float) -> list[dict[str, Any]]: ...
    def silent_for(self) -> float: ...


def run_verify(links: Sequence[NodeLink], plan: TrialPlan, clock: Callable[[], float] = time.monotonic) -> Timeline:
    """Start the ranks of `plan`, follow them until they finish or enough is known, stop them everywhere.

    One link per node of the plan. Nodes that fall silent become events of the timeline, never exceptions; after
    any other exception, an interruption above all, the ranks are stopped before it goes on.
    """
    return _Trial(links, plan, clock).run()


class _Trial:
    """The one that decides; the threads of the nodes only carry."""

    def __init__(self, links: Sequence[NodeLink], plan: TrialPlan, clock: Callable[[], float]) -> None:
        self._links, self._plan, self._clock = links, plan, clock
        self._began = clock()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._seen: list[Event] = []
        self._lost: set[str] = set()
        self._pace = Pace(plan, 0.0)
        self._go, self._stop = threading.Event(), threading.Event()
        self._grace = 0.0
        self._bug: Exception | None = None

    def run(self) -> Timeline:
        source = boot.program()
        threads = [threading.Thread(target=self._carry, args=(link, source), daemon=True) for link in self._links]
        for thread in threads:
            thread.start()
        try:
            self._follow()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        self._seen.extend(self._waiting())
        return in_order(self._plan, self._seen)

    # ------------------------------------------------------------ deciding

    def _now(self) -> float:
        return self._clock() - self._began

    def _follow(self) -> None:
        decision = Decision.WAIT
        while decision in (Decision.WAIT, Decision.GO):
            if self._bug is not None:
                raise self._bug
            for event in self._arriving():
                self._note(event)
            decision = self._pace.decide(self._now(), self._quiet())
            if decision is Decision.GO:
                self._pace.went(self._now())
                self._seen.append(Event("", "go", self._now()))
                self._go.set()
        self._grace = PARTING if decision is Decision.DONE else 0.0
        self._seen.append(Event("", "overdue" if decision is Decision.OVERDUE else "stopping", self._now()))

    def _note(self, event: Event) -> None:
        self._seen.append(event)
        self._pace.note(event, self._now())
        if event.what == "lost":
            self._lost.add(event.node)

    def _arriving(self) -> Iterator[Event]:
        try:
            yield self._events.get(timeout=POLL)
        except queue.Empty:
            return
        yield from self._waiting()

    def _waiting(self) -> Iterator[Event]:
        while True:
            try:
                yield self._events.get_nowait()
            except queue.Empty:
                return

    def _quiet(self) -> float:
        return max((link.silent_for() for link in self._links if link.node.name not in self._lost), default=0.0)

    # ------------------------------------------------------------ carrying: one thread per node

    def _carry(self, link: NodeLink, source: str) -> None:
        try:
            answer = link.request("start", START_ANSWER, **self._plan.request(link.node, source))
            if "no" in answer:
                self._tell(link, "refused", answer)
            self._listen(link)
            answer = link.request("stop", STOP_ANSWER + self._grace, grace=self._grace)
            self._pass_on(link, link.poll(0.0))
            if answer.get("left"):
                self._tell(link, "left_over", answer)
        except LinkLost as lost:
            heard = self._now() - link.silent_for()
            self._tell(link, "lost", {"reason": lost.reason, "detail": lost.message, "heard": heard})
        except Exception as bug:  # noqa: BLE001 - raised again in the main thread, which stops the other nodes first
            self._bug = bug

    def _listen(self, link: NodeLink) -> None:
        told, held = False, self._now()
        while not self._stop.is_set():
            self._pass_on(link, link.poll(POLL))
            if self._go.is_set() and not told:
                link.request("go", ANSWER)
                told = True
            if self._now() - held > HOLD:
                link.request("hold", ANSWER)
                held = self._now()

    def _pass_on(self, link: NodeLink, frames: Sequence[dict[str, Any]]) -> None:
        at = self._now()
        for frame in frames:
            if "what" in frame:
                data = {key: value for key, value in frame.items() if key not in FRAME_KEYS}
                mono = float(frame["mono"])
                self._events.put(Event(link.node.name, str(frame["what"]), at, frame.get("rank"), data, mono))

    def _tell(self, link: NodeLink, what: str, data: dict[str, Any]) -> None:
        self._events.put(Event(link.node.name, what, self._now(), None, data))
