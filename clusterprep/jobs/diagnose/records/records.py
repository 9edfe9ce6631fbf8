"""The values that are read of a hanging job's records, and the evidence of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO

from msgspec import Struct, field

from clusterprep.jobs.diagnose.model import Evidence, LogFile, LogLine
from clusterprep.jobs.diagnose.records import ras, stacks, waiting
from clusterprep.jobs.diagnose.records.flight_recorder import Dump
from clusterprep.jobs.diagnose.records.ras import RasReport
from clusterprep.jobs.diagnose.records.stacks import ProcessStack

NEEDLES = (*ras.NEEDLES, *stacks.NEEDLES)  # of records that stand in logs


class Records(Struct, frozen=True):
    """What was read of files that are no logs, and the files that are."""

    logs: tuple[str, ...] = ()
    stdin: BinaryIO | None = None
    dumps: tuple[Dump, ...] = ()
    reports: tuple[RasReport, ...] = ()
    processes: tuple[ProcessStack, ...] = ()
    notices: tuple[str, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict)  # number of lines read, by file

    @property
    def lines(self) -> tuple[LogLine, ...]:
        """Return one line for each record, which stands for it in the diagnosis."""
        lines = [dump.line for dump in self.dumps]
        lines += [process.line for process in self.processes]
        for report in self.reports:
            lines += report.lines
        return tuple(lines)


def evidence(log: LogFile, records: Records) -> Iterator[Evidence]:
    """Yield what records prove: those that stand in logs, and those in files of their own."""
    yield from waiting.evidence(records.dumps)
    yield from ras.evidence([*records.reports, *ras.reports_of(log)], log)
    yield from stacks.evidence([*records.processes, *stacks.processes_of(log)])
