"""SXids: errors of NVSwitches that the driver writes to the kernel's log."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed
from clusterprep.checks.gpu_events import WEEK
from clusterprep.checks.log import DAY, judge_silence, reach_of
from clusterprep.facts.kernel_log import SXID, KernelRecord, SXid, SXids
from clusterprep.model import Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_duration
from clusterprep.remedies import sentence, shell_line

# NVIDIA's Fabric Manager user guide, table of non-fatal SXids. 22013 can be ignored, it says; the
# others are single bits that the switch has corrected, without effect on anything.
HARMLESS = frozenset(
    (
        *(22013, 11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057),
        *(19059, 19062, 19065, 19068, 19071, 24001, 24002, 24003),
    )
)
RESET = sentence(
    "the GPUs and NVSwitches of the node need a reset together: reboot it, and look at "
    "/var/log/fabricmanager.log; if it comes back, have NVIDIA's support look at the switch"
)
LOOK = shell_line(
    "dmesg | grep SXid; nvidia-smi nvlink -s; nvidia-smi nvlink -e   # a link that gets worse?"
)
Grade = Literal["fatal", "warning", "harmless"]


def grade(event: SXid) -> Grade:
    """Return how severe an SXid is, by the driver's own words; a warning where it says nothing."""
    if event.severity == "Fatal":
        return "fatal"
    if event.code in HARMLESS:
        return "harmless"
    return "warning"


def _told(seen: SXids) -> Hashable:
    """Return what is looked at: of a log that tells of none only how far it goes back."""
    reach = reach_of(seen.log)
    if seen.events or seen.earlier:
        return (seen.log.now, seen.events, seen.earlier, reach)
    return reach


def sxids(context: CheckContext, node: Node, seen: SXids) -> Iterable[Outcome]:
    """Yield a failure for each SXid that counts on a node; the harmless ones are said."""
    bad: dict[tuple[int, Grade], list[SXid]] = {}
    for event in seen.events:
        severe = grade(event)
        is_recent = seen.log.age(event.record) <= DAY
        if severe == "fatal" or (severe == "warning" and is_recent):
            bad.setdefault((event.code, severe), []).append(event)
    for (code, severe), events in bad.items():
        yield _failure(
            node,
            code,
            severe,
            events,
            seen,
        )
    if not bad:
        yield judge_silence(
            node,
            seen.log,
            WEEK,
            (SXID,),
            _describe(seen),
            "none that is fatal",
        )


def _failure(node: Node, code: int, severe: Grade, events: list[SXid], seen: SXids) -> Outcome:
    """Return the failure of all SXids of one code on a node."""
    places = [_place(event) for event in events]
    where = ", ".join(dict.fromkeys(places))
    count = sum(event.record.count for event in events)
    times = f"{count} times, " if count > 1 else ""
    text = f"SXid {code} on {where}: {times}last {_age(events, seen)} ago"
    if severe == "fatal":
        message = "an NVSwitch reports a fatal error: NVLink traffic over it has stopped"
        return failed(
            node,
            message,
            text,
            "none",
            RESET,
            "error",
        )
    message = "an NVSwitch reports an error that it calls non-fatal"
    if not any(event.severity for event in events):
        message = "an NVSwitch reports an error; the line that says how severe it is was lost"
    return failed(
        node,
        message,
        text,
        "none",
        LOOK,
        "warning",
    )


def _place(event: SXid) -> str:
    """Return the switch of an SXid with its link: «0000:06:00.0 (link 48)»."""
    return f"{event.pci} (link {event.link})" if event.link else event.pci


def _age(events: Iterable[SXid], seen: SXids) -> str:
    return format_duration(min(seen.log.age(event.record) for event in events))


def _describe(seen: SXids) -> str:
    """Return the codes that do not count, with the age of the newest of each."""
    parts = _by_code(seen.events, seen)
    before = _by_code(seen.earlier, seen)
    if before:
        parts.append(f"before the last boot: {', '.join(before)}")
    return "; ".join(parts)


def _by_code(events: Iterable[SXid], seen: SXids) -> list[str]:
    codes: dict[tuple[int, str], list[SXid]] = {}
    for event in events:
        codes.setdefault((event.code, event.severity.lower()), []).append(event)
    return [
        f"SXid {code} {severity}".rstrip() + f", last {_age(found, seen)} ago"
        for (code, severity), found in codes.items()
    ]


def _with_fault(seen: SXids) -> SXids:
    text = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    minute_ago = seen.log.now - 60
    record = KernelRecord(
        1 << 20,
        minute_ago,
        3,
        1,
        minute_ago,
        text,
    )
    return replace(
        seen,
        events=(*seen.events, SXid("0000:05:00.0", 20034, "Fatal", record, "30")),
    )


SXIDS = Check(
    "gpu.sxid",
    facts=("gpu.sxids",),
    judge=each(sxids, "gpu.sxids", parts=(Part("gpu.sxids", _told),)),
    severity="error",
    grade="fatal ones an error, others a warning",
    title="SXids of NVSwitches",
    why="An SXid is how the driver of an NVSwitch says that it met an error. After a fatal one the "
    "links over that switch carry nothing until the GPUs and switches are reset together: NCCL "
    "hangs, and programs end with Xid 45 or 74.",
    how="«nvidia-nvswitch» lines with SXid in the kernel's log since boot: /dev/kmsg, and the "
    "journal where that has lost them. Fatal ones by the driver's own word are errors until the "
    "next boot, others warnings for a day; 22013 and single bits that the switch corrected are "
    "only said. Systems of B200 and newer have no NVSwitch on the PCI bus: there gpu.xid tells.",
    remedy=shell_line("dmesg | grep SXid"),
    proof=Proof("gpu.sxids", _with_fault),
)
