"""What ends a command is raised where it looks, once, and never within a shield."""

from __future__ import annotations

import time

import pytest

from clusterprep.errors import Interrupted, OutOfTime
from clusterprep.runtime.deadline import FOREVER, HURRIED, Deadline

SIGNAL = Interrupted("interrupted by SIGTERM")


def test_what_ends_a_command_is_raised_where_it_looks() -> None:
    with Deadline() as deadline:
        deadline.check()
        deadline.stop(SIGNAL)
        with pytest.raises(Interrupted, match="by SIGTERM"):
            deadline.check()


def test_it_is_raised_once_so_that_the_command_can_put_things_back() -> None:
    with Deadline() as deadline:
        deadline.stop(SIGNAL)
        with pytest.raises(Interrupted):
            deadline.check()
        deadline.stop(OutOfTime("--timeout of 9 s reached"))
        deadline.check()


def test_the_time_limit_is_the_same_thing() -> None:
    with Deadline(0.05) as deadline:
        deadline.check()
        time.sleep(0.05)
        with pytest.raises(OutOfTime, match=r"--timeout of 0\.05 s reached"):
            deadline.check()


def test_of_a_signal_and_the_limit_the_first_counts() -> None:
    with Deadline(0.05) as deadline:
        deadline.stop(SIGNAL)
        time.sleep(0.05)
        with pytest.raises(Interrupted):
            deadline.check()


def test_a_shielded_block_ends_before_it_is_raised() -> None:
    done = []

    def work(deadline: Deadline) -> None:
        with deadline.shield():
            deadline.stop(SIGNAL)
            with deadline.shield():
                deadline.check()
            deadline.check()
            done.append("block")

    with Deadline() as deadline, pytest.raises(Interrupted):
        work(deadline)
    assert done == ["block"]


def test_a_second_signal_shortens_what_is_waited_for_and_raises_nothing() -> None:
    with Deadline() as deadline, deadline.shield():
        assert deadline.patience() == FOREVER
        deadline.hurry()
        first = deadline.patience()
        assert HURRIED - 1 < first <= HURRIED
        time.sleep(0.01)
        deadline.hurry()
        assert deadline.patience() < first
