"""Entry point of `clusterprep` and `python -m clusterprep`; it handles signals from the start."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from clusterprep.runtime.signals import SIGNALS, signals_to_handle


def main() -> None:
    """Run the command line and exit with its code, also if a signal comes during the imports."""
    for signum in signals_to_handle():
        signal.signal(signum, _interrupted)
    try:
        from clusterprep.cli.main import main as command
    except KeyboardInterrupt:
        _end_interrupted(sys.argv[1:])
    else:
        command()


def _interrupted(signum: int, frame: FrameType | None) -> None:
    # Ending takes a moment and is the same for all signals: further ones are ignored.
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_interrupted(arguments: list[str]) -> None:
    """Report the interruption and exit. No command was begun; unfinished imports start anew."""
    from clusterprep.cli.exit import ending, leave

    def interrupt() -> None:
        raise KeyboardInterrupt

    command = "clusterprep"
    if arguments and not arguments[0].startswith("-"):
        command = arguments[0]
    leave(ending(interrupt, arguments, command))


if __name__ == "__main__":
    main()
