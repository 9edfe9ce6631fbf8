"""Tables of neighbours that are full: of 64 hosts that are neighbours of each other, and of IPv6.

The tables are the machine's. Their thresholds are lowered, or entries are made in a network
namespace of their own, for the seconds of one check.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import CLI
from tests.support.lab import Host, Lab

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

HOSTS = 64
NEIGHBOURS_OF_IPV6 = Path("/proc/net/stat/ndisc_cache")  # of the first network namespace alone
LIMIT_OF_IPV6 = Path("/proc/sys/net/ipv6/neigh/default/gc_thresh3")
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


# Its own namespace goes with its process, and takes the entries along.
FILL = """
ip link add veth0 type veth peer name veth1 && ip link set veth0 up &&
    ip -6 -batch "$1" &&
    echo filled && read -r end
"""


@contextmanager
def ipv6_neighbours(count: int, entries: Path) -> Iterator[None]:
    """Give the kernel so many IPv6 neighbours, in a network namespace of their own."""
    lines = []
    for number in range(1, count + 1):
        address = f"fd00:77::{number:x}"
        lines.append(f"neigh add {address} lladdr 02:00:00:00:00:01 nud stale dev veth0\n")
    entries.write_text("".join(lines))
    argv = ["unshare", "--net", "sh", "-c", FILL, "sh", str(entries)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as filling:
        assert filling.stdin is not None
        assert filling.stdout is not None
        try:
            assert filling.stdout.readline() == "filled\n"
            yield
        finally:
            filling.stdin.close()


def test_a_full_table_of_ipv6_neighbours_is_found_and_its_limits_named(tmp_path: Path) -> None:
    if not NEIGHBOURS_OF_IPV6.exists():
        pytest.skip("only the host's own network namespace shows this table")
    most = int(LIMIT_OF_IPV6.read_text())
    argv = [*CLI, "check", "--local", "--only", "net.neigh", "--format", "json"]
    # Enough to be told, and places are left for what else the machine does.
    with ipv6_neighbours(most * 95 // 100, tmp_path / "entries"):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    report = json.loads(done.stdout)
    # What else the machine runs may have filled its other table.
    about_ipv6 = [found for found in report["findings"] if "IPv6" in found["message"]]
    assert [found["check"] for found in about_ipv6] == ["net.neigh"]
    (failed,) = about_ipv6
    full = r"the kernel's table of IPv6 neighbours is (nearly )?full"  # it may have been before
    assert re.match(full, failed["message"])
    assert failed["seen"].startswith(f"gc_thresh3 {most}, entries now ")
    assert "net.ipv6.neigh.default.gc_thresh3=" in failed["remedy"]
