"""Required services: running, stopped, failed, not installed, not required."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, same, told

REQUIRED = {"require": {"svc.required": "sshd,chronyd"}}


def units(ssh: str = "active", chrony: str = "active") -> tuple[tuple[str, str], ...]:
    return (("ssh.service", ssh), ("chrony.service", chrony))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param(units(), "pass", id="all-run"),
        pytest.param(units(chrony="reloading"), "pass", id="reloading"),
        pytest.param(units(chrony="inactive"), "fail error", id="stopped"),
        pytest.param(units(chrony="failed"), "fail error", id="failed"),
        pytest.param(units(chrony="activating"), "fail error", id="again-and-again"),
        pytest.param(units(chrony="deactivating"), "fail error", id="stopping"),
        pytest.param(units(chrony="not-found"), "fail error", id="not-installed"),
        pytest.param(units(chrony="masked"), "fail error", id="masked"),
        pytest.param(units("inactive", "failed"), "fail error + fail error", id="both"),
        pytest.param(absent("missing_tool"), "unknown error missing_tool", id="no-systemctl"),
        pytest.param(
            absent("systemd is not running"),
            "unknown error systemd is not running",
            id="no-systemd",
        ),
        pytest.param(absent("timed_out"), "unknown error timed_out", id="timed-out"),
    ],
)
def test_what_is_required_must_run(states: Any, expected: str) -> None:
    assert told(fleet(each=REQUIRED, n1={"svc.states": states}), "svc.required") == {"n1": expected}


def test_where_nothing_is_required_nothing_is_judged() -> None:
    seen = fleet(n1={"svc.states": Absent("not_applicable", "no services are required here")})
    assert told(seen, "svc.required") == {"n1": "skip not_applicable"}


def test_nodes_with_the_same_fault_are_one_finding() -> None:
    seen = fleet(
        each=REQUIRED, **same("svc.states", units(), units(chrony="failed"), units(chrony="failed"))
    )
    bad, good = sorted(findings(seen, "svc.required"), key=lambda finding: finding.verdict)
    assert (bad.nodes, good.nodes) == (("n2", "n3"), ("n1",))
    assert bad.seen == "chrony.service failed"
    assert "systemctl start chrony.service" in bad.remedy


@pytest.mark.parametrize(
    ("state", "cure"),
    [("inactive", "enable --now"), ("masked", "unmask"), ("not-found", "install")],
)
def test_each_state_has_its_cure(state: str, cure: str) -> None:
    (bad,) = findings(fleet(each=REQUIRED, n1={"svc.states": units(ssh=state)}), "svc.required")
    assert cure in f"{bad.remedy} {bad.remedy.note}"
