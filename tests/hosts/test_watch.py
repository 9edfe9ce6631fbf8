"""A watch of real hosts tells each planted change once, and leaves nothing there."""

from __future__ import annotations

import contextlib
import itertools
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.hgx import hgx
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults.files import inside
from tests.support.watched import Watch

pytestmark = pytest.mark.hosts

# What the machine that carries the lab brings to all its hosts by itself.
NOT_OF_HOSTS = ("--skip", "lim.,proc.dstate,mem.,irq.,cpu.,disk.,numa.,pcie.")
QUIET = "6,0,1000000,-;Linux version 6.8.0-60-generic\n"
ROOT = Path(__file__).resolve().parents[2]
DATA = "/data"
SYMBOL_ERRORS = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
XID = (
    "3,{number},{now},-;NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)


def wait_until_quiet(lab: Lab) -> None:
    """Agents end by themselves when their connection does, which takes a moment."""
    end = time.monotonic() + 30
    while any(host.processes("SB -c") for host in lab.hosts):
        assert time.monotonic() < end, "something runs on a host"
        time.sleep(0.02)


def test_a_change_is_told_once_and_ctrl_c_leaves_nothing(lab4: Lab) -> None:
    with Watch(lab4, *NOT_OF_HOSTS) as watch:
        with faults.mtu(lab4.host("n2"), 1400):
            new = watch.until("new", "n2", "eth.mtu")
        watch.until("gone", "n2", "eth.mtu")
        code = watch.interrupt()
    assert code == 130
    assert watch.changes() == ["new n2 eth.mtu", "gone n2 eth.mtu"]
    assert new["severity"] == "warning"
    assert "1400 on n2" in new["seen"]
    wait_until_quiet(lab4)


@pytest.mark.slow
def test_a_filter_of_the_rendezvous_port_is_told_and_no_port_is_held(lab4: Lab) -> None:
    port = 29500
    with Watch(lab4, *NOT_OF_HOSTS) as watch:
        with faults.drop_ports(lab4.host("n3"), port, port):
            new = watch.until("new", "n3", "net.ports")
        watch.until("gone", "n3", "net.ports")
        code = watch.interrupt()
    assert code == 130
    assert watch.changes() == ["new n3 net.ports", "gone n3 net.ports"]
    assert new["nodes"] == ["n3"]
    assert "cannot reach n3" in new["message"]


DIALLED = """
import select, sys
from clusterprep.remote.agent.dial import Call
call = Call(sys.argv[1], 29500, 0, sys.argv[2] == "silent")
while (row := call.step(False)) is None:
    select.select([], [call.sock], [], 1)
print(row[0])
"""


@pytest.mark.parametrize(
    ("how", "silent", "other"),
    [
        pytest.param(None, "refused", "refused", id="no-filter"),
        # What a filter sends in the name of TCP is what TCP itself sends.
        pytest.param("with tcp reset", "refused", "refused", id="reset"),
        pytest.param("", "rejected", "refused", id="default"),
        pytest.param("with icmpx admin-prohibited", "rejected", "no_route", id="prohibited"),
        pytest.param("with icmpx host-unreachable", "no_route", "no_route", id="unreachable"),
    ],
)
def test_a_refusal_of_a_filter_is_told_from_that_of_a_host(
    lab4: Lab, how: str | None, silent: str, other: str
) -> None:
    kernel = tuple(int(word) for word in platform.release().split(".")[:2])
    if how == "" and kernel < (6, 2):
        silent = "refused"
    dialer, listener = lab4.host("n1"), lab4.host("n2")
    with contextlib.ExitStack() as stack:
        if how is not None:
            stack.enter_context(faults.reject_ports(listener, 29500, 29500, how))
        for words, expected in (("silent", silent), ("other", other)):
            argv = [sys.executable, "-c", DIALLED, listener.address, words]
            done = dialer.run(argv, env={"PYTHONPATH": str(ROOT)})
            assert done.stdout.strip() == expected


@pytest.mark.slow
def test_a_filter_that_refuses_the_rendezvous_port_is_told(lab4: Lab) -> None:
    port = 29500
    skipped = (*NOT_OF_HOSTS[:-1], f"{NOT_OF_HOSTS[-1]},net.firewall")
    with Watch(lab4, *skipped) as watch:
        with faults.reject_ports(lab4.host("n3"), port, port, "with icmpx admin-prohibited"):
            new = watch.until("new", "n3", "net.ports")
        watch.until("gone", "n3", "net.ports")
        watch.interrupt()
    assert watch.changes() == ["new n3 net.ports", "gone n3 net.ports"]
    assert "rejected" in new["seen"]


@pytest.mark.slow
def test_a_filter_whose_rules_are_seen_is_told_once_with_all_that_it_blocks(lab4: Lab) -> None:
    with Watch(lab4, *NOT_OF_HOSTS) as watch:
        with faults.drop_ports(lab4.host("n3"), 20000, 65000):
            new = watch.until("new", "n3", "net.firewall")
            with faults.mtu(lab4.host("n1"), 1400):
                watch.until("new", "n1", "eth.mtu")  # so there was a further look
            watch.until("gone", "n1", "eth.mtu")
        watch.until("gone", "n3", "net.firewall")
        watch.interrupt()
    assert [words for words in watch.changes() if "eth.mtu" not in words] == [
        "new n3 net.firewall",
        "gone n3 net.firewall",
    ]
    assert new["severity"] == "error"


@pytest.fixture
def quiet_lab(make_lab: Callable[..., Lab]) -> Lab:
    """Four hosts whose kernel's logs are files, with a small file system for data.

    n3 has the buses and the InfiniBand cards of a GPU server.
    """
    lab = make_lab(4)
    for host in lab.hosts:
        faults.file_over(host, "/dev/kmsg", QUIET)
        faults.tmpfs(host, DATA, "size=100m,mode=1777")
    for _ in itertools.islice(hgx(lab.host("n3")), 2):
        pass  # its processors, and its tree over /sys
    return lab


def add_xid(host: Host, number: int) -> None:
    now = float(host.read("/proc/uptime").split()[0])
    line = XID.format(number=number, now=int(now * 1e6))
    with inside(host, "/dev/kmsg").open("a") as log:
        log.write(line)


@pytest.mark.slow
def test_changes_of_all_kinds_are_told_once_each(quiet_lab: Lab) -> None:
    lab = quiet_lab
    n1, n2, n3, n4 = lab.hosts
    expected = []
    inventory = lab.inventory(require={"fs.mount": DATA})
    with Watch(lab, *NOT_OF_HOSTS, inventory=inventory) as watch:

        def told(kind: str, host: Host, check: str = "") -> None:
            """Wait until it is told."""
            event = watch.until(kind, host.name, check)
            words = (kind, host.name, event.get("check", ""))
            expected.append(" ".join(word for word in words if word))

        with faults.mtu(n2, 1400):
            told("new", n2, "eth.mtu")
        told("gone", n2, "eth.mtu")
        with faults.drop_ports(n3, 20000, 65000):
            told("new", n3, "net.firewall")
        told("gone", n3, "net.firewall")
        add_xid(n1, 900)
        told("new", n1, "gpu.xid")
        add_xid(n1, 901)
        told("log", n1)
        with faults.file_over(n3, SYMBOL_ERRORS, "50000\n"):
            told("new", n3, "ib.counters")
        told("gone", n3, "ib.counters")
        with faults.filled(n2, DATA):
            told("new", n2, "fs.space")
        told("gone", n2, "fs.space")
        with faults.segment(n4):
            told("new", n4, "shm.stale")
        told("gone", n4, "shm.stale")
        faults.power_off(n4)
        told("down", n4)
        faults.power_on(n4)
        told("back", n4)
        told("booted", n4)
        told("new", n4, "fs.mount")  # nothing mounts it after a boot
        with faults.clock(n2, 5.0):
            n2.run(["pkill", "-f", "SB -c"])
            told("new", n2, "time.offset")
        n2.run(["pkill", "-f", "SB -c"])
        told("gone", n2, "time.offset")
        code = watch.interrupt()
    assert code == 130
    assert watch.changes() == expected
    wait_until_quiet(lab)
