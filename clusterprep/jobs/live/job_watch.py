"""One job that runs, from look to look, and what is told of it. Pure.

    watch = JobWatch(target)
    changes = watch.look(now, answers_of(fleet))    # until watch.ended

That a rank is stopped, or that data gets lost, is told by the look that sees it. Anything else may
be a long step or a checkpoint, so a second look in a row has to see the same. That it is not known
whether the job moves is told by the third one. The first look tells what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.errors import NotKnown
from clusterprep.facts.kernel_log import KernelLog
from clusterprep.jobs.live import causes
from clusterprep.jobs.live.began import since_began
from clusterprep.jobs.live.connections import connections_of, of_places
from clusterprep.jobs.live.grouping import jobs_of
from clusterprep.jobs.live.judge import JobVerdict, judge
from clusterprep.jobs.live.model import Answers, Job, Rank, State
from clusterprep.jobs.live.resends import Resends
from clusterprep.jobs.live.target import KEY, Target
from clusterprep.model import Absent
from clusterprep.model.units import pluralize
from clusterprep.survey.watch.changes import Change

LEAST = 10.0  # seconds from one look at a job to the next
SURE = (causes.STOPPED.name, causes.LINK.name)  # told by the first look that sees them
LOOKS = {"moving": 1, "stuck": 2, "unknown": 3}  # in a row until it is told
LOOKS_WITHOUT_RANKS = 2  # in a row until the job has ended: a launcher may start its ranks anew

RankKey = tuple[str, int, int]  # node, pid and start


class Standing(Struct, frozen=True):
    """How the job stands in one look, and what would be told of it."""

    state: State
    cause: str = ""
    culprit: str = ""
    message: str = ""
    remedy: str = ""
    lines: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same in two looks. A rank that is gone has no node in later looks."""
        culprit = "" if self.cause == causes.GONE.name else self.culprit
        return self.state, self.cause, culprit


class JobWatch:
    """What was told of a job, and which ranks it had when it was seen last."""

    def __init__(self, target: Target) -> None:
        self.ended = False
        self._target = target
        self._resends = Resends()
        self._ranks: frozenset[RankKey] = frozenset()
        self._nodes: tuple[str, ...] = ()
        self._looks_without = 0
        self._told: Standing | None = None
        self._last: Standing | None = None
        self._in_row = 0  # looks that saw what the last one saw
        self._still = 0  # looks in a row that did not see the job move
        self._still_since = 0.0

    def look(
        self, now: float, answers: Answers, logs: Mapping[str, KernelLog | Absent]
    ) -> tuple[Change, ...]:
        """Return what is to be told of the job. `now` is of a clock that is never set.

        `logs` are the kernels' logs by node, which count at the first look that finds the job.
        Raises NotKnown if no job is found at the first look although all nodes answered.
        """
        connections = connections_of(answers.looks, answers.addresses)
        jobs, _ = jobs_of(answers.looks, connections)
        mine = [job for job in jobs if self._is_mine(job)]
        if not mine:
            return self._without_ranks(now, answers, jobs)
        self._looks_without = 0
        earlier = () if self._ranks else since_began(mine, answers.looks, logs)
        self._keep_ranks(mine, answers)
        lost = tuple(answers.lost)
        verdicts = [judge(job, answers.looks, connections, lost) for job in mine]
        changes = self._changes(now, standing_of(verdicts))
        names = {rank.place: rank.name for job in mine for rank in job.ranks}
        own = of_places(connections, set(names))
        return (*changes, *earlier, *self._resends.look(own, names))

    def _is_mine(self, job: Job) -> bool:
        return self._target.is_in(job) or any(_key(rank) in self._ranks for rank in job.ranks)

    def _keep_ranks(self, mine: Iterable[Job], answers: Answers) -> None:
        """Note the ranks of the job; those on nodes that gave no answer may still be there."""
        seen = {_key(rank) for job in mine for rank in job.ranks}
        seen.update(key for key in self._ranks if key[0] in answers.lost)
        self._ranks = frozenset(seen)
        with_ranks = {key[0] for key in seen}
        self._nodes = tuple(name for name in _names(answers) if name in with_ranks)

    def _without_ranks(
        self, now: float, answers: Answers, others: Sequence[Job]
    ) -> tuple[Change, ...]:
        """Return what is told of a look that found no rank of the job."""
        nodes = self._nodes or ((self._target.node,) if self._target.node else _names(answers))
        silent = [name for name in nodes if name in answers.lost]
        if silent:
            name = silent[0]
            message = f"{name} gave no answer ({answers.lost[name]}), so its ranks are not known"
            return self._changes(now, Standing("unknown", message=message), nodes)
        if not self._ranks:
            raise NotKnown(_not_found(self._target, answers, others))
        self._looks_without += 1
        if self._looks_without < LOOKS_WITHOUT_RANKS:
            return ()
        self.ended = True
        message = (
            "the job has ended: none of its ranks is there any more; its log says how it ended"
        )
        return (Change("ended", self._nodes, message=message),)

    def _changes(
        self, now: float, standing: Standing, nodes: Sequence[str] = ()
    ) -> tuple[Change, ...]:
        """Note how the job stands, and return that if it is to be told."""
        is_same = self._last is not None and standing.key == self._last.key
        self._in_row = self._in_row + 1 if is_same else 1
        self._last = standing
        if standing.state == "moving":
            self._still = 0
        else:
            self._still += 1
            if self._still == 1:
                self._still_since = now
        if not self._is_to_be_told(standing):
            return ()
        was_stuck = self._told is not None and self._told.state == "stuck"
        self._told = standing
        stuck_for = now - self._still_since if was_stuck else None
        return (_change(standing, tuple(nodes) or self._nodes, stuck_for),)

    def _is_to_be_told(self, standing: Standing) -> bool:
        if self._told is None:
            return True
        if standing.key == self._told.key:
            return False
        needed = 1 if standing.cause in SURE else LOOKS[standing.state]
        return self._in_row >= needed or self._still >= LOOKS["unknown"]


def standing_of(verdicts: Sequence[JobVerdict]) -> Standing:
    """Return how a job stands: stuck if one of its parts is, such as the steps of a Slurm job."""
    by_state: dict[State, list[JobVerdict]] = {"stuck": [], "unknown": [], "moving": []}
    for verdict in verdicts:
        by_state[verdict.job.state].append(verdict)
    state, (verdict, *_) = next(item for item in by_state.items() if item[1])
    if state == "stuck":
        return _stuck(verdict)
    words = "; ".join(verdict.notices) or verdict.job.name
    if verdict.causes:
        guess = max(verdict.causes, key=lambda cause: cause.confidence)
        words = f"{words}; it may be {guess.cause.name} ({guess.culprit or 'no rank is named'})"
    return Standing(state, message=words)


def _stuck(verdict: JobVerdict) -> Standing:
    best = max(verdict.causes, key=lambda cause: cause.confidence)
    return Standing(
        "stuck",
        cause=best.cause.name,
        culprit=best.culprit or "",
        message=best.message,
        remedy=str(best.cause.remedy),
        lines=tuple(line.text for line in best.lines),
    )


def _change(standing: Standing, nodes: tuple[str, ...], stuck_for: float | None) -> Change:
    """Return what is told. `stuck_for`: seconds, if it was told before that the job is stuck."""
    if standing.state == "stuck":
        who = standing.culprit or "which rank holds it up is not known"
        return Change(
            "stuck",
            nodes,
            message=f"the job is stuck ({standing.cause}, {who}): {standing.message}",
            remedy=standing.remedy,
            lines=standing.lines,
        )
    if standing.state == "unknown":
        return Change(
            "unknown", nodes, message=f"whether the job moves is not known: {standing.message}"
        )
    if stuck_for is None:
        return Change("moving", nodes, message=standing.message)
    return Change("moving", nodes, message="the job moves again", seconds=stuck_for)


def _key(rank: Rank) -> RankKey:
    return rank.node, rank.process.pid, rank.process.started


def _names(answers: Answers) -> tuple[str, ...]:
    """Return the nodes of the inventory, in its order."""
    return tuple(answers.addresses.values())


def _not_found(target: Target, answers: Answers, others: Sequence[Job]) -> str:
    """Return what was looked for, what there is instead, and what to do."""
    wanted = "has that number (SLURM_JOB_ID)"
    if not target.slurm:
        wanted = "is that process, has started it or was started by it"
    text = f"{KEY} {target.words}: no rank of a job of several ranks {wanted}"
    seen = [f"{job.name} with {_place(job)}" for job in others[:3]]
    text += f"; seen: {', '.join(seen)}" if seen else "; no job was seen"
    hidden = [name for name, look in answers.looks.items() if look.hidden]
    if hidden:
        count = pluralize(len(hidden), "node")
        text += f"; processes of other users are hidden on {count}: -b asks as root"
    return text


def _place(job: Job) -> str:
    return job.ranks[0].place
