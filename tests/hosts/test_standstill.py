"""The controller stands still for some seconds.

That is not a silence of the nodes, and every command ends as it should. Agents end themselves after
half a minute without a sign of their controller; what a longer standstill leads to is reported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.test_cut_off import (
    NEW,
    OLD,
    apply,
    equal,
    goes_on,
    lab,
    pairs,
    quiet,
    rollback,
    stopped,
)
from tests.jobs.verify.moments import ranks, wait_for
from tests.soak.harm import agents
from tests.support.command import Answer, finished, started
from tests.support.lab import Lab, faults
from tests.support.patience import killed_on_failure

__all__ = ["lab"]

pytestmark = pytest.mark.hosts
STILL = 6.5  # seconds; five of silence are a lost node, and ranks are held on a leash
TOO_LONG = 35.0


@pytest.fixture
def all_new(lab: Lab) -> Iterator[Lab]:
    yield lab
    rollback(lab)


def stop(process: subprocess.Popen[str], seconds: float) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGCONT)


def during(process: subprocess.Popen[str], when: Callable[[], bool]) -> Answer:
    try:
        wait_for(when, 60)
        stop(process, STILL)
        return finished(process)
    finally:
        process.kill()


def reached(answer: Answer) -> list[str]:
    return sorted(answer.blamed("ssh.reach", "pass"))


NAMES = ["n1", "n2", "n3", "n4"]


def dialled(process: subprocess.Popen[str]) -> bool:
    """Whether a connection to a port 22 stands, and its login has hardly begun."""
    rows = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()]
    return any(row[2].endswith(":0016") and row[3] == "01" for row in rows)


@pytest.mark.parametrize("moment", ["login", pytest.param("look", marks=pytest.mark.slow)])
def test_a_check_goes_on(lab: Lab, moment: str) -> None:
    """While it logs in, of which a limit of five seconds would be over, and while agents look."""
    ssh = {**lab.inventory_content()["ssh"], "connect_timeout": 5}
    process = started(lab, "check", "--only", "ssh.,time.offset", inventory=lab.inventory(ssh=ssh))
    answer = during(
        process, lambda: dialled(process) if moment == "login" else any(map(agents, lab.hosts))
    )
    assert (answer.code, reached(answer)) == (0, NAMES), answer.stderr


LATE = """
import json
from clusterprep.model import Node
from clusterprep.remote.transports.link import Link

class Late:
    turns = 0
    peer = None
    near = False
    alive = True
    def stderr(self):
        return b""
    def recv(self, timeout):
        self.turns += 1
        if self.turns == 2:
            print("waiting", flush=True)
            input()
        if self.turns in (2, 3):
            raise TimeoutError
        words = json.dumps({"id": 1} if self.turns > 1 else {"hello": 1})
        return f"\\nnonce {len(words)} {words}\\n".encode()
    def send(self, data):
        pass

link = Link(Node("n1", "n1", 0), Late(), "nonce")
link.wait_hello(1.0)
link.send("ping")
print(link.receive(1, 5.0), link.silent_for() < 1, flush=True)
"""


def test_what_came_meanwhile_may_be_read_late() -> None:
    """The thread that takes packets from the kernel runs only after the first wait is over."""
    started = subprocess.Popen([sys.executable, "-c", LATE], stdin=-1, stdout=-1, text=True)
    with killed_on_failure(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(STILL)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("\n", timeout=20)[0] == "{'id': 1} True\n"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["stage answered", "commit n2"])
def test_an_apply_goes_on(all_new: Lab, point: str) -> None:
    process = stopped(all_new, point)
    time.sleep(STILL)
    answer = goes_on(process)
    assert (answer.code, answer.outcomes(), reached(answer)) == (0, {"done"}, NAMES), answer.stderr
    equal(all_new, NEW)


@pytest.mark.slow
def test_a_node_that_falls_silent_meanwhile_is_lost_all_the_same(lab: Lab) -> None:
    """Its agent is stopped, and so are we: what is left of the limit is waited for, and no more."""
    process = stopped(lab, "stage n1")
    with faults.freeze(lab.host("n3")):
        time.sleep(STILL)
        began = time.monotonic()
        answer = goes_on(process)
        took = time.monotonic() - began
    assert answer.code == 1, answer.report
    assert {
        node
        for change in answer.report["changes"]
        for node in change["nodes"]
        if change.get("detail")
    } == {"n3"}
    assert pairs(lab) == [OLD] * 4
    assert took < 45, "twice the time that silence is borne while files are written"
    quiet(lab)


@pytest.mark.slow
@pytest.mark.torch
def test_a_verify_goes_on(lab: Lab) -> None:
    """The leash by which ranks are held is longer than that."""
    checked = {"sizes": ["8", "1M"], "timeout": 30}
    process = started(lab, "verify", "--limit", "n[1-2]", inventory=lab.inventory(verify=checked))
    answer = during(process, lambda: all(map(ranks, lab.hosts[:2])))
    result = answer.report["verify"]
    assert (result["verdict"], result["culprits"]) == ("pass", []), result
    assert reached(answer) == NAMES[:2]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["stage answered", "commit n2", "commit answered"])
def test_after_half_a_minute_agents_have_gone_and_that_is_told(lab: Lab, point: str) -> None:
    process = stopped(lab, point)
    time.sleep(TOO_LONG)
    assert not any(map(agents, lab.hosts))
    before = pairs(lab)
    assert set(before) <= {OLD, NEW}
    answer = goes_on(process)
    assert answer.code in (1, 3), answer.report
    assert set(pairs(lab)) <= {OLD, NEW}
    if set(before) != {OLD}:
        assert set(answer.failed()) & {"state.journal", "ssh.reach"}, answer.report
    assert "done" not in answer.outcomes() or answer.failed()
    done = apply(lab)
    assert done.code == 0, done.report
    equal(lab, NEW)
    assert rollback(lab).code == 0
    equal(lab, OLD)
