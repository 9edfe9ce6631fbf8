"""Which findings stop a write or an all-reduce."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, Fleet
from clusterprep.survey.gates import blocked, blocking_findings
from tests.support.fleet import healthy, silent


def without(count: int, name: str) -> Fleet:
    seen = healthy(count)
    return replace(seen, snapshots={**seen.snapshots, name: silent(name)})


def finding(check: str, verdict: str = "fail", severity: str = "error", **more: object) -> Finding:
    return Finding(check, verdict, severity, ("n1",), "why", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "on_busy", "stands"),
    [
        (finding("net.ports"), False, True),
        (finding("net.ports", "unknown"), False, True),
        (finding("ssh.reach"), False, True),
        (finding("net.ports", silenced="known"), False, True),
        (finding("net.ports", fixed=True), False, False),
        (finding("net.ports", "pass"), False, False),
        (finding("torch.version", severity="warning"), False, False),
        (finding("time.offset"), False, False),
        (finding("gpu.busy", severity="warning"), False, True),
        (finding("gpu.busy", "unknown", "warning"), False, True),
        (finding("gpu.busy", severity="warning"), True, False),
    ],
)
def test_what_a_verify_could_only_hang_on(one: Finding, on_busy: bool, stands: bool) -> None:
    assert blocking_findings([one], on_busy) == ([one] if stands else [])


def test_a_missing_node_stops_the_writing_and_partial_goes_on() -> None:
    whole, part = healthy(3), without(3, "n2")
    assert [blocked(whole, (), False), blocked(part, (), False), blocked(part, (), True)] == [
        False,
        True,
        False,
    ]
    assert blocked(whole, [finding("host.identity")], True)
    assert blocked(without(1, "n1"), (), True)
