"""kill -9 of one agent at every call that puts something on disk.

The node reports it, and one command makes all nodes equal.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import (
    NEW,
    OLD,
    RUNS,
    apply,
    clusterprep,
    equal,
    lab,
    pair,
    quiet,
    rollback,
)
from tests.support.lab import Host, Lab
from tests.support.tracing import strace

__all__ = [
    "lab"
]  # the fixture: four hosts on which nothing was ever written, and a playbook of two files

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]
VICTIM = "n3"
RENAMES = 5  # the journal says staged; two files; committed, done
SYNCS = 30  # more than there are


@contextlib.contextmanager
def killed_at(host: Host, call: str, number: int) -> Iterator[None]:
    """Have the kernel kill a process of this host at its n-th call, without doing the call."""
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    with strace(host, "-o", "/dev/null", "-e", f"trace={call}", "-e", inject):
        yield


def cut(lab: Lab, call: str, number: int) -> bool:
    """Run one apply whose agent on the victim dies at that call.

    Return False if there is no such call.
    """
    with killed_at(lab.host(VICTIM), call, number):
        found = apply(lab)
        quiet(lab)
    if found.code == 0:
        equal(lab, NEW)
        return False
    if found.code == 3:  # before it had the lock
        assert f"{VICTIM} was lost before anything was written" in found.report["error"]["message"]
        assert {pair(host) for host in lab.hosts} == {OLD}
        return True
    assert found.code == 1, found.report
    assert found.failed().get("state.journal") == [VICTIM], found.report
    others = {pair(host) for host in lab.hosts if host.name != VICTIM}
    assert others in ({OLD}, {NEW})
    seen = clusterprep(lab, "check", "--only", "state.")
    if (
        pair(lab.host(VICTIM)) not in others
    ):  # between two renames, or behind the others: then it says so itself
        assert seen.failed() == {"state.journal": [VICTIM]}
    return True


def cured(lab: Lab, command: str) -> None:
    done = rollback(lab) if command == "rollback" else apply(lab)
    assert done.code == 0, done.report
    equal(lab, OLD if command == "rollback" else NEW)
    if command == "apply":
        assert rollback(lab).code == 0
        equal(lab, OLD)


def test_an_agent_that_dies_between_two_renames(lab: Lab) -> None:
    assert cut(lab, "rename", 3)
    assert pair(lab.host(VICTIM)) == (NEW[0], OLD[1])
    assert clusterprep(lab, "check", "--only", "state.").failed() == {"state.journal": [VICTIM]}
    cured(lab, "rollback")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_an_agent_that_dies_anywhere(lab: Lab, call: str) -> None:
    died = 0
    for number in range(1, SYNCS):
        if not cut(lab, call, number):
            break
        died += 1
        cured(lab, "apply" if number % 2 else "rollback")
        for host in lab.hosts:
            host.run(["rm", "-rf", RUNS])  # so that the next agent makes the same calls
    assert died == RENAMES if call == "rename" else died > 2 * RENAMES
    assert rollback(lab).code == 0
    equal(lab, OLD)
