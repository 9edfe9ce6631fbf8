"""Corrected errors: the first look, slow and fast growth, too many at all, and a reset between."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu_health import CorrectedErrors
from tests.support.fleet import absent, findings, fleet, learned, told


def of(now: Any, before: int | None, seconds: float = 3600.0) -> Any:
    """A node with one GPU, and what an earlier run counted on it."""
    earlier = None
    if before is not None:
        sample = Sample(seconds, {}, gpu={"GPU-1": {"ecc corrected": before}})
        earlier = Earlier(sample, sample)
    return fleet(n1={"gpu.ecc_corrected": {0: now}, "counters.earlier": earlier})


def count(since_load: int, ever: int | None = 0) -> CorrectedErrors:
    return CorrectedErrors("GPU-1", since_load, ever)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        pytest.param(count(50), None, "skip first_sample", id="first-look"),
        pytest.param(count(50), 50, "pass", id="no-growth"),
        pytest.param(count(150), 50, "pass", id="as-many-as-allowed"),
        pytest.param(count(151), 50, "fail warning", id="too-fast"),
        pytest.param(count(3), 50, "skip first_sample", id="a-reset-between"),
        pytest.param(count(3, 60_000_000), None, "fail warning", id="too-many-at-all"),
        pytest.param(count(3, None), 3, "pass", id="the-total-is-not-told"),
        pytest.param(absent("denied"), 3, "unknown warning denied", id="not-known"),
        pytest.param(absent("not_applicable"), None, "skip not_applicable", id="no-ecc"),
    ],
)
def test_errors_by_their_growth(now: Any, before: int | None, expected: str) -> None:
    assert told(of(now, before), "gpu.ecc_corr") == {"n1": expected}


def test_the_rate_counts_and_not_the_growth() -> None:
    assert told(of(count(2000), 0, seconds=86400.0), "gpu.ecc_corr") == {"n1": "pass"}
    (found,) = findings(of(count(2000), 0, seconds=7200.0), "gpu.ecc_corr")
    assert found.seen == "GPU 0: +2,000 in 2 h"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {0: CorrectedErrors("GPU-1", 7, 9)}),
        ({"ecc_corrected_ever": ["no", "not_applicable"]}, {0: CorrectedErrors("GPU-1", 7, None)}),
        ({"ecc_corrected": ["no", "not_applicable"]}, "not_applicable"),
        ({"ecc_corrected": ["no", "gpu_lost"]}, "gpu_lost"),
        ({"ecc_corrected": "7"}, "garbled"),
    ],
)
def test_counts_of_one_gpu(change: dict[str, Any], expected: Any) -> None:
    row = {"index": 0, "uuid": "GPU-1", "ecc_corrected": 7, "ecc_corrected_ever": 9, **change}
    found = learned("gpu.ecc_corrected", ["ok", {"gpus": [row]}])
    assert (found.reason if isinstance(expected, str) else found) == expected
