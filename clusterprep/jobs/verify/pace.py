"""When a trial goes on and when it has seen enough, decided from events and times alone."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import TrialPlan

START_LIMIT = 60.0  # seconds until torch is imported on every rank
# Seconds that ranks may take which are still at work: torch is read from a cold shared file system,
# or a driver wakes eight GPUs. A rank at work says so every five seconds (remote/agent/ranks.py).
START_MOST = 300.0
AT_WORK = 15.0
GRACE = 1.5  # seconds over the time limit, so that ranks can say themselves what they waited for
SETTLE = 1.0  # seconds after the first fault; exits that follow within it are its cascade
STOPPED = 3.0  # seconds in state T after which a rank will not go on by itself
# Of the time limit, without any progress: the sockets are looked at before ranks give up by
# themselves and close them.
STALLED = 0.8
QUIET = 2.0  # seconds without a beat, which comes every second; such a node is about to be lost
QUIET_LIMIT = 4.5  # seconds more that are waited until a quiet node is lost or speaks again

MEETING = ("store", "joined", "met")  # milestones until ranks are connected
MILESTONES = (*MEETING, "entered", "warmed", "left", "finished")
FAILED = ("no_torch", "no_cuda", "error", "exit")


class Decision(Enum):
    WAIT = "wait"
    GO = "go"  # torch is there on every rank: the rendezvous begins
    DONE = "done"
    SEEN_ENOUGH = "seen enough"
    OVERDUE = "overdue"


class Pace:
    """Follows a trial that began at time `began`; `note` what happens, then ask `decide`.

    All times are seconds of one monotonic clock, that of the caller.
    """

    def __init__(self, plan: TrialPlan, began: float) -> None:
        self._plan = plan
        self._began = began
        self._go_at: float | None = None  # when the rendezvous began
        self._steps = dict.fromkeys(range(plan.world_size), 0)  # milestones that a rank reached
        self._least_steps = 0  # of the rank that came least far
        self._advanced_at = began  # when that rank took its last step
        self._ready: set[int] = set()
        self._failed: set[int] = set()
        self._finished: set[int] = set()
        self._worked: dict[int, float] = {}  # rank → when it was at work last, until it is ready
        self._stopped: dict[int, float] = {}  # rank → since when its process is stopped
        self._first_fault_at: float | None = None

    def note(self, event: Event, now: float) -> None:
        if event.what in ("lost", "refused"):
            for planned in self._plan.ranks_by_node[event.node]:
                self._fail(now, planned.rank)
        elif event.rank is not None and event.rank in self._steps:
            self._note_rank(event, event.rank, now)

    def _note_rank(self, event: Event, rank: int, now: float) -> None:
        if event.what in MILESTONES:
            self._steps[rank] += 1
        if event.what == "working":
            self._worked[rank] = now
        elif event.what == "ready":
            self._ready.add(rank)
        elif event.what == "finished":
            self._finished.add(rank)
        elif event.what in FAILED:
            self._fail(now, rank)
        elif event.what == "state":
            self._note_state(event, rank, now)

    def _note_state(self, event: Event, rank: int, now: float) -> None:
        if event.data.get("state") in ("stopped", "traced"):
            self._stopped[rank] = now
        else:
            self._stopped.pop(rank, None)

    def _fail(self, now: float, rank: int) -> None:
        self._failed.add(rank)
        if self._first_fault_at is None:
            self._first_fault_at = now

    def decide(self, now: float, quiet: float = 0.0) -> Decision:
        """Return what to do at `now`.

        `quiet` is for how many seconds the quietest node that is not lost has been silent.
        """
        for rank, since in self._stopped.items():
            if now - since >= STOPPED:
                self._fail(now - SETTLE, rank)  # has settled already
        if self._go_at is None:
            return self._before_go(now)
        return self._after_go(now, self._go_at, quiet)

    def note_go(self, now: float) -> None:
        """Note that the ranks were told to begin the rendezvous."""
        self._go_at = now
        self._advanced_at = now

    def stalls(self, now: float) -> bool:
        """Return whether the ranks have waited so long that a look at their sockets is due."""
        if self._go_at is None:
            return False
        waited = now - max(self._advanced_at, self._go_at)
        return waited > STALLED * self._limit()

    def _before_go(self, now: float) -> Decision:
        """Decide before the rendezvous.

        A fault delays no other rank by then, so that their answers are waited for.
        """
        waiting = set(self._steps) - self._ready - self._failed
        if self._first_fault_at is None and not waiting:
            return Decision.GO
        if self._first_fault_at is not None:
            is_overdue = now - self._first_fault_at > self._plan.timeout
            if not waiting or is_overdue:
                return Decision.SEEN_ENOUGH
        if now - self._began > START_LIMIT and not self._are_at_work(waiting, now):
            return Decision.OVERDUE
        return Decision.WAIT

    def _are_at_work(self, waiting: Iterable[int], now: float) -> bool:
        """Return whether all of these ranks were at work just now, and may go on."""
        if now - self._began > START_MOST:
            return False
        return all(now - self._worked.get(rank, -AT_WORK) < AT_WORK for rank in waiting)

    def _limit(self) -> float:
        """Return the seconds that ranks may take for the step in which the slowest one is."""
        if self._least_steps < len(MEETING):
            return self._plan.meeting
        return self._plan.timeout

    def _after_go(self, now: float, go_at: float, quiet: float) -> Decision:
        """Decide after the rendezvous began at `go_at`.

        A fault ends the trial once its consequences had time to show; without one the time limit
        does, counted from the last step of the slowest rank.
        """
        least = min(self._steps.values(), default=0)
        if least > self._least_steps:
            self._least_steps = least
            self._advanced_at = now
        if len(self._finished) == len(self._steps):
            return Decision.DONE
        enough = max(self._advanced_at, go_at) + self._limit() + GRACE
        if self._first_fault_at is not None:
            enough = min(enough, self._first_fault_at + SETTLE)
        if now < enough:
            return Decision.WAIT
        if quiet > QUIET and now < enough + QUIET_LIMIT:
            return Decision.WAIT
        if self._first_fault_at is None:
            return Decision.OVERDUE
        return Decision.SEEN_ENOUGH
