"""The bisect stage: run the command on the nodes that the search names, until it has an answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from clusterprep.errors import ClusterprepError, LinkLost, OutOfTime
from clusterprep.jobs.bisection.cost import MostRuns, most_runs
from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.files import RunFolder
from clusterprep.jobs.bisection.pace import hang_limit
from clusterprep.jobs.bisection.result import result_of
from clusterprep.jobs.bisection.search import Search
from clusterprep.jobs.bisection.state import Measurement, encode
from clusterprep.jobs.launch import stage as launch_stage
from clusterprep.jobs.launch.plan import LaunchRequest
from clusterprep.jobs.launch.stage import Screen
from clusterprep.model import BisectResult, Fleet, LaunchResult
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.nccl.environment import Environment
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.node_lists import limited_fleet

HEAR_IDLE = 30.0  # seconds; a node says each second that it is alive, and connections hold 2 MB
_NO_OUTCOME = ("lost", "not-started")  # ends of ranks that the command is not to blame for


class Job(Struct, frozen=True):
    """What is run, and on which fleet: all nodes of it were reached."""

    fleet: Fleet
    environment: Environment
    request: LaunchRequest


class Limits(Struct, frozen=True):
    """What the user allows: runs, seconds of all of them, and of one before it counts as hung."""

    runs: int | None = None
    seconds: float | None = None
    one_run: float | None = None


class Desk(Struct, frozen=True):
    """Where a bisect is told and kept: `say` shows a line, `folder` has the runs and their logs."""

    say: Callable[[str], None]
    folder: RunFolder


class Stopped(Exception):
    """The search cannot go on; the text says why."""


class RunOnce(Protocol):
    """Runs the command on some nodes. `before` are the outcomes of earlier runs. Raises Stopped."""

    def __call__(self, number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome: ...


def bisect(
    fanout: Fanout,
    job: Job,
    measurement: Measurement,
    search: Search,
    limits: Limits,
    desk: Desk,
) -> BisectResult:
    """Make the runs of a search and return what they show."""
    bench = _Bench(fanout, job, limits, desk)
    return follow(search, bench.run, measurement, limits, desk)


def follow(
    search: Search,
    run_once: RunOnce,
    measurement: Measurement,
    limits: Limits,
    desk: Desk,
) -> BisectResult:
    """Have `run_once` make the runs that the search asks for, tell and keep each of them."""
    most = most_runs(len(measurement.nodes))
    allowed = limits.runs or most.two
    outcomes = [run.outcome for run in search.runs]
    _say_cost(desk, len(measurement.nodes), most, allowed, limits, outcomes)
    desk.folder.keep(encode(measurement, outcomes))
    stopped = ""
    try:
        while search.found is None:
            if len(outcomes) >= allowed:
                raise Stopped(f"{pluralize(allowed, 'run')} did not decide it (--max-runs)")
            nodes = search.next
            outcome = run_once(len(outcomes) + 1, nodes, outcomes)
            outcomes.append(outcome)
            search.take(outcome)
            desk.folder.keep(encode(measurement, outcomes))
            desk.say(_told(len(outcomes), allowed, nodes, outcome))
            if len(outcomes) == 1:
                _say_time(desk, most, outcome)
    except Stopped as why:
        stopped = f"{why}; --resume {desk.folder.path.name} goes on"
    except ClusterprepError as error:
        addition = f"; --resume {desk.folder.path.name} goes on behind the last run"
        raise error.extended(addition) from error
    return result_of(
        search,
        measurement.command,
        allowed,
        stopped,
        str(desk.folder.path),
    )


class _Bench:
    """Makes single runs of the command on some of the nodes."""

    def __init__(self, fanout: Fanout, job: Job, limits: Limits, desk: Desk) -> None:
        self._fanout = fanout
        self._job = job
        self._limits = limits
        self._desk = desk
        self._heard_at = 0.0
        self._end = float("inf")
        if limits.seconds is not None:
            self._end = time.monotonic() + limits.seconds

    def run(self, number: int, nodes: Sequence[str], before: Sequence[Outcome]) -> Outcome:
        """Run the command on these nodes and return how it ended. Raises Stopped."""
        good = [outcome.seconds for outcome in before if outcome.ended == "passed"]
        limit = hang_limit(good, self._limits.one_run)
        began = time.monotonic()
        if began >= self._end:
            raise Stopped("the time is up (--max-time)")
        until = min(began + limit, self._end)
        # What nodes have said since they ended earlier processes belongs to no run.
        self._hear(self._fanout.links)
        idle = [name for name in self._fanout.links if name not in nodes]

        def check() -> None:
            self._fanout.check()
            if time.monotonic() - self._heard_at > HEAR_IDLE:
                self._hear(idle)
            if time.monotonic() >= until:
                raise OutOfTime(f"the run took more than {limit:g} s")

        result, _ = launch_stage.launch(
            self._fanout,
            limited_fleet(self._job.fleet, nodes),
            self._job.environment,
            self._job.request,
            (),
            Screen(_show_nothing, False, self._desk.folder.logs(number)),
            check,
        )
        seconds = time.monotonic() - began
        if result.timed_out and until == self._end:
            raise Stopped(f"the time was up during run {number} on {fold(nodes)} (--max-time)")
        return _outcome_of(result, seconds, number, nodes)

    def _hear(self, names: Iterable[str]) -> None:
        """Take and drop what nodes without a part in a run have said: signs of life, for hours.

        One that is lost by now is noticed by the next run on it.
        """
        self._heard_at = time.monotonic()
        for name in names:
            with contextlib.suppress(LinkLost):
                self._fanout.links[name].poll(0.0)


def _show_nothing(line: str) -> None:
    """Show no line: what the processes print is in the logs of each run."""


def _outcome_of(result: LaunchResult, seconds: float, number: int, nodes: Sequence[str]) -> Outcome:
    """Return how a run ended. Raises Stopped if that says nothing about the command."""
    why = result.culprits[0].cause if result.culprits else result.message
    ends = {row.ended for row in result.ranks}
    if not result.ranks or ends.intersection(_NO_OUTCOME):
        raise Stopped(f"run {number} on {fold(nodes)} has no result: {why}")
    if result.timed_out:
        # Without a culprit the message tells of an option of launch.
        return Outcome("hung", seconds, why if result.culprits else "")
    if result.verdict == "pass":
        return Outcome("passed", seconds)
    return Outcome("failed", seconds, why)


# ---------------------------------------------------------------- what it costs


def _say_cost(
    desk: Desk,
    nodes: int,
    most: MostRuns,
    allowed: int,
    limits: Limits,
    outcomes: Sequence[Outcome],
) -> None:
    """Say how many runs it takes at most, and how long."""
    good = [outcome.seconds for outcome in outcomes if outcome.ended == "passed"]
    limit = hang_limit(good, limits.one_run)
    made = f", {len(outcomes)} of them made before" if outcomes else ""
    desk.say(
        f"clusterprep: bisect of {nodes} nodes: at most {most.one} runs if one node or pair is at "
        f"fault, {most.two} for two; {allowed} are allowed{made} (--max-runs)"
    )
    total = allowed * limit
    if limits.seconds is not None:
        total = min(total, limits.seconds)
    desk.say(
        f"clusterprep: a run hangs after {limit:.0f} s (--run-timeout), so it ends within "
        f"{_rough(total)} (--max-time)"
    )


def _say_time(desk: Desk, most: MostRuns, first: Outcome) -> None:
    """Say how long the rest takes if runs take as long as the first one."""
    if first.ended == "passed":
        desk.say("clusterprep: it passes on all nodes, so groups of them are timed")
    rest = (most.one - 1) * first.seconds
    desk.say(
        f"clusterprep: with {first.seconds:.1f} s for each, the other {most.one - 1} runs that one "
        f"fault takes at most are {_rough(rest)}"
    )


def _told(number: int, allowed: int, nodes: Sequence[str], outcome: Outcome) -> str:
    words = {"passed": "passed in", "failed": "failed after", "hung": "hung for"}
    why = f": {outcome.why}" if outcome.why else ""
    ended = f"{words[outcome.ended]} {outcome.seconds:.1f} s"
    return f"clusterprep: run {number}/{allowed} on {fold(nodes)} {ended}{why}"


def _rough(seconds: float) -> str:
    """Return a time as people say it: 45 s, 12 min, 3 h 20 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
