"""The size of /dev/shm: of the one that is mounted, and in /etc/fstab for the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.memory import TOTAL
from clusterprep.facts.storage import MOUNTS, SHM, STATVFS_LIMIT, Mount, Space, parse_shm
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.model.units import UNLIMITED, format_size, parse_size

FSTAB = "/etc/fstab"
# Where systemd has it from if somebody wrote it, before the unit that it makes of fstab itself; systemd.mount(5).
UNIT = "/etc/systemd/system/dev-shm.mount"
LIMIT = 30.0  # seconds
PAGE = 65536  # bytes: the largest page that Linux has; sizes are rounded up to whole pages
ENTRY = "tmpfs\t/dev/shm\ttmpfs\tnosuid,nodev,size={}\t0\t0\n"
SPACE = Fact(
    "shm:space",
    lambda node, inventory: (Read("probe", (STATVFS_LIMIT, SHM), limit=STATVFS_LIMIT + 4),),
    parse_shm,
)

RELOAD = RunCommand(
    ("systemctl", "daemon-reload"),
    LIMIT,
    again=(RunCommand(("systemctl", "daemon-reload"), LIMIT),),
)

_SHARE = re.compile(r"([1-9][0-9]?|100)%")
_LINE = re.compile(rb"(\s*[^#\s]\S*\s+/dev/shm/?\s+\S+\s+)(\S+)(.*)", re.DOTALL)
_OPTIONS = re.compile(rb"^([ \t]*Options[ \t]*=[ \t]*)([^\r\n]*)", re.MULTILINE)
_MEMPARSE = re.compile(
    r"([0-9]+)([kmgt]?)|([0-9]+)%"
)  # the kernel's memparse, and shmem_parse_one for shares


@dataclass(frozen=True)
class WantedShm:
    """Bytes, and the word that the kernel reads as that, such as 64G or 50%."""

    size: int
    word: str

    def is_met(self, size: int) -> bool:
        return self.size <= size < self.size + PAGE

    def is_said(self, word: str, memory: int) -> bool:
        """Whether an option's value comes to the same. A share is not the same as the size that it now is."""
        match = _MEMPARSE.fullmatch(word.lower())
        if match is None or ("%" in word) != ("%" in self.word):
            return False
        return (int(match[3]) * memory // 100 if match[3] else parse_size(match[0])) == self.size


def wanted(params: Params, memory: int) -> WantedShm:
    """What a size or a share of main memory comes to. ValueError says what is expected."""
    text = str(params["size"]).strip()
    if match := _SHARE.fullmatch(text):
        return WantedShm(int(match[1]) * memory // 100, text)
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size == UNLIMITED or size < 1 << 20:  # none at all is how tmpfs has no limit
        raise ValueError(
            f"expected a size of 1 MiB or more such as 64GiB, or a share of memory such as 50%; seen '{text}'"
        )
    return WantedShm(int(size), _word(int(size)))


def _word(size: int) -> str:
    power = 0
    while power < 4 and size % 1024 == 0:
        size, power = size >> 10, power + 1
    return f"{size}{'KMGT'[power - 1] if power else ''}"


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        wanted(params, 0)
    except ValueError as error:
        yield "size", str(error)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (SPACE, MOUNTS, TOTAL)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (FSTAB, UNIT)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("shm", ""),)


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    space: Space | None = known.facts[SPACE.name]
    memory: int = known.facts[TOTAL.name]
    mount = next(
        (m for m in known.facts[MOUNTS.name] if space is not None and m.point == space.at), None
    )
    if space is None or mount is None or mount.type != "tmpfs":
        raise NoPlan(
            "cannot", f"no file system of its own is mounted on {SHM}: mount -t tmpfs tmpfs {SHM}"
        )
    want = wanted(params, memory)
    words, operations = [], list[Operation]()
    if not want.is_met(space.size):
        _refuse(space, want)
        words.append(f"{format_size(space.size)} → {format_size(want.size)}")
        undo = _remount(mount, space.at, str(space.size))
        operations.append(_remount(mount, space.at, str(want.size), undo))
    for write in _at_boot(known, want):
        words.append(f"size={want.word} in {write.path}")
        operations += [write, RELOAD] if write.path == UNIT else [write]
    yield StepAction(known.node.name, "shm", SHM, "update", tuple(operations), "\n".join(words))


def _refuse(space: Space, want: WantedShm) -> None:
    """What the kernel would refuse, and it alone: files that are there do not go away."""
    if space.used > want.size:
        used, size = format_size(space.used), format_size(want.size)
        raise NoPlan(
            "cannot", f"{used} of {SHM} are in use, more than {size}: du -ah {SHM} | sort -h | tail"
        )
    if space.size == 0:
        raise NoPlan(
            "cannot",
            f"{SHM} was mounted without a limit, and the kernel sets none later: it takes a reboot",
        )


def _remount(mount: Mount, at: str, size: str, undo: RunCommand | None = None) -> RunCommand:
    """With source and every option of the mount, for `mount` would take those that are missing from fstab, or none."""
    kept = sorted(mount.options - {"relatime"})
    argv = ("mount", "-o", ",".join(("remount", *kept, f"size={size}")), "--", mount.source, at)
    return RunCommand(argv, LIMIT, undo=None if undo is None else (undo,))


def _at_boot(known: PlanContext, want: WantedShm) -> Iterator[Write]:
    memory: int = known.facts[TOTAL.name]
    for path, changed in ((FSTAB, in_fstab), (UNIT, in_unit)):
        content = known.files[path].content
        after = changed(content, want, memory)
        if after != content:
            yield Write(path, content, after)


def in_fstab(content: bytes | None, want: WantedShm, memory: int) -> bytes:
    """fstab with this size. Options of a line that is there stay, as does every other byte."""
    lines = (content or b"").splitlines(keepends=True)
    found = [
        (number, match) for number, line in enumerate(lines) if (match := _LINE.fullmatch(line))
    ]
    if len(found) > 1:
        raise NoPlan("cannot", f"{FSTAB} has {len(found)} lines for {SHM}; mend it by hand")
    if not found:
        missing = b"" if not lines or lines[-1].endswith(b"\n") else b"\n"
        return (content or b"") + missing + ENTRY.format(want.word).encode()
    number, match = found[0]
    lines[number] = match[1] + _with_size(match[2], want, memory) + match[3]
    return b"".join(lines)


def in_unit(content: bytes | None, want: WantedShm, memory: int) -> bytes | None:
    """A unit of systemd's with this size, where somebody wrote one."""
    if content is None:
        return None
    found = list(_OPTIONS.finditer(content))
    if len(found) != 1:
        raise NoPlan(
            "cannot", f"{UNIT} has {len(found)} lines Options=, and one is wanted; mend it by hand"
        )
    (match,) = found
    return content[: match.start(2)] + _with_size(match[2], want, memory) + content[match.end(2) :]


def _with_size(options: bytes, want: WantedShm, memory: int) -> bytes:
    words = options.split(b",")
    sizes = [word for word in words if word.startswith(b"size=")]
    if len(sizes) == 1 and want.is_said(sizes[0][5:].decode("ascii", "replace"), memory):
        return options
    return b",".join(
        [*(word for word in words if word not in sizes and word), f"size={want.word}".encode()]
    )


RESOURCE = StepResource("shm", plan, facts=facts, paths=paths, parts=parts, wrong=wrong, texts=True)
