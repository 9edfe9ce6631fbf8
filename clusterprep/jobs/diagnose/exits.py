"""Reads from torchrun's messages how workers ended: which failed first, and by which signal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Evidence, LogFile, LogLine, Weight

_SHORT = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
    re.IGNORECASE,
)
_RANK = re.compile(r"^\s*rank +: *(?P<rank>\d+)", re.IGNORECASE)
_EXIT = re.compile(r"^\s*exitcode +: *(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?", re.IGNORECASE)
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)", re.IGNORECASE)
_KILLED_BY_TORCHRUN = re.compile(
    r"Unable to shutdown process (?P<pid>\d+) .*forcefully exiting", re.IGNORECASE
)
_EXTERNAL_SIGNALS = (-15, -2, -1)  # SIGTERM, SIGINT, SIGHUP: sent by people and schedulers
# What each exit code speaks for. SIGKILL has many senders, so it proves nothing by itself. SIGABRT
# is left out: torch's watchdog aborts a process after every failure of a collective.
_MEANINGS = {
    -9: ("host_oom_kill", Weight.SYMPTOM, "by SIGKILL"),
    -7: ("shm_too_small", Weight.LIKELY, "by SIGBUS"),
    -15: ("external_termination", Weight.LIKELY, "by SIGTERM"),
    -2: ("external_termination", Weight.LIKELY, "by SIGINT"),
    -1: ("external_termination", Weight.LIKELY, "by SIGHUP"),
    -11: ("program", Weight.PLAIN, "by SIGSEGV"),
    -8: ("program", Weight.PLAIN, "by SIGFPE"),
    -4: ("program", Weight.PLAIN, "by SIGILL"),
    -24: (
        "external_termination",
        Weight.LIKELY,
        "by SIGXCPU, at its limit of CPU time (ulimit -t)",
    ),
    -25: ("program", Weight.LIKELY, "by SIGXFSZ, at its limit for the size of a file (ulimit -f)"),
}
# Exit codes that a program chooses: 1 is also that of a rank that lost a peer, from 126 on they are
# a shell's. 2 is said of arguments that are wrong, which are the same on all ranks.
_CHOSEN = range(2, 126)
_OF_ARGUMENTS = 2

# Largest distances in torchrun's summary, in lines. A block of it has the lines [0]:, time, host,
# rank, exitcode; «Root Cause (first observed failure)» stands above the last block.
_LINES_FROM_RANK = 2
_LINES_FROM_ROOT_CAUSE = 6


class FailedWorker(Struct, frozen=True):
    """One worker that ended badly. `is_first`: torchrun says that it was the first on its node."""

    line: LogLine
    code: int
    pid: str
    culprit: tuple[str, str] | None
    is_first: bool


def failed_workers(log: LogFile) -> list[FailedWorker]:
    """Return workers that ended badly.

    Workers that torchrun killed because they did not follow its SIGTERM are left out.
    """
    killed_by_torchrun: set[str] = set()
    for line in log.lines_with("forcefully exiting"):
        match = _KILLED_BY_TORCHRUN.search(line.message)
        if match:
            killed_by_torchrun.add(match["pid"])
    workers = [*_from_agent(log), *_from_summaries(log)]
    return [worker for worker in workers if worker.pid not in killed_by_torchrun]


def _from_agent(log: LogFile) -> Iterator[FailedWorker]:
    """Yield the worker in each line that torchrun's elastic agent writes when one fails.

    The agent of a node names only the worker that failed first.
    """
    for line in log.lines_with("failed (exitcode"):
        match = _SHORT.search(line.message)
        if match is None:
            continue
        code = int(match["code"])
        culprit = ("local rank", match["local"])
        yield FailedWorker(
            line,
            code,
            match["pid"],
            culprit,
            is_first=True,
        )


def _from_summaries(log: LogFile) -> Iterator[FailedWorker]:
    """Yield every worker in torchrun's summaries.

    Rank and exit code are on lines of their own; the root cause comes last.
    """
    rank_line: LogLine | None = None
    rank = ""
    roots = [
        line for line in log.lines_with("root cause (first") if _ROOT_CAUSE.search(line.message)
    ]
    files_with_roots = {line.file for line in roots}
    for line in log.lines_with("rank      :", "exitcode  :"):
        if found_rank := _RANK.match(line.message):
            rank_line = line
            rank = found_rank["rank"]
            continue
        match = _EXIT.match(line.message)
        if match is None:
            continue
        code = int(match["code"])
        pid = match["pid"] or ""
        knows_rank = rank_line is not None and _is_below(line, rank_line, _LINES_FROM_RANK)
        culprit = ("rank", rank) if knows_rank else None
        # Without that heading, as where a log is cut off, any of them may be the first.
        is_first = line.file not in files_with_roots
        is_first = is_first or any(_is_under(line, root) for root in roots)
        yield FailedWorker(
            line,
            code,
            pid,
            culprit,
            is_first=is_first,
        )


def _is_below(line: LogLine, other: LogLine, distance: int) -> bool:
    """Whether the line is in the same file, at most so many lines below the other."""
    if line.file != other.file:
        return False
    return line.number <= other.number + distance


def _is_under(line: LogLine, root: LogLine) -> bool:
    """Whether the line is in the block under «Root Cause (first observed failure)»."""
    return root.number < line.number and _is_below(line, root, _LINES_FROM_ROOT_CAUSE)


def detect_signals(log: LogFile) -> Iterator[Evidence]:
    """Yield what the first failures of each node say.

    If another worker failed by itself, those ended by SIGTERM were only ended after it.
    """
    workers = [worker for worker in failed_workers(log) if worker.is_first]
    files_with_own_failure: set[str] = set()
    for worker in workers:
        if worker.code not in _EXTERNAL_SIGNALS:
            files_with_own_failure.add(worker.line.file)
    for worker in workers:
        was_signalled = worker.code in _EXTERNAL_SIGNALS
        if was_signalled and worker.line.file in files_with_own_failure:
            continue
        meaning = _meaning(worker.code)
        if meaning is None:
            continue
        cause, weight, how = meaning
        culprits = (worker.culprit,) if worker.culprit else ()
        if worker.code == _OF_ARGUMENTS:
            culprits = ()
        note = f"a worker ended {how}"
        yield Evidence(
            cause,
            worker.line,
            weight,
            culprits,
            note=note,
        )


def _meaning(code: int) -> tuple[str, Weight, str] | None:
    """Return the cause that an exit code speaks for, how much, and how the worker ended."""
    if code in _CHOSEN:
        return "program", Weight.LIKELY, f"with exit code {code}"
    return _MEANINGS.get(code)
