"""The reading part of the common job with parallel-ssh: three commands on every host, or others.

parallel-ssh verifies no host keys.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pssh.clients import ParallelSSHClient

COMMANDS = ("uname -rn", "ip address show", "cat /proc/sys/net/ipv4/ip_local_port_range")


def main(job: str, *commands: str) -> int:
    """Read the job that fanout.py or everyday.py wrote, run commands and print what hosts said.

    Fails unless every host has said something to every command.
    """
    commands = commands or COMMANDS
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
    said = [list(host.stdout) for command in commands for host in client.run_command(command)]
    print("\n".join(sorted({line for lines in said for line in lines})))
    return 0 if all(map(any, said)) and len(said) == len(commands) * len(addresses) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
