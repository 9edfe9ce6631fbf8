"""Time for a lab that wants it: a chronyd beside the controller, and one on each host to follow it.

All run with ``-x``: they measure and report as usual, and leave the machine's clock alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.lab.layout import CONTROLLER_ADDRESS, NETWORK, Layout

HOST_CONFIG = "/etc/chrony/chrony.conf"
# Polls four times a second at first and once a second later, where a real host takes minutes to
# settle.
_FOLLOWER = f"""\
server {CONTROLLER_ADDRESS} iburst minpoll -2 maxpoll 0
driftfile /var/lib/chrony/chrony.drift
"""
_SOURCE = """\
local stratum 8
allow {network}
cmdport 0
bindcmdaddress {folder}/chronyd.sock
pidfile {folder}/chronyd.pid
user root
"""


def follower_config(etc: Path) -> None:
    """Write the configuration of a host."""
    (etc / "chrony").mkdir(exist_ok=True)
    (etc / "chrony/chrony.conf").write_text(_FOLLOWER)


def start_follower() -> None:
    """Start a host's chronyd, from its process 1, which will collect it."""
    command = ["/usr/sbin/chronyd", "-x", "-d", "-f", HOST_CONFIG]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stdout, stderr=sys.stderr)


def source_command(layout: Layout) -> list[str]:
    """Return the command of the source.

    Its socket and pid file lie in the lab's folder, not in /run.
    """
    folder = layout.folder / "time"
    folder.mkdir(mode=0o700)
    config = folder / "chrony.conf"
    config.write_text(_SOURCE.format(network=NETWORK, folder=folder))
    return ["/usr/sbin/chronyd", "-x", "-d", "-f", str(config)]


def synchronised(tracking: str) -> bool:
    """Whether ``chronyc -c tracking`` says that the clock follows a source."""
    return tracking.strip().endswith(",Normal")
