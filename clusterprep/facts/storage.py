"""File systems: mounts with their options, free space, and files of NCCL in shared memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from clusterprep.facts import Fact, Needs, file, user_of_job
from clusterprep.facts.parts import read_text_once, shared_text
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.model.fact_columns import Part

STATVFS_LIMIT = 2.0  # seconds in which a file system must answer statvfs
# Types whose server is another machine, or a process of its own; «fuse.» stands for all that begin
# so.
NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "beegfs_nodev",
    "cifs",
    "smb3",
    "ceph",
    "wekafs",
    "panfs",
    "orangefs",
    "fuse.",
)
_PREFIXES = tuple(name for name in NETWORK if name.endswith("."))
SHM = "/dev/shm"  # noqa: S108 - only looked at
LOCAL = ("/", "/tmp", "/var")  # noqa: S108 - only looked at


class DeclaredMount(Struct, frozen=True):
    """A mount that `require: fs.mount` declares; `mode` is "rw", "ro" or empty."""

    path: str
    mode: str = ""


class Mount(Struct, frozen=True, gc=False):
    """A line of mountinfo.

    `options` are those of this mount, `inner` those of the file system itself.
    """

    point: str
    type: str
    source: str
    options: frozenset[str]
    inner: frozenset[str]
    device: str  # major:minor

    @property
    def network(self) -> bool:
        return self.type in NETWORK or self.type.startswith(_PREFIXES)


class Space(Struct, frozen=True, gc=False):
    """Bytes and inodes.

    `at` is the path without links, `free` is what an ordinary user may still take.
    """

    at: str
    size: int
    used: int
    free: int
    inodes: int = 0  # 0: this type has no fixed number of them
    inodes_free: int = 0


class Probes(Struct, frozen=True):
    """What each path answered, «~alice» for a home.

    `left` counts the mounts that were too many to try.
    """

    answers: Mapping[str, Space | Absent]
    left: int = 0


class Segment(Struct, frozen=True):
    """A file of NCCL in /dev/shm; `age` in seconds since it was written.

    `held`: a process has it mapped or open; None where not all processes that could were examined.
    """

    path: str
    size: int
    age: float
    held: bool | None


# ---------------------------------------------------------------- what the inventory declares


@functools.lru_cache(64)  # asked for every node, and the text is nearly always the same
def parse_declared_mounts(text: str) -> tuple[DeclaredMount, ...]:
    """Parse mount points with what they must allow, such as «/data,/scratch:rw».

    Raises ValueError, which says what is expected.
    """
    wishes = []
    for declared in text.split(","):
        path, colon, mode = declared.strip().partition(":")
        is_path = re.fullmatch(r"/[^:\x00-\x1f]*", path) is not None
        is_mode = mode in ("rw", "ro") if colon else True
        if not is_path or not is_mode:
            raise ValueError(f"expected mount points such as /data,/scratch:rw; seen '{text}'")
        wishes.append(DeclaredMount(path.rstrip("/") or "/", mode))
    return tuple(wishes)


def declared_mounts(node: Node) -> tuple[DeclaredMount, ...]:
    text = node.require.get("fs.mount")
    if text is None:
        return ()
    return parse_declared_mounts(text)


def home(node: Node) -> str:
    """Return «~alice», which stands for the home of the job's user."""
    return "~" + (user_of_job(node) or "")


# ---------------------------------------------------------------- what the answers mean


def parse_mounts(text: str | None) -> tuple[Mount, ...]:
    """Parse /proc/self/mountinfo.

    Of mounts on one point only the last counts, which covers the others.
    """
    if text is None or not text.endswith("\n"):
        raise ValueError("mountinfo does not end with a line")
    mounts = {}
    for line in text.splitlines():
        mount = _mount(line)
        mounts[mount.point] = mount
    return tuple(mounts.values())


@functools.lru_cache(4096)  # all nodes of a kind have the same lines but for one or two
def _mount(line: str) -> Mount:
    """Parse a line as in proc_pid_mountinfo(5)."""
    of_mount, of_file_system = line.split(" - ", 1)
    _id, _parent, device, _root, point, options_text, *_optional = of_mount.split(" ")
    # Some sources are empty, which leaves two spaces; the options are last in any case.
    file_system = of_file_system.split(" ")
    options = _options(options_text)
    inner = _options(file_system[-1])
    if not options & {"ro", "rw"} or not inner & {"ro", "rw"}:
        raise ValueError(f"neither ro nor rw: {line!r}")
    return Mount(
        point=shared_text(unescaped(point)),
        type=shared_text(file_system[0]),
        source=shared_text(unescaped(file_system[1])),
        options=options,
        inner=inner,
        device=shared_text(device),
    )


@read_text_once
def _options(text: str) -> frozenset[str]:
    return frozenset(map(shared_text, text.split(",")))


@functools.lru_cache(4096)
def _without_address(mount: Mount) -> Mount:
    """Return a mount without the options that name an address, of the server or of the node."""
    inner = sorted(option for option in mount.inner if "addr=" not in option)
    return replace(mount, inner=_options(",".join(inner)))  # one value for all nodes


def _without_addresses(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    return tuple([_without_address(mount) if mount.network else mount for mount in mounts])


WITHOUT_ADDRESSES = Part("fs.mounts", _without_addresses)
"""The mounts of a node, as they are on others that mount the same from the same servers."""


def unescaped(text: str) -> str:
    """Return a path without the octal codes that the kernel and fstab write for spaces."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def parse_fstab(text: str | None) -> Mapping[str, frozenset[str]]:
    """Return options by mount point; none where there is no fstab."""
    options_by_point = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0].startswith("#"):
            continue
        _source, point, _type, options = fields[:4]
        options_by_point[unescaped(point)] = frozenset(options.split(","))
    return options_by_point


class _SpaceRow(Struct):
    """The space at a path as the agent writes it."""

    at: str
    free: int
    inodes: int
    inodes_free: int
    size: int
    used: int


class _Answer(Struct):
    """The answers where all paths were answered."""

    answers: dict[str, tuple[Literal["ok"], _SpaceRow]]
    left: int


def _space_of_row(row: _SpaceRow) -> Space:
    if min(row.size, row.used, row.free, row.inodes) < 0:
        raise ValueError(f"no space: {to_builtins(row)!r}")
    at = shared_text(row.at)
    return Space(at, row.size, row.used, row.free, row.inodes, row.inodes_free)


def parse_probes(answer: Any) -> Probes:
    """Return the space at each path, and how many mounts were too many to try."""
    if isinstance(answer, _Answer):
        rows = answer.answers.items()
        return Probes({path: _space_of_row(row) for path, (_, row) in rows}, answer.left)
    answers = {}
    for path, result in answer["answers"].items():
        answers[shared_text(str(path))] = _space(result)
    untried = int(answer["left"])
    return Probes(answers, untried)


def _space(result: Any) -> Space | Absent:
    """Return the space of ["ok", values] in bytes, or the reason of ["no", reason, detail]."""
    if result[0] == "no":
        return Absent(str(result[1]), str(result[2]))
    values = result[1]
    space = Space(
        at=shared_text(values["at"]),
        size=values["size"],
        used=values["used"],
        free=values["free"],
        inodes=values["inodes"],
        inodes_free=values["inodes_free"],
    )
    for count in (space.size, space.used, space.free, space.inodes):
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"no space: {values!r}")
    return space


def parse_shm(answer: Any) -> Space | Absent | None:
    """Return the space of /dev/shm, None where it does not exist."""
    if isinstance(answer, _Answer):
        return parse_probes(answer).answers[SHM]
    space = parse_probes(answer).answers[SHM]
    if isinstance(space, Absent) and space.reason == "missing":
        return None
    return space


def parse_segments(answer: Any) -> tuple[Segment, ...]:
    """Parse NCCL's segments and who holds them.

    NCCL gives a segment to its owner alone, so only processes of that user can hold it. That none
    does is known where all processes were listed and none of that user's was closed to us.
    """
    unread, all_listed = answer["unread"], answer["whole"]
    segments = []
    for row in answer["files"]:
        held = row["held"]
        if held is not True:
            owner = str(row["uid"])
            if all_listed is not True or unread.get(owner):
                held = None
        path = str(row["path"])
        size = int(row["size"])
        age = float(row["age"])
        segments.append(Segment(path, size, age, held))
    return tuple(segments)


# ---------------------------------------------------------------- what is read


def probe(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return one read for all facts that ask file systems: the reader tries all paths at once."""
    targets = [SHM, *LOCAL, home(node)]
    targets += [wish.path for wish in declared_mounts(node)]
    targets += NETWORK
    arguments = (STATVFS_LIMIT, *dict.fromkeys(targets))
    return (Read("probe", arguments, limit=STATVFS_LIMIT + 4),)


SHM_SPACE = Fact(
    "shm.space",
    probe,
    parse_shm,
    pieces=(_Answer,),
    typed=True,
    moves=True,
)
NEEDS = Needs(
    "root", "what processes of others have open or mapped is shown to root alone", partly=True
)
SEGMENTS = Fact(
    "shm.segments",
    lambda node, inventory: (Read("shm_segments", (), limit=10.0),),
    parse_segments,
    needs=NEEDS,
    moves=True,
)
PROBES = Fact(
    "fs.probes",
    probe,
    parse_probes,
    pieces=(_Answer,),
    typed=True,
    moves=True,
)
MOUNTS = Fact("fs.mounts", file("/proc/self/mountinfo"), parse_mounts)
FSTAB = Fact("fs.fstab", file("/etc/fstab", etc=True), parse_fstab)
