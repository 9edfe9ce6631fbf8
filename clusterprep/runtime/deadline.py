"""Ctrl-C, SIGTERM, SIGHUP and --timeout: what ends a command, raised only where it looks.

with Deadline(90.0) as deadline:
    prepare()
    deadline.check()
    with deadline.shield():
        commit()

A handler that raised would do so between any two instructions: in the middle of an import, in a
destructor, in the loop that writes the last of three nodes. So the main thread only notes what
came (`supervisor`), and the command looks: ten times a second where it waits for nodes, and between
its stages. Shields are short: a commit, a finalization, a roll back. Before the commit nothing was
written, and after it the old bytes are put back on all nodes, so an interruption is safe anywhere
else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clusterprep.errors import ClusterprepError, OutOfTime

if TYPE_CHECKING:  # `--help` imports this module and no budget
    from clusterprep.runtime.budget import Budget

# Seconds that all nodes together have for their answers once the user has asked a second time.
HURRIED = 5.0
FOREVER = float("inf")


class Deadline:
    """What may end a command: a signal, or its time limit. Raised once, by `check`.

    `option` is the option that set the limit, for the message: «--timeout of 90 s». One thread runs
    the command; another one may call `stop` and `hurry`.
    """

    def __init__(self, seconds: float | None = None, option: str = "") -> None:
        self._seconds = seconds
        self._option = option or f"--timeout of {seconds or 0:g} s"
        self._error: ClusterprepError | None = None
        self._shields = 0
        self._hurried_at: float | None = None
        self._before: Deadline | None = None
        # All moments are those of time.monotonic().
        self.end: float | None = None
        self.stopped_at: float | None = None  # when a signal came, or the limit was reached
        self.raised = False  # the command knows
        self.has_shielded = False  # so something may have been written
        self.has_results = False  # of long work, which are not given up for being slow to look

    def __enter__(self) -> Deadline:
        if self._seconds is not None:
            self.end = time.monotonic() + self._seconds
        self._before = COMMAND.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        failed = kind is not None and issubclass(kind, Exception)
        COMMAND.end(self._before, failed=failed, cut=self.raised and kind is None)

    @classmethod
    def of(cls, seconds: float | None, budget: Budget | None) -> Deadline:
        """Return the deadline of --timeout, or of --budget if that ends earlier."""
        if budget is None:
            return cls(seconds)
        remaining = max(budget.end - time.monotonic(), 0.0)
        if seconds is not None and seconds < remaining:
            return cls(seconds)
        return cls(remaining, f"--budget of {budget.seconds:g} s")

    # ------------------------------------------------------------ the thread of the command

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold back what ends the command until the block has ended."""
        with COMMAND.going_on():
            self._shields += 1
            self.has_shielded = True
        try:
            yield
        finally:
            with COMMAND.lock:
                self._shields -= 1
        self.check()

    def check(self) -> None:
        """Raise what ends the command, if anything does; not within a shield, and only once."""
        self.note_time()
        if self._error is None or self.raised:
            return
        with COMMAND.going_on():
            if self._shields:
                return
            self.raised = True
        raise self._error

    def patience(self) -> float:
        """Do as `check`, and return for how many seconds an answer is still awaited.

        That is without end until the user has asked a second time. What is under way then ends in
        order and without the nodes that do not answer.
        """
        self.check()
        if self._hurried_at is None:
            return FOREVER
        return max(self._hurried_at + HURRIED - time.monotonic(), 0.0)

    # ------------------------------------------------------------ any thread

    @property
    def shielded(self) -> bool:
        return self._shields > 0

    @property
    def error(self) -> ClusterprepError | None:
        """What ends the command, if anything does."""
        return self._error

    @property
    def ended_by(self) -> ClusterprepError | None:
        """What ends the command, if the command knows."""
        return self._error if self.raised else None

    @property
    def over(self) -> OutOfTime | None:
        """The error of the time limit, if that is what ends the command and the command knows."""
        error = self.ended_by
        return error if isinstance(error, OutOfTime) else None

    def stop(self, error: ClusterprepError) -> None:
        """Have the command end with this error. The first one counts."""
        with COMMAND.lock:
            if self._error is None:
                self.stopped_at = time.monotonic()
                self._error = error

    def hurry(self) -> None:
        """Shorten the waits of a command that is ending. A commit is never left half done."""
        with COMMAND.lock:
            if self._hurried_at is None:
                self._hurried_at = time.monotonic()

    def note_time(self) -> None:
        """Have the command end if its time is over."""
        if self.end is not None and self._error is None and time.monotonic() >= self.end:
            self.stop(OutOfTime(f"{self._option} reached"))


class Command:
    """How far the command of this process has come, for the thread that may have to end it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.deadline: Deadline | None = None
        self.asking = False  # the user, so that the thread of the command cannot look
        self.concluding_since: float | None = None
        self.failed = False  # an error has ended it, and its result is that error
        self.cut = False  # a signal or a limit has ended it, and its result is what was known
        self.abandoned = False
        self.on_change: Callable[[], None] = lambda: None

    def begin(self, deadline: Deadline) -> Deadline | None:
        """Note the deadline that counts from now on. Returns the one before."""
        with self.going_on():
            before, self.deadline = self.deadline, deadline
            self.concluding_since = None
        self.on_change()
        return before

    def end(self, before: Deadline | None, failed: bool, cut: bool = False) -> None:
        """Note the end of the deadline that counts. After the last one the rest is for telling."""
        with self.going_on():
            self.deadline = before
            self.failed = self.failed or failed
            self.cut = self.cut or cut
            if before is None:
                self.concluding_since = time.monotonic()
        self.on_change()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Run the block, which the main thread sees as one. Stay here if it is ending the process.

        So nothing is begun that would be cut off.
        """
        self.lock.acquire()
        while self.abandoned:
            self.lock.release()
            time.sleep(3600)
            self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()


COMMAND = Command()


def conclude(failed: bool = False) -> None:
    """Note that the command has ended, and only shows or writes down the result."""
    COMMAND.end(None, failed)


@contextmanager
def asking() -> Iterator[None]:
    """Note that the user is asked something: an interruption then ends the command at once."""
    COMMAND.asking = True
    try:
        yield
    finally:
        COMMAND.asking = False
