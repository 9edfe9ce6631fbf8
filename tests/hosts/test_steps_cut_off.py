"""Steps that are cut off: by a signal, the death of the controller or of an agent, a limit.

One command mends it.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import kill_agent, leftovers, quiet
from tests.hosts.test_steps import MADE, apply, files, run, state
from tests.support.command import finished, started
from tests.support.lab import Host, Lab

pytestmark = pytest.mark.hosts

SLOW = "/etc/lab-slow"  # where this is, the command takes its time
BOOK = r"""
- file: {path: /etc/lab-step.conf, content: new}
- name: made
  command: {run: mkdir /etc/lab-made, creates: /etc/lab-made, undo: rm -r /etc/lab-made}
- name: slow
  command:
    run: [sh, -c, 'touch /etc/lab-made/x;
      [ ! -e /etc/lab-slow ] || { setsid sleep 4242 & sleep 4242; }']
    unless: test -e /etc/lab-made/x
    limit: LIMIT
    undo: rm /etc/lab-made/x
- name: later
  command: {run: touch /run/lab-read, creates: /run/lab-read, undo: rm /run/lab-read}
"""
LONG = BOOK.replace("LIMIT", "10m")


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    lab4.host("n2").write(SLOW, "")
    yield lab4
    no_sleep(lab4)
    for host in lab4.hosts:
        host.run(["rm", "-f", SLOW])
    quiet(lab4)


def no_sleep(lab: Lab) -> None:
    lab.host("n2").run(["pkill", "-f", "^sleep 4242"], check=False)


def sleeping(host: Host) -> list[int]:
    return host.processes("^sleep 4242")


def under_way(lab: Lab) -> subprocess.Popen[str]:
    """An apply whose slow step has begun on n2, and is over on all others."""
    book = lab.folder / "slow.yaml"
    book.write_text(LONG)
    process = started(lab, "apply", "--playbook", str(book), "--no-verify", "--only", "ssh.")
    end = time.monotonic() + 60
    while len(sleeping(lab.host("n2"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it never came there"
        time.sleep(0.05)
    return process


def mended(lab: Lab, command: str, before: list[str], first: str | None = None) -> None:
    """After one command all is as wanted, or as it was.

    `first` is a run that is on the other nodes.
    """
    lab.host("n2").run(["rm", SLOW])
    done = apply(lab, LONG) if command == "apply" else run(lab, "rollback", "")
    assert done.code == 0, done.report
    if command == "apply":
        assert all(f"{MADE}/x" in text and "/run/lab-read" in text for text in state(lab))
        assert run(lab, "rollback", "").code == 0
        assert first is None or run(lab, "rollback", "", "--run", first).code == 0
    assert state(lab) == before
    assert leftovers(lab) == []


def test_an_interruption_ends_what_runs_and_undoes_all_nodes(lab: Lab) -> None:
    before = state(lab)
    process = under_way(lab)
    process.send_signal(signal.SIGINT)
    found = finished(process)
    assert found.code == 130
    assert "put back on all nodes" in found.report["error"]["message"]
    assert sleeping(lab.host("n2")) == []
    assert [MADE in text for text in state(lab)] == [False] * 4
    assert state(lab) == before
    assert leftovers(lab) == []


@pytest.mark.parametrize("command", ["rollback", pytest.param("apply", marks=pytest.mark.slow)])
def test_a_controller_that_is_killed_leaves_journals_that_say_what_to_undo(
    lab: Lab, command: str
) -> None:
    before = state(lab)
    process = under_way(lab)
    process.kill()
    process.communicate()
    quiet(lab)
    assert sleeping(lab.host("n2")) == []
    assert MADE in files(lab.host("n4"))
    mended(lab, command, before)


@pytest.mark.parametrize("command", ["apply", pytest.param("rollback", marks=pytest.mark.slow)])
def test_a_node_that_is_lost_stops_the_run_and_undoes_its_part_later(
    lab: Lab, command: str
) -> None:
    before = state(lab)
    process = under_way(lab)
    kill_agent(lab.host("n2"))
    found = finished(process)
    assert (found.code, found.failed()) == (1, {"state.journal": ["n2"]}), found.report
    ends = [(row["outcome"], node) for row in found.report["changes"] for node in row["nodes"]]
    assert [outcome for outcome, node in ends if node == "n2"] == [
        "done",
        "done",
        "unanswered",
        "not-started",
    ]
    assert [outcome for outcome, node in ends if node == "n4"] == [
        "done",
        "done",
        "done",
        "not-started",
    ]
    no_sleep(lab)
    mended(lab, command, before, found.report["run"])


def test_a_command_that_takes_too_long_is_ended_with_all_that_descends_from_it(lab: Lab) -> None:
    before = state(lab)
    found = apply(lab, BOOK.replace("LIMIT", "1s"))
    assert found.code == 1
    (bad,) = [row for row in found.report["changes"] if row["outcome"] == "failed"]
    assert "it was not done after 1 s" in bad["detail"]
    assert sleeping(lab.host("n2")) == []
    assert MADE not in files(lab.host("n2"))
    assert run(lab, "rollback", "").code == 0
    assert state(lab) == before
