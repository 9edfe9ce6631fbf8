"""64 hosts whose one kernel has no place for all of them as neighbours of each other.

The thresholds of the table are the machine's, so they are lowered for the seconds of one check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import CLI
from tests.support.lab import Host, Lab

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

HOSTS = 64
THRESHOLDS = Path("/proc/sys/net/ipv4/neigh/default")
LINUX = {"gc_thresh1": 128, "gc_thresh2": 512, "gc_thresh3": 1024}  # its defaults
MOST_LINES = 12  # on the console, for one finding about all hosts


@contextmanager
def table_of_linux() -> Iterator[None]:
    """Give the kernel the thresholds that Linux comes with, and put back what there was."""
    before = {name: (THRESHOLDS / name).read_text() for name in LINUX}
    try:
        for name, most in LINUX.items():
            (THRESHOLDS / name).write_text(f"{most}\n")
        yield
    finally:
        for name, text in before.items():
            (THRESHOLDS / name).write_text(text)


def lines_about(check: str, console: str) -> list[str]:
    """Return the lines of the finding that begins with the name of a check."""
    begin = console.index(f" {check} ")
    return console[begin:].split("\n\n", maxsplit=1)[0].splitlines()


def forget_neighbours(host: Host) -> None:
    """Let a host ask for its neighbours, as real ones do: a large lab tells it all of them."""
    host.run(["ip", "neighbour", "flush", "nud", "permanent"])


def test_hosts_that_a_full_table_keeps_apart_are_one_finding_that_names_it(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(HOSTS)
    for host in lab.hosts:
        forget_neighbours(host)
    written = lab.folder / "report.json"
    argv = [*CLI, "check", str(lab.inventory()), "--only", "net.ports", "--no-color"]
    with table_of_linux():
        done = lab.controller.run([*argv, "--output", str(written)], check=False, timeout=120)
    report = json.loads(written.read_text())
    (failed,) = [finding for finding in report["findings"] if finding["verdict"] == "fail"]
    assert done.returncode == 1
    assert "the kernel's table of neighbours is full" in failed["message"]
    assert "net.neigh" in failed["message"]
    assert failed["seen"].startswith("gc_thresh3 1024, no place ")
    assert "gc_thresh3=" in failed["remedy"]
    assert len(failed["nodes"]) > HOSTS / 2
    assert len(lines_about("net.ports", done.stdout)) <= MOST_LINES, done.stdout
