"""File systems and shared memory."""

from __future__ import annotations

from tests.faults.row import Plant, Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

DATA = "/data"  # declared under fs.mount
OPTIONS = "mode=1777,size=100m,nr_inodes=300"
SHARED = "/shared-data"  # declared under shared
DISK = "/scratch"  # ext4, which turns read-only when it meets an error


def _not_mounted(host: Host, lab: Lab) -> Fault:
    return faults.unmounted(host, DATA, lambda: faults.tmpfs(host, DATA, OPTIONS))


def _turned(host: Host, lab: Lab) -> Fault:
    return faults.together(faults.disk(host, DISK), faults.remounted_read_only(host, DISK))


def _served(way: str) -> Plant:
    """On top of the folder that all share, this host mounts another one."""
    return lambda host, lab: faults.export(host, SHARED, way)


ROWS = (
    Row(
        "shared folder not mounted",
        "fs.shared",
        lambda host, lab: faults.tmpfs(host, SHARED, "mode=1777,size=1m"),
        several=True,
    ),
    Row("shared folder of another export", "fs.shared", _served("other"), several=True),
    Row(
        "shared folder with a stale handle",
        "fs.shared",
        _served("stale"),
        several=True,
        also={"fs.mount": "it is a mount whose handle is stale"},
    ),
    Row("shared folder read-only on one node", "fs.shared", _served("read-only"), several=True),
    Row(
        "shared folder to which others write",
        "fs.shared",
        _served("changed"),
        verdict="pass",
        several=True,
    ),
    Row("declared mount missing", "fs.mount", _not_mounted, several=True),
    Row(
        "declared mount does not answer",
        "fs.mount",
        lambda host, lab: faults.hung_mount(host, DATA),
        several=True,
        also={"fs.space": "what is free there cannot be asked"},
    ),
    Row(
        "declared mount read-only",
        "fs.mount",
        lambda host, lab: faults.remounted_read_only(host, DATA),
        several=True,
    ),
    Row(
        "declared mount full", "fs.space", lambda host, lab: faults.filled(host, DATA), several=True
    ),
    Row("no inodes left", "fs.space", lambda host, lab: faults.no_inodes(host, DATA), several=True),
    Row("disk turned read-only", "fs.ro", _turned),
    Row(
        "disk that is as it should be",
        "fs.ro",
        lambda host, lab: faults.disk(host, DISK),
        verdict="pass",
        several=True,
    ),
    Row(
        "folder bound read-only",
        "fs.ro",
        lambda host, lab: faults.read_only(host, "/srv"),
        verdict="pass",
        several=True,
    ),
    Row(
        "512 MiB of shared memory",
        "shm.size",
        lambda host, lab: faults.resized(host, "/dev/shm", "512m", "9g"),
        several=True,
    ),
    Row(
        "4 GiB of shared memory",
        "shm.size",
        lambda host, lab: faults.resized(host, "/dev/shm", "4g", "9g"),
        several=True,
    ),
    # A host of the lab has a process namespace of its own, as a container: who else could hold the
    # segment is not seen.
    Row(
        "segment of a dead job, seen from a container",
        "shm.stale",
        lambda host, lab: faults.segment(host),
        verdict="unknown",
        reason="denied",
    ),
    Row(
        "segment of a job that runs",
        "shm.stale",
        lambda host, lab: faults.held_segment(host),
        verdict="pass",
        several=True,
    ),
)
