"""Shared memory, clocks and GPUs on real hosts: planned, done once, checked, and rolled back.

n1 is a source of time. The others have chronyd with sources in a folder of their own, n4 in
chrony.conf itself. n1 and n2 have GPUs, of which one is set otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import leftovers, quiet
from tests.hosts.test_playbook import said
from tests.hosts.test_steps import apply, outcomes, run
from tests.support import nvidia_smi, systemd
from tests.support.lab import Host, Lab, faults

pytestmark = pytest.mark.hosts

MIB = 1 << 20
BOOK = """
- shm: {size: 96MiB}
- nodes: n[2-4]
  clock: {sources: ["{{ first.address }}"], limit: 30s}
- include: gpu
- nodes: n[2-3]
  include: clock-sync
"""
GOOD, ODD = ("1", "0", "700"), ("0", "3", "450")
CONF = "/etc/chrony/chrony.conf"
SOURCE = "local stratum 8\nallow all\npidfile /run/chrony/chronyd.pid\n"
# As Debian's, without its pool.
FOLDER = "sourcedir /etc/chrony/sources.d\npidfile /run/chrony/chronyd.pid\n"
NO_FOLDER = "pidfile /run/chrony/chronyd.pid\n"
# For a host whose chronyd only this script starts.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> /run/lab-systemctl
kill $(cat /run/chrony/chronyd.pid)
while [ -e /run/chrony/chronyd.pid ]; do sleep 0.05; done
chronyd -x
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    quiet(lab4)


@pytest.fixture(scope="module")
def timed(lab: Lab) -> Iterator[Lab]:
    """With chronyd on every host."""
    for host, conf in zip(lab.hosts, (SOURCE, FOLDER, FOLDER, NO_FOLDER), strict=True):
        host.write(CONF, conf)
        host.run(["chronyd", "-x"])
    lab.host("n4").write("/usr/local/sbin/systemctl", SYSTEMCTL, 0o755)
    for host in lab.hosts[1:3]:  # where systemctl knows of a chrony that does not run
        systemd.install(host, "chrony.service")
    yield lab
    for host in lab.hosts:
        host.run(["sh", "-c", "kill $(cat /run/chrony/chronyd.pid)"])


@pytest.fixture(scope="module")
def gpus(lab: Lab) -> Iterator[Lab]:
    """With two GPUs on n1 and n2."""
    odd = {
        "index": 1,
        "persistence": 0,
        "compute_mode": 3,
        "power_limit": 450,
        "power_enforced": 450,
    }
    made = [
        faults.gpus(lab.hosts[0], [{"count": 2}]),
        faults.gpus(lab.hosts[1], [{"count": 2}, odd]),
    ]
    for host in lab.hosts[:2]:
        nvidia_smi.install(host)
    yield lab
    for fault in made:
        fault.undo()


def shm(host: Host) -> tuple[str, str, str]:
    """Size in bytes and options of the one that is mounted, and fstab."""
    size = host.run(
        ["sh", "-c", 'stat -f -c "%b %S" /dev/shm | { read b s; echo $((b * s)); }']
    ).stdout.strip()
    flags = [
        line.split()[5]
        for line in host.read("/proc/self/mountinfo").splitlines()
        if " /dev/shm " in line
    ]
    return size, flags[-1], host.read("/etc/fstab")


def sources(host: Host) -> list[tuple[str, str]]:
    """What chronyd follows («*») and knows."""
    rows = [
        line.split(",")
        for line in host.run(["chronyc", "-c", "-N", "sources", "-a"]).stdout.splitlines()
    ]
    return [(row[1], row[2]) for row in rows]


def test_what_cannot_be_on_one_host_is_done_on_none(lab: Lab) -> None:
    """n3 has more in its shared memory than is wanted, and no host a chronyd yet."""
    lab.host("n3").run(
        ["dd", "if=/dev/zero", "of=/dev/shm/full", "bs=1M", "count=5", "status=none"]
    )
    before = [shm(host) for host in lab.hosts]
    found = apply(lab, BOOK.replace("96MiB", "4M"))
    assert found.code == 1, found.report
    told = str(found.report["changes"])
    assert "of /dev/shm are in use, more than 4 MiB" in told
    assert "chronyd does not run: a step `service:" in told
    assert [shm(host) for host in lab.hosts] == before
    lab.host("n3").run(["rm", "/dev/shm/full"])


def test_shm_clock_and_gpu_changes_are_predicted_done_once_and_undone(
    timed: Lab, gpus: Lab
) -> None:
    first, hosts = gpus.hosts[0].address, gpus.hosts
    hosts[1].write("/etc/fstab", "none /dev/shm tmpfs nosuid,nodev,size=1g 0 0\n")
    before = [shm(host) for host in hosts]
    predicted = run(gpus, "plan", BOOK)
    done = apply(gpus, BOOK)
    assert done.code == 0, done.report
    assert said(done) == said(predicted)
    after = [shm(host) for host in hosts]
    assert [(size, flags) for size, flags, _ in after] == [(str(96 * MIB), before[0][1])] * 4
    assert after[1][2] == "none /dev/shm tmpfs nosuid,nodev,size=96M 0 0\n"
    assert after[2][2].endswith("\ntmpfs\t/dev/shm\ttmpfs\tnosuid,nodev,size=96M\t0\t0\n")
    assert [sources(host) for host in hosts[1:]] == [[("*", first)]] * 3
    assert [systemd.units(host) for host in hosts[1:3]] == [
        {"chrony.service": "active enabled 1"}
    ] * 2
    assert "BEGIN clusterprep clock" in hosts[3].read(CONF)
    assert [nvidia_smi.settings(host) for host in hosts[:2]] == [[GOOD, GOOD]] * 2
    assert [len(nvidia_smi.said(host)) for host in hosts[:2]] == [0, 3]
    again = apply(gpus, BOOK)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    back = run(gpus, "rollback", "")
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert [shm(host) for host in hosts] == before
    assert [sources(host) for host in hosts[1:]] == [[]] * 3
    assert hosts[3].read(CONF) == NO_FOLDER
    assert (
        hosts[3].read("/run/lab-systemctl")
        == "restart -- chrony.service\ntry-restart -- chrony.service\n"
    )
    assert [systemd.units(host) for host in hosts[1:3]] == [{"chrony.service": "1"}] * 2
    assert nvidia_smi.settings(hosts[1]) == [GOOD, ODD]
    assert leftovers(gpus) == []


def test_a_clock_that_follows_nobody_has_failed_and_has_no_source_again(timed: Lab) -> None:
    found = apply(timed, "- clock: {sources: [10.77.255.1], limit: 1s}\n", "--limit", "n2")
    assert (found.code, outcomes(found)) == (1, [("clock", "failed", ["n2"])]), found.report
    (row,) = found.report["changes"]
    assert "the clock follows none of these; chronyc says:" in row["detail"]
    assert "10.77.255.1" in row["detail"]
    assert sources(timed.host("n2")) == []


def test_a_limit_that_something_else_holds_down_is_a_failure_and_set_back(gpus: Lab) -> None:
    """The BMC: nvidia-smi takes what it is told, and the GPU keeps the lower one."""
    host = gpus.host("n2")
    host.run(["sh", "-c", f"echo '1 bmc 500000' >> {nvidia_smi.DESCRIBED}"])
    found = apply(gpus, "- gpu: {power_limit: default}\n", "--limit", "n2")
    assert found.code == 1, found.report
    assert "it was done, and the node is not as wanted: GPU 1: 500 W → 700 W" in str(
        found.report["changes"]
    )
    assert nvidia_smi.settings(host)[1][2] == "450"
