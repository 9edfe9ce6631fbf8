"""Answers what several causes ask of a log: does a connection fail, does something time out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import LogFile, LogLine

_NO_CONNECTION = re.compile(
    r"connect\S*.{0,120}"
    r"(?:timed out|time-?out|refused|no route|unreachable|failed|invalid argument|reset)"
    r"|connectFullMesh failed|timed out.{0,60}connect|retrying|exceeded error retry",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"timed? ?out|timeout(?!\()|RendezvousConnectionError"
    r"|connection to the C10d store has failed|failed to connect to any",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"collective operation timeout|timed out waiting|monitoredbarrier", re.IGNORECASE
)
_HARMLESS = re.compile(r"errno: (?:97|99)|Timeout\(ms\)=\d+\)$|libnccl|will retry", re.IGNORECASE)


def no_connection(log: LogFile) -> bool:
    """Whether a connection failed, or something waited for one in vain."""
    return _has(log, _NO_CONNECTION) or waits(log)


def waits(log: LogFile) -> bool:
    """Whether something waited until a time limit fired."""
    return _has(log, _NO_ANSWER)


def collective_timeouts(log: LogFile) -> list[LogLine]:
    """Return the lines that tell of a collective that timed out, one of each form."""
    return [line for line in _one_of_each_form(log) if _COLLECTIVE.search(line.message)]


def _has(log: LogFile, pattern: re.Pattern[str]) -> bool:
    for line in _one_of_each_form(log):
        matches = pattern.search(line.message)
        if matches and not _HARMLESS.search(line.message):
            return True
    return False


def _one_of_each_form(log: LogFile) -> Iterator[LogLine]:
    for lines in log.forms.values():
        yield lines[0]
