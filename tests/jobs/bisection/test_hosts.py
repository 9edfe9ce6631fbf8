"""Bisect on real hosts: what is at fault is found within the runs that were stated before."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CLI, Answer, answer
from tests.support.lab import Host, Lab
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts
PROGRAM = str(Path(__file__).with_name("programs") / "meets.py")
PATIENCE = 100.0  # seconds for what takes one


@pytest.fixture(scope="module")
def lab8() -> Iterator[Lab]:
    require_lab()
    with Lab(8) as eight:
        yield eight


def begun(lab: Lab, *words: str) -> subprocess.Popen[str]:
    path = lab.inventory(nproc_per_node=1)
    argv = [*CLI, "bisect", str(path), "--direct", "--format", "json", *words]
    pipe = subprocess.PIPE
    return lab.controller.popen(argv, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)


def ended(lab: Lab, process: subprocess.Popen[str]) -> Answer:
    """The answer of a bisect, of which nothing is left on any host."""
    out, err = process.communicate(timeout=600)
    assert [host.name for host in lab.hosts if processes(host)] == []
    return answer(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def bisect(lab: Lab, *words: str) -> Answer:
    return ended(lab, begun(lab, *words))


def processes(host: Host) -> list[int]:
    return host.processes("bisection/programs")


def culprits(found: Answer) -> list[tuple[str, list[str]]]:
    return [(row["kind"], row["nodes"]) for row in found.report["bisect"]["culprits"]]


def runs(found: Answer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found.report["bisect"]["runs"]
    return rows


def ends(found: Answer) -> set[str]:
    return {row["ended"] for row in runs(found)}


def stated(found: Answer, faults: str) -> int:
    """How many runs were stated before the first one, for «one» fault or «two»."""
    before, _, _ = found.stderr.partition("run 1/")
    numbers = re.search(r"at most (\d+) runs if one .* at fault, (\d+) for two", before)
    assert numbers is not None
    return int(numbers[{"one": 1, "two": 2}[faults]])


# ---------------------------------------------------------------- in few runs


def test_the_node_of_two_that_fails_is_found(lab4: Lab) -> None:
    found = bisect(lab4, "--limit", "n[2-3]", "--", PROGRAM, "0", "fails=n3")
    assert (found.code, culprits(found)) == (1, [("node", ["n3"])]), found.stderr
    assert len(runs(found)) <= stated(found, "one")
    logs = Path(found.report["bisect"]["logs"])
    assert "n3 does not like n3" in (logs / "run-01" / "rank-1.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_stops_at_its_limit_and_goes_on(lab4: Lab) -> None:
    words = ("--", PROGRAM, "0", "hangs=n4")
    few = bisect(lab4, "--run-timeout", "1", "--max-runs", "2", *words)
    assert (few.code, few.report["bisect"]["verdict"], len(runs(few))) == (3, "unknown", 2)
    assert "2 runs did not decide it (--max-runs)" in few.report["bisect"]["message"]
    more = bisect(lab4, "--run-timeout", "1", "--max-runs", "3", "--resume", "last", *words)
    assert runs(more)[:2] == runs(few)
    assert len(runs(more)) == 3
    other = bisect(lab4, "--resume", few.report["run"], "--", PROGRAM, "1")
    assert (other.code, "other words of the command" in other.report["error"]["message"]) == (
        2,
        True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interruption_ends_the_run_and_the_others_are_kept(lab4: Lab) -> None:
    words = ("--limit", "n[1-2]", "--", PROGRAM, "600")
    process = begun(lab4, *words)
    end = time.monotonic() + PATIENCE
    while not all(processes(host) for host in lab4.hosts[:2]):
        assert time.monotonic() < end, "the first run did not begin"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    found = ended(lab4, process)
    assert found.code == 130
    assert "--resume" in found.report["error"]["message"]
    again = bisect(lab4, "--max-time", "0.5", "--resume", "last", *words)
    assert (again.code, runs(again)) == (3, [])
    assert "--max-time" in again.report["bisect"]["message"]


# ---------------------------------------------------------------- among eight hosts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_that_fail_together_are_found(lab8: Lab) -> None:
    found = bisect(lab8, "--", PROGRAM, "0", "fails=n2+n7")
    assert (found.code, culprits(found)) == (1, [("link", ["n2", "n7"])]), found.stderr
    assert len(runs(found)) <= stated(found, "one")
    assert ends(found) == {"passed", "failed"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slow_node_is_found(lab8: Lab) -> None:
    found = bisect(lab8, "--", PROGRAM, "1", "slow=n6")
    assert (found.code, culprits(found)) == (1, [("node", ["n6"])]), found.stderr
    assert len(runs(found)) <= stated(found, "one")
    assert ends(found) == {"passed", "slow"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_with_one_of_which_it_hangs_are_found(lab8: Lab) -> None:
    found = bisect(lab8, "--run-timeout", "10", "--", PROGRAM, "0", "hangs=n3", "hangs=n8")
    assert (found.code, culprits(found)) == (1, [("node", ["n3"]), ("node", ["n8"])]), found.stderr
    assert len(runs(found)) <= stated(found, "two")
    assert ends(found) == {"passed", "hung"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_fault_none_is_found(lab8: Lab) -> None:
    found = bisect(lab8, "--", PROGRAM, "0.5")
    assert (found.code, culprits(found), ends(found)) == (0, [], {"passed"}), found.stderr
    assert len(runs(found)) <= stated(found, "one")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_command_that_always_fails_is_undecided(lab8: Lab) -> None:
    found = bisect(lab8, "--", "false")
    assert (found.code, culprits(found)) == (3, [])
    assert "the command itself may be at fault" in found.report["bisect"]["message"]
