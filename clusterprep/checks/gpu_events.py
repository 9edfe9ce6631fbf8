"""Xids: errors of GPUs that the driver writes to the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed
from clusterprep.checks.log import DAY, judge_silence, reach_of
from clusterprep.facts.kernel_log import OFF_THE_BUS, XID, KernelRecord, Xid, Xids
from clusterprep.model import Node, Severity
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, placed, sentence, shell_line

RESET = shell_line(
    "nvidia-smi --gpu-reset -i GPU   # with no process on it; reboot where that is refused"
)
REBOOT = sentence("this needs a reboot; and if it comes back: power cycle, reseat, replace GPU")
LINK = shell_line(
    "nvidia-smi nvlink -s -i GPU; nvidia-smi nvlink -e -i GPU"
    "   # with no process on the GPUs: systemctl restart nvidia-fabricmanager, or reboot"
)
LOOK = shell_line("nvidia-smi -q -i GPU; dmesg | grep 'NVRM: Xid'")


class Meaning(Struct, frozen=True):
    """What an Xid means: fatal until the GPU is reset, a warning for a day, or due to a program."""

    kind: Literal["fatal", "warning", "program"]
    means: str
    remedy: Remedy = LOOK


def fatal(means: str, remedy: Remedy = RESET) -> Meaning:
    return Meaning("fatal", means, remedy)


def warning(means: str, remedy: Remedy = LOOK) -> Meaning:
    return Meaning("warning", means, remedy)


def program(means: str) -> Meaning:
    return Meaning("program", means)


RECOVERY_ACTION = 154
NVLINK_CODES = range(144, 151)
WEEK = 7 * DAY

# The classes follow NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, with codes up to
# 172) by its immediate action. Fatal: reset, restart or check at once. A warning: none, and to call
# support if it repeats; or a memory error that was contained to one program, whose row waits for a
# reset. Due to a program: restart the application, or ignore. Of codes from 162 on the catalogue
# gives no action; there the class follows from what it says they mean.
CODES = {
    8: warning("the GPU stopped processing"),
    11: program("a bad command stream"),
    13: program("an exception in a kernel: usually an index out of bounds"),
    14: program("a message of the display, which is of no matter"),
    25: program("a bad command stream"),
    31: program("a memory page fault: usually an illegal address in a program"),
    32: program("a bad command stream"),
    37: program("a program gave the GPU's firmware a bad command"),
    38: warning("a watchdog of the GPU's firmware ran out"),
    **dict.fromkeys((39, 40, 41), warning("an error of a copy engine")),
    43: program("a program's channel was stopped after its own fault"),
    44: warning("a fault while programs took turns on the GPU"),
    45: program("channels were cleaned up, for a program ended or another error came first"),
    46: fatal("the GPU stopped processing"),
    48: fatal("an uncorrectable memory error"),
    54: fatal(
        "a power cable of the GPU is not connected",
        sentence("check the power cables of GPU, then reboot"),
    ),
    60: warning("an error of the video processor"),
    62: fatal("the GPU's power controller has halted"),
    63: warning("a memory row is to be remapped at the next reset", RESET),
    64: fatal("a memory row could not be remapped"),
    **dict.fromkeys((66, 67), warning("the driver accessed what it may not")),
    68: warning("an error of a video decoder"),
    69: program("an illegal command in a kernel"),
    **dict.fromkeys((70, 71, 72, 75, 76, 77, 85), warning("an error of a copy engine")),
    74: fatal("an NVLink error", LINK),
    78: warning("a virtual GPU did not start"),
    79: fatal("the GPU has fallen off the bus", REBOOT),
    80: program("a corrupted command stream"),
    82: warning("an error of an image decoder"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), warning("an error of a video decoder")),
    **dict.fromkeys((86, 139), warning("an error of the optical flow engine")),
    92: warning("many single-bit memory errors"),
    93: warning("the GPU's configuration memory was written more often than it is made for"),
    94: warning("a memory error, contained to the program that met it", RESET),
    95: fatal("a memory error that was not contained"),
    **dict.fromkeys(range(99, 106), warning("an error of an image decoder")),
    106: program("a test message of the management controller"),
    107: program("a test message of the management controller"),
    108: warning("an address could not be translated on the other end of an NVLink"),
    109: fatal("a context switch timed out"),
    110: fatal("a security fault", REBOOT),
    119: fatal("the GPU's system processor does not answer", REBOOT),
    120: fatal("the GPU's system processor has failed", REBOOT),
    121: warning("corrected errors on the link between GPU and CPU"),
    **dict.fromkeys(range(126, 136), warning("an error of a copy engine")),
    136: fatal("an NVLink did not train", LINK),
    137: warning("an illegal access over NVLink: usually a fault of a program on another GPU"),
    140: fatal("uncorrectable memory errors escaped"),
    141: warning("an error of CUDA's fast path"),
    142: warning("an error of a video encoder"),
    143: fatal("the GPU did not initialise"),
    151: fatal("a key of confidential computing was not renewed", REBOOT),
    **dict.fromkeys((152, 153), warning("an error of the deep learning accelerator")),
    155: fatal("an NVLink was shut down, by an error or by an administrator", LINK),
    156: fatal("a part of the GPU was retired and waits for a reset"),
    157: warning("a part of the GPU could not be retired"),
    158: fatal("a fatal timeout"),
    159: warning("an error on the bus between GPU and CPU"),
    160: warning("a memory channel was retired"),
    161: warning("a memory channel could not be retired"),
    162: program("the power smoothing circuit is on again"),
    163: program("the power smoothing circuit is off"),
    164: warning("the power smoothing circuit is nearly worn out"),
    165: warning("the power smoothing circuit is worn out"),
    166: warning("data came over an NVLink before its encryption was set up"),
    167: fatal("a fatal timeout of PCIe", REBOOT),
    168: warning("the GPU has less memory: errors in its protected region"),
    169: fatal("the GPU's security processor has halted", REBOOT),
    170: warning("an NVLink interrupt in confidential computing"),
    171: fatal("an uncorrectable error of the GPU's memory"),
    172: fatal("an uncorrectable error of the memory within the GPU's chip"),
    **dict.fromkeys(NVLINK_CODES, fatal("an NVLink error", LINK)),  # but see meaning()
}
UNKNOWN = warning("an error that this version has no words for: see NVIDIA's Xid catalogue")
UNUSED = warning("an error that NVIDIA's Xid catalogue lists as unused: ask NVIDIA's support")
LAST_CODE = 172  # of the catalogue

# Actions of Xid 154 by nvmlDeviceGpuRecoveryAction_t of nvml.h 13.5. Their words differ from driver
# to driver: 2 is «Node Reboot Required», from 610 on «OS Reboot».
NO_ACTION, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET = range(5)
BUS_RESET, SYSTEM_REBOOT = 6, 7
RECOVERIES = {
    NO_ACTION: program("no recovery is needed"),
    GPU_RESET: fatal("the driver asks for a reset of the GPU", RESET),
    NODE_REBOOT: fatal("the driver asks for a reboot", REBOOT),
    DRAIN_P2P: warning("the driver asks to end what other GPUs do with this one"),
    DRAIN_AND_RESET: fatal("the driver asks to end all work on the GPU and to reset it", RESET),
    BUS_RESET: fatal("the driver asks for a reset of the GPU's bus", REBOOT),
    SYSTEM_REBOOT: fatal("the driver asks for a reboot", REBOOT),
}
_ACTION = re.compile(r" to 0x([0-9a-fA-F]+) \(")


def meaning(event: Xid) -> Meaning:
    """Return what an Xid means by its code; the text of some codes says how severe they are."""
    text = event.record.text
    if event.code in NVLINK_CODES and "onfatal" in text.replace("-", ""):
        return warning("an NVLink error that was recovered", LINK)
    if event.code == RECOVERY_ACTION:
        return _recovery(text)
    unlisted = UNUSED if 0 < event.code <= LAST_CODE else UNKNOWN
    return CODES.get(event.code, unlisted)


def _recovery(text: str) -> Meaning:
    """Parse «GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)»."""
    match = _ACTION.search(text)
    asked = warning("the driver asks for a recovery")
    if match is None:
        return asked
    return RECOVERIES.get(int(match[1], 16), asked)


Judged = list[tuple[Xid, Meaning]]
EventsByMeaning = dict[tuple[str, Meaning], list[Xid]]
"""Name and meaning → the Xids that have them."""


def _told(seen: Xids) -> Hashable:
    """Return what is looked at: of a log that tells of none only how far it goes back."""
    reach = reach_of(seen.log)
    if seen.events or seen.earlier:
        return (seen.log.now, seen.events, seen.earlier, reach)
    return reach


def xids(context: CheckContext, node: Node, seen: Xids) -> Iterable[Outcome]:
    """Yield a failure for each bad code on a node; those due to a program are shown, and pass."""
    wanted = "none that is fatal"
    judged = [(event, meaning(event)) for event in seen.events]
    bad = _group_by_meaning(_current(judged, seen))
    for (name, means), events in bad.items():
        yield _failure(
            node,
            name,
            means,
            events,
            seen,
        )
    if bad:
        return
    parts = _describe_events(judged, seen)
    before = _describe_events([(event, meaning(event)) for event in seen.earlier], seen)
    if before:
        parts.append(f"before the last boot: {', '.join(before)}")
    yield judge_silence(node, seen.log, WEEK, (XID, OFF_THE_BUS), "; ".join(parts), wanted)


def _current(judged: Judged, seen: Xids) -> Judged:
    """Return the fatal Xids since boot, and the warnings of the last day."""
    current = []
    for event, means in judged:
        is_recent = seen.log.age(event.record) <= DAY
        if means.kind == "fatal" or (means.kind == "warning" and is_recent):
            current.append((event, means))
    return current


def _group_by_meaning(judged: Judged) -> EventsByMeaning:
    groups: EventsByMeaning = {}
    for event, means in judged:
        groups.setdefault((_name(event), means), []).append(event)
    return groups


def _name(event: Xid) -> str:
    """Return «Xid 79», or what the driver wrote in its place."""
    if event.named_by:
        return f"Xid {event.code}, named by Xid {event.named_by} as its cause,"
    if not event.printed:
        return "«fallen off the bus», without an Xid,"
    return f"Xid {event.code or '?'}"


def _failure(node: Node, name: str, means: Meaning, events: list[Xid], seen: Xids) -> Outcome:
    """Return the failure of all Xids of one name on a node; `seen` has the log's times."""
    gpus = list(dict.fromkeys(event.pci for event in events if event.pci))
    newest = _newest(events)
    age = format_duration(seen.log.age(newest))
    count = sum(event.record.count for event in events)
    times = f"{count} times, " if count > 1 else ""
    places = [place for event in events if (place := _place(event))]
    where = ", ".join(dict.fromkeys(places)) or f"«{newest.text[:80]}»"
    text = f"{name} on {where}: {times}last {age} ago"
    severity: Severity = "error" if means.kind == "fatal" else "warning"
    remedy = placed(means.remedy, GPU=_bus_id(gpus))
    return failed(
        node,
        means.means,
        text,
        "none",
        remedy,
        severity,
    )


def _place(event: Xid) -> str:
    """Return where an Xid was: «0000:01:00 (GPU instance 5)», «0018:01:00 (link 13)»."""
    parts = []
    if event.instance:
        parts.append(f"GPU instance {event.instance}")
    if event.link:
        parts.append(f"link {event.link}")
    if not parts or not event.pci:
        return event.pci
    return f"{event.pci} ({', '.join(parts)})"


def _bus_id(gpus: list[str]) -> str:
    """Return the PCI address of the first GPU with its function, as nvidia-smi takes it."""
    if not gpus:
        return ""
    first = gpus[0]
    return first if "." in first else f"{first}.0"


def _describe_events(judged: Judged, seen: Xids) -> list[str]:
    """Return each code with its meaning and the age of the newest Xid."""
    parts = []
    for (name, means), events in _group_by_meaning(judged).items():
        age = format_duration(seen.log.age(_newest(events)))
        parts.append(f"{name.rstrip(',')}: {means.means}, last {age} ago")
    return parts


def _newest(events: Iterable[Xid]) -> KernelRecord:
    newest = max(events, key=lambda event: event.record.seconds)
    return newest.record


def _with_lost_gpu(seen: Xids) -> Xids:
    text = (
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, "
        "GPU has fallen off the bus."
    )
    minute_ago = seen.log.now - 60
    record = KernelRecord(
        1 << 20,
        minute_ago,
        3,
        1,
        minute_ago,
        text,
    )
    xid = Xid("0000:1b:00", 79, record)
    return replace(seen, events=(*seen.events, xid))


XIDS = Check(
    "gpu.xid",
    facts=("gpu.xids",),
    judge=each(xids, "gpu.xids", parts=(Part("gpu.xids", _told),)),
    severity="error",
    grade="fatal ones an error, others a warning",
    title="Xids of the NVIDIA driver",
    why="An Xid is how the driver says that a GPU met an error. After a fatal one the GPU is lost "
    "or its memory is not to be trusted until a reset: ranks on it hang, end, or compute wrong "
    "sums.",
    how="«NVRM: Xid» and «fallen off the bus» in the kernel's log since boot: /dev/kmsg, and the "
    "journal where that has lost them. Fatal ones by the classes of NVIDIA's Xid catalogue are "
    "errors until the next boot, contained and unknown ones warnings for a day, those that "
    "programs cause are only said, as are those of earlier boots within a week. One that another "
    "Xid names as its cause counts too. What is not in the log is unknown, unless it goes back to "
    "the boot or a week.",
    remedy=shell_line("dmesg | grep 'NVRM: Xid'"),
    proof=Proof("gpu.xids", _with_lost_gpu),
)
