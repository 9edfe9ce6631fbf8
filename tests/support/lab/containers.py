"""Podman on lab hosts, and docker's client over podman's socket.

The hosts share the read-only store of tests/support/container_image; what containers write is on a
tmpfs of each host. There are no cgroups, because hosts have none of their own, and limits can only
be lowered, so containers get those below.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.support import container_image
from tests.support.lab import processes
from tests.support.lab.rooms import Host

OPTIONS = ("--network=host", "--ipc=host", "--ulimit=nofile=1024:20000", "--ulimit=nproc=1000:1000")
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = ["{store}"]
"""
_CONTAINERS = """\
[containers]
cgroups = "disabled"
[engine]
runtime = "crun"
events_logger = "file"
cgroup_manager = "cgroupfs"
[network]
network_backend = "netavark"
"""
SOCKET = "/run/docker.sock"  # where docker's client looks
_START_LIMIT = 10.0


def why_no_containers() -> str | None:
    """Why hosts cannot run containers here, in one line; None if they can."""
    return container_image.why_not()


def why_no_docker() -> str | None:
    """Why hosts have no docker's client here, in one line; None if they have."""
    if shutil.which("docker") is None:
        return "docker's client is not there (apt install docker.io)"
    return why_no_containers()


def prepare(host: Host) -> None:
    """Let a host run containers of IMAGE with podman."""
    store = container_image.store().resolve()
    for folder in ("/sys/fs/cgroup", "/var/lib/containers"):
        host.run(["mkdir", "-p", folder], check=False)
        host.run(["mount", "-t", "tmpfs", "tmpfs", folder])
    host.write("/etc/containers/storage.conf", _STORAGE.format(store=store))
    host.write("/etc/containers/containers.conf", _CONTAINERS)


@contextlib.contextmanager
def serving(host: Host) -> Iterator[None]:
    """Have podman's service run, which docker's client takes for its daemon."""
    argv = ["podman", "system", "service", "--time=0", f"unix://{SOCKET}"]
    with tempfile.TemporaryFile("w+") as errors:
        service = host.popen(argv, stderr=errors)
        try:
            _await_socket(host, service, errors)
            yield
        finally:
            processes.kill_group(service)
            service.wait(_START_LIMIT)


def _await_socket(host: Host, service: subprocess.Popen[str], errors: IO[str]) -> None:
    """Wait for the service's socket. Raises RuntimeError with what podman wrote if none comes."""
    end = time.monotonic() + _START_LIMIT
    while host.run(["test", "-S", SOCKET], check=False).returncode != 0:
        if service.poll() is not None or time.monotonic() > end:
            errors.seek(0)
            said = errors.read()
            raise RuntimeError(f"podman's service did not start on {host.name}: {said}")
        time.sleep(0.05)


def left(host: Host) -> list[str]:
    """Return the containers that are on a host, running or not."""
    return host.run(["podman", "ps", "--all", "--format", "{{.Names}}"]).stdout.split()


def kept() -> tuple[Path, ...]:
    """What hosts of a lab have to see."""
    return (container_image.folder().resolve(),)
