"""File systems: those declared are there and answer, none is full, none has turned read-only."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.storage import (
    LOCAL,
    SHM,
    WITHOUT_ADDRESSES,
    DeclaredMount,
    Mount,
    Probes,
    Space,
    declared_mounts,
    home,
    parse_declared_mounts,
)
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import UNLIMITED, format_size, parse_size, pluralize
from clusterprep.remedies import Remedy, shell_line

FREE = 0.05  # of a file system; NHC and gpud stop between 90 % and 95 % in use
PLENTY = 100 << 30  # bytes: 5 % of a petabyte are no emergency
MANY = 1_000_000  # inodes: likewise
TINY = 64 << 20  # bytes: firmware and keys, not a place where jobs write
ANSWERS = "answers within 2 s"
BLOCK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs"})
IMAGES = frozenset({"squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs", "overlay"})
# Signs in a mount's own options that its file system has turned read-only, or is meant to do so.
TURNED = frozenset({"errors=remount-ro", "emergency_ro", "shutdown"})
# Answers of a mount that is broken. «denied» is not one: a user's own FUSE refuses even root.
BROKEN = {
    "hung": "does not answer",
    "ESTALE": "has a stale handle",
    "EIO": "answers with I/O errors",
    "ENOTCONN": "has lost its server",
    "ESHUTDOWN": "has lost its server",
    "ETIMEDOUT": "does not answer",
    "EHOSTDOWN": "has lost its server",
    "EREMOTEIO": "answers with I/O errors",
    "ENODEV": "has lost its device",
    "ECONNREFUSED": "has lost its server",
    "ENXIO": "has lost its device",
}

Table = Mapping[str, Mount]
"""Mounts by mount point."""


# ---------------------------------------------------------------- mounts


def mount(
    context: CheckContext, node: Node, probes: Probes, mounts: tuple[Mount, ...]
) -> Iterable[Outcome]:
    """Judge declared mounts, and every mount whose server is another machine."""
    table = {m.point: m for m in mounts}
    required = context.wanted(node)
    wishes: tuple[DeclaredMount, ...] = ()
    if required is not None:
        wishes = declared_mounts(node)
    is_good = True
    for wish in wishes:
        failure = _wish(node, wish, probes, table)
        if failure is not None:
            is_good = False
            yield failure
    declared = [wish.path for wish in wishes]
    network = _network_points(mounts, probes, declared)
    for point in network:
        failure = _broken(node, point, probes, table)
        if failure is not None:
            is_good = False
            yield failure
    if not is_good:
        return
    if not declared and not network:
        yield skipped(node, "nothing is mounted from elsewhere")
    elif probes.left:
        message = "more mounts than are tried"
        yield unknown(node, message, "truncated", f"{probes.left} not tried")
    else:
        seen = ", ".join([*declared, *network])
        yield passed(node, "every mount answers", seen, required or ANSWERS)


def _answered(probes: Probes) -> Hashable:
    """Return which paths answered, and how, without the space that is free there."""
    answers = []
    for path, answer in probes.answers.items():
        said = answer.at if isinstance(answer, Space) else answer
        answers.append((path, said))
    return (probes.left, *answers)


_MOUNTED = (WITHOUT_ADDRESSES, Part("fs.probes", _answered))


def _network_points(
    mounts: tuple[Mount, ...], probes: Probes, declared: Collection[str]
) -> list[str]:
    """Return the mount points that were tried and not declared, of mounts from other machines."""
    points = []
    for mount in mounts:
        is_tried = mount.point in probes.answers
        if mount.network and is_tried and mount.point not in declared:
            points.append(mount.point)
    return points


def _wish(node: Node, wish: DeclaredMount, probes: Probes, table: Table) -> Outcome | None:
    """Return a failure if a declared mount is broken, missing, or not mounted as declared."""
    broken = _broken(node, wish.path, probes, table)
    if broken is not None:
        return broken
    wanted = f"{wish.path} mounted"
    if wish.mode:
        wanted += f" {wish.mode}"
    answer = probes.answers[wish.path]
    point = answer.at if isinstance(answer, Space) else wish.path
    mounted = table.get(point)
    if mounted is None:
        return _not_mounted(
            node,
            wish,
            answer,
            table,
            wanted,
        )
    if mounted.type == "autofs":
        if not isinstance(answer, Absent):
            return None
        message = f"{wish.path} is not mounted, and asking for it does not mount it"
        remedy = shell_line("ls {path}; journalctl -u autofs -n 20", path=wish.path)
        return failed(
            node,
            message,
            "autofs alone",
            wanted,
            remedy,
        )
    mode = "ro" if "ro" in mounted.options | mounted.inner else "rw"
    if not wish.mode or mode == wish.mode:
        return None
    message = f"{wish.path} is mounted {mode}"
    return failed(
        node,
        message,
        mode,
        wanted,
        shell_line("mount -o remount,{mode} {path}", mode=wish.mode, path=wish.path),
    )


def _not_mounted(
    node: Node, wish: DeclaredMount, answer: Space | Absent, table: Table, wanted: str
) -> Outcome | None:
    """Return the failure of a declared mount that is not there, None if it mounts when used."""
    seen = "nothing there"
    if isinstance(answer, Space):
        if _is_automounted(answer, table):
            return None
        seen = "a folder of the file system below it"
    remedy = shell_line("mount {path}", path=wish.path)
    return failed(
        node,
        f"{wish.path} is not mounted",
        seen,
        wanted,
        remedy,
        fix=_mount(wish.path),
    )


def _mount(path: str) -> Fix:
    """Return what mounts a file system that /etc/fstab has."""
    mounting = wanted_state(
        "command",
        run=("mount", path),
        unless=("mountpoint", "-q", path),
        undo=("umount", path),
    )
    return fix_of(mounting)


def _is_automounted(answer: Space, table: Table) -> bool:
    """Return whether a mount lies below an automounter, which mounts it when it is asked for.

    The table of mounts may have been read a moment before that.
    """
    below = below_of(answer.at, tuple(table.values()))
    return below is not None and below.type == "autofs"


def _broken(node: Node, path: str, probes: Probes, table: Table) -> Outcome | None:
    """Return a failure if a mount answers with an error, or not at all."""
    answer = probes.answers[path]
    if not isinstance(answer, Absent) or answer.reason not in BROKEN:
        return None
    mounted = table.get(path)
    source = "not in the table of mounts"
    if mounted is not None:
        source = f"{mounted.type} from {mounted.source}"
    message = f"{path} {BROKEN[answer.reason]}"
    seen = f"{path}: {answer.detail} ({source})"
    remedy = shell_line(
        "timeout -s KILL 10 stat -f {path} > /dev/null || {{ umount -l {path}; mount {path}; }}"
        "   # once its server answers; processes that wait for it end or need a reboot",
        path=path,
    )
    return failed(
        node,
        message,
        seen,
        ANSWERS,
        remedy,
    )


# ---------------------------------------------------------------- space


class Least(Struct, frozen=True):
    """What must be free: a part of the file system, or bytes."""

    part: float | None = None
    size: float = 0


def parse_least(text: str) -> Least:
    """Parse «10%» or «500GiB». Raises ValueError saying what is expected."""
    match = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is not None:
        percent = float(match[1])
        return Least(part=percent / 100)
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
    """Judge every file system once, by the first of the paths that lies on it."""
    required = context.wanted(node)
    least = None if required is None else parse_least(required)
    wanted = required
    if not wanted:
        wanted = f"at least {FREE:.0%} of space and inodes free, or {format_size(PLENTY)}"
    file_systems = _file_systems(node, probes, mounts)
    unclear = _unclear(node, probes)
    failures = []
    for path, state in file_systems:
        shortage = _shortage(path, state, least)
        if shortage is not None:
            message, seen = shortage
            remedy = shell_line("du -xh --max-depth=2 {path} | sort -h | tail -20", path=path)
            failures.append(
                failed(
                    node,
                    message,
                    seen,
                    wanted,
                    remedy,
                )
            )
    yield from failures
    for path, absent in unclear:
        yield unknown(node, f"{path}: {absent.detail}", absent.reason, wanted=wanted)
    if failures or unclear:
        return
    if not file_systems:
        yield skipped(node, "no file system that jobs write to")
        return
    seen = ", ".join(f"{path} {_free_part(state):.0%} free" for path, state in file_systems)
    yield passed(node, "there is space", seen, wanted)


def _ample(probes: Probes) -> Hashable:
    """Return what is said of the space at each path, where our own limits are those that count."""
    answers: list[object] = []
    for path, answer in probes.answers.items():
        said: object = answer
        if isinstance(answer, Space) and _shortage(path, answer, None) is None:
            said = (answer.at, answer.size >= TINY, f"{_free_part(answer):.0%}")
        answers.append((path, said))
    return tuple(answers)


def _judged_paths(node: Node) -> list[str]:
    declared = [wish.path for wish in declared_mounts(node)]
    return list(dict.fromkeys((*LOCAL, home(node), *declared)))


def _file_systems(node: Node, probes: Probes, mounts: tuple[Mount, ...]) -> list[tuple[str, Space]]:
    """Return the mount point and state of each file system that jobs write to, once."""
    by_device: dict[str, tuple[str, Space]] = {}
    for path in _judged_paths(node):
        answer = probes.answers[path]
        if not isinstance(answer, Space):
            continue
        below = below_of(answer.at, mounts)
        if below is not None and written_to(below, answer):
            by_device.setdefault(below.device, (answer.at, answer))
    return list(by_device.values())


def _unclear(node: Node, probes: Probes) -> list[tuple[str, Absent]]:
    """Return the paths whose file system did not answer, with the reason."""
    unclear = []
    for path in _judged_paths(node):
        answer = probes.answers[path]
        if isinstance(answer, Absent) and answer.reason != "missing":
            unclear.append((path, answer))
    return unclear


def below_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount that a path lies on."""
    deepest = None
    for mount in mounts:
        if not path.startswith(mount.point):
            continue
        folder = mount.point.rstrip("/") + "/"
        if path != mount.point and not path.startswith(folder):
            continue
        if deepest is None or len(mount.point) > len(deepest.point):
            deepest = mount
    return deepest


def written_to(below: Mount, state: Space) -> bool:
    """Return whether jobs could write there: no image, nothing read-only, nothing tiny.

    Shared memory has its own check.
    """
    if below.type in IMAGES or below.point == SHM:
        return False
    if "ro" in below.options | below.inner:
        return False
    return state.size >= TINY


def _free_part(state: Space) -> float:
    """Return the free part as df counts: what root keeps to itself is neither used nor free."""
    total = state.free + state.used
    if not total:
        return 0.0
    return state.free / total


def _shortage(path: str, state: Space, least: Least | None) -> tuple[str, str] | None:
    """Return what is wrong with a file system, and what is seen; None if there is space."""
    part = _free_part(state)
    if _is_short(state, least):
        message = f"{path} is nearly full"
        if least is not None:
            message = f"less is free on {path} than required"
        return message, f"{format_size(state.free)} free on {path} ({part:.1%})"
    if _is_short_of_inodes(state, least):
        seen = f"{state.inodes_free} of {state.inodes} inodes free on {path}"
        return f"{path} has nearly no inodes left", seen
    return None


def _is_short(state: Space, least: Least | None) -> bool:
    if least is None:
        return _free_part(state) < FREE and state.free < PLENTY
    if least.part is None:
        return state.free < least.size
    return _free_part(state) < least.part


def _is_short_of_inodes(state: Space, least: Least | None) -> bool:
    """Return whether too few inodes are free, by `require:` or by our own limits."""
    if not state.inodes:  # a file system that makes inodes as it needs them
        return False
    if least is None and state.inodes_free >= MANY:
        return False
    part = FREE
    if least is not None and least.part is not None:
        part = least.part
    return state.inodes_free < part * state.inodes


# ---------------------------------------------------------------- read-only


def parse_read_only(text: str) -> tuple[DeclaredMount, ...]:
    """Parse «/opt/image,/usr»: mount points that are meant to be read-only."""
    wishes = parse_declared_mounts(text)
    if any(wish.mode for wish in wishes):
        raise ValueError(
            f"expected mount points that may be read-only, such as /usr; seen '{text}'"
        )
    return wishes


def read_only(
    context: CheckContext,
    node: Node,
    mounts: tuple[Mount, ...],
    fstab: Mapping[str, frozenset[str]],
) -> Iterable[Outcome]:
    """Judge that no disk's file system itself is read-only, unless fstab asks for that.

    A bind mount, of a container or a snap, is read-only by its own options and the file system
    below it is not. An image that boots read-only has no line in fstab, and no errors=remount-ro.
    """
    required = context.wanted(node)
    exempt: set[str] = set()
    if required is not None:
        exempt.update(wish.path for wish in parse_read_only(required))
    disks = [mount for mount in mounts if mount.type in BLOCK]
    if not disks:
        yield skipped(node, "no disk is mounted here")
        return
    turned: dict[str, Mount] = {}
    for mount in reversed(disks):  # so that the first mount of each device stays
        if "ro" not in mount.inner or mount.point in exempt:
            continue
        if _wants_writing(mount, fstab.get(mount.point)):
            turned[mount.device] = mount
    for mount in turned.values():
        message = f"{mount.point} has turned read-only"
        seen = f"{mount.source} on {mount.point}: ro"
        wanted = required or "rw, as fstab says"
        yield failed(
            node,
            message,
            seen,
            wanted,
            _repair(mount),
        )
    if not turned:
        message = "no disk has turned read-only"
        yield passed(node, message, pluralize(len(disks), "mount"), required or "none")


def _repair(mount: Mount) -> Remedy:
    return shell_line(
        "dmesg | grep -e {device} -e 'I/O error'; "
        "findmnt -O ro -M {point} && umount {point} && fsck {source} && mount {point}"
        "   # a disk that goes on with errors: replace it",
        device=mount.source.rpartition("/")[2],
        point=mount.point,
        source=mount.source,
    )


def _wants_writing(mount: Mount, options: frozenset[str] | None) -> bool:
    """Return whether a mount is meant to be writable; `options` are those of its line in fstab."""
    if options is None:
        return not mount.inner.isdisjoint(TURNED)
    return options.isdisjoint({"ro", "noauto"})


# ---------------------------------------------------------------- proofs


def _without_network(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    return tuple(mount for mount in mounts if not mount.network)


def _with_full_root(probes: Probes) -> Probes:
    root = probes.answers["/"]
    if isinstance(root, Space):
        root = replace(root, used=root.size, free=0)
    return replace(
        probes,
        answers={
            **probes.answers,
            "/": root,
        },
    )


def _with_read_only_root(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    changed = []
    for mount in mounts:
        if mount.point == "/":
            inner = mount.inner - {"rw"} | {"ro"}
            changed.append(replace(mount, inner=inner))
        else:
            changed.append(mount)
    return tuple(changed)


MOUNT = Check(
    "fs.mount",
    facts=("fs.probes", "fs.mounts"),
    judge=each(mount, "fs.probes", "fs.mounts", parts=_MOUNTED),
    severity="error",
    title="Mounts answer",
    why="A dead NFS or Lustre mount does not answer: ranks that load data or write a checkpoint "
    "hang in the kernel, and cannot be killed. A mount that is missing is worse: the job writes "
    "to the disk below it.",
    how="statvfs of every mount that `require: {fs.mount: …}` names and of all network mounts, "
    "each in a process of its own with 2 s to answer; the table of mounts says what is there and "
    "whether it is read-only.",
    remedy=shell_line("mount -a"),
    wants=parse_declared_mounts,
    proof=Proof("fs.mounts", _without_network),
)
SPACE = Check(
    "fs.space",
    facts=("fs.probes", "fs.mounts"),
    judge=each(
        space,
        "fs.probes",
        "fs.mounts",
        parts=(WITHOUT_ADDRESSES,),
        parts_by_default=(Part("fs.probes", _ample),),
    ),
    severity="warning",
    follows=("fs.mount",),
    title="Space and inodes",
    why="A checkpoint that does not fit ends the job after hours; a full / or /tmp ends it, and "
    "logins, at once.",
    how="statvfs of /, /tmp, /var, the home of the job's user and the mounts declared: 5 % or 100 "
    "GiB free, and 5 % of the inodes, or as `require: {fs.space: …}` says, in percent or as a "
    "size. Images and read-only ones are left out.",
    remedy=shell_line("df -h; df -i"),
    wants=parse_least,
    proof=Proof("fs.probes", _with_full_root),
)
READ_ONLY = Check(
    "fs.ro",
    facts=("fs.mounts", "fs.fstab"),
    judge=each(read_only, "fs.mounts", "fs.fstab", parts=(WITHOUT_ADDRESSES,)),
    severity="error",
    title="Disks that have turned read-only",
    why="A file system that meets an error on its disk turns read-only: logins still work, and "
    "the job ends at its first write.",
    how="/proc/self/mountinfo: disks whose file system is read-only while /etc/fstab wants it "
    "writable, or that are mounted with errors=remount-ro and without a line in fstab. `require: "
    "{fs.ro: /usr}` names those that are meant.",
    remedy=shell_line("dmesg | grep -e 'I/O error' -e 'read-only'"),
    wants=parse_read_only,
    proof=Proof("fs.mounts", _with_read_only_root),
)
