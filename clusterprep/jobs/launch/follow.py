"""Run a launch through the agents.

One thread per node passes messages on; the main thread takes them, shows lines and decides.

A job's processes and the ranks of a trial are started, watched and ended by the same part of the
agent (`remote/agent/children.py`): as the job's user, in sessions of their own, under a leash that
the controller holds. A mark in the environment finds all that descends from them.

torchrun has one pipe for all ranks of a node, and its own way to tell them apart writes files on
the node. So each worker first runs a few lines that connect its streams to an abstract socket of
the agent, which leaves no file, and becomes the user's program by exec. The agent asks a connection
for its user and mark. The socket's end is the moment of a rank's end. torchrun keeps exit codes to
itself, so they are read from its summary (`torchrun_summary`). `remote/agent/printed.py` leaves
lines out before the agent's memory fills or the job has to wait.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from clusterprep.errors import ClusterprepError, LinkLost, OutOfTime
from clusterprep.jobs.launch.display import Source
from clusterprep.jobs.launch.last_lines import LastLines
from clusterprep.jobs.launch.outcome import Ending, LaunchRecord
from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.jobs.launch.waiting_lines import WaitingLines
from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.frames import parse_frame
from clusterprep.model.units import pluralize
from clusterprep.remote.transports.link import Link

START_ANSWER = 20.0  # seconds for an agent to fork its processes
ANSWER = 5.0  # seconds for the answers that need no work
POLL = 0.1  # seconds
# Seconds between signs of ours to the leash of the processes (remote/children.py, LEASH).
HOLD = 1.0
GRACE = 5.0  # seconds that processes get after SIGTERM
STOP_ANSWER = 4.0  # seconds beyond it; the agent itself gives stuck processes 2
# Seconds after the first failure, for those that follow from it and for torchrun's summary.
SETTLE = 1.0
QUIET = 2.5  # seconds of silence after which a node may be about to be lost
DUMP = 1.0  # seconds for ranks to print their stacks
MOST_EVENTS = 20_000  # of a node's processes, besides what they print


class Hear(Protocol):
    """Takes the lines of a rank, or of a node's torchrun; some are not for the screen."""

    def __call__(self, source: Source, lines: Sequence[str], *, shown: bool) -> None: ...


def run_launch(
    links: Mapping[str, Link],
    plan: LaunchPlan,
    hear: Hear,
    tick: Callable[[], None],
    check: Callable[[], None],
) -> LaunchRecord:
    """Start all processes and follow them until all are done, one has failed or time is up.

    When it returns, none of them runs any more. `hear` gets all lines, `tick` is called a few times
    a second, and so is `check` until the end begins. An interruption that it raises ends all
    processes and is raised again.
    """
    return _Launch(links, plan, hear, tick, check).run()


class _Launch:
    """The state of one launch. The main thread decides; the threads of nodes only pass on."""

    def __init__(
        self,
        links: Mapping[str, Link],
        plan: LaunchPlan,
        hear: Hear,
        tick: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._links = links
        self._plan = plan
        self._hear = hear
        self._tick = tick
        self._check = check
        self._began = time.monotonic()
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._events: list[Event] = []
        self._last_lines: dict[Source, LastLines] = {}
        self._waiting_lines = WaitingLines()
        self._states: dict[int, str] = {}
        # By node.
        self._ranks: dict[str, frozenset[int]] = {}
        self._running: dict[str, int] = {}  # processes
        for share in plan.shares:
            name = share.node.name
            self._ranks[name] = frozenset(share.ranks)
            self._running[name] = share.count if plan.wanted.direct else 1
        self._event_counts = dict.fromkeys(self._ranks, 0)  # events other than lines
        # Lines that came too fast to be shown, since the last notice about them.
        self._dropped_lines = dict.fromkeys(self._ranks, 0)
        self._failed_at: float | None = None
        self._stop = threading.Event()
        self._wants_stacks = threading.Event()
        self._bug: Exception | None = None

    def run(self) -> LaunchRecord:
        threads = self._start_threads()
        ending: Ending = "failed"
        until = float("inf")
        interruption: ClusterprepError | None = None
        try:
            ending = self._follow()
        except OutOfTime:
            ending = "timeout"
            until = self._now()
            self._wants_stacks.set()
        except ClusterprepError as error:
            interruption = error
        finally:
            self._stop.set()
            self._wait_for(threads)
        if self._bug is not None:
            raise self._bug
        if interruption is not None:
            addition = f"; all processes on {self._describe_nodes()} were ended"
            raise interruption.extended(addition) from interruption
        return LaunchRecord(
            tuple(self._events),
            self._last_lines,
            ending,
            self._states,
            until,
        )

    def _start_threads(self) -> list[threading.Thread]:
        threads: list[threading.Thread] = []
        for share in self._plan.shares:
            thread = threading.Thread(target=self._serve_node, args=(share,), daemon=True)
            threads.append(thread)
        for thread in threads:
            thread.start()
        return threads

    # ------------------------------------------------------------ deciding: the main thread

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _follow(self) -> Ending:
        while self._bug is None:
            self._check()
            self._take_events()
            if self._failed_at is None:
                if not any(self._running.values()):
                    return "done"
            elif self._has_settled(self._failed_at):
                return "failed"
        return "failed"

    def _has_settled(self, failed_at: float) -> bool:
        """Return True if the consequences of the first failure have come, as far as can be known.

        A node that has been silent for a while may be about to be lost: that is waited for.
        """
        if self._now() - failed_at <= SETTLE:
            return False
        lost = self._nodes_with("lost", "refused")
        for share in self._plan.shares:
            name = share.node.name
            if name not in lost and self._links[name].silent_for() >= QUIET:
                return False
        return True

    def _nodes_with(self, *kinds: str) -> list[str]:
        return [event.node for event in self._events if event.what in kinds]

    def _wait_for(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the threads, and take what comes meanwhile, such as the last lines of ranks."""
        while any(thread.is_alive() for thread in threads):
            self._take_events()
        for event in self._waiting_events():
            self._note(event)
        self._tick()

    def _describe_nodes(self) -> str:
        """Return the nodes whose processes were ended, and those of which it is not known."""
        unsure = self._nodes_with("lost", "left_over")
        ended: list[str] = []
        for share in self._plan.shares:
            if share.node.name not in unsure:
                ended.append(share.node.name)
        description = ", ".join(ended) or "no node"
        if unsure:
            unsure_names = ", ".join(unsure)
            description += f" (of {unsure_names} this is not known)"
        return description

    def _take_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._note(self._queue.get(timeout=POLL))
        for event in self._waiting_events():
            self._note(event)
        self._tick()

    def _waiting_events(self) -> Iterator[Event]:
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _note(self, event: Event) -> None:
        """Keep an event for the record, or have its lines heard; note the first failure."""
        if event.what == "lines":
            self._waiting_lines.take(event.node, event.data["lines"])
            self._hear_lines(event)
            return
        self._events.append(event)
        is_failure = event.what in ("lost", "refused")
        if event.what == "exit":
            self._running[event.node] -= 1
            was_asked_to_end = event.data.get("asked")
            is_failure = not was_asked_to_end and event.data.get("code") != 0
        if is_failure and self._failed_at is None:
            self._failed_at = self._now()

    def _hear_lines(self, event: Event) -> None:
        """Keep the last lines of a stream, and pass all to `hear`.

        A notice comes before them if lines were dropped since the last one, here or by the agent.
        """
        source: Source = (event.node, event.rank)
        lines = list(event.data["lines"])
        dropped_by_agent = int(event.data.get("left_out", 0))
        dropped = dropped_by_agent + self._dropped_lines[event.node]
        if dropped:
            self._dropped_lines[event.node] = 0
            notice = (
                f"clusterprep: about {pluralize(dropped, 'line')} did not arrive here: "
                "they came faster than they were taken"
            )
            lines.insert(0, notice)
        last_lines = self._last_lines.setdefault(source, LastLines())
        last_lines.extend(lines)
        # A torchrun that is ended prints twenty lines on every node about it; its log has them.
        is_shown = event.rank is not None or not self._stop.is_set()
        self._hear(source, lines, shown=is_shown)

    # ------------------------------------------------------------ passing on: one thread per node

    def _serve_node(self, share: Share) -> None:
        """Start the processes of a node, pass on what its agent says, and end them."""
        link = self._links[share.node.name]
        try:
            if self._start(link, share):
                self._listen(link)
            if self._wants_stacks.is_set():
                self._request_stacks(link)
            self._end(link)
        except LinkLost as lost:
            heard = self._now() - link.silent_for()
            data = {
                "reason": lost.reason,
                "detail": lost.message,
                "heard": heard,
            }
            self._put(link, "lost", data)
        except Exception as bug:  # noqa: BLE001 - the main thread stops all nodes, then raises it
            self._bug = bug

    def _start(self, link: Link, share: Share) -> bool:
        """Ask the agent to start the processes of a node. Return False if it refused."""
        body = self._plan.agent_request(share)
        answer = link.request("launch", START_ANSWER, **body)
        is_refused = "no" in answer
        self._put(link, "refused" if is_refused else "begun", answer)
        return not is_refused

    def _listen(self, link: Link) -> None:
        held_at = self._now()
        while not self._stop.is_set():
            self._pass_on(link, link.poll(POLL))
            if self._now() - held_at > HOLD:
                link.request("keep", ANSWER)
                held_at = self._now()

    def _request_stacks(self, link: Link) -> None:
        """Ask for the state of each process, and have the ranks print their stacks."""
        answer = link.request("stacks", ANSWER)
        states = answer.get("states")
        if not isinstance(states, dict):
            states = {}
        # Keys of JSON are text. What a node says of ranks that it does not run is not believed.
        rank_by_key = {str(rank): rank for rank in self._ranks[link.node.name]}
        for key, state in states.items():
            rank = rank_by_key.get(key)
            if rank is not None:
                self._states[rank] = str(state)
        until = self._now() + DUMP
        while self._now() < until:
            self._pass_on(link, link.poll(POLL))

    def _end(self, link: Link) -> None:
        answer = link.request("finish", GRACE + STOP_ANSWER, grace=GRACE)
        self._pass_on(link, link.poll(0.0))
        if answer.get("left"):
            self._put(link, "left_over", answer)

    def _pass_on(self, link: Link, frames: Sequence[dict[str, Any]]) -> None:
        now = self._now()
        for frame in frames:
            if "what" in frame:
                self._pass_on_one(link, frame, now)

    def _pass_on_one(self, link: Link, frame: dict[str, Any], now: float) -> None:
        """Queue what a frame says for the main thread. Lines are dropped if too many wait.

        Raises LinkLost for a frame that our agent would not send, and for too many other events.
        """
        name = link.node.name
        try:
            what, rank, data = parse_frame(frame, self._ranks[name])
        except ValueError as error:
            raise LinkLost("garbled", f"no agent of ours would say this: {error}") from None
        if what == "lines":
            if not self._waiting_lines.add(name, data["lines"]):
                self._dropped_lines[name] += len(data["lines"])
                return
        else:
            self._event_counts[name] += 1
            if self._event_counts[name] > MOST_EVENTS:
                raise LinkLost(
                    "garbled", f"it sent more than {MOST_EVENTS} events of its processes"
                )
        self._queue.put(
            Event(
                name,
                what,
                now,
                rank,
                data,
            )
        )

    def _put(self, link: Link, what: str, data: dict[str, Any]) -> None:
        """Queue an event of a whole node for the main thread."""
        self._queue.put(
            Event(
                link.node.name,
                what,
                self._now(),
                None,
                data,
            )
        )
