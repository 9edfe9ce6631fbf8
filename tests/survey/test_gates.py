"""What is in the way of a stage, and which exit code is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterprep.model import Finding, Fleet, VerifyResult
from clusterprep.survey.gates import after_write, blocked, blocking_findings, worse_exit_code
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


@pytest.mark.parametrize(
    ("first", "second", "code"), [(0, 3, 3), (3, 1, 1), (1, 3, 1), (5, 0, 5), (0, 0, 0)]
)
def test_a_failure_outranks_not_knowing(first: int, second: int, code: int) -> None:
    assert worse_exit_code(first, second) == code


def result(verdict: str) -> VerifyResult:
    return VerifyResult(verdict, "gloo", 2, 1, "n1:29500")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("done", "verdict", "tried", "code"),
    [
        (True, None, [], 0),
        (False, None, [], 1),
        (True, "pass", [], 0),
        (True, "fail", [], 1),
        (True, "unknown", [], 3),
        (True, "fail", [finding("nccl.busbw_multi")], 1),
        (True, "fail", [finding("nccl.busbw_multi", silenced="old switch")], 0),
        (
            True,
            "fail",
            [finding("nccl.busbw_multi", silenced="old switch"), finding("nccl.hang")],
            1,
        ),
        (True, "fail", [finding("nccl.hang", "pass")], 1),
        (False, "fail", [finding("nccl.busbw_multi", silenced="old switch")], 1),
    ],
)
def test_what_the_inventory_accepts_of_a_trial_does_not_count(
    done: bool, verdict: str | None, tried: list[Finding], code: int
) -> None:
    assert after_write(0, done, verdict and result(verdict), tried) == code  # type: ignore[arg-type]
