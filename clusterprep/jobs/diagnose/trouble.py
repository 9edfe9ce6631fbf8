"""Answers what several causes ask of a log: does a connection fail, does something time out.

A time limit that is set is no event. Only the wording of an event counts: «timed out», «ran for
600012 milliseconds before timing out», «Socket Timeout», «TimeoutError». Arguments, variables and
environments that programs print (`timeout=900`, `Timeout(ms)=600000`, `NCCL_IB_TIMEOUT=22`,
`--timeout 60`) are settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import LogFile, LogLine
from clusterprep.jobs.diagnose.settings import is_setting

# What a program says when a limit has passed. «Some NCCL operations have failed or timed out»
# stands behind every failure, so it tells of none.
TIMED_OUT = (
    r"(?<!failed or )\btimed[ -]?out\b"
    r"|\bbefore timing out\b"
    r"|\b(?:application|operation|socket|connect|connection|handshake|store|recv|send|read"
    r"|rendezvous|barrier) time-?out\b(?!\s*=|\s*:\s*\d|\s+\d)"
    r"|\btime-?out (?:after|expired|exceeded|reached|occurred|waiting|at NCCL work)\b"
    r"|\btimeout \[[\d.]+\]"
    r"|\blikely a timeout\b"
    r"|\bNCCL timeout in\b"
    r"|(?:Timeout|Deadline)(?:Error|Exception|Expired|Exceeded)\b"
    r"|\bDEADLINE_EXCEEDED\b"
)
_NO_CONNECTION = re.compile(
    r"connect\S*.{0,120}"
    rf"(?:{TIMED_OUT}|refused|no route|unreachable|failed|invalid argument|reset)"
    r"|connectFullMesh failed|timed out.{0,60}connect|retrying|exceeded error retry",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    rf"{TIMED_OUT}|RendezvousConnectionError"
    r"|connection to the C10d store has failed|failed to connect to any",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"collective operation timeout|timed out waiting|timed out in blocking wait|monitoredbarrier",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"errno: (?:97|99)|Timeout\(ms\)=\d+\)$|libnccl|will retry", re.IGNORECASE)
# A connection that is closed or reset may follow from the end of the peer, which is no trouble of
# the network.
_NETWORK = re.compile(
    r"connect\S*.{0,120}(?:timed out|refused|no route to host|unreachable|connection abort)"
    r"|exceeded error retry|connectFullMesh failed"
    r"|Got completion.*(?:error (?:4|9|1[0-3])\b|status=(?:\w+\()?(?:4|9|1[0-3])\b|_ERR)"
    r"|ibv_modify_qp failed|Network is unreachable|No route to host"
    r"|link (?:is )?down|carrier lost",
    re.IGNORECASE,
)
NETWORK_NEEDLES = ("connect", "got completion", "ibv_modify_qp", "unreachable", "no route")


def no_connection(log: LogFile) -> bool:
    """Whether a connection failed, or something waited for one in vain."""
    return _has(log, _NO_CONNECTION) or waits(log)


def waits(log: LogFile) -> bool:
    """Whether something waited until a time limit fired."""
    return _has(log, _NO_ANSWER)


def has_network_trouble(log: LogFile) -> bool:
    """Whether a line tells of packets or connections that did not get through."""
    return _has(log, _NETWORK)


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
        if not is_setting(lines[0].message):
            yield lines[0]
