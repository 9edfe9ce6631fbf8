"""A clock for limits: it runs while its process does, and stands still with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from clusterprep.runtime.clock import LONGEST, TICK, RunningClock, running_seconds
from tests.support.patience import killed_on_failure


class Real:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_between_two_ticks_no_more_than_that_counts() -> None:
    real = Real()
    clock = RunningClock(real)
    assert clock.now() == 100.0
    for _ in range(40):
        real.at += TICK
        clock.tick()
    assert clock.now() == pytest.approx(110.0)
    real.at += 0.8  # late, for others were busy: that is time in which we could have listened
    assert clock.now() == pytest.approx(110.8)
    real.at += 7.0
    assert clock.now() == pytest.approx(110.0 + LONGEST), "asked before the first tick"
    clock.tick()
    assert clock.now() == pytest.approx(110.0 + LONGEST)
    real.at += 0.5
    assert clock.now() == pytest.approx(110.5 + LONGEST)


def test_the_clock_never_goes_back() -> None:
    real = Real()
    clock = RunningClock(real)
    seen = [clock.now()]
    for step in (0.1, 3.0, 0.0, 0.9, 1.1, 60.0, 0.25):
        real.at += step
        seen.append(clock.now())
        clock.tick()
        seen.append(clock.now())
    assert all(one <= other for one, other in pairwise(seen))


def test_the_clock_agrees_with_the_real_one_while_nothing_happens() -> None:
    before = apart()
    time.sleep(3 * TICK)
    after = apart()
    assert max(before[0], after[0]) <= min(before[1], after[1]) + ROUNDING


ROUNDING = 1e-6  # seconds


def apart() -> tuple[float, float]:
    """Return how far the real clock is before ours, at least and at most.

    We may stand between two looks.
    """
    began, counted, ended = time.monotonic(), running_seconds(), time.monotonic()
    return began - counted, ended - counted


STOPPED_FOR = 2 * LONGEST
STOPPED = """
import sys, time
from clusterprep.runtime.clock import running_seconds
running_seconds()
for line in sys.stdin:
    print(running_seconds(), time.monotonic(), flush=True)
"""


def test_a_stopped_process_has_slept() -> None:
    started = subprocess.Popen([sys.executable, "-c", STOPPED], stdin=-1, stdout=-1, text=True)
    with killed_on_failure(started) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> tuple[float, ...]:
            print(file=process.stdin, flush=True)
            return tuple(map(float, process.stdout.readline().split()))

        before = ask()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(STOPPED_FOR)
        os.kill(process.pid, signal.SIGCONT)
        after = ask()
        process.stdin.close()
    counted, real = after[0] - before[0], after[1] - before[1]
    assert real > STOPPED_FOR
    assert counted <= real - (STOPPED_FOR - LONGEST)


def test_a_copy_of_the_process_ticks_too() -> None:
    script = """
import os, sys, time
from clusterprep.runtime.clock import running_seconds

running_seconds()
pid = os.fork()
if pid == 0:
    before = running_seconds()
    time.sleep(1.5)
    os._exit(running_seconds() - before < 1.4)  # 1.0 if nothing ticks
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
