"""Run a trial through the agents: one thread per node, so that a silent node delays no other."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.events import Event, SharedEvents
from clusterprep.jobs.verify.frames import MOST_BYTES, MOST_VALUES, parse_frame
from clusterprep.jobs.verify.pace import Decision, Pace
from clusterprep.jobs.verify.schedule import TrialPlan, without_launcher_variables
from clusterprep.jobs.verify.timeline import EventLog, Timeline
from clusterprep.model import Node
from clusterprep.remote import bootstrap
from clusterprep.remote.untrusted import count_values, require_number
from clusterprep.runtime.clock import running_seconds

START_ANSWER_LIMIT = 20.0  # seconds for an agent to fork its ranks
ANSWER_LIMIT = 5.0  # seconds for the answers that need no work
STOP_ANSWER_LIMIT = 3.0  # seconds; the agent itself gives stuck processes 2
POLL = 0.1  # seconds; also how late "go" and "stop" can reach a node
HOLD = 1.0  # seconds between the requests that keep the ranks alive (remote/ranks.py, LEASH)
# Seconds; between its trials a rank may have no request for a while. Its agent has a leash of its
# own.
STANDING_LEASH = 600.0
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
    standing: StandingRanks | None = None,
    check: Callable[[], None] = lambda: None,
) -> Timeline:
    """Start the ranks of `plan`, follow them until they finish or enough is known, and stop them.

    Takes one link per node of the plan. Nodes that fall silent become events of the timeline, never
    exceptions. After any other exception, such as an interruption, the ranks are stopped before it
    is raised again.

    With `standing` the ranks of an earlier trial are used where they fit, and ranks that finished
    stay; `stop_standing_ranks` ends them. `check` is called a few times a second and may raise.
    """
    return _Trial(links, plan, standing, check).run()


def stop_standing_ranks(links: Iterable[NodeLink], standing: StandingRanks) -> None:
    """End all ranks that still stand, on all nodes at once.

    An agent that has fallen silent ends its ranks by itself.
    """
    threads: list[threading.Thread] = []
    for link in links:
        if standing.drop(link.node.name):
            threads.append(threading.Thread(target=_stop_ranks, args=(link,), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _stop_ranks(link: NodeLink) -> None:
    with contextlib.suppress(LinkLost):
        link.request("stop", STOP_ANSWER_LIMIT)


class StandingRanks:
    """Ranks that stay between trials, as importing torch costs more than a small trial."""

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[Mapping[str, str], ...]] = {}

    def fits(self, plan: TrialPlan, node: str) -> bool:
        return self._by_node.get(node) == _process_environments(plan, node)

    def add(self, plan: TrialPlan, node: str) -> None:
        self._by_node[node] = _process_environments(plan, node)

    def drop(self, node: str) -> bool:
        """Forget the ranks of a node. Returns whether there were any."""
        return self._by_node.pop(node, None) is not None


def _process_environments(plan: TrialPlan, node: str) -> tuple[Mapping[str, str], ...]:
    """Return what the processes were started with.

    Rank numbers and rendezvous come with each task.
    """
    environments = [without_launcher_variables(rank.env) for rank in plan.ranks_by_node[node]]
    return tuple(environments)


class _Trial:
    """One trial. The main thread decides; one thread per node passes requests and events."""

    def __init__(
        self,
        links: Sequence[NodeLink],
        plan: TrialPlan,
        standing: StandingRanks | None,
        check: Callable[[], None],
    ) -> None:
        self._links = links
        self._plan = plan
        self._standing = standing
        self._check = check
        self._began = time.monotonic()
        self._began_running = running_seconds()
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._log = EventLog(plan)
        self._shared_events = SharedEvents()
        self._lost: set[str] = set()
        self._values = dict.fromkeys((link.node.name for link in links), 0)  # in events
        self._received_before = {link.node.name: link.received for link in links}
        self._pace = Pace(plan, 0.0)
        self._go = threading.Event()
        self._stop = threading.Event()
        self._grace = 0.0
        self._done = False
        self._stalled = threading.Event()
        self._hung = False  # like _stalled: the sockets of the ranks may show where
        self._bug: Exception | None = None

    def run(self) -> Timeline:
        source = bootstrap.rank_source()
        threads: list[threading.Thread] = []
        for link in self._links:
            thread = threading.Thread(target=self._serve_node, args=(link, source), daemon=True)
            threads.append(thread)
        for thread in threads:
            thread.start()
        try:
            self._follow()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        for event in self._queued_events():
            self._log.add(event)
        return self._log.timeline()

    # ------------------------------------------------------------ main thread: deciding

    def _now(self) -> float:
        """Return the time for events.

        It goes on while this machine sleeps, as nodes do, whose clocks are set against it.
        """
        return time.monotonic() - self._began

    def _running(self) -> float:
        """Return for how long we have listened, without suspensions: limits count that alone."""
        return running_seconds() - self._began_running

    def _follow(self) -> None:
        decision = Decision.WAIT
        while decision in (Decision.WAIT, Decision.GO):
            if self._bug is not None:
                raise self._bug
            self._check()
            for event in self._arriving_events():
                self._note(event)
            decision = self._pace.decide(self._running(), self._longest_silence())
            if self._pace.stalls(self._running()):
                self._stalled.set()
            if decision is Decision.GO:
                self._pace.note_go(self._running())
                self._add_own_event("go")
                self._go.set()
        self._done = decision is Decision.DONE
        if self._done:
            self._grace = PARTING
        self._hung = not self._done and self._go.is_set()
        self._add_own_event("overdue" if decision is Decision.OVERDUE else "stopping")

    def _add_own_event(self, what: str) -> None:
        self._log.add(Event("", what, self._now()))

    def _note(self, event: Event) -> None:
        self._log.add(event)
        self._pace.note(event, self._running())
        if event.what == "lost":
            self._lost.add(event.node)

    def _arriving_events(self) -> Iterator[Event]:
        """Wait up to POLL seconds for an event, then yield all that came."""
        try:
            yield self._queue.get(timeout=POLL)
        except queue.Empty:
            return
        yield from self._queued_events()

    def _queued_events(self) -> Iterator[Event]:
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _longest_silence(self) -> float:
        """Return the seconds since the quietest node that is not lost was heard."""
        longest = 0.0
        for link in self._links:
            if link.node.name not in self._lost:
                longest = max(longest, link.silent_for())
        return longest

    # ------------------------------------------------------------ one thread per node

    def _serve_node(self, link: NodeLink, source: str) -> None:
        try:
            self._start(link, source)
            self._listen(link)
            if self._hung:
                self._look_at_sockets(link)
            if not self._keep_ranks(link):
                self._end(link)
        except LinkLost as lost:
            if self._standing:
                self._standing.drop(link.node.name)
            heard = self._now() - link.silent_for()
            data = {
                "reason": lost.reason,
                "detail": lost.message,
                "heard": heard,
            }
            self._tell(link, "lost", data)
        except Exception as bug:  # noqa: BLE001 - raised again in the main thread
            self._bug = bug  # where the ranks of all nodes are stopped first

    def _start(self, link: NodeLink, source: str) -> None:
        """Start the ranks of a node, unless ranks that fit stand there already."""
        name = link.node.name
        standing = self._standing
        further: dict[str, Any] = {}
        if standing:
            further["leash"] = STANDING_LEASH
            # What became of the ranks since the last trial says nothing of this one, in which they
            # have other numbers.
            link.poll(0.0)
            if standing.fits(self._plan, name):
                for rank in self._plan.ranks_by_node[name]:
                    self._queue.put(Event(name, "ready", self._now(), rank.rank))
                return
            if standing.drop(name):
                link.request("stop", STOP_ANSWER_LIMIT)
                link.poll(0.0)
        body = self._plan.request(link.node, source)
        answer = link.request("start", START_ANSWER_LIMIT, **body, **further)
        if "no" in answer:
            self._tell(link, "refused", answer)
        elif standing:
            standing.add(self._plan, name)

    def _listen(self, link: NodeLink) -> None:
        gone = False
        looked_at_sockets = False
        held = self._now()
        while not self._stop.is_set():
            self._pass_on(link, link.poll(POLL))
            if self._go.is_set() and not gone:
                self._send_go(link)
                gone = True
            if self._stalled.is_set() and not looked_at_sockets:
                self._look_at_sockets(link)
                looked_at_sockets = True
            if self._now() - held > HOLD:
                link.request("hold", ANSWER_LIMIT)
                held = self._now()

    def _send_go(self, link: NodeLink) -> None:
        tasks = self._plan.tasks(link.node)
        answer = link.request("go", ANSWER_LIMIT, tasks=tasks)
        started = len(self._plan.ranks_by_node[link.node.name])
        if self._standing and answer.get("left") != started:
            why = "a rank has ended since the trial before"
            self._tell(
                link,
                "refused",
                {
                    "no": "ended",
                    "why": why,
                },
            )

    def _look_at_sockets(self, link: NodeLink) -> None:
        answer = link.request("sockets", ANSWER_LIMIT)
        self._tell(link, "sockets", answer)

    def _keep_ranks(self, link: NodeLink) -> bool:
        """Let the ranks stand for a next trial, if wanted and possible. Returns whether they do."""
        if not self._standing or not self._done:
            return False
        return self._part(link)

    def _part(self, link: NodeLink) -> bool:
        """Have the ranks of a node leave their group and stay. Returns whether all of them did."""
        link.request("part", ANSWER_LIMIT)
        waiting = self._rank_numbers(link)
        limit = self._now() + ANSWER_LIMIT
        while waiting and self._now() < limit:
            for frame in link.poll(POLL):
                rank = frame.get("rank")
                if frame.get("what") == "parted" and isinstance(rank, int):
                    waiting.discard(rank)
        return not waiting

    def _end(self, link: NodeLink) -> None:
        if self._standing:
            self._standing.drop(link.node.name)
        answer = link.request("stop", STOP_ANSWER_LIMIT + self._grace, grace=self._grace)
        self._pass_on(link, link.poll(0.0))
        if answer.get("left"):
            self._tell(link, "left_over", answer)

    def _rank_numbers(self, link: NodeLink) -> set[int]:
        return {rank.rank for rank in self._plan.ranks_by_node[link.node.name]}

    def _pass_on(self, link: NodeLink, frames: Sequence[dict[str, Any]]) -> None:
        """Turn frames of an agent into events.

        Raises LinkLost if they are not those of an agent of ours.
        """
        at = self._now()
        name = link.node.name
        ranks = self._rank_numbers(link)
        if link.received - self._received_before[name] > MOST_BYTES:
            raise LinkLost("garbled", f"its ranks said more than {MOST_BYTES >> 20} MiB")
        self._values[name] += sum(map(count_values, frames))
        if self._values[name] > MOST_VALUES:
            raise LinkLost("garbled", f"its ranks said more than {MOST_VALUES:,} values")
        for frame in frames:
            if "what" not in frame:
                continue
            try:
                what, rank, data = parse_frame(frame, ranks)
                mono = require_number(frame.get("mono"))
            except ValueError as error:
                raise LinkLost("garbled", f"no agent of ours would say this: {error}") from None
            event = self._shared_events.event(
                name,
                what,
                at,
                rank,
                data,
                mono,
            )
            self._queue.put(event)

    def _tell(self, link: NodeLink, what: str, data: dict[str, Any]) -> None:
        event = Event(
            link.node.name,
            what,
            self._now(),
            None,
            data,
        )
        self._queue.put(event)
