"""Signals and time limits become one exception, at once or after the shield."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from clusterprep.errors import Interrupted, OutOfTime
from clusterprep.runtime.deadline import Deadline
from tests.support.patience import LONG


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name
)
def test_a_signal_interrupts_what_is_under_way(signum: int) -> None:
    def work() -> None:
        os.kill(os.getpid(), signum)
        time.sleep(LONG)

    with Deadline(), pytest.raises(Interrupted):
        work()


def test_the_time_limit_is_the_same_thing() -> None:
    with pytest.raises(OutOfTime, match=r"0\.05 s"), Deadline(0.05):
        time.sleep(LONG)


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


def test_what_nohup_asks_for_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Deadline():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# Sends a signal when `click` is looked for, which is early: before a line of the command has run.
EARLY = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(sys.argv.pop()))
sys.meta_path.insert(0, Finder())
from clusterprep.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name
)
def test_a_signal_while_it_starts_is_an_interruption_too(signum: int) -> None:
    argv = [sys.executable, "-c", EARLY, "check", "--local", "--format", "json", str(int(signum))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "clusterprep: interrupted\n")
    assert (report := json.loads(done.stdout))["verdict"] == "interrupted"
    assert report["command"] == "check"


def test_a_second_signal_leaves_at_once() -> None:
    code = (
        "import os, signal, time\nfrom clusterprep.runtime.deadline import Deadline\n"
        "with Deadline() as d:\n  with d.shield():\n    print('up', flush=True)\n"
        "    while d._pending is None: time.sleep(0.01)\n"
        "    print('heard', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"heard\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LONG) == 130
    process.stdout.close()
