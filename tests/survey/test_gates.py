"""Which findings stop a write or an all-reduce."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, Fleet
from clusterprep.survey.gates import Obstacle, blocking_findings, obstacle
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
    missing = Obstacle("n2 was not reached", ("n2",))
    assert obstacle(whole, (), partial=False) is None
    assert obstacle(part, (), partial=False) == missing
    assert obstacle(part, (), partial=True) is None
    assert missing.sentence == "n2 was not reached (`--partial` goes on without it)"


@pytest.mark.parametrize("partial", [True, False])
def test_partial_helps_neither_two_names_of_one_machine_nor_where_no_node_was_reached(
    partial: bool,
) -> None:
    twins = [replace(finding("host.identity"), nodes=("n1", "n3"))]
    same = obstacle(without(3, "n2"), twins, partial)
    assert same == Obstacle("n[1,3] are not different machines (host.identity)")
    none = obstacle(without(1, "n1"), (), partial)
    assert none == Obstacle("no node was reached")
    assert none.sentence == none.reason
