"""Lines of the kernel's log that can matter to a job, and errors of NVIDIA's devices among them.

The log is read in two places. The kernel's ring (/dev/kmsg) has this boot's lines, and loses the
oldest when it is full. The journal has what the ring has lost, and the boots before this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from clusterprep.facts import Fact, Needs
from clusterprep.facts.gpu import NVIDIA, parse_pci
from clusterprep.facts.parts import read_once, strictly_decoded
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote.untrusted import require_text

XID = "NVRM: Xid"
OFF_THE_BUS = "fallen off the bus"
SXID = "SXid (PCI:"
NO_POWER = "insufficient power on the PCIe slot"
LIMITED = "available PCIe bandwidth, limited by"
# Errors of PCI Express that were not corrected, in the words of kernels 4.17 to 6.12: «AER:
# Uncorrected (Fatal) error received: 0000:00:03.0» and, from 6.8 on, «AER: Uncorrectable (Fatal)
# error message received from 0000:00:03.0»; drivers/pci/pcie/aer.c, err.c and dpc.c.
PCI_REPORTED = ("AER: Uncorrect", "AER: Multiple Uncorrect")
PCI_SEVERITY = "PCIe Bus Error: severity=Uncorrect"
PCI_LOST = "AER: can't recover"
PCI_FAILED = ("AER: device recovery failed", "AER: Device recovery failed")
PCI_CONTAINED = ("DPC: containment event", "DPC containment event")
PCI_PHRASES = (*PCI_REPORTED, PCI_SEVERITY, PCI_LOST, *PCI_FAILED, *PCI_CONTAINED)
OOM_KILL = "oom-kill:constraint="
# What XFS says of damage: fs/xfs, xfs_buf.c, xfs_fsops.c, xfs_log.c and xfs_error.c.
XFS_PHRASES = (
    "etadata I/O error",
    "etadata I/O Error",
    "Metadata CRC error detected",
    "log I/O error",
    "I/O Error Detected. Shutting down",
    "has been shut down due to",
    "Corruption detected. Unmount",
    "Internal error xfs_",
    "log mount failed",
)
EDAC_UNCORRECTED = " UE "
DISK_PHRASES = (
    "critical medium error",
    "Buffer I/O error",
    "I/O error, dev",
    "EXT4-fs error",
    "forced readonly",
)
LONGEST_LINE = 4096  # characters; the agent sends 1,000 at most
DAYS = 7  # of the journal that are read
SLACK = 60.0  # seconds from boot until the journal's first line, at most
# The agent sends lines that contain one of these phrases. A line counts for the first phrase that
# it contains, and lines of one kind are one record (remote/agent/kernel_log.py says what that is).
PHRASES = (
    XID,
    SXID,
    OFF_THE_BUS,
    NO_POWER,
    LIMITED,
    *PCI_PHRASES,
    "soft lockup - CPU",
    "hard LOCKUP",
    "detected stall",
    "blocked for more than",
    "Out of memory: Kill",
    "Out of memory (oom_kill_allocating_task): Kill",
    "emory cgroup out of memory: Kill",
    OOM_KILL,
    "killed as a result of limit of",
    "invoked oom-killer",
    "oom_reaper: reaped process",
    "Machine Check Exception",
    "Machine check events logged",
    "event severity: fatal",
    "event severity: recoverable",
    "Uncorrected hardware",
    "Memory failure: 0x",
    EDAC_UNCORRECTED,
    "critical medium error",
    "Buffer I/O error",
    "I/O error, dev",
    "EXT4-fs error",
    "Remounting filesystem read-only",
    "etadata corruption detected",
    "Corruption of in-memory data",
    "XFS_WANT_CORRUPTED",
    "xfs_do_force_shutdown",
    *XFS_PHRASES,
    "forced readonly",
    "QID ",
    "controller is down",
    "health compromised",
    "Kernel panic",
    "kernel BUG at",
    "BUG: ",
    "Oops",
    "general protection fault",
    "Unable to handle kernel",
)
# Xids after which a GPU or the node is to be reset. The agent drops these last where there are too
# many records; what each means is in checks/gpu_events.py.
FATAL_XIDS = (
    *(46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148),
    *(149, 150, 151, 154, 155, 156, 158, 167, 169, 171, 172),
)
_FATAL = "|".join(map(str, FATAL_XIDS))
_PLACE = r"\((?:PCI:)?([^)]*)\)"
# A kind of Xid is its GPU (with the MIG instance), code, severity in words, link, and the Xid that
# it names as its cause.
_XID_KIND = (
    rf"Xid {_PLACE}: (\d+)(?:.*?\b(Fatal|Non-?fatal)\b)?(?:.*?\b[Ll]ink (-?\d+))?"
    r"(?:.*?\bprevious Xid (\d+))?"
)
_GRAVE_XID = (
    rf"Xid {_PLACE}: (?:(?:{_FATAL})\b(?!.*(?:[Nn]on-?fatal| to 0x0 ))"
    rf"|.*\bprevious Xid (?:{_FATAL})\b)"
)
# A kind of SXid is its switch, code and severity, and the link of a fatal one. A switch has 64
# links and may report the same of each.
_SXID_KIND = (
    rf"SXid {_PLACE}: (\d+), (Fatal|Non-fatal|Severity \d+|Data)(?:(?<=Fatal).*?Link (\d+))?"
)
_GRAVE_SXID = rf"SXid {_PLACE}: \d+, (?:Fatal|Severity 1)"
_RULES = (
    (XID, _XID_KIND, _GRAVE_XID),
    (SXID, _SXID_KIND, _GRAVE_SXID),
    (OFF_THE_BUS, r"GPU (?:at )?([0-9a-fA-F:.]+)", OFF_THE_BUS),
    (NO_POWER, r"^(\S+ \S+):", ""),
    (LIMITED, r"^(\S+ \S+):", ""),
    # The port that tells it, how severe it is, and the device that it came from.
    *((phrase, r"^(\S+ \S+): .*\((\S+)\) .* (\S+)$", "Fatal") for phrase in PCI_REPORTED),
    (OOM_KILL, r"constraint=(\w+)", ""),
    (EDAC_UNCORRECTED, r"EDAC (\S+): .*? on (.+?) \(", " UE "),
    # Names of disks are longer than what is compared of other lines.
    *((phrase, r"()dev(?:ice)? ([\w/-]+)", "") for phrase in DISK_PHRASES),
)


class KernelRecord(Struct, frozen=True):
    """A line; `count` lines are of its kind, the first of them at `since`.

    Times are seconds since this boot; those of an earlier boot are below 0.
    """

    number: int
    seconds: float
    level: int
    count: int
    since: float
    text: str


class KernelLog(Struct, frozen=True):
    """What is known of the kernel's log of this boot, and of earlier boots within DAYS.

    Nothing is missing from `first_seconds` on; `first_number` 0 says that nothing is missing since
    boot. `cut` counts by phrase the lines that were left out. `no_journal` says why the journal
    was not read, "" if it was.
    """

    now: float  # seconds since boot
    first_number: int
    first_seconds: float
    records: tuple[KernelRecord, ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)
    earlier: tuple[KernelRecord, ...] = ()
    no_journal: str = ""

    @property
    def whole(self) -> bool:
        """Whether nothing is missing since boot."""
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


class Xid(Struct, frozen=True):
    """An error that the NVIDIA driver reported: code 0 where the line is not understood.

    `instance` is the MIG GPU instance, "" for the whole GPU; `link` the NVLink, "" for none.
    """

    pci: str
    code: int
    record: KernelRecord
    instance: str = ""
    link: str = ""
    printed: bool = True  # False: the driver wrote in words what this Xid means, without an Xid
    named_by: int = 0  # code of the Xid that names this one as its cause; 0: none was needed


class Xids(Struct, frozen=True):
    log: KernelLog
    events: tuple[Xid, ...] = ()
    earlier: tuple[Xid, ...] = ()  # of earlier boots


class SXid(Struct, frozen=True):
    """An error of an NVSwitch; `severity` is in the driver's words, "" where it said nothing."""

    pci: str
    code: int
    severity: str
    record: KernelRecord
    link: str = ""


class SXids(Struct, frozen=True):
    log: KernelLog
    events: tuple[SXid, ...] = ()
    earlier: tuple[SXid, ...] = ()  # of earlier boots


_PCI_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# «NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 95, …» of a GPU in MIG mode.
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^) ]*)((?: GPU-C?I:[0-9]+)*)\): ([0-9]+)\b(.*)")
_INSTANCE = re.compile(r"GPU-I:([0-9]+)")
_OFF_THE_BUS = re.compile(rf"NVRM: .*?GPU (?:at )?({_PCI_ADDRESS})")
_SXID = re.compile(
    rf"SXid \(PCI:({_PCI_ADDRESS})\): ([0-9]+), (Fatal|Non-fatal|Severity [0-9]+|Data)"
)
_LINK = re.compile(r"\b[Ll]ink (-?[0-9]+)")
_PREVIOUS = re.compile(r"\bprevious Xid ([0-9]{1,4})\b")
_FELL_OFF = 79


def parse_log(ring: Any, journal: Any) -> KernelLog | Absent:
    """Return the log of this boot from both places, and what the journal has of earlier boots.

    Absent for the ring's reason where neither could be read. Answers may be pieces of JSON, which
    are read once for all facts.
    """
    if isinstance(ring, Raw) and isinstance(journal, Raw):
        return _log_of_pieces((ring, journal))
    return _log(*map(_without_piece, (ring, journal)))


@read_once
def _log_of_pieces(answers: tuple[Any, Any]) -> KernelLog | Absent:
    return _log(*answers)


def _without_piece(answer: Any) -> Any:
    return strictly_decoded(bytes(answer)) if isinstance(answer, Raw) else answer


def _log(ring: Any, journal: Any) -> KernelLog | Absent:
    if ring is None:
        ring = Absent("denied", "there is no /dev/kmsg here, as in most containers")
    if journal is None:
        journal = Absent("missing_tool", "no journal is kept here")
    if isinstance(journal, Absent):
        if isinstance(ring, Absent):
            return ring
        return replace(_ring(ring), no_journal=journal.detail or journal.reason)
    if isinstance(ring, Absent):
        if journal["lines"] == 0:  # then it does not take the kernel's lines
            return ring
        of_boot = KernelLog(now=_finite(journal["up"]), first_number=1, first_seconds=math.inf)
        return _with_journal(of_boot, journal)
    return _with_journal(_ring(ring), journal)


def _ring(answer: Any) -> KernelLog:
    first_number, first_seconds = answer["first"]
    log = KernelLog(
        now=_finite(answer["now"]),
        first_number=int(first_number),
        first_seconds=float(first_seconds),
        records=tuple(_record(row) for row in answer["records"]),
        cut=dict(answer["cut"]),
    )
    if log.now == 0 or log.first_number < 0 or not 0 <= log.first_seconds < math.inf:
        raise ValueError("no time since boot")
    return log


def _finite(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError("no time")
    return number


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


def _with_journal(log: KernelLog, answer: Any) -> KernelLog:
    """Return the log with the journal's lines of this boot and of earlier ones."""
    boot = _finite(answer["now"]) - _finite(answer["up"])
    reach = float(answer["from"])
    if not math.isfinite(reach):
        raise ValueError("no time")
    mine: list[KernelRecord] = []
    earlier: list[KernelRecord] = []
    for of_this_boot, clock, uptime, level, count, since, text in answer["records"]:
        seconds = float(uptime) if of_this_boot else float(clock) - boot
        record = KernelRecord(
            number=0,
            seconds=seconds,
            level=int(level),
            count=int(count),
            since=seconds - (float(clock) - float(since)),
            text=require_text(text, LONGEST_LINE),
        )
        (mine if of_this_boot else earlier).append(record)
    cut = dict(log.cut)
    for phrase, count in dict(answer["cut"]).items():
        cut[phrase] = cut.get(phrase, 0) + int(count)
    reaches_further = answer["lines"] > 0 and reach < log.first_seconds
    if reaches_further and not log.whole:
        is_whole = reach <= SLACK
        log = replace(log, first_number=0 if is_whole else 1, first_seconds=max(0.0, reach))
    if math.isinf(log.first_seconds):
        raise ValueError("the journal has no line of this boot")
    return replace(log, records=(*mine, *log.records), earlier=tuple(earlier), cut=cut)


def parse_xids(ring: Any, journal: Any, pci: Any) -> Xids | Absent:
    """Return the Xids of the log; Absent where neither the bus nor the log shows a GPU."""
    has_no_gpu = not isinstance(pci, Absent) and not _gpus_on_bus(pci)
    log = parse_log(ring, journal)
    if isinstance(log, Absent):
        return _NO_GPU if has_no_gpu else log
    events = _xids(log.records)
    if has_no_gpu and not events:
        return _NO_GPU
    return Xids(log, events, _xids(log.earlier))


_NO_GPU = Absent("not_applicable", "no NVIDIA GPU here")
_gpus_on_bus = read_once(parse_pci)  # the same on nearly all nodes


def xids_in(text: str) -> tuple[Xid, ...]:
    """Return the Xids that a line of any log tells: its own, and the one that caused it."""
    return _xids([record_of(text)])


def sxids_in(text: str) -> tuple[SXid, ...]:
    """Return the SXid that a line of any log tells."""
    return _sxids([record_of(text)])


def record_of(text: str) -> KernelRecord:
    """Return a line of any log as a record without number, times and level."""
    return KernelRecord(
        number=0,
        seconds=0.0,
        level=0,
        count=1,
        since=0.0,
        text=text,
    )


def _xids(records: Sequence[KernelRecord]) -> tuple[Xid, ...]:
    """Return the Xids among records.

    A GPU that fell off the bus is one event, also where the driver says so with an Xid and without.
    """
    events = [_xid(record) for record in records if XID in record.text]
    events += _causes(events)
    fallen = {event.pci for event in events if event.code == _FELL_OFF}
    for record in records:
        match = _OFF_THE_BUS.search(record.text)
        if XID in record.text or OFF_THE_BUS not in record.text or match is None:
            continue
        pci = address_of(match[1])
        if pci not in fallen:
            fallen.add(pci)
            events.append(Xid(pci, _FELL_OFF, record, printed=False))
    return tuple(events)


def _causes(events: Sequence[Xid]) -> list[Xid]:
    """Return the Xids that others name as their cause and that the log itself does not have.

    «NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid
    149», of github.com/NVIDIA/open-gpu-kernel-modules/issues/1150.
    """
    written = {(event.pci, event.code) for event in events}
    causes = []
    for event in events:
        match = _PREVIOUS.search(event.record.text)
        if match is None:
            continue
        code = int(match[1])
        if (event.pci, code) in written:
            continue
        causes.append(Xid(event.pci, code, event.record, event.instance, named_by=event.code))
    return causes


def address_of(pci: str) -> str:
    """Return 0000:91:00 as Xids have it, for 0000:91:00.0 and nvidia-smi's 00000000:91:00.0."""
    address = pci.lower().partition(".")[0]
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", address)


def _xid(record: KernelRecord) -> Xid:
    match = _XID.search(record.text)
    if match is None:
        return Xid("", 0, record)
    place, instances, code, rest = match.groups()
    pci = place.lower() if re.fullmatch(_PCI_ADDRESS, place) else ""
    instance = _INSTANCE.search(instances)
    return Xid(
        pci=pci,
        code=int(code),
        record=record,
        instance=str(int(instance[1])) if instance else "",
        link=_link(rest),
    )


def _link(text: str) -> str:
    """Return the number of the link that a line names; "" where it names none, or -1."""
    match = _LINK.search(text)
    if match is None or match[1].startswith("-"):
        return ""
    return str(int(match[1]))


def parse_sxids(ring: Any, journal: Any, pci: Any) -> SXids | Absent:
    """Return the SXids of the log; Absent where neither the bus nor the log shows an NVSwitch."""
    has_no_switch = not isinstance(pci, Absent) and not _has_switch(pci)
    log = parse_log(ring, journal)
    if isinstance(log, Absent):
        return _NO_SWITCH if has_no_switch else log
    events = _sxids(log.records)
    if has_no_switch and not events:
        return _NO_SWITCH
    return SXids(log, events, _sxids(log.earlier))


_NO_SWITCH = Absent("not_applicable", "no NVSwitch on the PCI bus of this node")
_SWITCH_CLASS = "0x0680"  # a bridge of another kind: NVSwitches of A100 and H100 systems


_SEVERITIES = {"Severity 0": "Non-fatal", "Severity 1": "Fatal"}  # of the line with a number


@read_once
def _has_switch(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(str(row["class"]).startswith(_SWITCH_CLASS) for row in rows)


def _sxids(records: Sequence[KernelRecord]) -> tuple[SXid, ...]:
    """Return the SXids among records.

    The driver writes three lines for each: one in words with the link, one with its severity as a
    number, and one with data. The others are taken where the one in words is lost.
    """
    in_words: dict[tuple[str, int], list[SXid]] = {}
    others: dict[tuple[str, int], SXid] = {}
    for record in records:
        match = _SXID.search(record.text)
        if match is None:
            continue
        pci = match[1].lower()
        code = int(match[2])
        said = match[3]
        if said in ("Fatal", "Non-fatal"):
            event = SXid(pci, code, said, record, _link(record.text))
            in_words.setdefault((pci, code), []).append(event)
        elif said != "Data" or (pci, code) not in others:
            severity = _SEVERITIES.get(said, "")
            others[pci, code] = SXid(pci, code, severity, record)
    events: list[SXid] = []
    for found in in_words.values():
        events += found
    for place, event in others.items():
        if place not in in_words:
            events.append(event)
    return tuple(events)


def _log_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (
        Read("kernel_log", (PHRASES, _RULES)),
        Read("kernel_journal", (DAYS, PHRASES, _RULES), limit=JOURNAL_LIMIT),
    )


def _device_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (*_log_reads(node, inventory), Read("pci", (NVIDIA,)))


JOURNAL_LIMIT = 10.0  # seconds; the reader stops by itself after four
JOURNAL = ("kernel_journal",)  # its search goes through a week of the journal
NEEDS = Needs(
    "root",
    "/dev/kmsg is root's where kernel.dmesg_restrict is 1, as most systems have it; the journal is "
    "for root and the groups adm and systemd-journal",
)
LOG = Fact(
    "log.records",
    _log_reads,
    parse_log,
    lenient=True,
    pieces=(Raw, Raw),
    needs=NEEDS,
    moves=True,
    costly=JOURNAL,
)
XIDS = Fact(
    "gpu.xids",
    _device_reads,
    parse_xids,
    lenient=True,
    pieces=(Raw, Raw, Raw),
    needs=NEEDS,
    costly=JOURNAL,
)
SXIDS = Fact(
    "gpu.sxids",
    _device_reads,
    parse_sxids,
    lenient=True,
    pieces=(Raw, Raw, Raw),
    needs=NEEDS,
    costly=JOURNAL,
)
