"""Runs a trial through the agents: one thread per node, so that a node that falls silent holds up no other."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.frames import MOST_BYTES, event_of
from clusterprep.jobs.verify.pace import Decision, Pace
from clusterprep.jobs.verify.schedule import TrialPlan, own_part
from clusterprep.jobs.verify.timeline import Event, KeptEvents, Timeline, in_order
from clusterprep.model import Node
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.untrusted import require_number
from clusterprep.runtime.clock import running_seconds

START_ANSWER = 20.0  # seconds for an agent to fork its ranks
ANSWER = 5.0  # seconds for the answers that need no work
STOP_ANSWER = 3.0  # seconds; the agent itself gives stuck processes 2
POLL = 0.1  # seconds; also how late «go» and «stop» can reach a node
HOLD = 1.0  # seconds between signs of ours to the ranks' leash (remote/ranks.py, LEASH)
STANDING_LEASH = 600.0  # seconds; between its trials a rank may have none for a while. Its agent has a leash of its own
PARTING = 1.0  # seconds that ranks get to leave a group that worked


class NodeLink(Protocol):
    """What a trial needs of a conversation with one agent; every call may raise LinkLost."""

    node: Node
    received: int  # bytes so far

    def request(self, op: str, timeout: float, **body: Any) -> dict[str, Any]: ...
    def poll(self, timeout: float) -> list[dict[str, Any]]: ...
    def silent_for(self) -> float: ...


def run_verify(
    links: Sequence[NodeLink],
    plan: TrialPlan,
    standing: Standing | None = None,
) -> Timeline:
    """Start the ranks of `plan`, follow them until they finish or enough is known, stop them everywhere.

    One link per node of the plan. Nodes that fall silent become events of the timeline, never exceptions; after
    any other exception, an interruption above all, the ranks are stopped before it goes on.

    With `standing` ranks are only started where none stand that fit, and stay where they finished; `dismiss` ends them.
    """
    return _Trial(links, plan, standing).run()


def dismiss(links: Iterable[NodeLink], standing: Standing) -> None:
    """End all ranks that still stand; who has fallen silent ends them without us."""
    for link in links:
        if standing.drop(link.node.name):
            with contextlib.suppress(LinkLost):
                link.request("stop", STOP_ANSWER)


class Standing:
    """Ranks that stay between trials, as importing torch costs more than a trial of a few: where, and which."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[Mapping[str, str], ...]] = {}

    def fits(self, plan: TrialPlan, node: str) -> bool:
        return self._there.get(node) == _given(plan, node)

    def add(self, plan: TrialPlan, node: str) -> None:
        self._there[node] = _given(plan, node)

    def drop(self, node: str) -> bool:
        """Whether there were any."""
        return self._there.pop(node, None) is not None


def _given(plan: TrialPlan, node: str) -> tuple[Mapping[str, str], ...]:
    """What the processes were started with; their numbers and where they meet are told with each task."""
    return tuple(own_part(rank.env) for rank in plan.ranks_by_node[node])


class _Trial:
    """The one that decides; the threads of the nodes only carry."""

    def __init__(
        self, links: Sequence[NodeLink], plan: TrialPlan, standing: Standing | None
    ) -> None:
        self._links, self._plan, self._standing = links, plan, standing
        self._began, self._woke = time.monotonic(), running_seconds()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._seen: list[Event] = []
        self._kept = KeptEvents()
        self._lost: set[str] = set()
        self._before = {link.node.name: link.received for link in links}
        self._pace = Pace(plan, 0.0)
        self._go, self._stop = threading.Event(), threading.Event()
        self._grace, self._done = 0.0, False
        self._stalled = threading.Event()
        self._hung = False  # like _stalled: the sockets of the ranks may show where
        self._bug: Exception | None = None

    def run(self) -> Timeline:
        source = boot.program()
        threads = [
            threading.Thread(target=self._carry, args=(link, source), daemon=True)
            for link in self._links
        ]
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
        """When something happened: nodes go on while we sleep, and their clocks are set against this one."""
        return time.monotonic() - self._began

    def _paced(self) -> float:
        """For how long we have been listening: limits count that alone."""
        return running_seconds() - self._woke

    def _follow(self) -> None:
        decision = Decision.WAIT
        while decision in (Decision.WAIT, Decision.GO):
            if self._bug is not None:
                raise self._bug
            for event in self._arriving():
                self._note(event)
            decision = self._pace.decide(self._paced(), self._quiet())
            if self._pace.stalls(self._paced()):
                self._stalled.set()
            if decision is Decision.GO:
                self._pace.went(self._paced())
                self._seen.append(Event("", "go", self._now()))
                self._go.set()
        self._done = decision is Decision.DONE
        self._grace = PARTING if self._done else 0.0
        self._hung = not self._done and self._go.is_set()
        self._seen.append(
            Event("", "overdue" if decision is Decision.OVERDUE else "stopping", self._now())
        )

    def _note(self, event: Event) -> None:
        self._seen.append(event)
        self._pace.note(event, self._paced())
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
        return max(
            (link.silent_for() for link in self._links if link.node.name not in self._lost),
            default=0.0,
        )

    # ------------------------------------------------------------ carrying: one thread per node

    def _carry(self, link: NodeLink, source: str) -> None:
        try:
            self._start(link, source)
            self._listen(link)
            if self._hung:
                self._look_at_sockets(link)
            if not (self._standing and self._done and self._part(link)):
                self._end(link)
        except LinkLost as lost:
            if self._standing:
                self._standing.drop(link.node.name)
            heard = self._now() - link.silent_for()
            self._tell(
                link, "lost", {"reason": lost.reason, "detail": lost.message, "heard": heard}
            )
        except Exception as bug:  # noqa: BLE001 - raised again in the main thread, which stops the other nodes first
            self._bug = bug

    def _start(self, link: NodeLink, source: str) -> None:
        """Ranks that stand already are as ready as they were."""
        name, standing, more = link.node.name, self._standing, {}
        if standing:
            more = {"leash": STANDING_LEASH}
            link.poll(
                0.0
            )  # what became of them since says nothing of this trial; their numbers were others
            if standing.fits(self._plan, name):
                for rank in self._plan.ranks_by_node[name]:
                    self._events.put(Event(name, "ready", self._now(), rank.rank))
                return
            if standing.drop(name):
                link.request("stop", STOP_ANSWER)
                link.poll(0.0)
        answer = link.request(
            "start", START_ANSWER, **self._plan.request(link.node, source), **more
        )
        if "no" in answer:
            self._tell(link, "refused", answer)
        elif standing:
            standing.add(self._plan, name)

    def _part(self, link: NodeLink) -> bool:
        """Have the ranks of a node leave their group and stay; whether all of them did."""
        link.request("part", ANSWER)
        left, limit = (
            {rank.rank for rank in self._plan.ranks_by_node[link.node.name]},
            self._now() + ANSWER,
        )
        while left and self._now() < limit:
            parted = [
                frame.get("rank") for frame in link.poll(POLL) if frame.get("what") == "parted"
            ]
            left -= {rank for rank in parted if isinstance(rank, int)}
        return not left

    def _end(self, link: NodeLink) -> None:
        if self._standing:
            self._standing.drop(link.node.name)
        answer = link.request("stop", STOP_ANSWER + self._grace, grace=self._grace)
        self._pass_on(link, link.poll(0.0))
        if answer.get("left"):
            self._tell(link, "left_over", answer)

    def _go_on(self, link: NodeLink) -> None:
        answer = link.request("go", ANSWER, tasks=self._plan.tasks(link.node))
        if self._standing and answer.get("left") != len(self._plan.ranks_by_node[link.node.name]):
            self._tell(
                link, "refused", {"no": "ended", "why": "a rank has ended since the trial before"}
            )

    def _listen(self, link: NodeLink) -> None:
        told, looked, held = False, False, self._now()
        while not self._stop.is_set():
            self._pass_on(link, link.poll(POLL))
            if self._go.is_set() and not told:
                self._go_on(link)
                told = True
            if self._stalled.is_set() and not looked:
                self._look_at_sockets(link)
                looked = True
            if self._now() - held > HOLD:
                link.request("hold", ANSWER)
                held = self._now()

    def _look_at_sockets(self, link: NodeLink) -> None:
        self._tell(link, "sockets", link.request("sockets", ANSWER))

    def _pass_on(self, link: NodeLink, frames: Sequence[dict[str, Any]]) -> None:
        at, ranks = self._now(), {rank.rank for rank in self._plan.ranks_by_node[link.node.name]}
        if link.received - self._before[link.node.name] > MOST_BYTES:
            raise LinkLost("garbled", f"its ranks said more than {MOST_BYTES >> 20} MiB")
        for frame in frames:
            if "what" not in frame:
                continue
            try:
                what, rank, data = event_of(frame, ranks)
                mono = require_number(frame.get("mono"))
            except ValueError as error:
                raise LinkLost("garbled", f"no agent of ours would say this: {error}") from None
            self._events.put(self._kept.event(link.node.name, what, at, rank, data, mono))

    def _tell(self, link: NodeLink, what: str, data: dict[str, Any]) -> None:
        self._events.put(Event(link.node.name, what, self._now(), None, data))
