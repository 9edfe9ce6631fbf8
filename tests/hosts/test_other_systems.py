"""Commands whose controller is no Linux, as far as a stand-in shows it: tests/support/macos.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CLI, Answer, answer
from tests.support.lab import Lab
from tests.support.lab.fixtures import lab4, shared_lab
from tests.support.macos import write_python

__all__ = ["lab4", "shared_lab"]

pytestmark = pytest.mark.hosts
NAMES = ["n1", "n2", "n3", "n4"]


@pytest.fixture(scope="module")
def python(lab4: Lab) -> Path:
    return write_python(lab4.folder)


def asked(lab: Lab, python: str, command: str, *words: str) -> Answer:
    argv = [python, *CLI[1:], command, str(lab.inventory()), "--format", "json", *words]
    return answer(lab.controller.run(argv, timeout=120, check=False))


def judged(report: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return what each check found: its verdict and the nodes."""
    return {
        finding["check"]: (finding["verdict"], finding["nodes"]) for finding in report["findings"]
    }


def test_a_check_finds_the_same_as_from_linux(lab4: Lab, python: Path) -> None:
    words = ("--only", "net.,eth.,host.,kernel.,ssh.,time.")
    here = asked(lab4, CLI[0], "check", *words)
    there = asked(lab4, str(python), "check", *words)
    assert len(judged(here.report)) > 10
    assert judged(there.report) == judged(here.report)
    assert there.code == here.code
    assert "Traceback" not in there.stderr


def test_files_are_written_and_rolled_back(lab4: Lab, python: Path) -> None:
    path = "/etc/of-another-system.conf"
    playbook = lab4.folder / "of-another-system.yaml"
    playbook.write_text(f"- file: {{path: {path}, content: written}}\n")
    site = ("--playbook", str(playbook), "--only", "ssh.")
    assert asked(lab4, str(python), "plan", *site).code == 0
    written = asked(lab4, str(python), "apply", *site, "--no-verify")
    assert (written.outcomes(), written.code) == ({"done"}, 0)
    assert {host.run(["cat", path]).stdout for host in lab4.hosts} == {"written"}
    undone = asked(lab4, str(python), "rollback")
    assert (undone.outcomes(), undone.code) == ({"undone"}, 0)
    assert {host.run(["ls", path], check=False).stdout for host in lab4.hosts} == {""}


def test_a_command_runs_on_all_nodes(lab4: Lab, python: Path) -> None:
    seen = asked(lab4, str(python), "exec", "--", "uname", "-s")
    (row,) = seen.report["results"]
    assert (row["nodes"], row["stdout"], seen.code) == (NAMES, "Linux\n", 0)


WORKERS = """
import sys
from clusterprep.inventory.load import load_inventory
from clusterprep.remote.transports.workers import WorkerTransport
nodes = load_inventory(sys.argv[1]).nodes
transport = WorkerTransport(2, str)
try:
    channels = [transport.open(node, "hostname") for node in nodes]
    for channel in channels:
        print(channel.recv(30.0).decode().strip())
finally:
    transport.close()
"""


def test_logins_in_worker_processes(lab4: Lab, python: Path) -> None:
    argv = [str(python), "-c", WORKERS, str(lab4.inventory())]
    assert lab4.controller.run(argv, timeout=60).stdout.split() == NAMES
