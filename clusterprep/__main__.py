"""Where a command begins, be it `clusterprep` or `python -m clusterprep`: a signal ends it as one does later."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from clusterprep.runtime.signals import SIGNALS, signals_to_handle


def main() -> None:
    """Entry point. Exits with a code of the contract, also while what it needs is still being imported."""
    for signum in signals_to_handle():
        signal.signal(signum, _interrupted)
    try:
        from clusterprep.cli.main import main as command
    except KeyboardInterrupt:
        _end(sys.argv[1:])
    else:
        command()


def _interrupted(signum: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(
            other, signal.SIG_IGN
        )  # the end takes a moment, and is the same for all of them
    raise KeyboardInterrupt


def _end(words: list[str]) -> None:
    """Nothing was begun. What was not imported to its end is imported anew."""
    from clusterprep.cli.exit import ending, leave

    def nothing() -> None:
        raise KeyboardInterrupt

    leave(
        ending(
            nothing, words, words[0] if words and not words[0].startswith("-") else "clusterprep"
        )
    )


if __name__ == "__main__":
    main()
