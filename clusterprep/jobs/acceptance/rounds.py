"""Runs the rounds of an acceptance: the links, then all collectives, with ranks that stay."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence

from clusterprep.errors import Interrupted, OutOfTime
from clusterprep.jobs.acceptance.drift import FEWEST, FIRST
from clusterprep.jobs.acceptance.model import Direction, Round, Rounds
from clusterprep.jobs.verify.collect import StandingRanks, run_verify, stop_standing_ranks
from clusterprep.jobs.verify.culprits import wrong_ranks
from clusterprep.jobs.verify.link_measurement import end_listening, measure_once
from clusterprep.jobs.verify.link_verdicts import UNMEASURED, MeasuredPair
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.straggler import own_times_of
from clusterprep.jobs.verify.tally import SWEEP, all_finished, timed_collectives
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import CollectiveResult, Fleet
from clusterprep.survey.fanout import Fanout

MOST = 512  # rounds kept besides the first ones; 64 nodes have 32 KiB in each


def run_rounds(
    fanout: Fanout,
    fleet: Fleet,
    plan: TrialPlan,
    seconds: float,
    told: Callable[[int, float], None],
) -> Rounds:
    """Repeat links and collectives until `seconds` are over, or a round does not end well.

    At least FEWEST rounds are run, and one that has begun is finished. After each one `told` is
    called with how many there are and the seconds since the first began. Ranks stay from round to
    round, as those of a job do, and none is left at the end. What ends the command ends the rounds:
    those before it are returned.
    """
    standing = StandingRanks()
    kept = KeptRounds()
    began = time.monotonic()
    ended = 0.0  # seconds until the end of the last round that is kept
    try:
        while time.monotonic() - began < seconds or kept.count < FEWEST:
            at = time.monotonic() - began
            pairs = measure_once(fanout, fleet) if len(fleet.reached) > 1 else ()
            lost = [node.name for node in plan.nodes if node.name not in fanout.links]
            if lost:
                return kept.rounds(at, broken_at=at, lost=tuple(lost))
            links = [fanout.links[node.name] for node in plan.nodes]
            timeline = run_verify(links, plan, standing, fanout.check)
            if not all_finished(timeline) or wrong_ranks(timeline):
                return kept.rounds(time.monotonic() - began, broken=timeline, broken_at=at)
            _, own = own_times_of(timeline)
            kept.add(at, _speeds(pairs), own, timed_collectives(timeline))
            ended = time.monotonic() - began
            told(kept.count, ended)
    except (Interrupted, OutOfTime) as error:
        end_listening(fanout, _present(fanout, plan))
        return kept.rounds(ended, stopped_by=error.message)
    finally:
        stop_standing_ranks([fanout.links[name] for name in _present(fanout, plan)], standing)
    return kept.rounds(time.monotonic() - began)


def _present(fanout: Fanout, plan: TrialPlan) -> list[str]:
    """Return the names of the nodes that are still connected."""
    return [node.name for node in plan.nodes if node.name in fanout.links]


class KeptRounds:
    """Keeps the first rounds and at most MOST of the later ones, so that a day costs no memory.

    Once there are more, every second one is dropped, and of those to come every second is kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self._every = 1
        self._first: list[Round] = []
        self._later: list[Round] = []
        self._directions: tuple[Direction, ...] = ()
        self._bandwidths: dict[int, list[float]] = {}

    def add(
        self,
        at: float,
        links: Mapping[Direction, float],
        own: Mapping[int, float],
        collectives: tuple[CollectiveResult, ...],
    ) -> None:
        """Keep a round that ended well, or count it alone."""
        if not self.count:
            self._directions = tuple(links)
        number = self.count
        self.count += 1
        for row in collectives:
            if (row.op, row.dtype) == SWEEP:
                self._bandwidths.setdefault(row.bytes, []).append(row.busbw_gbs)
        if number >= FIRST and (number - FIRST) % self._every:
            return
        # As an array: a list would keep an object for each number.
        speeds = array("d", (links.get(ends, math.nan) for ends in self._directions))
        kept = self._first if number < FIRST else self._later
        kept.append(Round(at, speeds, own, collectives))
        if len(self._later) > MOST:
            self._later = self._later[::2]
            self._every *= 2

    def rounds(
        self,
        seconds: float,
        broken: Timeline | None = None,
        broken_at: float = 0.0,
        lost: tuple[str, ...] = (),
        stopped_by: str = "",
    ) -> Rounds:
        """Return what was kept until now, after so many seconds."""
        return Rounds(
            rounds=(*self._first, *self._later),
            seconds=seconds,
            directions=self._directions,
            count=self.count,
            speeds=self._bandwidths,
            broken=broken,
            broken_at=broken_at,
            lost=lost,
            stopped_by=stopped_by,
        )


def _speeds(pairs: Sequence[MeasuredPair]) -> dict[Direction, float]:
    """Return bytes per second of each direction, 0 for a pair that could not connect.

    A pair that was not measured has no number. Nodes on one machine have no link between them.
    """
    speeds: dict[Direction, float] = {}
    for pair in pairs:
        if pair.same_machine:
            continue
        is_known = pair.outcome not in UNMEASURED
        speeds[pair.dialer, pair.listener] = pair.out if is_known else math.nan
        speeds[pair.listener, pair.dialer] = pair.back if is_known else math.nan
    return speeds
