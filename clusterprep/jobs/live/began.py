"""What the kernels of a job's nodes said since the job began. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.kernel_log import KernelLog
from clusterprep.jobs.live.model import Job, NodeLook
from clusterprep.model import Absent
from clusterprep.model.units import format_duration
from clusterprep.survey.watch.changes import Change, folded
from clusterprep.survey.watch.kernel_news import LONGEST, MOST_LINES


def since_began(
    jobs: Iterable[Job],
    looks: Mapping[str, NodeLook],
    logs: Mapping[str, KernelLog | Absent],
) -> tuple[Change, ...]:
    """Return the lines of each node's log that are newer than its first rank, and what is unknown.

    A node that is not in `logs` was not asked.
    """
    started: dict[str, float] = {}  # seconds after the boot of each node
    for job in jobs:
        for rank in job.ranks:
            seconds = rank.process.started / looks[rank.node].hz
            started[rank.node] = min(seconds, started.get(rank.node, seconds))
    changes = []
    for node, seconds in started.items():
        log = logs.get(node)
        if isinstance(log, KernelLog):
            changes += _of_node(node, log, seconds)
        else:
            why = "it was not asked" if log is None else f"{log.reason}: {log.detail}"
            message = f"what the kernel said since the job began is not known ({why})"
            changes.append(Change("unknown", (node,), message=message))
    return folded(changes)


def _of_node(node: str, log: KernelLog, started: float) -> list[Change]:
    """Return the newest lines since a process started; the ring may have lost older ones."""
    changes = []
    if not log.whole and log.first_seconds > started:
        missing = format_duration(round(log.first_seconds - started))
        message = f"the kernel's log does not have the first {missing} of the job any more"
        changes.append(Change("unknown", (node,), message=message))
    records = [record for record in log.records if record.seconds >= started]
    records.sort(key=lambda record: record.number)
    if records:
        lines = tuple(record.text[:LONGEST] for record in records[-MOST_LINES:])
        changes.append(
            Change(
                "since",
                (node,),
                message="the kernel's log has lines since the job began",
                lines=lines,
                left_out=len(records) - len(lines),
            )
        )
    return changes
