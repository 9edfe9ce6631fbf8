"""The signals that end a command. Imports nothing of ours, so that it can be imported first."""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signals_to_handle() -> list[signal.Signals]:
    """Return the signals that end this command: without SIGHUP under nohup, which ignores it."""
    signals = list(SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signals.remove(signal.SIGHUP)
    return signals
