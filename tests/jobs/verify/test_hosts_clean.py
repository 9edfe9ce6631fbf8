"""However a verify ends, the nodes are as they were.

Processes, sockets, shared memory and temporary files.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.jobs.verify.moments import begun, connected, ranks, wait_for
from tests.support.command import started
from tests.support.lab import Host, Lab

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
slow = pytest.mark.slow
GONE = 3.0  # seconds for sshd to take a session down after the command has returned
# Seconds for agents whose controller was killed; the channel ends with it, and no leash is waited
# for.
FORSAKEN = 10.0
PLACES = ("/dev/shm", "/tmp", "/var/tmp", "/run")
# What is on a host: processes without the looking ones, sockets that are not just fading away, and
# files.
LOOK = (
    'for p in /proc/[0-9]*; do [ "$(readlink $p/ns/pid)" = "$(readlink /proc/1/ns/pid)" ] && '
    "tr '\\0' ' ' < $p/cmdline && echo; done; "
    "ss -Hxan state listening | awk '{print \"unix\", $4}'; "
    "ss -Htuan | grep -v TIME-WAIT | awk '{print $1, $2, $5, $6}'; "
    f"find {' '.join(PLACES)} -xdev; ls -a /root /dev/mqueue; cat /proc/sysvipc/shm"
)


def seen(host: Host) -> list[str]:
    found = host.run(["sh", "-c", f"{LOOK} 2>/dev/null || true"]).stdout.splitlines()
    return sorted(
        line
        for line in found
        if line.strip() and not line.startswith(("sh -c for p in", "tr ", "ss -H"))
    )


@pytest.fixture
def before(lab4: Lab) -> dict[str, list[str]]:
    return {host.name: seen(host) for host in lab4.hosts}


def after(lab: Lab, before: dict[str, list[str]], limit: float) -> None:
    """Wait until all is as before; what is not is told."""
    end = time.monotonic() + limit
    for host in lab.hosts:
        while (now := seen(host)) != before[host.name] and time.monotonic() < end:
            time.sleep(0.2)
        assert now == before[host.name], host.name


def verify(lab: Lab, *words: str, sizes: tuple[str, ...] = ("8", "1M")) -> subprocess.Popen[str]:
    settings = {"verify": {"sizes": list(sizes), "timeout": 8}, "nproc_per_node": 2}
    return started(lab, "verify", *words, inventory=lab.inventory(**settings))


def serving(host: Host) -> bool:
    """The links stage: a process other than sshd listens, and no rank is left."""
    listening = host.run(["ss", "-Htln"]).stdout.splitlines()
    return not ranks(host) and any(not line.split()[3].endswith(":22") for line in listening)


@pytest.mark.parametrize(
    ("signum", "when"),
    [
        pytest.param(signal.SIGKILL, begun, id="killed-at-start"),
        pytest.param(signal.SIGINT, begun, id="interrupted-at-start"),
        pytest.param(signal.SIGKILL, connected, id="killed-in-a-collective", marks=slow),
        pytest.param(signal.SIGINT, connected, id="interrupted-in-a-collective", marks=slow),
        pytest.param(signal.SIGTERM, connected, id="terminated-in-a-collective", marks=slow),
        pytest.param(signal.SIGKILL, serving, id="killed-in-the-links-stage", marks=slow),
    ],
)
def test_after_the_controller_was_ended(
    lab4: Lab, before: dict[str, list[str]], signum: signal.Signals, when: Callable[[Host], bool]
) -> None:
    sizes = ("8",) if when is serving else ("8", *["16M"] * 200)
    process = verify(lab4, sizes=sizes)
    any_host = any if when is serving else all
    wait_for(lambda: any_host(when(host) for host in lab4.hosts), 60)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if signum == signal.SIGKILL else 130)
    after(lab4, before, FORSAKEN if signum == signal.SIGKILL else GONE)


@slow
def test_after_success(lab4: Lab, before: dict[str, list[str]]) -> None:
    process = verify(lab4)
    process.communicate(timeout=90)
    assert process.returncode == 0
    after(lab4, before, GONE)


@slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_after_failure(lab4: Lab, before: dict[str, list[str]], signum: signal.Signals) -> None:
    process = verify(lab4, sizes=("8", *["16M"] * 200))
    wait_for(lambda: all(connected(host) for host in lab4.hosts), 60)
    host = lab4.host("n3")
    host.run(["kill", f"-{signum.name[3:]}", str(ranks(host)[0])])
    process.communicate(timeout=90)
    assert process.returncode == 1
    after(lab4, before, GONE)


@slow
def test_after_the_limit_of_the_command(lab4: Lab, before: dict[str, list[str]]) -> None:
    process = verify(lab4, "--timeout", "12", sizes=("8", *["16M"] * 2000))
    process.communicate(timeout=60)
    assert process.returncode == 3
    after(lab4, before, GONE)
