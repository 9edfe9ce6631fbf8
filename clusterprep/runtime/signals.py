"""The signals that end a command, as bytes in a pipe. Imports nothing of ours: it is first."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST = 256  # signals taken at once


def signals_to_handle() -> list[signal.Signals]:
    """Return the signals that end this command: not those that are ignored as it starts.

    nohup has SIGHUP ignored, and a shell without job control SIGINT of what it starts with `&`.
    """
    return [signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]


class SignalPipe:
    """Takes the signals of this process, so that its main thread can wait for them.

    The interpreter itself writes the number of a signal into the pipe, in whichever thread the
    kernel delivers it. No handler of ours raises anything.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for signum in signals_to_handle():
            signal.signal(signum, _do_nothing)

    def wait(self, seconds: float | None) -> list[signal.Signals]:
        """Return the signals that came, after `seconds` at most. May be empty before that."""
        select.select([self._reading], [], [], seconds)
        try:
            numbers = os.read(self._reading, MOST)
        except BlockingIOError:
            return []
        return [signum for signum in SIGNALS for number in numbers if number == signum]

    def wake(self) -> None:
        """Have `wait` return. Any thread may call this."""
        try:
            os.write(self._writing, b"\0")
        except BlockingIOError:
            return  # it is full, so `wait` returns anyway


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    """Let the interpreter write to the pipe, which it does for handled signals alone."""
