"""What can be wrong with a host itself: its clock, names, identity, kernel and users."""

from __future__ import annotations

import re

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def _machine_id_of_n1(host: Host, lab: Lab) -> Fault:
    return faults.written(host, "/etc/machine-id", lab.host("n1").read("/etc/machine-id"))


def _other_address(host: Host, lab: Lab) -> Fault:
    """The line of n2 in /etc/hosts has an address that no other node gives it."""
    return faults.changed(host, "/etc/hosts", f"{lab.host('n2').address} n2\n", "10.77.99.99 n2\n")


def _newer_kernel(host: Host, lab: Lab) -> Fault:
    """The package of the next kernel is installed, of the flavour that runs."""
    running = host.run(["uname", "-r"]).stdout.strip()
    newer = re.sub(r"^[0-9]+", "99", running)
    return faults.together(
        *(faults.written(host, f"/boot/vmlinuz-{name}", "MZ") for name in (running, newer))
    )


def _other_release(host: Host, lab: Lab) -> Fault:
    line = next(
        line for line in host.read("/etc/os-release").splitlines() if line.startswith("VERSION_ID=")
    )
    return faults.changed(host, "/etc/os-release", line, 'VERSION_ID="99"')


def _says(host: Host, program: str, line: str) -> Fault:
    """A program that says what that of another distribution does."""
    return faults.written(host, f"/usr/bin/{program}", f"#!/bin/sh\necho '{line}'\n", 0o755)


def _other_command_line(host: Host, lab: Lab) -> Fault:
    first, *rest = host.read("/proc/cmdline").split()
    return faults.file_over(host, "/proc/cmdline", " ".join([first, "iommu=strict", *rest, "\n"]))


ROWS = (
    Row("clock 5 s ahead", "time.offset", lambda host, lab: faults.clock(host, 5), several=True),
    Row(
        "clock 0.3 s behind",
        "time.offset",
        lambda host, lab: faults.clock(host, -0.3),
        several=True,
    ),
    Row(
        "chronyd not running",
        "time.daemon",
        lambda host, lab: faults.without_chronyd(host),
        several=True,
    ),
    Row(
        "chronyd without a source",
        "time.daemon",
        lambda host, lab: faults.unsynchronised(host),
        several=True,
    ),
    Row("machine id of another node", "host.identity", _machine_id_of_n1, others=("n1",)),
    Row("own name on loopback", "name.resolve", lambda host, lab: faults.loopback_name(host)),
    Row("another address for one name", "name.resolve", _other_address),
    Row("another release of the distribution", "os.release", _other_release),
    Row(
        "the C library of another distribution",
        "os.glibc",
        lambda host, lab: _says(host, "getconf", "glibc 2.31"),
        "laid over",
    ),
    Row(
        "the OpenSSL of another distribution",
        "os.openssl",
        lambda host, lab: _says(host, "openssl", "OpenSSL 1.1.1k  FIPS 25 Mar 2021"),
        "laid over",
    ),
    Row(
        "kernel 2.6",
        "kernel.version",
        lambda host, lab: faults.old_kernel(host),
        "laid over",
        several=True,
    ),
    Row("newer kernel waits for a reboot", "kernel.version", _newer_kernel, several=True),
    Row(
        "IOMMU set otherwise on the command line",
        "kernel.cmdline",
        _other_command_line,
        "laid over",
    ),
    Row(
        "booted four minutes ago",
        "host.uptime",
        lambda host, lab: faults.file_over(host, "/proc/uptime", "241.07 401.33\n"),
        "laid over",
    ),
    Row(
        "clock source hpet",
        "time.clocksource",
        lambda host, lab: faults.file_over(host, _CLOCKSOURCE, "hpet\n"),
        "laid over",
    ),
)
