"""Lines of the kernel's log since boot that can matter to a job, and NVIDIA's Xids among them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from clusterprep.facts import Fact, Needs
from clusterprep.facts.gpu import NVIDIA, parse_pci
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote.untrusted import require_text
from clusterprep.runtime.lazy_dataclass import dataclass

XID = "NVRM: Xid"
LONGEST_LINE = 4096  # characters; the agent sends 1,000 at most
# The agent sends lines that contain one of these phrases. A line counts for the first phrase that
# it contains, and lines that go on alike after it are one record. So there is a phrase for all that
# must not hide behind something more frequent.
PHRASES = (
    "Nonfatal ",  # Xids of NVLink 5, whose text says how grave they are
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
    """A line; `count` lines begin like it, the first of them at `since`.

    Times are seconds since boot.
    """

    number: int
    seconds: float
    level: int
    count: int
    since: float
    text: str


@dataclass(frozen=True)
class KernelLog:
    """What remains of the kernel's log, with the number and the time of its oldest record.

    `cut` counts by phrase the lines that were left out.
    """

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
        if self.whole:
            return self.now
        return self.now - self.first_seconds

    def age(self, record: KernelRecord) -> float:
        """Return the seconds since a record, at least 0: the clock may be behind the log's own."""
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


_PCI_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_PCI_ADDRESS})\): ([0-9]+)\b")


def parse_log(answer: Any) -> KernelLog | Absent:
    """Return the log's records; times are in seconds since boot."""
    if answer is None:
        return Absent("denied", "there is no /dev/kmsg here, as in most containers")
    first_number, first_seconds = answer["first"]
    log = KernelLog(
        now=float(answer["now"]),
        first_number=int(first_number),
        first_seconds=float(first_seconds),
        records=tuple(_record(row) for row in answer["records"]),
        cut=dict(answer["cut"]),
    )
    if not 0 < log.now < math.inf or log.first_number < 0:
        raise ValueError("no time since boot")
    if not 0 <= log.first_seconds < math.inf:
        raise ValueError("no time since boot")
    return log


def _record(row: Sequence[Any]) -> KernelRecord:
    number, seconds, level, count, since, text = row
    return KernelRecord(
        number=int(number),
        seconds=float(seconds),
        level=int(level),
        count=int(count),
        since=float(since),
        text=require_text(text, LONGEST_LINE),
    )


def parse_xids(answer: Any, pci: Any) -> Xids | Absent:
    """Return the Xids of the log; Absent where neither the bus nor the log shows a GPU."""
    has_no_gpu = not isinstance(pci, Absent) and not parse_pci(pci)
    log = answer if isinstance(answer, Absent) else parse_log(answer)
    if isinstance(log, Absent):
        return _NO_GPU if has_no_gpu else log
    events = tuple(_xid(record) for record in log.records if XID in record.text)
    if has_no_gpu and not events:
        return _NO_GPU
    return Xids(log, events)


_NO_GPU = Absent("not_applicable", "no NVIDIA GPU here")


def _xid(record: KernelRecord) -> Xid:
    match = _XID.search(record.text)
    if match is None:
        return Xid("", 0, record)
    pci, code = match.groups()
    return Xid(pci.lower(), int(code), record)


def _log_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("kernel_log", PHRASES),)


def _xid_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (*_log_reads(node, inventory), Read("pci", (NVIDIA,)))


NEEDS = Needs(
    "root", "/dev/kmsg is root's where kernel.dmesg_restrict is 1, as most systems have it"
)
LOG = Fact("log.records", _log_reads, parse_log, needs=NEEDS, moves=True)
XIDS = Fact("gpu.xids", _xid_reads, parse_xids, lenient=True, needs=NEEDS)
