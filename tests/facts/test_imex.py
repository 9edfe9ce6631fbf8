"""What nvidia-imex-ctl prints, as JSON and as its table, and systemd's word for the service.

The table is of NVIDIA/k8s-dra-driver-gpu (a ComputeDomain of one node); the JSON has the fields of
the one that NVIDIA/ai-cloud-validation says it saw, with addresses of documentation.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.facts.imex import Imex
from tests.support.fleet import learned

ACTIVE = "LoadState=loaded\nActiveState=active\nSubState=running\n"
INACTIVE = "LoadState=loaded\nActiveState=inactive\nSubState=dead\n"
TABLE = """\
Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
N - Never Connected
R - Recovering - Connection was lost, but clean up has not yet been triggered.
D - Disconnected - Connection was lost, and clean up has been triggreed.
A - Authenticating - If GSSAPI enabled, client has initiated mutual authentication.
C - Connected - Ready for operation

3/25/2025 10:39:43.659
Nodes:
Node #0   - 10.136.206.48   - READY

 Nodes From\\To  0
       0        C
Domain State: UP
"""


def answer(state: str, domain: str | None, nodes: int | None = 2) -> Any:
    return learned("gpu.imex", ["ok", {"state": state, "domain": domain, "nodes": nodes}])


def as_json(status: str, second: str) -> str:
    nodes = {
        "0": {"status": "READY", "host": "192.0.2.1", "connections": {}, "hostName": "a"},
        "1": {"status": second, "host": "192.0.2.2", "connections": {}, "hostName": "N/A"},
    }
    return json.dumps({"nodes": nodes, "timestamp": "9/4/2026 00:00:00.000", "status": status})


def test_domains() -> None:
    assert answer(ACTIVE, as_json("UP", "READY")) == Imex("active", "UP", (), 2)
    assert answer(ACTIVE, as_json("DEGRADED", "UNAVAILABLE")) == Imex(
        "active", "DEGRADED", ("192.0.2.2 UNAVAILABLE",), 2
    )
    assert answer(ACTIVE, TABLE, 1) == Imex("active", "UP", (), 1)
    late = TABLE.replace("- READY", "- UNAVAILABLE").replace("UP", "DOWN")
    assert answer(ACTIVE, late, 1) == Imex("active", "DOWN", ("10.136.206.48 UNAVAILABLE",), 1)


def test_a_service_that_does_not_run_has_no_domain() -> None:
    assert answer(INACTIVE, None) == Imex("inactive", None, (), 2)


@pytest.mark.parametrize("domain", ["", "{}", '{"nodes": []}', "Error connecting", "{"])
def test_another_answer_is_garbled(domain: str) -> None:
    assert answer(ACTIVE, domain).reason == "garbled"


def test_without_imex_or_systemd() -> None:
    assert learned("gpu.imex", ["ok", None]).reason == "not_applicable"
    assert answer("", None).reason == "systemd is not running"
