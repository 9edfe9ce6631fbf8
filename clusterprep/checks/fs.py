"""File systems: those declared are there and answer, none is full, none has turned read-only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.storage import (
    LOCAL,
    SHM,
    Mount,
    Probes,
    Space,
    Wish,
    home,
    parse_wishes,
    wishes_of,
)
from clusterprep.model import Absent, Node
from clusterprep.model.units import UNLIMITED, format_size, parse_size
from clusterprep.runtime.lazy_dataclass import dataclass

FREE = 0.05  # of a file system; NHC and gpud stop between 90 % and 95 % in use
PLENTY = 100 << 30  # bytes: 5 % of a petabyte are no emergency
MANY = 1_000_000  # inodes: likewise
TINY = 64 << 20  # bytes: firmware and keys, not a place where jobs write
BLOCK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs"})
IMAGES = frozenset({"squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs", "overlay"})
# Answers of a mount that is there and broken. «denied» is none: a user's own FUSE refuses even root.
BROKEN = {
    "hung": "does not answer", "ESTALE": "has a stale handle", "EIO": "answers with I/O errors",
    "ENOTCONN": "has lost its server", "ESHUTDOWN": "has lost its server", "ETIMEDOUT": "does not answer",
    "EHOSTDOWN": "has lost its server", "EREMOTEIO": "answers with I/O errors", "ENODEV": "has lost its device",
    "ECONNREFUSED": "has lost its server", "ENXIO": "has lost its device",
}  # fmt: skip


# ---------------------------------------------------------------- mounts


def mount(
    context: CheckContext, node: Node, probes: Probes, mounts: tuple[Mount, ...]
) -> Iterable[Outcome]:
    """What is declared, and every mount whose server is another machine."""
    table = {mount.point: mount for mount in mounts}
    wishes = wishes_of(node) if context.wanted(node) is not None else ()
    bad = [outcome for wish in wishes if (outcome := _wish(node, wish, probes, table)) is not None]
    declared = {wish.path for wish in wishes}
    network = [
        m for m in mounts if m.network and m.point in probes.answers and m.point not in declared
    ]
    bad += [
        outcome for m in network if (outcome := _broken(node, m.point, probes, table)) is not None
    ]
    if bad:
        return bad
    if not wishes and not network:
        return [
            Outcome(
                "skip", (node.name,), "nothing is mounted from elsewhere", reason="not_applicable"
            )
        ]
    if probes.left:
        message = "more mounts than are tried"
        return [
            Outcome(
                "unknown", (node.name,), message, f"{probes.left} not tried", reason="truncated"
            )
        ]
    seen = ", ".join([*(wish.path for wish in wishes), *(m.point for m in network)])
    return [
        Outcome(
            "pass",
            (node.name,),
            "every mount answers",
            seen,
            context.wanted(node) or "answers within 2 s",
        )
    ]


def _wish(node: Node, wish: Wish, probes: Probes, table: Mapping[str, Mount]) -> Outcome | None:
    if (broken := _broken(node, wish.path, probes, table)) is not None:
        return broken
    path, answer = shlex.quote(wish.path), probes.answers[wish.path]
    there = table.get(answer.at if isinstance(answer, Space) else wish.path)
    wanted = f"{wish.path} mounted" + (f" {wish.mode}" if wish.mode else "")
    if there is None and isinstance(answer, Space) and _automounted(answer, table):
        return None
    if there is None:
        seen = (
            "nothing there"
            if isinstance(answer, Absent)
            else "a folder of the file system below it"
        )
        return Outcome(
            "fail", (node.name,), f"{wish.path} is not mounted", seen, wanted, f"mount {path}"
        )
    if there.type == "autofs" and isinstance(answer, Absent):
        message = f"{wish.path} is not mounted, and asking for it does not mount it"
        return Outcome(
            "fail",
            (node.name,),
            message,
            "autofs alone",
            wanted,
            f"ls {path}; journalctl -u autofs -n 20",
        )
    mode = "ro" if "ro" in there.options | there.inner else "rw"
    if wish.mode and mode != wish.mode and there.type != "autofs":
        cure = f"mount -o remount,{wish.mode} {path}"
        return Outcome("fail", (node.name,), f"{wish.path} is mounted {mode}", mode, wanted, cure)
    return None


def _automounted(answer: Space, table: Mapping[str, Mount]) -> bool:
    """Below an automounter, which mounted it when we asked: the table may have been read a moment before."""
    below = below_of(answer.at, tuple(table.values()))
    return below is not None and below.type == "autofs"


def _broken(node: Node, path: str, probes: Probes, table: Mapping[str, Mount]) -> Outcome | None:
    answer = probes.answers[path]
    if not isinstance(answer, Absent) or answer.reason not in BROKEN:
        return None
    there = table.get(path)
    source = (
        f"{there.type} from {there.source}" if there is not None else "not in the table of mounts"
    )
    message = f"{path} {BROKEN[answer.reason]}"
    word = shlex.quote(path)
    cure = f"umount -l {word}; mount {word}   # once its server answers; processes that wait for it end or need a reboot"
    return Outcome(
        "fail",
        (node.name,),
        message,
        f"{path}: {answer.detail} ({source})",
        "answers within 2 s",
        cure,
    )


# ---------------------------------------------------------------- space


@dataclass(frozen=True)
class Least:
    """What must be free: a part of the file system, or bytes."""

    part: float | None = None
    size: float = 0


def parse_least(text: str) -> Least:
    """«10%» or «500GiB». Raises ValueError saying what is expected."""
    match = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is not None:
        return Least(part=float(match[1]) / 100)
    try:
        size = parse_size(text)
    except ValueError:
        size = UNLIMITED
    if size == UNLIMITED:
        raise ValueError(f"expected what must be free, such as 10% or 500GiB; seen '{text}'")
    return Least(size=size)


def space(
    context: CheckContext, node: Node, probes: Probes, mounts: tuple[Mount, ...]
) -> Iterable[Outcome]:
    """Every file system once, by the first of the paths that lies on it."""
    wanted = context.wanted(node)
    least = None if wanted is None else parse_least(wanted)
    text = wanted or f"at least {FREE:.0%} of space and inodes free, or {format_size(PLENTY)}"
    places: dict[str, tuple[str, Space]] = {}
    unclear = []
    for word in dict.fromkeys((*LOCAL, home(node), *(wish.path for wish in wishes_of(node)))):
        answer = probes.answers[word]
        if isinstance(answer, Space):
            below = below_of(answer.at, mounts)
            if below is not None and written_to(below, answer):
                places.setdefault(below.device, (answer.at, answer))
        elif answer.reason != "missing":
            unclear.append((word, answer))
    full = [
        trouble
        for path, state in places.values()
        if (trouble := _full(path, state, least)) is not None
    ]
    for message, seen, path in full:
        cure = f"du -xh --max-depth=2 {shlex.quote(path)} | sort -h | tail -20"
        yield Outcome("fail", (node.name,), message, seen, text, cure)
    for word, absent in unclear:
        yield Outcome(
            "unknown", (node.name,), f"{word}: {absent.detail}", "", text, reason=absent.reason
        )
    if full or unclear:
        return
    if not places:
        message = "no file system that jobs write to"
        yield Outcome("skip", (node.name,), message, reason="not_applicable")
        return
    seen = ", ".join(f"{path} {_part(state):.0%} free" for path, state in places.values())
    yield Outcome("pass", (node.name,), "there is space", seen, text)


def below_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that a path lies on."""
    above = [m for m in mounts if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(above, key=lambda mount: len(mount.point), default=None)


def written_to(below: Mount, state: Space) -> bool:
    """Whether jobs could write there: no image, nothing read-only, nothing tiny; shared memory has its own check."""
    image = below.type in IMAGES or below.point == SHM or "ro" in below.options | below.inner
    return not image and state.size >= TINY


def _part(state: Space) -> float:
    """As df counts: what root keeps to itself is neither used nor free."""
    return state.free / (state.used + state.free) if state.used + state.free else 0.0


def _full(path: str, state: Space, least: Least | None) -> tuple[str, str, str] | None:
    if least is None:
        short = _part(state) < FREE and state.free < PLENTY
    else:
        short = state.free < least.size if least.part is None else _part(state) < least.part
    if short:
        seen = f"{format_size(state.free)} free on {path} ({_part(state):.1%})"
        return (
            f"{path} is nearly full" if least is None else f"less is free on {path} than required",
            seen,
            path,
        )
    inodes = (FREE if least is None or least.part is None else least.part) * state.inodes
    if (
        state.inodes
        and state.inodes_free < inodes
        and (least is not None or state.inodes_free < MANY)
    ):
        seen = f"{state.inodes_free} of {state.inodes} inodes free on {path}"
        return f"{path} has nearly no inodes left", seen, path
    return None


# ---------------------------------------------------------------- read-only


def parse_read_only(text: str) -> tuple[Wish, ...]:
    """«/opt/image,/usr»: mount points that are meant to be read-only."""
    if any(wish.mode for wish in parse_wishes(text)):
        raise ValueError(
            f"expected mount points that may be read-only, such as /usr; seen '{text}'"
        )
    return parse_wishes(text)


def read_only(
    context: CheckContext,
    node: Node,
    mounts: tuple[Mount, ...],
    fstab: Mapping[str, frozenset[str]],
) -> Iterable[Outcome]:
    """Disks whose file system itself is read-only, though fstab does not ask for that.

    A bind mount, of a container or a snap, is read-only by its own options and the file system below it is not.
    An image that boots read-only has no line in fstab, and no errors=remount-ro.
    """
    wanted = context.wanted(node)
    meant = set() if wanted is None else {wish.path for wish in parse_read_only(wanted)}
    disks = [m for m in mounts if m.type in BLOCK]
    if not disks:
        yield Outcome("skip", (node.name,), "no disk is mounted here", reason="not_applicable")
        return
    bad = [
        m
        for m in disks
        if "ro" in m.inner and m.point not in meant and _wants_rw(m, fstab.get(m.point))
    ]
    for m in {m.device: m for m in reversed(bad)}.values():
        cure = f"dmesg | grep -e {shlex.quote(m.source.rsplit('/', 1)[-1])} -e 'I/O error'; umount {shlex.quote(m.point)}"
        cure = f"{cure} && fsck {shlex.quote(m.source)}   # a disk that goes on with errors: replace it"
        message = f"{m.point} has turned read-only"
        yield Outcome(
            "fail",
            (node.name,),
            message,
            f"{m.source} on {m.point}: ro",
            wanted or "rw, as fstab says",
            cure,
        )
    if not bad:
        yield Outcome(
            "pass",
            (node.name,),
            "no disk has turned read-only",
            f"{len(disks)} mounts",
            wanted or "none",
        )


def _wants_rw(there: Mount, options: frozenset[str] | None) -> bool:
    if options is None:
        return bool(there.inner & {"errors=remount-ro", "emergency_ro", "shutdown"})
    return not options & {"ro", "noauto"}


def _with_a_full_root(probes: Probes) -> Probes:
    root = probes.answers["/"]
    full = replace(root, used=root.size, free=0) if isinstance(root, Space) else root
    return replace(probes, answers={**probes.answers, "/": full})


def _turned(there: Mount) -> Mount:
    return replace(there, inner=there.inner - {"rw"} | {"ro"})


MOUNT = Check(
    "fs.mount",
    facts=("fs.probes", "fs.mounts"),
    judge=each(mount, "fs.probes", "fs.mounts"),
    severity="error",
    title="Mounts answer",
    why="A dead NFS or Lustre mount answers nobody: ranks that load data or write a checkpoint hang in the kernel, and "
    "cannot be killed. A mount that is missing is worse: the job writes to the disk below it.",
    how="statvfs of every mount that `require: {fs.mount: …}` names and of all network mounts, each in a process of "
    "its own with 2 s to answer; the table of mounts says what is there and whether it is read-only.",
    remedy="mount -a",
    wants=parse_wishes,
    proof=Proof("fs.mounts", lambda mounts: tuple(mount for mount in mounts if not mount.network)),
)
SPACE = Check(
    "fs.space",
    facts=("fs.probes", "fs.mounts"),
    judge=each(space, "fs.probes", "fs.mounts"),
    severity="warning",
    title="Space and inodes",
    why="A checkpoint that does not fit ends the job after hours; a full / or /tmp ends it, and logins, at once.",
    how="statvfs of /, /tmp, /var, the home of the job's user and the mounts declared: 5 % or 100 GiB free, and 5 % of "
    "the inodes, or as `require: {fs.space: …}` says, in percent or as a size. Images and read-only ones are left out.",
    remedy="df -h; df -i",
    wants=parse_least,
    proof=Proof("fs.probes", _with_a_full_root),
)
READ_ONLY = Check(
    "fs.ro",
    facts=("fs.mounts", "fs.fstab"),
    judge=each(read_only, "fs.mounts", "fs.fstab"),
    severity="error",
    title="Disks that have turned read-only",
    why="A file system that meets an error on its disk turns read-only: logins still work, and the job ends at its "
    "first write.",
    how="/proc/self/mountinfo: disks whose file system is read-only while /etc/fstab wants it writable, or that are "
    "mounted with errors=remount-ro and without a line in fstab. `require: {fs.ro: /usr}` names those that are meant.",
    remedy="dmesg | grep -e 'I/O error' -e 'read-only'",
    wants=parse_read_only,
    proof=Proof(
        "fs.mounts", lambda mounts: tuple(_turned(m) if m.point == "/" else m for m in mounts)
    ),
)
