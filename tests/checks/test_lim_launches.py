"""Which way of launching a job has a wrong limit: each is named, the others are not blamed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterprep.facts.launch_limits import ITEMS, Limit
from clusterprep.facts.tasks import Ids, Tasks
from clusterprep.model import Finding
from tests.support.fleet import absent, findings, fleet, rdma_device, told

GOOD = {
    "lim.memlock": math.inf,
    "lim.nofile": 1048576.0,
    "lim.stack": 8388608.0,
    "lim.nproc": math.inf,
    "rdma.devices": (),
    "proc.tasks": Tasks(1000, 400),
    "proc.ids": Ids(3000, 4194304, 1 << 20),
}
LOW = 65536.0


def node(item: str, *limits: Limit, **facts: Any) -> dict[str, Any]:
    """A node whose session is well, with the other ways of launching."""
    launches: dict[str, tuple[Limit, ...]] = dict.fromkeys(ITEMS, ())
    launches[item] = limits
    return {**GOOD, "lim.launches": launches, **facts}


def limit(path: str, value: float | None = LOW, source: str = "", **fields: Any) -> Limit:
    return Limit(path, value, source or path, **fields)


def blamed(check: str, facts: dict[str, Any], **settings: Any) -> Finding:
    (bad,) = (
        finding
        for finding in findings(fleet(each=settings, n1=facts), check)
        if finding.verdict != "pass"
    )
    return bad


@pytest.mark.parametrize(
    ("bad", "who", "severity"),
    [
        pytest.param(limit("slurmd"), "tasks of Slurm", "error", id="slurmd"),
        pytest.param(limit("login shell"), "login shells", "error", id="login"),
        pytest.param(limit("cron"), "jobs of cron", "warning", id="cron"),
        pytest.param(
            limit("docker", per_job=True), "containers that Docker starts", "warning", id="docker"
        ),
        pytest.param(limit("containerd"), "containers of containerd", "warning", id="containerd"),
        pytest.param(limit("podman"), "containers that Podman starts", "warning", id="podman"),
        pytest.param(limit("systemd"), "services without a limit", "warning", id="services"),
        pytest.param(limit("ray.service"), "processes of ray.service", "warning", id="unit"),
    ],
)
def test_the_way_whose_limit_is_low_is_named(bad: Limit, who: str, severity: str) -> None:
    facts = node("memlock", bad, limit("other", math.inf), **{"rdma.devices": (rdma_device(),)})
    found = blamed("lim.memlock", facts)
    assert found.message.startswith(who)
    assert found.message.endswith("too little memory may be locked")
    assert found.seen == f"{bad.path}: 64 KiB ({bad.path})"
    assert found.severity == severity
    assert found.remedy


def test_with_a_low_session_both_are_named() -> None:
    facts = node("memlock", limit("slurmd"), **{"lim.memlock": LOW})
    assert told(fleet(n1=facts), "lim.memlock") == {"n1": "fail warning + fail warning"}


@pytest.mark.parametrize(
    ("transport", "session"), [("ssh", "an ssh session"), ("slurm", "a task of Slurm")]
)
def test_a_low_session_is_named(transport: str, session: str) -> None:
    found = blamed("lim.nofile", node("nofile", **{"lim.nofile": 1024.0}), transport=transport)
    assert found.message == f"{session}: too few files may be open"


def test_login_shells_are_told_with_the_session_where_pam_gives_both_the_same() -> None:
    pam = limit("login shell", 1024.0, "/etc/security/limits.conf")
    found = blamed("lim.nofile", node("nofile", pam, **{"lim.nofile": 1024.0}))
    assert found.message == "an ssh session and login shells: too few files may be open"
    assert "/etc/security/limits.conf" in found.remedy


def test_a_session_that_did_not_get_what_pam_would_give_says_so() -> None:
    pam = limit("login shell", math.inf, "/etc/security/limits.d/9.conf")
    found = blamed("lim.memlock", node("memlock", pam, **{"lim.memlock": LOW}))
    assert found.message.endswith("although /etc/security/limits.d/9.conf allows it")
    assert "UsePAM" in found.remedy


def test_what_is_well_is_told() -> None:
    facts = node("memlock", limit("slurmd", math.inf, ceiling=True), limit("cron", math.inf))
    _, others = findings(fleet(n1=facts), "lim.memlock")
    assert others.verdict == "pass"
    assert others.seen == "slurmd: unlimited (slurmd); cron: unlimited (cron)"


@pytest.mark.parametrize(
    ("check", "other", "require", "expected"),
    [
        ("memlock", limit("cron", None, "/f", reason="denied"), "", "unknown warning denied"),
        ("memlock", limit("cron", 40.0 * (1 << 30)), "", "pass + pass"),
        ("memlock", limit("cron", 40.0 * (1 << 30)), "64G", "fail error"),
        ("memlock", limit("docker", math.nan), "", "fail warning"),
        ("nofile", limit("containerd", 1024.0), "", "fail warning"),
        ("nofile", limit("containerd", 65536.0), "", "pass + pass"),
        ("stack", limit("docker", math.inf), "", "fail warning"),
        ("stack", limit("slurmd", math.inf, ceiling=True), "", "pass + pass"),
        ("stack", limit("slurmd", LOW, ceiling=True), "", "fail warning"),
        ("stack", limit("docker", math.inf), "4M", "pass + pass"),
        ("nproc", limit("slurmd", 499.0), "", "fail warning"),
        ("nproc", limit("slurmd", 500.0), "", "pass + pass"),
        ("nproc", limit("slurmd", 500.0), "65536", "fail error"),
    ],
)  # fmt: skip
def test_other_ways_are_judged_as_a_session_is(
    check: str, other: Limit, require: str, expected: str
) -> None:
    name = f"lim.{check}"
    settings = {"require": {name: require}} if require else {}
    seen = told(fleet(each=settings, n1=node(check, other)), name)
    assert seen == {"n1": expected}


def test_the_limit_of_processes_does_not_hold_root() -> None:
    facts = node("nproc", limit("slurmd", 1.0), **{"proc.tasks": Tasks(0, 400)})
    assert told(fleet(n1=facts), "lim.nproc") == {"n1": "pass + pass"}


@pytest.mark.parametrize("reason", ["denied", "hung", "garbled"])
@pytest.mark.parametrize("item", ITEMS)
def test_what_is_not_known_of_other_ways_is_no_pass(reason: str, item: str) -> None:
    facts = {**GOOD, "lim.launches": absent(reason)}
    assert told(fleet(n1=facts), f"lim.{item}") == {"n1": f"unknown warning {reason}"}


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (limit("slurmd"), "systemctl edit slurmd.service"),
        (limit("docker"), "systemctl edit containerd.service"),
        (limit("cron"), "pam_limits.so"),
        (limit("login shell", source="/etc/security/limits.d/99-x.conf"), "99-x.conf"),
        (limit("ray.service"), "LimitMEMLOCK=infinity"),
    ],
)
def test_a_remedy_is_where_the_limit_is_set(other: Limit, wanted: str) -> None:
    assert wanted in blamed("lim.memlock", node("memlock", other)).remedy
