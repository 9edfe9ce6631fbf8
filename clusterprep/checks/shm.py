"""Judges shared memory, through which the ranks of one node talk.

It should be large enough, and not full of what dead jobs left.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.facts.storage import SHM, WITHOUT_ADDRESSES, Mount, Segment, Space
from clusterprep.model import Node, Severity
from clusterprep.model.fact_columns import Part
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import UNLIMITED, format_duration, format_size, parse_size, pluralize
from clusterprep.remedies import Remedy, noted, sentence, shell_line

GIB = 1 << 30  # bytes
# Bytes; below it NCCL's segments of eight ranks and a data loader's batches do not fit.
LEAST = GIB
GOOD = 8 * GIB  # bytes, on a host; the limit of Primus and of DeepOps' container settings
YOUNG = 60.0  # seconds; a segment is written before its peer maps it
NAMED = 16  # files in one remedy
# Folders in which container runtimes keep the layers of a root file system.
LAYERS = ("/docker/", "/containerd/", "/containers/", "/crio/", "/kubelet/", "/enroot/")


def in_container(mounts: tuple[Mount, ...]) -> bool:
    """Return whether a container's runtime mounted these.

    It calls shared memory «shm», or puts layers of its own below /.
    """
    for mount in mounts:
        if mount.point == SHM and mount.source == "shm":
            return True
        is_layered_root = mount.point == "/" and mount.type.endswith("overlay")
        if is_layered_root and _has_runtime_layer(mount):
            return True
    return False


def _has_runtime_layer(mount: Mount) -> bool:
    options = " ".join(mount.inner)
    return any(folder in options for folder in LAYERS)


def size(
    context: CheckContext, node: Node, space: Space | None, mounts: tuple[Mount, ...]
) -> Outcome:
    """Judge what is free, for that is what a job can have.

    A full /dev/shm and a small one have different remedies.
    """
    required = context.wanted(node)
    is_container = in_container(mounts)
    least = float(LEAST if is_container else GOOD)
    if required is not None:
        least = parse_size(required)
    wanted = required or f"at least {format_size(least)} free"
    if space is None:
        cure = shell_line("mountpoint -q /dev/shm || mount -t tmpfs tmpfs /dev/shm")
        return failed(
            node,
            "there is no /dev/shm",
            "none",
            wanted,
            cure,
        )
    if space.size == 0:  # a tmpfs without a limit
        message = "nothing but the node's memory limits shared memory"
        return passed(node, message, "unlimited", wanted)
    seen = f"{format_size(space.free)} free of {format_size(space.size)}"
    if space.free >= least:
        return passed(node, "there is enough shared memory", seen, wanted)
    severity: Severity = "error" if space.free < LEAST else "warning"
    if space.size >= least:
        cure = shell_line("du -ah /dev/shm | sort -h | tail   # what fills it")
        return failed(
            node,
            "shared memory is in use already",
            seen,
            wanted,
            cure,
            severity,
        )
    cure = _container_remedy() if is_container else _mount_remedy(least)
    return failed(
        node,
        "shared memory is small",
        seen,
        wanted,
        cure,
        severity,
        None if is_container else _mount_fix(least, space),
    )


def _ample(space: Space | None) -> Hashable:
    """Return what is said of the space, where our own limits are those that count."""
    if space is None or space.free < GOOD:
        return space
    return space.size == 0, format_size(space.free), format_size(space.size)


def _mount_fix(least: float, space: Space) -> Fix | None:
    """Return what mounts /dev/shm with as much free as is wanted; what is in use counts besides."""
    if least == UNLIMITED:
        return None
    gibibytes = math.ceil((max(least, GOOD) + space.used) / GIB)
    return fix_of(wanted_state("shm", size=f"{gibibytes}GiB"))


def _container_remedy() -> Remedy:
    return shell_line(
        "docker run --ipc=host …"
        "   # or --shm-size=8g; Kubernetes: an emptyDir with medium: Memory at /dev/shm"
    )


def _mount_remedy(least: float) -> Remedy:
    """Return the command that makes /dev/shm large enough.

    tmpfs takes whole numbers with a suffix such as G, which is binary; 0 is no limit.
    """
    if least == UNLIMITED:
        return shell_line("mount -o remount,size=0 /dev/shm   # and in /etc/fstab")
    gibibytes = math.ceil(max(least, GOOD) / GIB)
    # Where it is larger already it stays so.
    return shell_line(
        "test $(df -k --output=size /dev/shm | tail -n 1) -ge {kibibytes} "
        "|| mount -o remount,size={gibibytes}G /dev/shm   # and in /etc/fstab",
        kibibytes=gibibytes << 20,
        gibibytes=gibibytes,
    )


def stale(context: CheckContext, node: Node, segments: tuple[Segment, ...]) -> Outcome:
    """Judge segments that no process holds; one just written may not be mapped yet."""
    orphaned: list[Segment] = []
    unclear: list[Segment] = []
    for segment in segments:
        if segment.held is None:
            unclear.append(segment)
        elif not segment.held and segment.age >= YOUNG:
            orphaned.append(segment)
    if orphaned:
        message = "jobs that are gone left shared memory behind"
        seen = _describe_segments(orphaned)
        return failed(
            node,
            message,
            seen,
            "none",
            remove_command(orphaned),
        )
    if unclear:
        message = "it cannot be seen whether the processes of these files are gone"
        cure = sentence("run with `become: true`, outside of containers")
        return unknown(
            node,
            message,
            "denied",
            _count_files(unclear),
            "none",
            cure,
        )
    seen = f"{len(segments)} in use" if segments else "none"
    return passed(node, "no shared memory is left over", seen, "none without a process")


def _describe_segments(segments: list[Segment]) -> str:
    oldest = max(segment.age for segment in segments)
    total = sum(segment.size for segment in segments)
    age = format_duration(oldest)
    files = _count_files(segments)
    return f"{files} with {format_size(total)}, the oldest written {age} ago"


def remove_command(segments: list[Segment]) -> Remedy:
    """Return a command that removes segments, except those that a process has open by then."""
    remedy = shell_line(
        "command -v fuser > /dev/null && "
        'for file in {files}; do fuser -s "$file" || rm -f "$file"; done',
        files=[segment.path for segment in segments[:NAMED]],
    )
    more = len(segments) - NAMED
    if more > 0:
        remedy = noted(remedy, "and {more} more: check again after that", more=more)
    return remedy


def _count_files(segments: list[Segment]) -> str:
    return pluralize(len(segments), "file")


SIZE = Check(
    "shm.size",
    facts=("shm.space", "fs.mounts"),
    judge=each(
        size,
        "shm.space",
        "fs.mounts",
        parts=(WITHOUT_ADDRESSES,),
        parts_by_default=(Part("shm.space", _ample),),
    ),
    severity="error",
    grade="an error under 1 GiB free, else a warning",
    title="Shared memory",
    why="Ranks of one node hand their data over in /dev/shm, and data loaders their batches. Where "
    "it is full NCCL ends with «unhandled system error», and a data loader with a bus error; "
    "containers have 64 MiB by default.",
    how="statvfs of /dev/shm: what is free. Less than 1 GiB is an error, on a host less than 8 GiB "
    "a warning; or as `require: shm` says.",
    remedy=shell_line(
        "test $(df -k --output=size /dev/shm | tail -n 1) -ge 8388608 "
        "|| mount -o remount,size=8G /dev/shm   # and in /etc/fstab; containers: --ipc=host or "
        "--shm-size=8g"
    ),
    wants=parse_size,
    proof=Proof("shm.space", lambda space: replace(space, size=64 << 20, free=64 << 20, used=0)),
)
STALE = Check(
    "shm.stale",
    facts=("shm.segments",),
    judge=each(stale, "shm.segments"),
    severity="warning",
    title="Shared memory that dead jobs left",
    why="A job that was killed leaves its segments in /dev/shm. They take memory until the node is "
    "booted, and some day a new job finds none left.",
    how="Files /dev/shm/nccl-* older than a minute that no process has mapped or open. Looking "
    "into the processes of others needs root.",
    remedy=shell_line("lsof /dev/shm/nccl-*   # what it does not list has no process"),
    proof=Proof(
        "shm.segments", lambda _: (Segment(f"{SHM}/nccl-Xk2Zq1", 9_637_888, 86400.0, held=False),)
    ),
)
