"""Shared memory, through which the ranks of one node talk: large enough, and not full of what dead jobs left."""

from __future__ import annotations

import shlex
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.storage import SHM, Mount, Segment, Space
from clusterprep.model import Node, Severity
from clusterprep.model.units import format_duration, format_size, parse_size

LEAST = (
    1 << 30
)  # bytes; below it NCCL's segments of eight ranks and a data loader's batches do not fit
GOOD = 8 << 30  # bytes, on a host; the limit of Primus and of DeepOps' container settings
YOUNG = 60.0  # seconds; a segment is written before its peer maps it
NAMED = 16  # files in one remedy


def in_container(mounts: tuple[Mount, ...]) -> bool:
    """Whether a container's runtime mounted this: it calls shared memory «shm», or puts layers of its own below /."""
    shared = any(mount.point == SHM and mount.source == "shm" for mount in mounts)
    words = ("/docker/", "/containerd/", "/containers/", "/crio/", "/kubelet/", "/enroot/")
    layered = [m for m in mounts if m.point == "/" and m.type.endswith("overlay")]
    return shared or any(
        word in option for mount in layered for option in mount.inner for word in words
    )


def size(
    context: CheckContext, node: Node, space: Space | None, mounts: tuple[Mount, ...]
) -> Outcome:
    """What is free, for that is what a job can have; a full one and a small one have different cures."""
    wanted, contained = context.wanted(node), in_container(mounts)
    least = parse_size(wanted) if wanted is not None else LEAST if contained else GOOD
    text = wanted or f"at least {format_size(least)} free"
    if space is None:
        return Outcome(
            "fail",
            (node.name,),
            "there is no /dev/shm",
            "none",
            text,
            "mount -t tmpfs tmpfs /dev/shm",
        )
    seen = f"{format_size(space.free)} free of {format_size(space.size)}"
    if space.free >= least:
        return Outcome("pass", (node.name,), "there is enough shared memory", seen, text)
    severity: Severity = "error" if space.free < LEAST else "warning"
    if space.size >= least:
        message, cure = (
            "shared memory is in use already",
            "du -ah /dev/shm | sort -h | tail   # what fills it",
        )
        return Outcome("fail", (node.name,), message, seen, text, cure, severity=severity)
    cure = f"mount -o remount,size={format_size(max(least, GOOD)).replace(' GiB', 'G')} /dev/shm   # and in /etc/fstab"
    if contained:
        cure = "docker run --ipc=host …   # or --shm-size=8g; Kubernetes: an emptyDir with medium: Memory at /dev/shm"
    return Outcome(
        "fail", (node.name,), "shared memory is small", seen, text, cure, severity=severity
    )


def stale(context: CheckContext, node: Node, segments: tuple[Segment, ...]) -> Outcome:
    """Segments that nobody holds; one just written may not be mapped yet."""
    left = [segment for segment in segments if segment.held is False and segment.age >= YOUNG]
    unclear = [segment for segment in segments if segment.held is None]
    if left:
        oldest, total = (
            format_duration(max(s.age for s in left)),
            format_size(sum(s.size for s in left)),
        )
        seen = f"{_files(left)} with {total}, the oldest written {oldest} ago"
        more = (
            f"   # and {len(left) - NAMED} more: check again after that"
            if len(left) > NAMED
            else ""
        )
        cure = f"rm -- {shlex.join(s.path for s in left[:NAMED])}{more}"
        return Outcome(
            "fail", (node.name,), "jobs that are gone left shared memory behind", seen, "none", cure
        )
    if unclear:
        message = "it cannot be seen whether the processes of these files are gone"
        seen, cure = _files(unclear), "run with `become: true`, outside of containers"
        return Outcome("unknown", (node.name,), message, seen, "none", cure, reason="denied")
    seen = f"{len(segments)} in use" if segments else "none"
    return Outcome(
        "pass", (node.name,), "no shared memory is left over", seen, "none without a process"
    )


def _files(segments: list[Segment]) -> str:
    return "1 file" if len(segments) == 1 else f"{len(segments)} files"


SIZE = Check(
    "shm.size",
    facts=("shm.space", "fs.mounts"),
    judge=each(size, "shm.space", "fs.mounts"),
    severity="error",
    title="Shared memory",
    why="Ranks of one node hand their data over in /dev/shm, and data loaders their batches. Where it is full NCCL "
    "ends with «unhandled system error», and a data loader with a bus error; containers have 64 MiB by default.",
    how="statvfs of /dev/shm: what is free. Less than 1 GiB is an error, on a host less than 8 GiB a warning; or as "
    "`require: shm` says.",
    remedy="mount -o remount,size=8G /dev/shm   # and in /etc/fstab; containers: --ipc=host or --shm-size=8g",
    wants=parse_size,
    proof=Proof("shm.space", lambda space: replace(space, size=64 << 20, free=64 << 20, used=0)),
)
STALE = Check(
    "shm.stale",
    facts=("shm.segments",),
    judge=each(stale, "shm.segments"),
    severity="warning",
    title="Shared memory that dead jobs left",
    why="A job that was killed leaves its segments in /dev/shm. They take memory until the node is booted, and some "
    "day a new job finds none left.",
    how="Files /dev/shm/nccl-* older than a minute that no process has mapped or open. Looking into the processes of "
    "others needs root.",
    remedy="lsof /dev/shm/nccl-*   # what it does not list belongs to nobody",
    proof=Proof(
        "shm.segments", lambda _: (Segment(f"{SHM}/nccl-Xk2Zq1", 9_637_888, 86400.0, held=False),)
    ),
)
