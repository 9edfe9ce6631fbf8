"""Start the machine's firewalld or ufw on a host of the lab."""

from __future__ import annotations

import shutil

import pytest

from tests.support.lab.rooms import Host

TOOLS = {"firewalld": "firewalld", "ufw": "ufw"}
# firewalld answers through D-Bus, of which a host has none by itself.
FIREWALLD = """
mkdir -p /run/dbus /run/firewalld
dbus-daemon --system --fork || exit
firewalld --nofork --nopid >/run/firewalld/log 2>&1 </dev/null &
until firewall-cmd --state >/dev/null 2>&1; do sleep 0.2; done
"""
UFW = "ufw allow 22/tcp && ufw --force enable"


def require_firewalls() -> None:
    """Skip the calling test where a program is missing."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing (apt install {package})")


def start_firewalld(host: Host) -> None:
    """Let firewalld own the packet filter of a host; its zone lets SSH in and closes the rest."""
    host.run(["sh", "-c", FIREWALLD], timeout=60)


def start_ufw(host: Host) -> None:
    """Let ufw own the packet filter of a host: SSH comes in, all else is closed."""
    host.run(["sh", "-c", UFW], timeout=60)
