"""What the kernel said since boot, as far as it could matter, and NVIDIA's Xids among it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clusterprep.facts import Fact, Needs
from clusterprep.facts.gpu import parse_pci
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.runtime.lazy_dataclass import dataclass

XID = "NVRM: Xid"
# Lines with one of these travel home. A line counts for the first word that it holds, and lines that begin alike from
# the word on are one record: so words name what must not hide behind something more frequent.
WORDS = (
    "Nonfatal ",  # Xids of NVLink 5, which say in their text how grave they are
    XID,
    "soft lockup - CPU",
    "hard LOCKUP",
    "detected stall",
    "blocked for more than",
    "Out of memory: Kill",
    "Machine Check Exception",
    "Machine check events logged",
    "event severity: fatal",
    "event severity: recoverable",
    "Uncorrected hardware",
    "Memory failure: 0x",
    "critical medium error",
    "Buffer I/O error",
    "I/O error, dev",
    "EXT4-fs error",
    "Remounting filesystem read-only",
    "etadata corruption detected",
    "Corruption of in-memory data",
    "XFS_WANT_CORRUPTED",
    "xfs_do_force_shutdown",
    "forced readonly",
    "QID ",
    "controller is down",
    "insufficient power on the PCIe slot",
    "health compromised",
    "Kernel panic",
    "kernel BUG at",
    "BUG: ",
    "Oops",
    "general protection fault",
    "Unable to handle kernel",
)


@dataclass(frozen=True)
class KernelRecord:
    """A line; `count` lines begin like it, the first of them at `since`. Seconds since boot."""

    number: int
    seconds: float
    level: int
    count: int
    since: float
    text: str


@dataclass(frozen=True)
class KernelLog:
    """What is left of the kernel's log: its oldest record's number and time, and `cut` lines of a word left out."""

    now: float  # seconds since boot
    first_number: int
    first_seconds: float
    records: tuple[KernelRecord, ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing has been overwritten since boot."""
        return self.first_number == 0

    @property
    def window(self) -> float:
        """Seconds that it covers."""
        return self.now if self.whole else self.now - self.first_seconds

    def age(self, record: KernelRecord) -> float:
        """Seconds since a record; a clock that is a little behind the log's own makes none of them younger than now."""
        return max(0.0, self.now - record.seconds)


@dataclass(frozen=True)
class Xid:
    """An error that the NVIDIA driver reported: code 0 where the line is not understood."""

    pci: str
    code: int
    record: KernelRecord


@dataclass(frozen=True)
class Xids:
    log: KernelLog
    events: tuple[Xid, ...] = ()


_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): ([0-9]+)\b"
)


def parse_log(answer: Any) -> KernelLog | Absent:
    if answer is None:
        return Absent("denied", "there is no /dev/kmsg here, as in most containers")
    number, seconds = answer["first"]
    records = tuple(
        KernelRecord(int(n), float(s), int(v), int(c), float(f), str(t))
        for n, s, v, c, f, t in answer["records"]
    )
    log = KernelLog(float(answer["now"]), int(number), float(seconds), records, dict(answer["cut"]))
    if (
        not 0 <= log.first_seconds < float("inf")
        or not 0 < log.now < float("inf")
        or log.first_number < 0
    ):
        raise ValueError("no time since boot")
    return log


def parse_xids(answer: Any, pci: Any) -> Xids | Absent:
    """The Xids of the log. A node whose bus shows no GPU, and whose log tells of none, has nothing to say of them."""
    bare = not isinstance(pci, Absent) and not parse_pci(pci)
    log = answer if isinstance(answer, Absent) else parse_log(answer)
    if not isinstance(log, Absent):
        events = tuple(_xid(record) for record in log.records if XID in record.text)
        if events or not bare:
            return Xids(log, events)
    return (
        Absent("not_applicable", "no NVIDIA GPU here")
        if bare or not isinstance(log, Absent)
        else log
    )


def _xid(record: KernelRecord) -> Xid:
    match = _XID.search(record.text)
    return Xid("", 0, record) if match is None else Xid(match[1].lower(), int(match[2]), record)


def _log(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("kernel_log", WORDS),)


def _xids(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (*_log(node, inventory), Read("pci", ("0x10de",)))


NEEDS = Needs(
    "root", "/dev/kmsg is root's where kernel.dmesg_restrict is 1, as most systems have it"
)
LOG = Fact("log.records", _log, parse_log, needs=NEEDS)
XIDS = Fact("gpu.xids", _xids, parse_xids, lenient=True, needs=NEEDS)
