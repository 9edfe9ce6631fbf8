"""What the findings about the speed make of the result of a trial."""

from __future__ import annotations

import pytest

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.stage import limited_by_speed
from clusterprep.model import Finding
from tests.jobs.verify.stories import story


@pytest.mark.parametrize(
    ("verdict", "severity", "expected"),
    [
        ("pass", "error", "pass"),
        ("skip", "error", "pass"),
        ("fail", "error", "fail"),
        ("fail", "warning", "pass"),
        ("unknown", "error", "unknown"),
    ],
)
def test_a_speed_that_is_not_known_leaves_the_trial_unknown(
    verdict: str, severity: str, expected: str
) -> None:
    found = Finding("nccl.busbw_multi", verdict, severity, ("n1",), "why")  # type: ignore[arg-type]
    result = limited_by_speed(judge(story()), [found])
    assert result.verdict == expected
    stages = {stage.name: stage.verdict for stage in result.stages}
    assert stages["bandwidth"] == verdict


def test_a_trial_that_failed_is_no_better_for_what_is_not_known() -> None:
    found = Finding("nccl.busbw_multi", "unknown", "error", ("n1",), "why")
    failed = judge(story(wrong={1: 5}))
    assert limited_by_speed(failed, [found]).verdict == "fail"


def test_findings_of_other_checks_change_nothing() -> None:
    found = Finding("nccl.nvls", "fail", "warning", ("n1",), "why")
    assert limited_by_speed(judge(story()), [found]).verdict == "pass"
