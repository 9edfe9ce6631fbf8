"""Xids: errors of GPUs that the driver writes to the kernel's log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from clusterprep.checks import Check, CheckContext, Outcome, Proof, failed, unknown
from clusterprep.checks.log import DAY, judge_silence
from clusterprep.facts.kernel_log import XID, KernelRecord, Xid, Xids
from clusterprep.model import Node, Severity
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, placed, sentence, shell_line
from clusterprep.runtime.lazy_dataclass import dataclass

RESET = shell_line(
    "nvidia-smi --gpu-reset -i GPU   # with no process on it; reboot where that is refused"
)
REBOOT = sentence("this needs a reboot; and if it comes back: power cycle, reseat, replace GPU")
LINK = shell_line(
    "nvidia-smi nvlink -s -i GPU; nvidia-smi nvlink -e -i GPU"
    "   # with no process on the GPUs: systemctl restart nvidia-fabricmanager, or reboot"
)
LOOK = shell_line("nvidia-smi -q -i GPU; dmesg | grep 'NVRM: Xid'")


@dataclass(frozen=True)
class Meaning:
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

# The classes follow NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors. Fatal: the catalogue
# asks to reset, restart or check at once. Due to a program: it asks to restart the application; a
# warning if it asks to call support when that does not help. 94 is contained to one program, and
# its row waits for a reset.
CODES = {
    8: warning("the GPU stopped processing"),
    11: program("a bad command stream"),
    13: program("an exception in a kernel: usually an index out of bounds"),
    25: program("a bad command stream"),
    31: program("a memory page fault: usually an illegal address in a program"),
    32: program("a bad command stream"),
    43: program("a program's channel was stopped after its own fault"),
    45: program("channels were cleaned up, for a program ended or another error came first"),
    46: fatal("the GPU stopped processing"),
    48: fatal("an uncorrectable memory error"),
    54: fatal(
        "a power cable of the GPU is not connected",
        sentence("check the power cables of GPU, then reboot"),
    ),
    62: fatal("the GPU's power controller has halted"),
    63: warning("a memory row is to be remapped at the next reset", RESET),
    64: fatal("a memory row could not be remapped"),
    69: program("an illegal command in a kernel"),
    74: fatal("an NVLink error", LINK),
    78: warning("a virtual GPU did not start"),
    79: fatal("the GPU has fallen off the bus", REBOOT),
    80: program("a corrupted command stream"),
    92: warning("many single-bit memory errors"),
    94: warning("a memory error, contained to the program that met it", RESET),
    95: fatal("a memory error that was not contained"),
    106: program("a test message of the management controller"),
    107: program("a test message of the management controller"),
    109: fatal("a context switch timed out"),
    110: fatal("a security fault", REBOOT),
    119: fatal("the GPU's system processor does not answer", REBOOT),
    120: fatal("the GPU's system processor has failed", REBOOT),
    121: warning("an error on the link between GPU and CPU"),
    136: fatal("an NVLink did not train", LINK),
    137: warning("an illegal access over NVLink: usually a fault of a program on another GPU"),
    140: fatal("uncorrectable memory errors escaped"),
    143: fatal("the GPU did not initialise"),
    151: fatal("a key of confidential computing was not renewed", REBOOT),
    155: fatal("an NVLink was shut down", LINK),
    156: fatal("a part of the GPU was retired and waits for a reset"),
    157: warning("a part of the GPU could not be retired"),
    158: fatal("a fatal timeout"),
    162: program("the power smoothing circuit is on again"),
    163: program("the power smoothing circuit is off"),
    **dict.fromkeys(NVLINK_CODES, fatal("an NVLink error", LINK)),  # but see meaning()
}
UNKNOWN = warning("an error that this version has no words for: see NVIDIA's Xid catalogue")


def meaning(event: Xid) -> Meaning:
    """Return what an Xid means by its code; the text of some codes says how severe they are."""
    text = event.record.text
    if event.code in NVLINK_CODES and "onfatal" in text.replace("-", ""):
        return warning("an NVLink error that was recovered", LINK)
    if event.code == RECOVERY_ACTION:
        return _recovery(text)
    return CODES.get(event.code, UNKNOWN)


def _recovery(text: str) -> Meaning:
    """Parse «GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)»."""
    action = text.rpartition(" to ")[2]
    if "Required" in action and "Reboot" in action:
        return fatal("the driver asks for a reset", REBOOT)
    if "Required" in action and "Reset" in action:
        return fatal("the driver asks for a reset", RESET)
    if "(None)" in action:
        return program("no recovery is needed")
    return warning("the driver asks for a recovery")


Judged = list[tuple[Xid, Meaning]]
EventsByMeaning = dict[tuple[int, Meaning], list[Xid]]
"""Code and meaning → the Xids that have them."""


def xids(context: CheckContext) -> Iterable[Outcome]:
    """Yield a failure for each bad code on a node; those due to a program are shown, and pass."""
    wanted = "none that is fatal"
    for node in context.nodes:
        seen: Xids = context.value(node, "gpu.xids")
        judged = [(event, meaning(event)) for event in seen.events]
        bad = _group_by_meaning(_current(judged, seen))
        for (code, means), events in bad.items():
            yield _failure(
                node,
                code,
                means,
                events,
                seen,
            )
        if bad:
            continue
        text = _describe_events(judged, seen)
        left_out = seen.log.cut.get(XID)
        if left_out:
            message = f"{left_out} older Xids were left out, for there are very many"
            yield unknown(
                node,
                message,
                "truncated",
                text,
                wanted,
            )
        else:
            yield judge_silence(node, seen.log, text, wanted)


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
        groups.setdefault((event.code, means), []).append(event)
    return groups


def _failure(node: Node, code: int, means: Meaning, events: list[Xid], seen: Xids) -> Outcome:
    """Return the failure of all Xids of one code on a node; `seen` has the log's times."""
    gpus = list(dict.fromkeys(event.pci for event in events if event.pci))
    newest = _newest(events)
    age = format_duration(seen.log.age(newest))
    count = sum(event.record.count for event in events)
    times = f"{count} times, " if count > 1 else ""
    where = ", ".join(gpus) or f"«{newest.text[:80]}»"
    text = f"Xid {code or '?'} on {where}: {times}last {age} ago"
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


def _bus_id(gpus: list[str]) -> str:
    """Return the PCI address of the first GPU with its function, as nvidia-smi takes it."""
    if not gpus:
        return ""
    first = gpus[0]
    return first if "." in first else f"{first}.0"


def _describe_events(judged: Judged, seen: Xids) -> str:
    """Return each code with its meaning and the age of the newest Xid."""
    parts = []
    for (code, means), events in _group_by_meaning(judged).items():
        age = format_duration(seen.log.age(_newest(events)))
        parts.append(f"Xid {code}: {means.means}, last {age} ago")
    return "; ".join(parts)


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
    judge=xids,
    severity="error",
    grade="fatal ones an error, others a warning",
    title="Xids of the NVIDIA driver",
    why="An Xid is how the driver says that a GPU met an error. After a fatal one the GPU is lost "
    "or its memory is not to be trusted until a reset: ranks on it hang, end, or compute wrong "
    "sums.",
    how="«NVRM: Xid» in /dev/kmsg since boot, by the classes of NVIDIA's Xid catalogue: fatal "
    "ones are errors until the next boot, contained and unknown ones warnings for a day, those "
    "that programs cause are only said.",
    remedy=shell_line("dmesg | grep 'NVRM: Xid'"),
    proof=Proof("gpu.xids", _with_lost_gpu),
)
