"""File systems: what is mounted and how, what is free, and what NCCL left in shared memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact, Needs, file
from clusterprep.model import Absent, Inventory, Node, Read

ANSWER = 2.0  # seconds in which a file system must answer statvfs
# Types whose server is another machine, or a process of its own; «fuse.» stands for all of these.
NETWORK = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "ceph", "wekafs", "panfs", "orangefs",
    "fuse.",
)  # fmt: skip
SHM = "/dev/shm"  # noqa: S108 - only looked at
LOCAL = ("/", "/tmp", "/var")  # noqa: S108 - only looked at


@dataclass(frozen=True)
class Wish:
    """A mount that `require: fs.mount` declares; `mode` is "rw", "ro" or empty."""

    path: str
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo. `options` are those of this mount, `inner` those of the file system itself."""

    point: str
    type: str
    source: str
    options: frozenset[str]
    inner: frozenset[str]
    device: str  # major:minor

    @property
    def network(self) -> bool:
        return any(
            self.type == word or (word.endswith(".") and self.type.startswith(word))
            for word in NETWORK
        )


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and inodes; `at` is the path without links. Free is what an ordinary user may still take."""

    at: str
    size: int
    used: int
    free: int
    inodes: int = 0  # 0: this type has no fixed number of them
    inodes_free: int = 0


@dataclass(frozen=True)
class Probes:
    """What each path answered, «~alice» for a home; `left` mounts were too many to try."""

    answers: Mapping[str, Space | Absent]
    left: int = 0


@dataclass(frozen=True)
class Segment:
    """A file of NCCL in /dev/shm. `held`: mapped or open somewhere; None: not all who could were looked into."""

    path: str
    size: int
    age: float  # seconds since it was written
    held: bool | None


# ---------------------------------------------------------------- what is wanted


def parse_wishes(text: str) -> tuple[Wish, ...]:
    """«/data,/scratch:rw»: mount points, with what they must allow. ValueError says what is expected."""
    wishes = []
    for word in text.split(","):
        path, colon, mode = word.strip().partition(":")
        if re.fullmatch(r"/[^:\x00-\x1f]*", path) is None or mode not in (
            ("rw", "ro") if colon else ("",)
        ):
            raise ValueError(f"expected mount points such as /data,/scratch:rw; seen '{text}'")
        wishes.append(Wish(path.rstrip("/") or "/", mode))
    return tuple(wishes)


def wishes_of(node: Node) -> tuple[Wish, ...]:
    text = node.require.get("fs.mount")
    return () if text is None else parse_wishes(text)


def home(node: Node) -> str:
    """The word for the home of the job's user."""
    return "~" + (node.job_user or node.ssh.user or "")


# ---------------------------------------------------------------- what the answers mean


def parse_mounts(text: str | None) -> tuple[Mount, ...]:
    """/proc/self/mountinfo; of mounts on one point the last, which covers the others."""
    if text is None or not text.endswith("\n"):
        raise ValueError("mountinfo does not end with a line")
    found = {mount.point: mount for mount in map(_mount, text.splitlines())}
    return tuple(found.values())


@functools.lru_cache(4096)  # all nodes of a kind have the same lines but for one or two
def _mount(line: str) -> Mount:
    left, right = line.split(" - ", 1)
    words, rest = left.split(" "), right.split(" ")
    # Some sources are empty, which leaves two spaces and no word; the options stand last in any case.
    options, inner = frozenset(words[5].split(",")), frozenset(rest[-1].split(","))
    if not options & {"ro", "rw"} or not inner & {"ro", "rw"}:
        raise ValueError(f"neither ro nor rw: {line!r}")
    return Mount(plain(words[4]), rest[0], plain(rest[1]), options, inner, words[2])


def plain(text: str) -> str:
    """A path without the octal codes that the kernel and fstab write for spaces."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def parse_fstab(text: str | None) -> Mapping[str, frozenset[str]]:
    """Options by mount point; none where there is no fstab."""
    found = {}
    for line in (text or "").splitlines():
        words = line.split()
        if words and not words[0].startswith("#") and len(words) >= 4:
            found[plain(words[1])] = frozenset(words[3].split(","))
    return found


def parse_probes(answer: Any) -> Probes:
    answers = {str(word): _space(given) for word, given in answer["answers"].items()}
    return Probes(answers, int(answer["left"]))


def _space(given: Any) -> Space | Absent:
    if given[0] == "no":
        return Absent(str(given[1]), str(given[2]))
    values = given[1]
    space = Space(
        **{name: values[name] for name in ("at", "size", "used", "free", "inodes", "inodes_free")}
    )
    if not all(
        isinstance(n, int) and n >= 0 for n in (space.size, space.used, space.free, space.inodes)
    ):
        raise ValueError(f"no space: {values!r}")
    return space


def parse_shm(answer: Any) -> Space | Absent | None:
    """Of /dev/shm; None where there is none."""
    space = parse_probes(answer).answers[SHM]
    return None if isinstance(space, Absent) and space.reason == "missing" else space


def parse_segments(answer: Any) -> tuple[Segment, ...]:
    """NCCL gives its segments to their owner alone, so only processes of that user can hold one."""
    unread, whole = answer["unread"], answer["whole"]
    found = []
    for row in answer["files"]:
        seen = row["held"] is True or (whole is True and not unread.get(str(row["uid"])))
        held = row["held"] if seen else None
        found.append(Segment(str(row["path"]), int(row["size"]), float(row["age"]), held))
    return tuple(found)


# ---------------------------------------------------------------- what is read


def probe(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """One read for all that asks file systems: the reader tries all paths at once."""
    words = dict.fromkeys(
        (SHM, *LOCAL, home(node), *(wish.path for wish in wishes_of(node)), *NETWORK)
    )
    return (Read("probe", (ANSWER, *words), limit=ANSWER + 4),)


SHM_SPACE = Fact("shm.space", probe, parse_shm)
NEEDS = Needs(
    "root", "what processes of others have open or mapped is shown to root alone", partly=True
)
SEGMENTS = Fact(
    "shm.segments",
    lambda node, inventory: (Read("shm_segments", (), limit=10.0),),
    parse_segments,
    needs=NEEDS,
)
PROBES = Fact("fs.probes", probe, parse_probes)
MOUNTS = Fact("fs.mounts", file("/proc/self/mountinfo"), parse_mounts)
FSTAB = Fact("fs.fstab", file("/etc/fstab", etc=True), parse_fstab)
