"""Signals at sixty counted moments of apply and rollback over real hosts.

After each the bytes and the journals of all hosts, the exit code and the sentence agree, and
nothing of the command runs on any host.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab
from tests.support.signal_points import Moment

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

FILE = "/etc/lab-signals.conf"
RUNS = "/var/lib/clusterprep"
OLD, NEW = "old\n", "new\n"
POINTS = 60
STAYS = ("what was written stays on ", "when all was done and its result was being shown")
KINDS = [
    Moment(0, ("SIGINT",)),
    Moment(0, ("SIGTERM", "SIGHUP"), 0.001),
    Moment(0, ("SIGHUP",)),
    Moment(0, ("SIGINT", "SIGINT"), 1.2),
    Moment(0, ("SIGTERM",)),
]


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    (lab4.folder / "signals.yaml").write_text(f'- file: {{path: {FILE}, content: "new\\n"}}\n')
    reset(lab4)
    yield lab4
    for host in lab4.hosts:
        host.run(["sh", "-c", f"rm -rf {RUNS} {FILE}"])


def reset(lab: Lab) -> None:
    for host in lab.hosts:
        host.run(["sh", "-c", f"rm -rf {RUNS}; echo old > {FILE}"])


def words(lab: Lab, command: str) -> list[str]:
    more = ["--playbook", str(lab.folder / "signals.yaml"), "--no-verify", "--only", "ssh."]
    return [command, str(lab.inventory()), *(more if command == "apply" else ())]


def run(lab: Lab, command: str, moment: Moment) -> tuple[int, str, int]:
    """Return the exit code, stderr and the number of events of a command."""
    folder = lab.folder / "events"
    folder.mkdir(exist_ok=True)
    argv = [
        sys.executable,
        "-m",
        "tests.support.signal_points",
        str(folder),
        json.dumps(asdict(moment)),
        *words(lab, command),
    ]
    done = lab.controller.run(argv, timeout=120)
    events = Path(folder / "events")
    return done.returncode, done.stderr, int(events.read_text()) if events.exists() else 0


def found(lab: Lab) -> tuple[set[str], set[str]]:
    """Return the contents of the file on all hosts, and the states of the last run there."""
    contents = set()
    states = set()
    for host in lab.hosts:
        contents.add(str(host.read(FILE)))
        script = f"ls -d {RUNS}/runs/* 2>/dev/null | tail -1"
        last = str(host.run(["sh", "-c", script]).stdout).strip()
        manifest = host.read(f"{last}/manifest.json") if last else None
        states.add(json.loads(manifest)["state"] if manifest else "none")
    return contents, states


def wait_until_quiet(lab: Lab) -> None:
    """Agents end by themselves when their connection does, which takes a moment."""
    end = time.monotonic() + 10
    while any(host.processes("SB -c") for host in lab.hosts):
        assert time.monotonic() < end, "something runs on a host"
        time.sleep(0.02)


@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_bytes_words_and_exit_codes_agree(lab: Lab, command: str) -> None:
    before, after = (OLD, NEW) if command == "apply" else (NEW, OLD)
    if command == "rollback":
        clusterprep(lab, "apply", *words(lab, "apply")[2:])
    code, err, events = run(lab, command, Moment())
    assert code in (0, 1, 3), err
    wrong = []
    for number in range(POINTS):
        reset(lab)
        if command == "rollback":
            clusterprep(lab, "apply", *words(lab, "apply")[2:])
        kind = KINDS[number % len(KINDS)]
        at = 1 + (events - 1) * number // (POINTS - 1)
        ended, said, _ = run(lab, command, Moment(at, kind.signals, kind.gap))
        wait_until_quiet(lab)
        contents, states = found(lab)
        stays = contents == {after}
        says_so = any(sentence in said for sentence in STAYS)
        agrees = (
            (stays or contents == {before})
            and not states & {"staged", "committed"}
            and ((ended == code and stays) or (ended == 130 and "interrupted" in said))
            and (ended != 130 or stays == says_so)
            and "Traceback" not in said
        )
        if not agrees:
            wrong.append(f"{kind} at {at}: {ended} {contents} {states} {said[-300:]}")
    assert wrong == []
