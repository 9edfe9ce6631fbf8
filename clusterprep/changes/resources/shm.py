"""The size of /dev/shm: of the one that is mounted, and in /etc/fstab for the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.changes.resources.service import daemon_reload
from clusterprep.facts import Fact
from clusterprep.facts.memory import TOTAL
from clusterprep.facts.storage import MOUNTS, SHM, STATVFS_LIMIT, Mount, Space, parse_shm
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.model.units import UNLIMITED, format_size, parse_size

FSTAB = "/etc/fstab"
# systemd prefers this file, where the administrator wrote it, to the unit that it makes of fstab
# itself; systemd.mount(5).
UNIT = "/etc/systemd/system/dev-shm.mount"
LIMIT = 30.0  # seconds
PAGE = 65536  # bytes: the largest page that Linux has; sizes are rounded up to whole pages
SMALLEST = 1 << 20  # bytes; a size of 0 would mean no limit to tmpfs
ENTRY = "tmpfs\t/dev/shm\ttmpfs\tnosuid,nodev,size={}\t0\t0\n"
SPACE = Fact(
    "shm:space",
    lambda node, inventory: (Read("probe", (STATVFS_LIMIT, SHM), limit=STATVFS_LIMIT + 4),),
    parse_shm,
)

_SHARE = re.compile(r"([1-9][0-9]?|100)%")
_LINE = re.compile(rb"(\s*[^#\s]\S*\s+/dev/shm/?\s+\S+\s+)(\S+)(.*)", re.DOTALL)
_OPTIONS = re.compile(rb"^([ \t]*Options[ \t]*=[ \t]*)([^\r\n]*)", re.MULTILINE)
# The kernel's memparse, and shmem_parse_one for shares; 18 digits, as parse_size takes.
_MEMPARSE = re.compile(r"([0-9]{1,18})([kmgt]?)|([0-9]{1,18})%")


class WantedShm(Struct, frozen=True):
    """The wanted size in bytes, and as a value of the mount option: 64G or 50%."""

    size: int
    option: str

    def is_met(self, size: int) -> bool:
        return self.size <= size < self.size + PAGE

    def is_meant_by(self, option: str, memory: int) -> bool:
        """Return whether a value of the mount option has the same meaning.

        A share is not the same as the size that it now comes to.
        """
        match = _MEMPARSE.fullmatch(option.lower())
        if match is None:
            return False
        if option.endswith("%") != self.option.endswith("%"):
            return False
        if match[3]:
            return int(match[3]) * memory // 100 == self.size
        return parse_size(match[0]) == self.size


def wanted_size(params: Params, memory: int) -> WantedShm:
    """Return the wanted size, which may be given as a share of `memory` in bytes.

    Raises ValueError that says what is expected.
    """
    text = str(params["size"]).strip()
    share = _SHARE.fullmatch(text)
    if share:
        return WantedShm(int(share[1]) * memory // 100, text)
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size == UNLIMITED or size < SMALLEST:
        raise ValueError(
            "expected a size of 1 MiB or more such as 64GiB, or a share of memory such as 50%; "
            f"seen '{text}'"
        )
    return WantedShm(int(size), _size_option(int(size)))


def _size_option(size: int) -> str:
    """Return a size with the largest suffix that leaves a whole number."""
    power = 0
    while power < 4 and size % 1024 == 0:
        size >>= 10
        power += 1
    suffix = ("", "K", "M", "G", "T")[power]
    return f"{size}{suffix}"


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        wanted_size(params, 0)
    except ValueError as error:
        yield "size", str(error)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (SPACE, MOUNTS, TOTAL)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (FSTAB, UNIT)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("shm", ""),)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    memory: int = context.facts[TOTAL.name]
    space: Space | None = context.facts[SPACE.name]
    mount = _mount_of(space, context.facts[MOUNTS.name])
    if space is None or mount is None:
        message = f"no file system of its own is mounted on {SHM}: mount -t tmpfs tmpfs {SHM}"
        raise NoPlan("cannot", message)
    wanted = wanted_size(params, memory)
    operations: list[Operation] = []
    lines = []
    if not wanted.is_met(space.size):
        _refuse(space, wanted)
        operations.append(_remount(mount, space, wanted.size))
        former = format_size(space.size)
        lines.append(f"{former} → {format_size(wanted.size)}")
    for write in _boot_changes(context, wanted, memory):
        operations.append(write)
        lines.append(f"size={wanted.option} in {write.path}")
        if write.path == UNIT:
            operations.append(daemon_reload(LIMIT))
    node = context.node.name
    diff = "\n".join(lines)
    yield StepAction(
        node,
        "shm",
        SHM,
        "update",
        tuple(operations),
        diff,
    )


def _mount_of(space: Space | None, mounts: Iterable[Mount]) -> Mount | None:
    """Return the tmpfs that is mounted at /dev/shm itself, None for another file system."""
    if space is None:
        return None
    for mount in mounts:
        if mount.point == space.at:
            return mount if mount.type == "tmpfs" else None
    return None


def _refuse(space: Space, wanted: WantedShm) -> None:
    """Raise NoPlan for what the kernel would refuse: files that are there do not go away."""
    if space.used > wanted.size:
        used = f"{format_size(space.used)} of {SHM} are in use"
        cure = f"du -ah {SHM} | sort -h | tail"
        raise NoPlan("cannot", f"{used}, more than {format_size(wanted.size)}: {cure}")
    if space.size == 0:
        message = "was mounted without a limit, and the kernel sets none later: it takes a reboot"
        raise NoPlan("cannot", f"{SHM} {message}")


def _remount(mount: Mount, space: Space, size: int) -> RunCommand:
    undo = _with_mounted_size(mount, space, space.size)
    run = _with_mounted_size(mount, space, size)
    return replace(run, undo=(undo,))


def _with_mounted_size(mount: Mount, space: Space, size: int) -> RunCommand:
    """Return the command that remounts with this size.

    It names the source and every option of the mount: `mount` would take missing ones from fstab,
    or leave them out.
    """
    options = ["remount"]
    options += sorted(mount.options - {"relatime"})
    options.append(f"size={size}")
    argv = ("mount", "-o", ",".join(options), "--", mount.source, space.at)
    return RunCommand(argv, LIMIT)


def _boot_changes(context: PlanContext, wanted: WantedShm, memory: int) -> Iterator[Write]:
    fstab = context.files[FSTAB].content
    new_fstab = in_fstab(fstab, wanted, memory)
    if new_fstab != fstab:
        yield Write(FSTAB, fstab, new_fstab)
    unit = context.files[UNIT].content
    new_unit = in_unit(unit, wanted, memory)
    if new_unit != unit:
        yield Write(UNIT, unit, new_unit)


def in_fstab(content: bytes | None, wanted: WantedShm, memory: int) -> bytes:
    """Return fstab with this size. Other options of an existing line stay, as does every byte."""
    content = content or b""
    lines = content.splitlines(keepends=True)
    matches = {}
    for number, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if match:
            matches[number] = match
    if len(matches) > 1:
        raise NoPlan("cannot", f"{FSTAB} has {len(matches)} lines for {SHM}; mend it by hand")
    if not matches:
        if lines and not lines[-1].endswith(b"\n"):
            content += b"\n"
        return content + ENTRY.format(wanted.option).encode()
    ((number, match),) = matches.items()
    options = _with_size(match[2], wanted, memory)
    lines[number] = match[1] + options + match[3]
    return b"".join(lines)


def in_unit(content: bytes | None, wanted: WantedShm, memory: int) -> bytes | None:
    """Return the administrator's unit with this size, None where there is none."""
    if content is None:
        return None
    matches = list(_OPTIONS.finditer(content))
    if len(matches) != 1:
        message = f"{UNIT} has {len(matches)} lines Options=, and one is wanted; mend it by hand"
        raise NoPlan("cannot", message)
    (match,) = matches
    options = _with_size(match[2], wanted, memory)
    return content[: match.start(2)] + options + content[match.end(2) :]


def _with_size(options: bytes, wanted: WantedShm, memory: int) -> bytes:
    """Return the mount options of /dev/shm with the wanted size.

    They stay as they are if their one size has the same meaning, in whatever unit it is written.
    """
    sizes = []
    others = []
    for option in options.split(b","):
        if option.startswith(b"size="):
            sizes.append(option.removeprefix(b"size="))
        elif option:
            others.append(option)
    if len(sizes) == 1 and wanted.is_meant_by(sizes[0].decode("ascii", "replace"), memory):
        return options
    return b",".join([*others, f"size={wanted.option}".encode()])


RESOURCE = StepResource("shm", plan, facts=facts, paths=paths, parts=parts, wrong=wrong, texts=True)
