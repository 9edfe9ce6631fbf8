"""Acceptance on real hosts: what changes while rounds are run is named, with its time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from clusterprep.jobs.acceptance.drift import LASTING
from tests.jobs.verify.moments import ranks
from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
SIZES = ["8", "1M", "16M"]
NAMED = re.compile(r"became slow from (\d+):(\d\d) on|between collectives from (\d+):(\d\d) on")


@pytest.fixture(autouse=True)
def no_rank_is_left(lab4: Lab) -> Iterator[None]:
    yield
    for host in lab4.hosts:
        assert ranks(host) == []


def accept(lab: Lab, seconds: float) -> Answer:
    inventory = lab.inventory(verify={"sizes": SIZES, "timeout": 60})
    words = ("verify", "--for", f"{seconds:g}s")
    answer = clusterprep(lab, *words, inventory=inventory, timeout=seconds * 3 + 120)
    print(answer.stderr, answer.report["verify"].get("acceptance"))  # shown where a test fails
    return answer


def culprits(answer: Answer) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["nodes"]) for one in answer.report["verify"]["culprits"]]


def since(answer: Answer) -> float:
    """Return the second from which on something is said to be slow."""
    (culprit,) = answer.report["verify"]["culprits"]
    found = NAMED.search(culprit["cause"])
    assert found, culprit["cause"]
    minutes, seconds = (int(group) for group in found.groups() if group is not None)
    return 60 * minutes + seconds


@contextlib.contextmanager
def after_some_rounds(
    lab: Lab, seconds: float, work: Callable[[threading.Event], None]
) -> Iterator[None]:
    """Run `work` that many seconds after the first rank has started, until the block has ended."""
    over = threading.Event()

    def follow() -> None:
        while not any(map(ranks, lab.hosts)):
            if over.wait(0.2):
                return
        if not over.wait(seconds):
            work(over)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_that_stays_as_it_is_passes(lab4: Lab) -> None:
    answer = accept(lab4, 40)
    assert answer.code == 0
    acceptance = answer.report["verify"]["acceptance"]
    assert acceptance["wanted"] == 40
    assert acceptance["seconds"] >= 40
    assert acceptance["rounds"] > 2 * LASTING
    assert [row["bytes"] for row in acceptance["speeds"]] == [8, 1 << 20, 16 << 20]
    for row in acceptance["speeds"]:
        assert 0 < row["slowest_gbs"] <= row["median_gbs"] <= row["fastest_gbs"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_whose_links_get_slow_is_named_with_the_time(lab4: Lab) -> None:
    def slow_down(over: threading.Event) -> None:
        with faults.slow(lab4.host("n3"), "40mbit"):
            over.wait()

    with after_some_rounds(lab4, 40, slow_down):
        answer = accept(lab4, 90)
    assert (answer.code, culprits(answer)) == (1, [("node", ["n3"])])
    assert answer.blamed("net.tcp_bw") == ["n3"]
    assert "n3" not in answer.blamed("net.tcp_bw", "pass")
    assert 15 <= since(answer) <= 60


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_drifts_is_named_with_the_time(lab4: Lab) -> None:
    def hold_back(over: threading.Event) -> None:
        began = time.monotonic()
        while not over.is_set():
            # From nothing to 20 ms of every 25 within half a minute.
            pause = min(0.02, 0.02 * (time.monotonic() - began) / 30)
            held = ranks(lab4.host("n2"))
            for _ in range(40):
                _send(held, signal.SIGSTOP)
                time.sleep(pause)
                _send(held, signal.SIGCONT)
                time.sleep(0.005)

    with after_some_rounds(lab4, 30, hold_back):
        answer = accept(lab4, 120)
    assert (answer.code, culprits(answer)) == (1, [("node", ["n2"])])
    assert answer.blamed("nccl.straggler") == ["n2"]
    assert 10 <= since(answer) <= 90


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
