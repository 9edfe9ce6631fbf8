"""When a trial goes on and when it has seen enough: decided from events and times alone."""

from __future__ import annotations

from enum import Enum

from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.timeline import Event

START_LIMIT = 60.0  # seconds until torch is imported on every rank
GRACE = 1.5  # seconds over the time limit, so that ranks can say themselves what they waited for
SETTLE = 1.0  # seconds after the first fault; exits that follow within it are its cascade
STOPPED = 3.0  # seconds in state T after which a rank will not go on by itself
STALLED = 0.8  # of the time limit, without any progress: a rank that gives up by itself closes its sockets
QUIET = 2.0  # seconds without a beat, which comes every second; such a node is about to be lost
QUIET_LIMIT = 4.5  # seconds more that are waited until a quiet node is lost or speaks again

MILESTONES = ("store", "joined", "met", "entered", "warmed", "left", "finished")
FAILED = ("no_torch", "no_cuda", "error", "exit")


class Decision(Enum):
    WAIT = "wait"
    GO = "go"  # torch is there on every rank: the rendezvous begins
    DONE = "done"
    SEEN_ENOUGH = "seen enough"
    OVERDUE = "overdue"


class Pace:
    """Follows a trial that began at time `began`; `note` what happens, then ask `decide`."""

    def __init__(self, plan: TrialPlan, began: float) -> None:
        self._plan = plan
        self._began = began
        self._went: float | None = None
        self._steps = dict.fromkeys(range(plan.world_size), 0)
        self._least, self._advanced = 0, began
        self._ready: set[int] = set()
        self._failed: set[int] = set()
        self._finished: set[int] = set()
        self._stopped: dict[int, float] = {}
        self._trouble: float | None = None

    def note(self, event: Event, now: float) -> None:
        if event.what in ("lost", "refused"):
            self._fail(now, *(rank.rank for rank in self._plan.ranks_by_node[event.node]))
        elif event.rank is not None and event.rank in self._steps:
            self._note_rank(event, event.rank, now)

    def _note_rank(self, event: Event, rank: int, now: float) -> None:
        if event.what in MILESTONES:
            self._steps[rank] += 1
        if event.what == "ready":
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

    def _fail(self, now: float, *ranks: int) -> None:
        self._failed.update(ranks)
        if self._trouble is None:
            self._trouble = now

    def decide(self, now: float, quiet: float = 0.0) -> Decision:
        """What to do at `now`, when the quietest node that is not lost has been silent for `quiet` seconds."""
        for rank, since in self._stopped.items():
            if now - since >= STOPPED:
                self._fail(now - SETTLE, rank)  # has settled already
        return self._before(now) if self._went is None else self._after(now, self._went, quiet)

    def went(self, now: float) -> None:
        self._went = self._advanced = now

    def stalls(self, now: float) -> bool:
        """Whether the ranks have waited for so long that their sockets are worth a look, before they give up."""
        return (
            self._went is not None
            and now - max(self._advanced, self._went) > STALLED * self._plan.timeout
        )

    def _before(self, now: float) -> Decision:
        """The others' answers are worth waiting for: nothing has begun that a fault could drag on."""
        waiting = set(self._steps) - self._ready - self._failed
        if self._trouble is not None:
            enough = not waiting or now - self._trouble > self._plan.timeout
            return Decision.SEEN_ENOUGH if enough else self._start_limit(now)
        return self._start_limit(now) if waiting else Decision.GO

    def _start_limit(self, now: float) -> Decision:
        return Decision.OVERDUE if now - self._began > START_LIMIT else Decision.WAIT

    def _after(self, now: float, went: float, quiet: float) -> Decision:
        least = min(self._steps.values(), default=0)
        if least > self._least:
            self._least, self._advanced = least, now
        if len(self._finished) == len(self._steps):
            return Decision.DONE
        overdue = max(self._advanced, went) + self._plan.timeout + GRACE
        enough = overdue if self._trouble is None else min(overdue, self._trouble + SETTLE)
        if now < enough or (quiet > QUIET and now < enough + QUIET_LIMIT):
            return Decision.WAIT
        return Decision.OVERDUE if self._trouble is None else Decision.SEEN_ENOUGH
