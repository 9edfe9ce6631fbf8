"""Says how a log goes on: whether a process ended after a line, and whether the job ended well."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from clusterprep.jobs.diagnose.model import LogFile, LogLine

_END_NEEDLES = (
    "childfailederror",
    "failed (exitcode",
    "exitcode  :",
    "srun: error",
    "srun: terminating",
    "return code",
    "exit code",
    "exit status",
    "closing signal",
    "killing subprocess",
    "primary job",
    "non-zero",
    "error executing job",
    "hydra_full_error",
    "failed (errors=",
    "bad termination",
    "uncaught exception",
    "task failed",
    "mpi_abort",
    "clusterprep launch: ",
)
# What launchers write when a process of theirs has failed.
_END = re.compile(
    r"ChildFailedError|failed \(exitcode: |^\s*exitcode +: |srun: error: |srun: Terminating"
    r"|exits? with return code|non-zero exit|exited with non-zero|exit(?:ed)? (?:with )?"
    r"(?:exit )?(?:code|status):? *-?[1-9]|closing signal|Killing subprocess"
    r"|Primary job +terminated"
    r"|Error executing job|HYDRA_FULL_ERROR|FAILED \(errors=|BAD TERMINATION|uncaught exception"
    r"|MPI_Abort|task failed|^clusterprep launch: first failure",
    re.IGNORECASE,
)
# Failures from which exceptions of other ranks follow.
_TROUBLE = re.compile(
    r"caught collective operation timeout|timed out waiting|connection (?:reset|closed) by"
    r"|closed by remote peer|got completion .*(?:error|status)|socket has timed out|wait timeout"
    r"|\bCANCELLED (?:AT|DUE)|death signal|got signal: \d|communicator was aborted"
    r"|watchdog got stuck|Heartbeat monitor timed out|ncclRemoteError|ncclSystemError",
    re.IGNORECASE,
)
_TROUBLE_NEEDLES = (
    "caught collective operation timeout",
    "timed out waiting",
    "reset by peer",
    "closed by",
    "got completion",
    "has timed out",
    "wait timeout",
    "cancelled ",
    "death signal",
    "got signal",
    "was aborted",
    "got stuck",
    "monitor timed out",
    "ncclremoteerror",
    "ncclsystemerror",
)
# Ends after which torchrun may start the workers anew.
_END_OF_ATTEMPT = re.compile(r"failed \(exitcode: |closing signal|task failed", re.IGNORECASE)
_PROGRESS = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch|update)s?\b[\s:=\[(#'\"]*\d|\bloss['\"\s:=]+-?\d"
    r"|\d(?:\.\d+)? ?(?:it/s|s/it|tokens/s|samples/s)|\d%\|",
    re.IGNORECASE,
)
# A training step. A bar of progress alone may be that of a file that is loaded before a hang.
_STEP = re.compile(r"\bloss['\"\s:=]+-?\d", re.IGNORECASE)
_JOB = r"(?:training|job|run|program|script|experiment|process(?:es)?|test)"
_GOOD_END = re.compile(
    r"\btraining (?:is |has )?(?:been )?(?:complete|finish|done|ended|success)|train_runtime"
    r"|\b(?:completed|finished|done) training\b"
    r"|after training is done|`Trainer\.fit` stopped|Out of bounds values : 0 OK"
    r"|Avg bus bandwidth|Collective test concluded|exits successfully|\btrain metrics\b"
    rf"|\b{_JOB}\b.{{0,40}}(?:finished|completed|ended|done) successfully"
    rf"|successfully (?:finished|completed|ended)(?: the)? {_JOB}|^Successfully completed\.?$"
    r"|exit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)[ :=]+0\b|\bState: COMPLETED"
    r"|saved (?:the )?(?:final|last) (?:checkpoint|model)|^(?:all )?done[.!]?$",
    re.IGNORECASE,
)
_GOOD_END_NEEDLES = (
    "training comp",
    "training fini",
    "training is ",
    "training has ",
    "training done",
    "done training",
    "training ended",
    "training success",
    "completed training",
    "finished training",
    "train_runtime",
    "trainer.fit",
    "out of bounds values",
    "bus bandwidth",
    "test concluded",
    "ed successfully",
    "done successfully",
    "exits successfully",
    "successfully ",
    "train metrics",
    "exit code 0",
    "exit code: 0",
    "exitcode: 0",
    "exit status 0",
    "with code 0",
    "state: completed",
    "final checkpoint",
    "final model",
    "last checkpoint",
    "all done",
    "done!",
    "done.",
)
# Those of them that only a program prints which did what it was started for.
_FINISHED = re.compile(
    r"\btraining (?:is |has )?(?:been )?(?:complete|finish|done|ended|success)|train_runtime"
    r"|\b(?:completed|finished|done) training\b|`Trainer\.fit` stopped|exits successfully"
    r"|successfully (?:finished|completed|trained|ended)",
    re.IGNORECASE,
)
NEEDLES = (*_END_NEEDLES, *_TROUBLE_NEEDLES, *_GOOD_END_NEEDLES)
# Lines that are no part of what is kept, between an exception and the end of its process: lines of
# source code in tracebacks, and what NCCL and loggers write while a process ends.
_MOST_UNKEPT = 200
_MOST_UNKEPT_AT_END = 100  # the same where no launcher says that a process failed
# Beside a frame that is kept stand its line of source code and a line that marks a part of it.
_UNKEPT_PER_KEPT = 3
_MANY = 10  # steps of each rank after which a failure told before cannot have ended the job
_FEW = 2  # steps of other ranks that stand behind an exception because streams are buffered


LAUNCH = "clusterprep launch: "  # begins what `clusterprep launch` says of its job
# What `clusterprep launch` says, which saw all processes of the job end. A scheduler's COMPLETED is
# less: it is the exit code of a script, whose last command may be another one.
_ALL_ENDED_WELL = re.compile(
    r"^clusterprep launch: all \d+ ranks? ended with exit code 0", re.IGNORECASE
)
_LAUNCH_ENDED = re.compile(r"^clusterprep launch: .* were ended by launch$", re.IGNORECASE)


class Aftermath(Enum):
    """What follows a line that may have ended a process."""

    ENDED = "a launcher says that a process failed"
    LAST = "the log ends there"
    UNCLEAR = "a process failed much later"
    WENT_ON = "the program went on"


class Endings:
    """Where each file tells of ends and of steps. It is made once for a log, then asked."""

    def __init__(self, log: LogFile) -> None:
        self._kept = _numbers(log.lines)
        ends = list(_matching(log, _END, _END_NEEDLES))
        self._ends = _numbers(ends)
        self._last_ends = _numbers(end for end in ends if not _END_OF_ATTEMPT.search(end.message))
        self._finished = _numbers(_matching(log, _FINISHED, _GOOD_END_NEEDLES))
        self._good_ends = _numbers(_matching(log, _GOOD_END, _GOOD_END_NEEDLES))
        self._troubles: dict[str, list[LogLine]] = {}
        for line in _matching(log, _TROUBLE, _TROUBLE_NEEDLES):
            self._troubles.setdefault(line.file, []).append(line)
        self._progress = _numbers(_alike(log, _PROGRESS))
        self._steps = _numbers(_alike(log, _STEP))
        self._all_ended_well = _numbers(_matching(log, _ALL_ENDED_WELL, _GOOD_END_NEEDLES))
        ended_by_launch = _matching(log, _LAUNCH_ENDED, _END_NEEDLES)
        self.launch_ended_others = any(True for _ in ended_by_launch)
        self._ranks = max(len(log.ranks), 1)
        self._last = {file: numbers[-1] for file, numbers in self._kept.items()}
        self._last.update(log.files)

    @property
    def has_failed(self) -> bool:
        """Whether a launcher says that a process failed."""
        return bool(self._ends)

    @property
    def has_succeeded(self) -> bool:
        """Whether launch says that all processes ended with exit code 0."""
        return bool(self._all_ended_well) and not self._ends

    def after(self, line: LogLine) -> Aftermath:
        """Return what the file of a line says after it."""
        file = line.file
        end = _next(self._ends.get(file, ()), line.number)
        last = self._last.get(file, line.number) if end is None else end
        kept = _count(self._kept.get(file, ()), line.number, last)
        steps = _count(self._progress.get(file, ()), line.number, last)
        unkept = last - line.number - kept
        most = _MOST_UNKEPT_AT_END if end is None else _MOST_UNKEPT
        is_near = steps <= _FEW and unkept <= most + _UNKEPT_PER_KEPT * kept
        if end is None:
            return Aftermath.LAST if is_near else Aftermath.WENT_ON
        return Aftermath.ENDED if is_near else Aftermath.UNCLEAR

    def was_survived(self, line: LogLine) -> bool:
        """Whether the program took steps after a line, and then said that it had finished.

        Exceptions that it caught are survived, and so are attempts that torchrun repeated.
        """
        finished = _last_of(self._finished.get(line.file, ()))
        if _count(self._progress.get(line.file, ()), line.number, finished) <= _FEW:
            return False
        last_end = _next(self._last_ends.get(line.file, ()), line.number)
        return last_end is None or last_end > finished

    def is_after_trouble(self, line: LogLine) -> bool:
        """Whether the line's rank told of a time-out, a peer's end or a signal before it.

        That another rank did so is no reason: its lines may be printed earlier, as streams are
        buffered.
        """
        for trouble in self._troubles.get(line.file, ()):
            if trouble.number >= line.number:
                return False
            is_same_rank = trouble.rank == line.rank or None in (trouble.rank, line.rank)
            if is_same_rank and not _is_earlier(line, trouble):
                return True
        return False

    def ended_well(self, errors: Iterable[LogLine]) -> bool:
        """Whether a line says that the job ended well, behind all lines of its file in `errors`.

        Steps up to the end of a log are no good end: a job that hangs has them too.
        """
        worst: dict[str, int] = {}
        for line in errors:
            worst[line.file] = max(worst.get(line.file, 0), line.number)
        well: set[str] = set()
        for file in self._last:
            good_end = _last_of(self._good_ends.get(file, ()))
            if good_end > worst.get(file, 0):
                well.add(file)
        return bool(well) and well >= set(worst)

    def went_on(self, line: LogLine) -> bool:
        """Whether training took steps after a line, more than other ranks print late."""
        steps = self._steps.get(line.file, ())
        behind = len(steps) - bisect.bisect_right(steps, line.number)
        return behind > _MANY * self._ranks


def _is_earlier(line: LogLine, other: LogLine) -> bool:
    """Whether both lines tell their times, and that of the first is earlier."""
    if line.time is None or other.time is None:
        return False
    return line.time < other.time


_Numbers = dict[str, list[int]]  # of lines, by file


def _matching(log: LogFile, pattern: re.Pattern[str], needles: Sequence[str]) -> Iterator[LogLine]:
    for line in log.lines_with(*needles):
        if pattern.search(line.message):
            yield line


def _alike(log: LogFile, pattern: re.Pattern[str]) -> Iterator[LogLine]:
    """Yield the lines that a pattern matches to which all digits are the same.

    Lines of one form match alike then, so one line of each form is searched.
    """
    for lines in log.forms.values():
        if pattern.search(lines[0].message):
            yield from lines


def _numbers(lines: Iterable[LogLine]) -> _Numbers:
    numbers: _Numbers = {}
    for line in lines:
        numbers.setdefault(line.file, []).append(line.number)
    for of_file in numbers.values():
        of_file.sort()
    return numbers


def _next(numbers: Sequence[int], number: int) -> int | None:
    """Return the first of the sorted numbers above another one."""
    index = bisect.bisect_right(numbers, number)
    return numbers[index] if index < len(numbers) else None


def _count(numbers: Sequence[int], above: int, below: int) -> int:
    """Return how many of the sorted numbers lie between two others."""
    first = bisect.bisect_right(numbers, above)
    return max(bisect.bisect_left(numbers, below) - first, 0)


def _last_of(numbers: Sequence[int]) -> int:
    return numbers[-1] if numbers else 0
