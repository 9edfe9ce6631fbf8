"""Acceptance on real hosts: what changes while rounds are run is named, with its time."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterprep.jobs.acceptance.drift import LASTING
from tests.jobs.verify.moments import ranks
from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
SIZES = ["8", "1M", "16M"]
# Holds processes for a growing share of the time: after half a minute for 20 ms of every 25.
PULSES = """
import os, signal, sys, time
pids = list(map(int, sys.argv[1:]))
began = time.monotonic()
while True:
    pause = 0.02 * min(1, (time.monotonic() - began) / 30)
    for number, seconds in ((signal.SIGSTOP, pause), (signal.SIGCONT, 0.005)):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                sys.exit()
        time.sleep(seconds)
"""
NAMED = re.compile(r"(?:became slow|between collectives) from (\d+):(\d\d) (?:on|to)")


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
    minutes, seconds = map(int, found.groups())
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
    assert not culprits(answer)
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
    host = lab4.host("n2")

    def hold_back(over: threading.Event) -> None:
        pulses = host.popen(["python3", "-c", PULSES, *map(str, ranks(host))])
        over.wait()
        pulses.kill()
        pulses.wait()

    with after_some_rounds(lab4, 30, hold_back):
        answer = accept(lab4, 120)
    assert (answer.code, culprits(answer)) == (1, [("node", ["n2"])])
    assert answer.blamed("nccl.straggler") == ["n2"]
    assert 10 <= since(answer) <= 90


@pytest.mark.timeout(300)
def test_a_certificate_is_valid_and_another_day_is_compared_with_it(
    lab4: Lab, tmp_path: Path
) -> None:
    place = tmp_path / "accepted.json"
    inventory = lab4.inventory(verify={"sizes": ["8"], "timeout": 60})
    words = ("verify", "--for", "6s", "--certificate", str(place))
    answer = clusterprep(lab4, *words, inventory=inventory, timeout=200)
    assert answer.code == 0, answer.report["findings"]
    assert any(str(place) in notice for notice in answer.report["notices"])
    valid = lab4.controller.run([*CLI, "certificate", "verify", str(place)])
    assert valid.returncode == 0, valid
    assert "is valid: 4 nodes" in valid.stdout

    words = ("check", "--only", "kernel.", "--against", str(place))
    same = clusterprep(lab4, *words, inventory=inventory)
    assert same.blamed("host.certified", "pass") == ["n1", "n2", "n3", "n4"]
    with faults.written(lab4.host("n2"), "/etc/machine-id", "0" * 31 + "1\n"):
        changed = clusterprep(lab4, *words, inventory=inventory)
    assert changed.blamed("host.certified") == ["n2"]

    place.write_text(place.read_text().replace("6.", "7.", 1))
    forged = lab4.controller.run([*CLI, "certificate", "verify", str(place)])
    assert (forged.returncode, "is not valid" in forged.stdout) == (1, True)
