"""New lines of the kernels' logs, by what each node's log had in the look before. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts.host import BOOT_ID
from clusterprep.facts.kernel_log import LOG, SXIDS, XIDS, KernelLog
from clusterprep.model import Absent

FACTS = (LOG.name, XIDS.name, SXIDS.name)
MOST_LINES = 5  # of one node in one look; a storm of lines is told by its newest
LONGEST = 200  # characters of a line


class News(Struct, frozen=True):
    """The newest lines that a node's log has since the look before, and how many more there are."""

    lines: tuple[str, ...]
    left_out: int = 0


class KernelNews:
    """The number of the last line that was seen of each node's log, in which boot."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, int]] = {}

    def look(self, node: str, facts: Mapping[str, Any]) -> News | None:
        """Take the facts of a look at a node, and return what is new; None if nothing is.

        What the log had at the first look is not new. Of a node that has booted since, all is.
        """
        log = _log_of(facts)
        boot = facts.get(BOOT_ID.name)
        if log is None or isinstance(boot, Absent):
            return None
        known_boot, last = self._last.get(node, (boot, None))
        if known_boot != boot:
            last = 0
        numbers = [record.number for record in log.records]
        self._last[node] = (boot, max([last or 0, *numbers]))
        if last is None:
            return None
        records = [record for record in log.records if record.number > last]
        if not records:
            return None
        records.sort(key=lambda record: record.number)
        lines = tuple(record.text[:LONGEST] for record in records[-MOST_LINES:])
        return News(lines, len(records) - len(lines))


def _log_of(facts: Mapping[str, Any]) -> KernelLog | None:
    log = facts.get(LOG.name)
    return log if isinstance(log, KernelLog) else None
