"""The signals that end a command, from its first line on; imports nothing of ours, so that it can be the first."""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signals_to_handle() -> list[signal.Signals]:
    """Those that end this one: not a hang-up under nohup, which ignores it beforehand."""
    return [
        signum
        for signum in SIGNALS
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN
    ]
