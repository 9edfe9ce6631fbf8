"""Judges what the kernel's log says about memory, disks, adapters and the kernel itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.facts.kernel_log import (
    LIMITED,
    NO_POWER,
    OFF_THE_BUS,
    PCI_PHRASES,
    PHRASES,
    SXID,
    XFS_PHRASES,
    XID,
    KernelLog,
    KernelRecord,
)
from clusterprep.facts.parts import read_text_once
from clusterprep.model import Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, placed, shell_line

DAY = 86400.0  # seconds
# What ended at a limit of its own says less of the node: it tells those who start the same again.
HALF_A_DAY = DAY / 2
MOST_DEVICES = 8  # that are named of one kind


class LogKind(Struct, frozen=True):
    """A kind of complaint: the pattern of its records, what it means, and its remedy.

    NAME in the remedy is replaced by what the pattern `named` finds in the record: the device.
    Where the kernel writes several lines of one event, each form is a group of `pattern`, and only
    the form with most lines is counted. `unless` names kinds that tell the same with more detail.

    What is over after it happened (a task that was killed, a CPU that was stuck) counts for a day:
    an OOM of three weeks ago says nothing of tomorrow's job. With `stays` it counts as long as the
    kernel has run: a damaged file system or a faulty kernel stays so until an administrator acts.
    `counts_for` is another time than a day, in seconds.
    """

    name: str
    pattern: re.Pattern[str]
    means: str
    remedy: Remedy
    stays: bool = False
    named: re.Pattern[str] | None = None
    unless: tuple[str, ...] = ()
    counts_for: float = DAY

    def device(self, text: str) -> str:
        """Return the device that a record with this text names, "" if none."""
        match = self.named.search(text) if self.named else None
        return match[1] if match else ""

    def cure(self, text: str) -> Remedy:
        """Return the remedy for a record with this text."""
        device = self.device(text)
        if not device:
            return self.remedy
        return placed(self.remedy, NAME=device)


def _kind(
    name: str,
    pattern: str,
    means: str,
    remedy: Remedy,
    *,
    stays: bool = False,
    named: str | None = None,
    **more: Any,
) -> LogKind:
    """Return a kind of complaint; its patterns are given as text, `more` as it is."""
    compiled = re.compile(pattern)
    name_pattern = None
    if named is not None:
        name_pattern = re.compile(named)
    return LogKind(
        name,
        compiled,
        means,
        remedy,
        stays,
        name_pattern,
        **more,
    )


KINDS = (
    _kind(
        "soft lockup",
        r"soft lockup - CPU",
        "a CPU ran kernel code for 20 s without a pause",
        shell_line("dmesg | grep -A30 'soft lockup'   # the driver in its call trace"),
    ),
    _kind(
        "hard lockup",
        r"hard LOCKUP",
        "a CPU did not even take interrupts",
        shell_line(
            "dmesg | grep -A30 'hard LOCKUP'; ipmitool sel list   "
            "# firmware or hardware: reboot, then burn in"
        ),
    ),
    _kind(
        "RCU stall",
        r"detected stall",
        "a CPU did not let the kernel go on",
        shell_line(
            "dmesg | grep -A30 'detected stall'   # a virtual machine without CPU time, or a driver"
        ),
    ),
    _kind(
        "hung task",
        r"blocked for more than \d+ seconds",
        "tasks waited in the kernel for minutes",
        shell_line(
            "dmesg | grep -A20 'blocked for more than'"
            "   # the file server or driver in the call trace"
        ),
    ),
    # Kernels 4.18 to 6.12 (mm/oom_kill.c, oom_kill_process and dump_oom_victim): the line that
    # begins with oom-kill since 5.0; «Kill process … or sacrifice child» until 5.2, «Killed
    # process» since.
    _kind(
        "out of memory",
        r"(^Out of memory(?: \(oom_kill_allocating_task\))?: Kill)"
        r"|(^oom-kill:constraint=(?!CONSTRAINT_MEMCG))",
        "the node ran out of memory, and the kernel killed a process",
        shell_line(
            "dmesg | grep 'Out of memory'; free -h   # fewer data loader workers, or look for leaks"
        ),
    ),
    _kind(
        "limit of memory",
        r"(emory cgroup out of memory: Kill)|(^oom-kill:constraint=CONSTRAINT_MEMCG)"
        r"|(killed as a result of limit of)",
        "a container or job reached its own limit of memory, and the kernel killed a process of "
        "it: the node itself is not short of memory",
        shell_line(
            "dmesg | grep -e oom-kill -e 'emory cgroup out of memory'"
            "   # a higher limit for this container or job, or less memory used in it"
        ),
        counts_for=HALF_A_DAY,
    ),
    _kind(
        "killed for memory",
        r"(invoked oom-killer)|(^oom_reaper: reaped process)",
        "the kernel killed a process for memory; the log does not have the line that says whether "
        "the node or a container was short of it",
        shell_line("dmesg | grep -A60 'invoked oom-killer'; free -h"),
        unless=("out of memory", "limit of memory"),
    ),
    _kind(
        "machine check",
        r"Machine Check Exception|Machine check events logged"
        r"|event severity: (?:fatal|recoverable)",
        "the processor or its memory reported an error",
        shell_line("ras-mc-ctl --errors; ipmitool sel list"),
    ),
    _kind(
        "memory error",
        r"(Uncorrected hardware)|(Memory failure: 0x)|(^EDAC .*\bUE )",
        "memory lost data",
        shell_line("ras-mc-ctl --errors; ipmitool sel list   # replace the DIMM"),
        stays=True,
        named=r"^EDAC .*\bUE .*? on (.+?) \(",
    ),
    _kind(
        "I/O error",
        r"(?:critical medium error|I/O error)(?: on)?,? dev(?:ice)? (?!sr\d|fd\d|loop\d)",
        "a disk did not read or write",
        shell_line("smartctl -a /dev/NAME   # replace the disk when the count grows"),
        named=r" dev(?:ice)? ([\w-]+)",
    ),
    _kind(
        "file system error",
        r"EXT4-fs error|Remounting filesystem read-only|etadata corruption detected"
        r"|Corruption of in-memory data|XFS_WANT_CORRUPTED|xfs_do_force_shutdown|forced readonly|"
        + "|".join(rf"XFS \(.*{re.escape(phrase)}" for phrase in XFS_PHRASES),
        "a file system is damaged",
        shell_line("dmesg | grep NAME   # then umount it, fsck or xfs_repair, and mount it again"),
        stays=True,
        named=r"\((?:device )?([\w-]+)(?:\)|:? state )",
    ),
    _kind(
        "NVMe timeout",
        r"^nvme.*(?:QID \d+ timeout|controller is down)",
        "an NVMe disk did not answer",
        shell_line("nvme smart-log /dev/NAME; nvme error-log /dev/NAME   # firmware, or its slot"),
        named=r"^nvme (nvme\d+)",
    ),
    _kind(
        "adapter health",
        r"mlx5.*health compromised",
        "the firmware of a network adapter has failed",
        shell_line(
            "mlxfwreset -d NAME query"
            "   # then its reset or a cold boot, with no job there; then its firmware"
        ),
        stays=True,
        named=r"mlx5_core ([0-9a-f:.]+\d)",
    ),
    _kind(
        "kernel fault",
        r"(?:^|: )BUG: (?!soft lockup|workqueue lockup)|kernel BUG at|Oops: "
        r"|^general protection fault|Unable to handle kernel|Kernel panic",
        "the kernel has stumbled, and what it held then stays locked",
        shell_line("dmesg | grep -A40 -e BUG -e Oops   # then reboot"),
        stays=True,
    ),
)

# What other checks look for in the log.
_OF_OTHERS = (XID, SXID, OFF_THE_BUS, NO_POWER, LIMITED, *PCI_PHRASES)
_PHRASES = tuple(phrase for phrase in PHRASES if phrase not in _OF_OTHERS)


def complaints(context: CheckContext, node: Node, log: KernelLog) -> Iterable[Outcome]:
    """Yield a failure for each kind of complaint that still counts, else what the log covers."""
    fails = False
    summaries = []
    told: set[str] = set()
    by_kind = _by_kind(log.records)
    for kind in KINDS:
        records = by_kind.get(kind.name)
        if not records or any(name in told for name in kind.unless):
            continue
        told.add(kind.name)
        newest = records[-1]
        summary = _summarize(kind, records, log)
        summaries.append(summary)
        if kind.stays or log.age(newest) <= kind.counts_for:
            fails = True
            yield failed(
                node,
                kind.means,
                summary,
                "none",
                kind.cure(newest.text),
            )
    if not fails:
        text = "; ".join((*summaries, *_before_boot(log)))
        yield judge_silence(node, log, DAY, _PHRASES, text)


def _before_boot(log: KernelLog) -> list[str]:
    """Return what was complained of before the last boot: it is told, and counts no more."""
    before = []
    by_kind = _by_kind(log.earlier)
    for kind in KINDS:
        records = by_kind.get(kind.name)
        if records:
            newest = max(records, key=lambda record: record.seconds)
            before.append(f"{kind.name} {format_duration(log.age(newest))} ago")
    return [f"before the last boot: {', '.join(before)}"] if before else []


def _complained_of(log: KernelLog) -> Hashable:
    """Return what is looked at of a log: of one without complaints only how far it goes back."""
    if any(_kinds_of(record.text) for record in (*log.records, *log.earlier)):
        return (log.now, log.records, log.earlier, reach_of(log))
    return reach_of(log)


def reach_of(log: KernelLog) -> Hashable:
    """Return all that `judge_silence` looks at of a log."""
    window = None if log.whole else log.window
    return (window, log.no_journal, *log.cut.items())


def judge_silence(
    node: Node,
    log: KernelLog,
    enough: float,
    phrases: Collection[str],
    seen: str,
    wanted: str = "none within a day",
) -> Outcome:
    """Judge a log without complaints: a pass if it goes back far enough, else unknown.

    Far enough is to the boot, or `enough` seconds. `phrases` are those that the check looks for.
    """
    window = format_duration(log.window)
    message = ""
    left_out = sum(count for phrase, count in log.cut.items() if phrase in phrases)
    if left_out:
        message = f"{left_out} lines were left out: too many kinds of them"
        cure = shell_line("journalctl -k -b")
    elif log.window < enough and not log.whole:
        message = f"the log goes back {window} only: what was before has been overwritten"
        if log.no_journal:
            message = f"{message}, and the journal tells nothing: {log.no_journal}"
        cure = shell_line("journalctl -k -b   # and log_buf_len=4M on the kernel's command line")
    if message:
        return unknown(
            node,
            message,
            "truncated",
            seen,
            wanted,
            cure,
        )
    reach = "since boot" if log.whole else f"for {window}, as far as the log goes back"
    return passed(node, f"nothing that matters {reach}", seen or "none", wanted)


def _by_kind(records: Iterable[KernelRecord]) -> dict[str, list[KernelRecord]]:
    """Return the records of each kind of complaint by its name, the newest last."""
    by_kind: dict[str, list[KernelRecord]] = {}
    for record in records:
        for name in _kinds_of(record.text):
            by_kind.setdefault(name, []).append(record)
    for records_of_kind in by_kind.values():
        records_of_kind.sort(key=lambda record: record.seconds)
    return by_kind


@read_text_once  # nodes that are alike have the same lines in their logs
def _kinds_of(text: str) -> tuple[str, ...]:
    """Return the names of the kinds of complaint that a line of the log is."""
    return tuple(kind.name for kind in KINDS if kind.pattern.search(text))


def _summarize(kind: LogKind, records: list[KernelRecord], log: KernelLog) -> str:
    """Return «name: 3 times, last 5 min ago, «text»; also sdb»; `records` has the newest last."""
    newest = records[-1]
    text = newest.text[:120]
    age = format_duration(log.age(newest))
    last = f"last {age} ago, «{text}»"
    count = _count(kind, records)
    if count > 1:
        last = f"{count} times, {last}"
    return f"{kind.name}: {last}{_other_devices(kind, records, text)}"


def _count(kind: LogKind, records: list[KernelRecord]) -> int:
    """Return how often it happened: of several forms of line, that with most lines counts."""
    counts: Counter[int | None] = Counter()
    for record in records:
        match = kind.pattern.search(record.text)
        counts[match.lastindex if match else None] += record.count
    return max(counts.values())


def _other_devices(kind: LogKind, records: list[KernelRecord], shown: str) -> str:
    """Return «; also sdb, sdc»: the devices of the records, newest first, that are not shown."""
    named = [kind.device(record.text) for record in reversed(records)]
    inside = kind.device(shown)
    others = [name for name in dict.fromkeys(named) if name and name != inside]
    if not others:
        return ""
    more = len(others) - MOST_DEVICES
    rest = f" and {more} more" if more > 0 else ""
    return f"; also {', '.join(others[:MOST_DEVICES])}{rest}"


KERNEL = Check(
    "log.kernel",
    facts=("log.records",),
    judge=each(complaints, "log.records", parts=(Part("log.records", _complained_of),)),
    severity="warning",
    title="Complaints of the kernel",
    why="Before a node fails its kernel says so: a disk that stops answering, memory that loses "
    "data, a driver that locks up. The job sees a hang, hours later.",
    how="The kernel's messages since boot: /dev/kmsg, and the journal where that has lost them. "
    "Lines that processes wrote there do not count. What is over counts for a day, a task killed "
    "at the limit of its own container for half a day, damage and faults of the kernel itself "
    "until the next boot; what an earlier boot said within a week is told. Silence counts where "
    "the log goes back to the boot or a day.",
    remedy=shell_line("dmesg -T --level=emerg,alert,crit,err"),
    proof=Proof("log.records", lambda log: replace(log, records=(*log.records, _hung_task(log)))),
)


def _hung_task(log: KernelLog) -> KernelRecord:
    text = "INFO: task python3:4711 blocked for more than 120 seconds."
    return KernelRecord(
        1 << 20,
        log.now - 60,
        3,
        1,
        log.now - 60,
        text,
    )
