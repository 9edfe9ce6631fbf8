"""Which exit code a command ends with, and which one outranks another."""

from __future__ import annotations

import pytest

from clusterprep.changes.file_plan import Gap
from clusterprep.cli import exit_codes
from clusterprep.errors import (
    ClusterprepError,
    InputError,
    Interrupted,
    LinkLost,
    NotKnown,
    OutOfTime,
    Refused,
)
from clusterprep.model import Absent, ChangeRow, Finding, LaunchResult, VerifyResult


def finding(check: str, verdict: str = "fail", severity: str = "error", **more: object) -> Finding:
    return Finding(check, verdict, severity, ("n1",), "why", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((0, 3), 3),
        ((3, 1), 1),
        ((1, 3), 1),
        ((5, 0), 5),
        ((0, 0), 0),
        ((0, 0, 3), 3),
        ((0, 3, 1), 1),
        ((), 0),
    ],
)
def test_a_failure_outranks_not_knowing(codes: tuple[int, ...], worst: int) -> None:
    assert exit_codes.worst(*codes) == worst


@pytest.mark.parametrize(
    ("error", "codes", "code"),
    [
        pytest.param(OutOfTime("it is over"), (0,), 3, id="nothing-failed"),
        pytest.param(OutOfTime("it is over"), (3, 1), 1, id="failed"),
        pytest.param(Interrupted("no"), (0,), 130, id="interrupted"),
        pytest.param(Interrupted("no"), (1,), 130, id="interrupted-after-a-failure"),
    ],
)
def test_what_was_known_when_a_command_was_ended_has_a_code(
    error: ClusterprepError, codes: tuple[int, ...], code: int
) -> None:
    assert exit_codes.cut_code(error, *codes) == code


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        pytest.param((), 0, id="none"),
        pytest.param(("denied", "hung"), 3, id="not-known"),
        pytest.param(("denied", "not_a_file"), 1, id="known-to-be-impossible"),
    ],
)
def test_a_gap_that_is_known_fails_and_one_that_is_not_is_not_known(
    reasons: tuple[str, ...], code: int
) -> None:
    gaps = {reason: Gap("file", Absent(reason, "why")) for reason in reasons}
    assert exit_codes.gaps_code(gaps) == code


def trial(verdict: str | None) -> VerifyResult | None:
    if verdict is None:
        return None
    return VerifyResult(verdict, "gloo", 2, 1, "n1:29500")  # type: ignore[arg-type]


SILENCED = finding("nccl.busbw_multi", silenced="old switch")
NOT_KNOWN = finding("nccl.busbw_multi", "unknown")
SILENCED_UNKNOWN = finding("nccl.busbw_multi", "unknown", silenced="a loan")


@pytest.mark.parametrize(
    ("verdict", "findings", "code"),
    [
        (None, [], 0),
        ("pass", [], 0),
        ("skip", [], 0),
        ("fail", [], 1),
        ("unknown", [], 3),
        ("fail", [finding("nccl.busbw_multi")], 1),
        ("fail", [SILENCED], 0),
        ("fail", [SILENCED, finding("nccl.hang")], 1),
        ("fail", [finding("nccl.hang", "pass")], 1),
        ("unknown", [NOT_KNOWN], 3),
        ("unknown", [SILENCED_UNKNOWN], 0),
        ("unknown", [SILENCED_UNKNOWN, NOT_KNOWN], 3),
    ],
)
def test_what_the_inventory_accepts_of_a_trial_does_not_count(
    verdict: str | None, findings: list[Finding], code: int
) -> None:
    assert exit_codes.trial_code(trial(verdict), findings) == code


def test_a_node_that_could_not_store_its_findings_is_a_failure() -> None:
    done = ChangeRow(("n1",), "store", "/f", "create", "done")
    failed = ChangeRow(("n2",), "store", "/f", "create", "failed")
    assert exit_codes.stored_code([]) == 0
    assert exit_codes.stored_code([done]) == 0
    assert exit_codes.stored_code([done, failed]) == 1


@pytest.mark.parametrize(
    ("verdict", "timed_out", "code"),
    [("pass", False, 0), ("fail", False, 1), ("fail", True, 3), ("unknown", False, 3)],
)
def test_a_launch(verdict: str, timed_out: bool, code: int) -> None:
    result = LaunchResult(verdict, "torchrun", 2, 1, "n1:29500", timed_out=timed_out)  # type: ignore[arg-type]
    assert exit_codes.launch_code(result) == code


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (InputError, "error"),
        (Refused, "refused"),
        (Interrupted, "interrupted"),
        (OutOfTime, "unknown"),
        (NotKnown, "unknown"),
        (LinkLost, "unknown"),
        (ClusterprepError, "error"),
    ],
)
def test_every_error_has_its_word_in_the_report(
    error: type[ClusterprepError], verdict: str
) -> None:
    assert exit_codes.verdict_of(error.code) == verdict
