"""The reading part of the common job with parallel-ssh: three commands on every host.

parallel-ssh verifies no host keys.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pssh.clients import ParallelSSHClient

COMMANDS = ("uname -rn", "ip address show", "cat /proc/sys/net/ipv4/ip_local_port_range")


def main(job: str) -> int:
    """Read the job that fanout.py wrote.

    Fails unless every host has said something to every command.
    """
    told = json.loads(Path(job).read_text())
    addresses = told["addresses"]
    client = ParallelSSHClient(
        addresses,
        user="root",
        pkey=told["key"],
        allow_agent=False,
        identity_auth=False,
        pool_size=len(addresses),
    )
    answered = [
        any(list(host.stdout)) for command in COMMANDS for host in client.run_command(command)
    ]
    return 0 if all(answered) and len(answered) == len(COMMANDS) * len(addresses) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
