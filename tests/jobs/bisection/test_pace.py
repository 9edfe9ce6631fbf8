"""Which times are slow, and when a run hangs."""

from __future__ import annotations

import pytest

from clusterprep.jobs.bisection.pace import FIRST_LIMIT, hang_limit, most_are_slow, slow_above


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        pytest.param([5.1, 5.0, 9.3, 5.2], [9.3], id="one"),
        pytest.param([5.0, 9.0, 9.1, 5.0], [9.0, 9.1], id="half"),
        pytest.param([0.2, 0.9, 0.3, 0.25], [], id="tenths-of-a-second"),
        pytest.param([100.0, 112.0, 100.0, 101.0], [], id="a-little-longer"),
        pytest.param([10.0, 14.0, 11.0, 16.0, 12.0], [], id="times-that-vary"),
        pytest.param([5.0, 5.0], [], id="two"),
    ],
)
def test_slow_is_what_stands_out(times: list[float], slow: list[float]) -> None:
    assert [time for time in times if time > slow_above(times)] == slow


def test_where_most_are_slow_none_is_usual() -> None:
    assert most_are_slow([5.0, 9.0, 9.0])
    assert not most_are_slow([5.0, 5.2, 9.0])


def test_a_run_hangs_by_the_runs_that_ended_well() -> None:
    assert hang_limit([], None) == FIRST_LIMIT
    assert hang_limit([10.0, 30.0], None) == 180.0
    assert hang_limit([10.0], 7.0) == 7.0
