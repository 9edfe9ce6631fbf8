"""The rounds that are kept: the first ones, and of very many later ones some, evenly."""

from __future__ import annotations

import itertools
import math

import pytest

from clusterprep.jobs.acceptance.drift import FIRST
from clusterprep.jobs.acceptance.rounds import MOST, KeptRounds
from clusterprep.model import CollectiveResult

ENDS = [("n1", "n2"), ("n2", "n1")]


def kept(count: int) -> KeptRounds:
    rounds = KeptRounds()
    for number in range(count):
        speed = 1.0 + number
        row = CollectiveResult("all_reduce", 8, 0.1, speed, speed, 0)
        rounds.add(float(number), dict.fromkeys(ENDS, speed), {0: 0.1}, (row,))
    return rounds


@pytest.mark.parametrize("count", [0, 1, FIRST, FIRST + 1, MOST, 5 * MOST])
def test_all_are_counted_and_the_first_ones_kept(count: int) -> None:
    rounds = kept(count).rounds(60.0)
    assert rounds.count == count
    assert [one.at for one in rounds.rounds[:FIRST]] == [0.0, 1.0, 2.0][:count]
    assert len(rounds.rounds) <= FIRST + MOST
    assert len(rounds.speeds.get(8, ())) == count


def test_of_very_many_those_kept_are_evenly_spread_to_the_end() -> None:
    times = [one.at for one in kept(40 * MOST).rounds(60.0).rounds[FIRST:]]
    steps = {after - before for before, after in itertools.pairwise(times)}
    assert len(steps) == 1
    assert times[-1] > 40 * MOST - 2 * steps.pop()
    assert len(times) > MOST // 3


def test_a_direction_that_was_not_measured_has_no_number() -> None:
    rounds = KeptRounds()
    rounds.add(0.0, dict.fromkeys(ENDS, 5.0), {}, ())
    rounds.add(1.0, {ENDS[1]: 6.0}, {}, ())
    first, second = rounds.rounds(2.0).rounds
    assert list(first.links) == [5.0, 5.0]
    assert math.isnan(second.links[0])
    assert second.links[1] == 6.0
