"""Nodes that refuse us, and nodes that do not answer."""

from __future__ import annotations

from tests.faults.row import Row
from tests.support.lab import faults

REACH = "ssh.reach"
ROWS = (
    Row(
        "host key changed",
        REACH,
        lambda host, lab: faults.new_host_key(host),
        reason="host_key_changed",
        several=True,
    ),
    Row(
        "key not accepted",
        REACH,
        lambda host, lab: faults.no_key(host),
        reason="auth_refused",
        several=True,
    ),
    Row(
        "no Python",
        REACH,
        lambda host, lab: faults.hide_python(host),
        reason="no_python",
        several=True,
    ),
    Row(
        "port 22 refused",
        REACH,
        lambda host, lab: faults.refuse_port(host, 22),
        verdict="unknown",
        reason="refused",
        several=True,
    ),
    Row(
        "port 22 dropped",
        REACH,
        lambda host, lab: faults.drop_port(host, 22),
        verdict="unknown",
        reason="timed_out",
        several=True,
    ),
    Row(
        "sshd frozen",
        REACH,
        lambda host, lab: faults.stop_sshd(host),
        verdict="unknown",
        reason="no_banner",
        several=True,
    ),
    Row(
        "cable out",
        REACH,
        lambda host, lab: faults.cable_out(host),
        verdict="unknown",
        several=True,
    ),
    Row(
        "home that does not answer",
        REACH,
        lambda host, lab: faults.hung_mount(host, "/root"),
        verdict="unknown",
        reason="hung",
        several=True,
    ),
)
