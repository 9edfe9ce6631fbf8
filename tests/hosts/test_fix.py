"""Twenty-four faults on four hosts, one command that cures them, and one that puts all back.

What people have to do stays, and is listed with the reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import environment, stages, storage
from tests.support import systemd
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.lab.fixtures import require_lab
from tests.support.lab.timekeeper import HOST_CONFIG

pytestmark = pytest.mark.hosts

UNIT = "node-health.service"
BASHRC, PROFILE, SYSTEM = "/root/.bashrc", "/etc/profile.d/zz-site.sh", "/etc/environment"
ROWS = (*stages.CPU_ROWS, *environment.ROWS)
FILES = (
    "/etc/hosts",
    "/etc/fstab",
    BASHRC,
    PROFILE,
    SYSTEM,
    "/etc/security/limits.d/90-clusterprep.conf",
    "/etc/sysctl.d/90-clusterprep.conf",
    "/etc/tmpfiles.d/clusterprep-governor.conf",
    "/sys/class/net/eth0/mtu",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/numa_balancing",
)
UNITS = f"cd {systemd.STATE}; ls -d */enabled */active 2>/dev/null || true"
MOUNTS = "findmnt -rno OPTIONS /dev/shm; findmnt -rno TARGET /data || true"
# In front of the stand-in for systemctl: it answers for several units, and really starts chronyd.
SYSTEMCTL = f"""#!/bin/sh
PATH=/usr/sbin:$PATH
real=/usr/local/sbin/systemctl-of-the-lab
case "$*" in
"show -p Id,"*)
    shift 3
    blank=
    for unit; do
        printf "${{blank}}Id=%s\\n" "$unit"
        $real show -- "$unit" | grep -e LoadState -e ActiveState
        blank='\\n'
    done ;;
*chrony.service)
    $real "$@" || exit
    case "$1" in
    start) chronyd -x -f {HOST_CONFIG} ;;
    stop) pkill -x chronyd ;;
    esac
    exit 0 ;;
*) exec $real "$@" ;;
esac
"""


def with_systemctl(host: Host) -> None:
    """Let units of the host be started and stopped; both are enabled and active."""
    host.run(["rm", systemd.STATE])  # a file of a simpler stand-in
    systemd.install(host, UNIT, "chrony.service")
    host.run(["mv", "/usr/local/sbin/systemctl", "/usr/local/sbin/systemctl-of-the-lab"])
    host.write("/usr/local/sbin/systemctl", SYSTEMCTL, 0o755)
    for unit in (UNIT, "chrony.service"):
        host.run(["touch", f"{systemd.STATE}/{unit}/enabled", f"{systemd.STATE}/{unit}/active"])


def stopped(host: Host, unit: str) -> Fault:
    """A unit that is neither enabled nor active."""
    folder = f"{systemd.STATE}/{unit}"
    host.run(["rm", f"{folder}/enabled", f"{folder}/active"])
    return Fault(lambda: None)


def line(host: Host, path: str, text: str) -> Fault:
    """One more line of a file."""
    present = host.read(path) if host.run(["test", "-e", path], check=False).returncode == 0 else ""
    return faults.written(host, path, f"{present}{text}\n")


def planted(name: str, host: Host, lab: Lab) -> Fault:
    """A fault of the table, by its name."""
    (row,) = (row for row in ROWS if row.name == name)
    return row.plant(host, lab)


def plant_curable(lab: Lab) -> list[tuple[str, str]]:
    """Plant what `fix` can cure; return the check that finds each fault, and its host."""
    n1, n2, n3, n4 = lab.hosts
    low = "/etc/security/limits.d/20-low.conf"
    hosts = n3.read("/etc/hosts").replace(f"{n2.address} n2", "10.77.99.99 n2")
    faults_by_place = {
        ("lim.memlock", "n1"): line(n1, low, "root - memlock 64"),
        ("shm.size", "n1"): faults.resized(n1, "/dev/shm", "512m", "9g"),
        ("env.shadow", "n1"): line(n1, BASHRC, "export NCCL_DEBUG=INFO"),
        ("name.resolve", "n1"): faults.loopback_name(n1),
        ("svc.required", "n1"): stopped(n1, UNIT),
        # As long as the value that replaces it: unlike the kernel's, this file is not cut.
        ("lim.nproc", "n1"): faults.own_sysctl(n1, "kernel.pid_max", "0000150"),
        ("env.ld_path", "n1"): planted("LD_LIBRARY_PATH with an NCCL, in login shells", n1, lab),
        ("lim.nofile", "n2"): line(n2, low, "root - nofile 1024"),
        ("eth.mtu", "n2"): faults.mtu(n2, 1400),
        ("env.nccl_debug", "n2"): line(n2, PROFILE, "export NCCL_P2P_DISABLE=1"),
        ("numa.balancing", "n2"): planted("memory moved between NUMA nodes", n2, lab),
        ("env.nccl_hca_exists", "n2"): line(n2, BASHRC, "export TP_SOCKET_IFNAME=eth9"),
        ("env.bad_cuda", "n3"): line(n3, SYSTEM, "CUDA_LAUNCH_BLOCKING=1"),
        ("cpu.governor", "n3"): planted("governor powersave", n3, lab),
        ("env.deprecated", "n3"): line(n3, BASHRC, "export NCCL_ENABLE_TIMING=1"),
        ("time.daemon", "n3"): faults.together(
            faults.without_chronyd(n3), stopped(n3, "chrony.service")
        ),
        ("name.resolve", "n3"): faults.written(n3, "/etc/hosts", hosts),
        ("launch.nproc", "n3"): line(n3, PROFILE, "export NPROC_PER_NODE=4"),
        ("env.nccl_unknown", "n4"): line(n4, BASHRC, "export NCCL_SOKET_IFNAME=eth0"),
        ("launch.ranks", "n4"): line(n4, BASHRC, "export RANK=5"),
        ("env.no_effect", "n4"): line(n4, PROFILE, "export NCCL_VERSION=2.11.4-1"),
        ("fs.mount", "n4"): planted("declared mount missing", n4, lab),
    }
    return list(faults_by_place)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Four hosts on which nothing is wrong, with chronyd and units that can be started."""
    require_lab()
    made = Lab(4, chrony=True)
    made.start(owner=os.getpid())
    site = contextlib.ExitStack()
    try:
        for fault in stages.cpu_nodes(made):
            site.enter_context(fault)
        for host in made.hosts:
            with_systemctl(host)
            host.write("/etc/fstab", f"tmpfs {storage.DATA} tmpfs {storage.OPTIONS} 0 0\n")
        yield made
    finally:
        for host in made.hosts:
            host.run(["rm", "-r", systemd.STATE])
            host.write(systemd.STATE, "")
            host.run(["sh", "-c", "mountpoint -q $0 || mount $0", storage.DATA])
        site.close()
        made.stop()


def inventory(lab: Lab) -> Path:
    required = {
        **stages.LIMITS,
        "fs.mount": f"{storage.DATA}:rw",
        "svc.required": UNIT,
    }
    return lab.inventory(lab.folder / "fix.yaml", require=required, job_user="root")


def command(lab: Lab, *words: str) -> Answer:
    return clusterprep(lab, *words, inventory=inventory(lab), timeout=240)


def state(host: Host) -> dict[str, str]:
    """What fixes change on a host."""
    kept = {}
    for path in FILES:
        shown = host.run(["sh", "-c", 'cat "$0" 2>/dev/null || echo none', path])
        kept[path] = shown.stdout
    kept["units"] = host.run(["sh", "-c", UNITS]).stdout
    kept["mounts"] = host.run(
        ["sh", "-c", "findmnt -rno TARGET,OPTIONS /dev/shm; findmnt -rno TARGET /data || true"]
    ).stdout
    kept["chronyd"] = host.run(["sh", "-c", "pgrep -c -x chronyd || true"]).stdout
    return kept


def failing(found: Answer) -> set[tuple[str, str]]:
    """Every failure that counts, as check and node."""
    return {
        (finding["check"], node)
        for finding in found.report["findings"]
        for node in finding["nodes"]
        if finding["verdict"] == "fail" and not finding["fixed"]
    }


def test_one_command_cures_what_it_can_and_rollback_puts_all_back(lab: Lab) -> None:
    healthy = failing(command(lab, "check"))
    places = plant_curable(lab)
    for_people = [("os.release", "n2"), ("host.uptime", "n1"), ("lim.stack", "n4")]
    planted("another release of the distribution", lab.host("n2"), lab)
    planted("booted four minutes ago", lab.host("n1"), lab)
    planted("unlimited stack", lab.host("n4"), lab)
    before = [state(host) for host in lab.hosts]

    ill = command(lab, "check")
    assert ill.code == 1, ill.report
    assert failing(ill) - healthy >= {*places, *for_people}

    done = command(lab, "fix", "--yes")
    outcomes = {
        (row["check"], node): row["outcome"]
        for row in done.report["fixes"]
        for node in row["nodes"]
    }
    assert {place: outcomes.get(place) for place in places} == dict.fromkeys(places, "cured")
    assert {place: outcomes.get(place) for place in for_people} == dict.fromkeys(
        for_people, "by hand"
    )
    assert all(row["reason"] for row in done.report["fixes"] if row["outcome"] == "by hand")
    assert done.code == 0, done.report["fixes"]

    well = command(lab, "check")
    assert well.code == 0, well.failed()
    assert failing(well).isdisjoint(places)

    back = command(lab, "rollback")
    assert back.code == 0, back.report
    for host, former in zip(lab.hosts, before, strict=True):
        assert state(host) == former, host.name
