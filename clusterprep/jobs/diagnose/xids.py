"""Reads Xids and SXids, the numbered errors of GPUs and NVSwitches, from lines of logs.

What each number means stands in checks/gpu_events.py and checks/gpu_sxid.py, as for `check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from clusterprep.checks.gpu_events import meaning
from clusterprep.checks.gpu_sxid import grade
from clusterprep.facts.kernel_log import Xid, record_of, sxids_in, xids_in
from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Weight

NEEDLES = ("nvrm: xid", "xidcriticalerror", "sxid (pci")
_CAUSE = "gpu_hardware_fault"
_DAY = 24 * 3600.0  # seconds
_OLD = "it was more than a day before the job"
# Xids whose words say that hardware failed: memory errors, NVLink, the bus. Other fatal ones tell
# that the GPU or its firmware stopped, for which there are more reasons.
_PLAIN = frozenset({48, 64, 74, 79, 94, 95, 140, 171, 172})
# A warning to `check`, as no other program suffers; but the one that met the error has ended.
_ENDS_THE_PROGRAM = 94
# «device marked unhealthy: XidCriticalError: Xid=48 on Device=GPU-8f1d2b0e, …», as the device
# plug-in for Kubernetes says it.
_UNHEALTHY = re.compile(
    r"XidCriticalError: Xid=(?P<code>\d{1,4})(?: on Device=(?P<gpu>[\w-]+)|, All devices)"
)


def detect_xids(log: LogFile) -> Iterator[Evidence]:
    """Yield the Xids and SXids that tell of hardware, not those of programs and of nothing lost.

    One of more than a day before the job's own lines proves nothing of this job.
    """
    begins = _begin_of_job(log)
    for line in log.lines_with(*NEEDLES):
        is_old = begins is not None and line.time is not None and line.time < begins - _DAY
        for piece in _of_line(line):
            yield replace(piece, weight=Weight.SYMPTOM, note=_OLD) if is_old else piece


def _begin_of_job(log: LogFile) -> float | None:
    """Return the time of the first line that no kernel wrote, in seconds as lines have it."""
    times = [
        line.time
        for line in log.lines
        if line.time is not None and " kernel: " not in line.text and "NVRM" not in line.text
    ]
    return min(times, default=None)


def _of_line(line: LogLine) -> Iterator[Evidence]:
    for event in _xids(line):
        yield from _judged(event, line)
    for switch in sxids_in(line.message):
        if grade(switch) != "fatal":
            continue
        name = _placed(switch.pci, line)
        note = f"SXid {switch.code}, which the driver calls fatal"
        yield Evidence(_CAUSE, line, Weight.LIKELY, (("NVSwitch", name),), note)


def _xids(line: LogLine) -> tuple[Xid, ...]:
    match = _UNHEALTHY.search(line.message)
    if match is None:
        return xids_in(line.message)
    return (Xid(match["gpu"] or "", int(match["code"]), record_of(line.message)),)


def _judged(event: Xid, line: LogLine) -> Iterator[Evidence]:
    means = meaning(event)
    if means.kind != "fatal" and event.code != _ENDS_THE_PROGRAM:
        return
    weight = Weight.PLAIN if event.code in _PLAIN else Weight.LIKELY
    culprits: Culprits = ()
    if event.pci:
        instance = f" (GPU instance {event.instance})" if event.instance else ""
        culprits = (("GPU", _placed(event.pci + instance, line)),)
    note = f"Xid {event.code}: {means.means}"
    yield Evidence(
        _CAUSE,
        line,
        weight,
        culprits,
        note,
    )


def _placed(device: str, line: LogLine) -> str:
    """Return the device with its host: «0000:5d:00 on n8»."""
    return f"{device} on {line.host}" if line.host else device
