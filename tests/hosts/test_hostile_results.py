"""Results of deep checks that a hostile node keeps: none becomes a pass, and none costs time."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Host, Lab

pytestmark = pytest.mark.hosts

STORE = "/var/lib/clusterprep/deep.json"
CHECK = "torch.version"
BUDGET = 10.0  # seconds; none of this may need them
FINDING = {
    **dict.fromkeys(("message", "seen", "wanted", "remedy"), ""),
    "check": CHECK,
    "verdict": "pass",
    "severity": "error",
    "reason": None,
}


def stored(host: Host, **changes: object) -> None:
    """Results as ours would be, but for some values."""
    boot = host.read("/proc/sys/kernel/random/boot_id").strip()
    document = {
        "schema": 1,
        "tool": "0",
        "boot": boot,
        "uptime": 5.0,
        "about": "0" * 16,
        "checks": [CHECK],
        "findings": [FINDING],
    }
    host.write(STORE, json.dumps(document | changes))


def test_no_result_that_a_node_makes_up_passes(lab4: Lab) -> None:
    """A time to come, no end, a link to a secret, and a document of the wrong shape."""
    future, endless, link, shape = lab4.hosts
    stored(future, uptime=1e12)
    for host in (endless, link, shape):
        host.run(["mkdir", "-p", "/var/lib/clusterprep"])
    endless.run(["truncate", "--size", "1T", STORE])
    link.run(["ln", "-sf", "/etc/shadow", STORE])
    stored(shape, checks=[CHECK] * 3000, findings=[[], None, 7, FINDING])
    began = time.monotonic()
    try:
        seen = clusterprep(lab4, "check", f"--budget={BUDGET:g}", "--only", f"ssh.reach,{CHECK}")
    finally:
        for host in lab4.hosts:
            host.run(["rm", "-rf", "/var/lib/clusterprep"])
    assert time.monotonic() - began < BUDGET
    assert seen.blamed(CHECK, "pass") == []
    reasons = {
        name: finding["reason"]
        for finding in seen.findings(CHECK, "unknown")
        for name in finding["nodes"]
    }
    assert reasons == {
        "n1": "garbled",
        "n2": "truncated",
        "n3": "not_a_file",
        "n4": "garbled",
    }
    assert "root:" not in json.dumps(seen.report)
