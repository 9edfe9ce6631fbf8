"""Entry point of `clusterprep` and `python -m clusterprep`; it takes signals from the start."""

from __future__ import annotations

import os
import sys

try:
    from clusterprep.runtime import cycles
    from clusterprep.runtime.signals import SignalPipe

    cycles.expect_modules()

    PIPE = SignalPipe()
except KeyboardInterrupt:  # in the milliseconds before signals are taken
    os._exit(130)


def main() -> None:
    """Run the command line and exit with its code."""
    from clusterprep.cli.exit import run_supervised

    arguments = sys.argv[1:]

    def command() -> int:
        from clusterprep.cli.main import run

        return run(arguments)

    run_supervised(PIPE, arguments, command)


if __name__ == "__main__":
    main()
