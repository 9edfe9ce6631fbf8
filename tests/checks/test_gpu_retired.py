"""Retired pages of a GPU before Ampere: few, many, pending, and a GPU that has none of this."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_health import RetiredPages
from tests.support.fleet import absent, findings, fleet, learned, same, told


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (RetiredPages(0, 0, pending=False), "pass"),
        (RetiredPages(7, 3, pending=False), "pass"),
        (RetiredPages(8, 3, pending=False), "fail warning"),
        (RetiredPages(0, 1, pending=True), "fail warning"),
        (RetiredPages(50, 10, pending=False), "fail warning"),
        (absent("not_applicable"), "skip not_applicable"),
        (absent("denied"), "unknown warning denied"),
    ],
)
def test_retired_pages(pages: Any, expected: str) -> None:
    assert told(fleet(**same("gpu.retired", {0: pages})), "gpu.retired") == {"n1": expected}


@pytest.mark.parametrize(
    ("pages", "message", "remedy"),
    [
        (RetiredPages(0, 1, True), "to be retired at the next reset", "nvidia-smi --gpu-reset"),
        (RetiredPages(59, 1, True), "nearly no page", "nvidia-bug-report.sh"),
        (RetiredPages(20, 1, False), "many pages", "watch whether it retires more"),
    ],
)
def test_each_has_its_own_remedy(pages: RetiredPages, message: str, remedy: str) -> None:
    (found,) = findings(fleet(**same("gpu.retired", {3: pages})), "gpu.retired")
    assert message in found.message
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {0: RetiredPages(4, 0, pending=False)}),  # V100 of a DGX-1
        ({"retired_single": ["no", "not_applicable"]}, "not_applicable"),  # from Ampere on
        ({"retired_single": ["no", "nvml_error", 2]}, "not_applicable"),
        ({"retired_pending": ["no", "denied"]}, "denied"),
        ({"retired_pending": 2}, "garbled"),
        ({"retired_double": -1}, "garbled"),
    ],
)
def test_pages_of_one_gpu(change: dict[str, Any], expected: Any) -> None:
    row = {"index": 0, "retired_single": 4, "retired_double": 0, "retired_pending": 0, **change}
    found = learned("gpu.retired", ["ok", {"gpus": [row]}])
    assert (found.reason if isinstance(expected, str) else found) == expected
