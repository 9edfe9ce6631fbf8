"""Runs a command in a thread, while the main thread waits for signals and for the time limit.

The main thread is the only one that Python runs signal handlers in, and it does nothing else here.
The command learns of a signal where it looks (`deadline`). The main thread ends the process by
itself only where nothing can be left half done: before a command began, while the user is asked
something, while nothing was written yet and the command has not looked for a second, and after all
was done, while the output is not taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clusterprep.errors import ClusterprepError, Interrupted
from clusterprep.runtime.deadline import COMMAND, Deadline
from clusterprep.runtime.signals import SignalPipe

# Seconds within which several signals are one: systemd sends SIGTERM and SIGHUP back to back, and
# a held Ctrl-C repeats.
ONE_EVENT = 1.0
GRACE = 1.0  # seconds for the command to look, and for the result to be shown
TIME_GRACE = 0.2  # seconds to look when its time is over: --timeout and --budget are promises
# Seconds after which a further signal ends a command that may have written something and does not
# look any more. Its run stays in the journals of the nodes.
PATIENCE = 15.0  # also for the result of a command that the signal has ended, or is about to
LOOK = 0.05  # seconds between two looks at a command that is to end

UNSETTLED = (
    "; it was left without an end: if it had written something, `clusterprep rollback` or the "
    "next apply finishes that"
)

UNSHOWN = ", when all was done and its result was being shown"
UNREPORTED = ", and what was known by then was being shown"
UNTOLD = ", while the command was telling which error had ended it"
BROKEN = 70  # the exit code of a command whose thread ended without one, which is a bug of ours

GiveUp = Callable[[ClusterprepError, bool], int]


class Supervisor:
    """Ends a command by signals and time limits, and returns its exit code.

    `give_up(error, shown)` tells the user that the command was left, and returns the exit code.
    `shown` says that the command has begun to show its result.
    """

    def __init__(self, pipe: SignalPipe, give_up: GiveUp) -> None:
        self._pipe = pipe
        self._give_up = give_up
        self._code: int | None = None
        self._interruption: Interrupted | None = None
        self._interrupted_at = 0.0
        self._repeated = False

    def run(self, command: Callable[[], int]) -> int:
        """Run the command and return its exit code, or that of `give_up`."""
        COMMAND.on_change = self._pipe.wake
        thread = threading.Thread(target=self._run, args=(command,), daemon=True, name="command")
        thread.start()
        while thread.is_alive() and self._code is None:
            for signum in self._pipe.wait(self._pause()):
                self._note(signum.name)
            left_with = None if self._code is not None else self._leave()
            if left_with is not None:
                return self._give_up(left_with, COMMAND.concluding_since is not None)
        return BROKEN if self._code is None else self._code

    def _run(self, command: Callable[[], int]) -> None:
        try:
            self._code = command()
        finally:
            self._pipe.wake()

    def _pause(self) -> float | None:
        """Return for how many seconds only a signal is of interest."""
        deadline = COMMAND.deadline
        if self._interruption is not None or (deadline and deadline.error):
            return LOOK
        if deadline is None or deadline.end is None:
            return None
        return max(deadline.end - time.monotonic(), 0.0)

    def _note(self, name: str) -> None:
        """Tell the command of a signal, or of a further one."""
        now = time.monotonic()
        deadline = COMMAND.deadline
        since = self._interrupted_at if self._interruption else None
        if since is None and deadline is not None:
            since = deadline.stopped_at
        if self._interruption is None:
            self._interruption = Interrupted(f"interrupted by {name}")
            self._interrupted_at = now
        if since is not None and now - since > ONE_EVENT:
            self._repeated = True
            if deadline is not None:
                deadline.hurry()

    def _leave(self) -> ClusterprepError | None:
        """Return the error with which the command is left now; None lets it go on."""
        with COMMAND.lock:
            if COMMAND.concluding_since is not None:
                error = self._unshown(COMMAND.concluding_since)
            elif COMMAND.deadline is None:
                error = self._interruption
            else:
                error = self._unfinished(COMMAND.deadline)
            COMMAND.abandoned = error is not None
        return error

    def _unshown(self, since: float) -> ClusterprepError | None:
        """Return the error if the result is not shown in time after a signal."""
        if self._interruption is None:
            return None
        grace = GRACE
        doing = UNTOLD if COMMAND.failed else UNSHOWN
        if COMMAND.cut and self._interrupted_at < since:
            # The result is of what the signal has ended, so the user waits for it.
            grace = GRACE if self._repeated else PATIENCE
            doing = UNREPORTED
        if time.monotonic() - max(since, self._interrupted_at) <= grace:
            return None
        return self._interruption.extended(doing)

    def _unfinished(self, deadline: Deadline) -> ClusterprepError | None:
        """Return the error if a command that is to end may be left where it is."""
        deadline.note_time()
        if self._interruption is not None:
            deadline.stop(self._interruption)
        error = deadline.error
        if error is None or deadline.stopped_at is None or deadline.shielded:
            return None
        if COMMAND.asking:
            return error
        waited = time.monotonic() - deadline.stopped_at
        if deadline.has_shielded:
            return error.extended(UNSETTLED) if self._repeated and waited > PATIENCE else None
        grace = GRACE if self._interruption is error else TIME_GRACE
        if deadline.has_results:
            grace = PATIENCE
        is_deaf = waited > grace and not deadline.raised
        return error if is_deaf or self._repeated else None
