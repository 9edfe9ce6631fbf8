"""The least cost of reaching many hosts: an OpenSSH client each, all at once, running `true`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main(job: str) -> int:
    """Read the job that fanout.py wrote; one command line per host."""
    commands = json.loads(Path(job).read_text())["plain"]
    clients = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False) for command in commands
    ]
    return max(client.wait() for client in clients)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
