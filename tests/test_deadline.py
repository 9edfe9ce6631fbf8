"""Signals and time limits become one exception, at once or after the shield."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from clusterprep.deadline import Deadline
from clusterprep.errors import Interrupted, OutOfTime


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_interrupts_what_is_under_way(signum: int) -> None:
    def work() -> None:
        os.kill(os.getpid(), signum)
        time.sleep(1)

    with Deadline(), pytest.raises(Interrupted):
        work()


def test_the_time_limit_is_the_same_thing() -> None:
    with pytest.raises(OutOfTime, match=r"0\.05 s"), Deadline(0.05):
        time.sleep(1)


def test_a_shielded_block_ends_before_the_interruption_is_raised() -> None:
    done = []

    def work(deadline: Deadline) -> None:
        with deadline.shield():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("block")

    with Deadline() as deadline, pytest.raises(Interrupted):
        work(deadline)
    assert done == ["block"]


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Deadline(5):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_leaves_at_once() -> None:
    code = (
        "import os, signal, time\nfrom clusterprep.deadline import Deadline\n"
        "with Deadline() as d:\n  with d.shield():\n    print('up', flush=True)\n    time.sleep(20)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=5) == 130
    process.stdout.close()
