"""What several causes ask of a log: whether anything fails to connect, and whether anything times out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import LogFile, LogLine

_NO_CONNECTION = re.compile(
    r"connect\S*.{0,120}(?:timed out|time-?out|refused|no route|unreachable|failed|invalid argument|reset)"
    r"|connectFullMesh failed|timed out.{0,60}connect|retrying|exceeded error retry",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"timed? ?out|timeout(?!\()|RendezvousConnectionError|connection to the C10d store has failed|failed to connect to "
    r"any",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"collective operation timeout|timed out waiting|monitoredbarrier", re.IGNORECASE
)
_HARMLESS = re.compile(r"errno: (?:97|99)|Timeout\(ms\)=\d+\)$|libnccl|will retry", re.IGNORECASE)


def no_connection(log: LogFile) -> bool:
    """Whether a connection failed, or something waited for one in vain."""
    return any(
        _NO_CONNECTION.search(line.said) and not _HARMLESS.search(line.said)
        for line in _one_of_each(log)
    ) or waits(log)


def waits(log: LogFile) -> bool:
    """Whether something waited until a limit fired."""
    return any(
        _NO_ANSWER.search(line.said) and not _HARMLESS.search(line.said)
        for line in _one_of_each(log)
    )


def collective_timeouts(log: LogFile) -> list[LogLine]:
    return [line for line in _one_of_each(log) if _COLLECTIVE.search(line.said)]


def _one_of_each(log: LogFile) -> Iterator[LogLine]:
    return (lines[0] for lines in log.forms.values())
