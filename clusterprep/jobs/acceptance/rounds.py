"""Runs the rounds of an acceptance: the links, then all collectives, with ranks that stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clusterprep.jobs.acceptance.drift import FEWEST
from clusterprep.jobs.acceptance.model import Direction, Round, Rounds
from clusterprep.jobs.verify.collect import StandingRanks, run_verify, stop_standing_ranks
from clusterprep.jobs.verify.culprits import wrong_ranks
from clusterprep.jobs.verify.link_measurement import measure_once
from clusterprep.jobs.verify.link_verdicts import UNMEASURED, MeasuredPair
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.straggler import own_times_of
from clusterprep.jobs.verify.tally import all_finished, timed_collectives
from clusterprep.model import Fleet
from clusterprep.survey.fanout import Fanout


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
    round, as those of a job do, and none is left at the end. Raises what ends the command.
    """
    standing = StandingRanks()
    began = time.monotonic()
    rounds: list[Round] = []
    try:
        while time.monotonic() - began < seconds or len(rounds) < FEWEST:
            at = time.monotonic() - began
            pairs = measure_once(fanout, fleet) if len(fleet.reached) > 1 else ()
            lost = [node.name for node in plan.nodes if node.name not in fanout.links]
            if lost:
                return Rounds(tuple(rounds), at, broken_at=at, lost=tuple(lost))
            links = [fanout.links[node.name] for node in plan.nodes]
            timeline = run_verify(links, plan, standing, fanout.check)
            if not all_finished(timeline) or wrong_ranks(timeline):
                return Rounds(tuple(rounds), time.monotonic() - began, timeline, at)
            _, own = own_times_of(timeline)
            rounds.append(Round(at, _speeds(pairs), own, timed_collectives(timeline)))
            told(len(rounds), time.monotonic() - began)
    finally:
        present = [node.name for node in plan.nodes if node.name in fanout.links]
        stop_standing_ranks([fanout.links[name] for name in present], standing)
    return Rounds(tuple(rounds), time.monotonic() - began)


def _speeds(pairs: Sequence[MeasuredPair]) -> dict[Direction, float]:
    """Return bytes per second of each direction, 0 for a pair that could not connect.

    Nodes on one machine have no link between them.
    """
    speeds: dict[Direction, float] = {}
    for pair in pairs:
        if pair.same_machine or pair.outcome in UNMEASURED:
            continue
        speeds[pair.dialer, pair.listener] = pair.out
        speeds[pair.listener, pair.dialer] = pair.back
    return speeds
