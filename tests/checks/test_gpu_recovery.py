"""Each recovery that a driver may recommend, and drivers that recommend none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import absent, findings, fleet, learned, same, told


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (0, "pass"),
        (1, "fail error"),
        (2, "fail error"),
        (3, "fail warning"),
        (4, "fail error"),
        (5, "fail warning"),
        (6, "fail error"),
        (7, "fail error"),
        (8, "fail error"),  # in no header so far
        (absent("not_applicable"), "skip not_applicable"),
        (absent("denied"), "unknown warning denied"),
    ],
)
def test_what_the_driver_recommends(action: Any, expected: str) -> None:
    assert told(fleet(**same("gpu.recovery", {0: 0, 1: action})), "gpu.recovery") == {
        "n1": "pass" if expected.startswith("skip") else expected
    }
    assert told(fleet(**same("gpu.recovery", {0: action})), "gpu.recovery") == {"n1": expected}


def test_the_gpus_that_need_a_reset_are_named() -> None:
    (found,) = findings(fleet(**same("gpu.recovery", {0: 0, 3: 1, 5: 1, 6: 0})), "gpu.recovery")
    assert found.seen == "GPU 3, 5: reset"
    assert found.remedy.startswith("nvidia-smi --gpu-reset -i 3,5")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (0, {0: 0}),
        (2, {0: 2}),
        (["no", "not_applicable"], "not_applicable"),
        (["no", "missing_tool"], "not_applicable"),
        (["no", "nvml_error", 2], "not_applicable"),  # the library is older than the field
        (["no", "reset_required"], "reset_required"),
        (["no", "nvml_error", 999], "nvml_error"),
        ("none", "garbled"),
    ],
)
def test_an_action_is_a_number_of_the_header(answer: Any, expected: Any) -> None:
    found = learned("gpu.recovery", ["ok", {"gpus": [{"index": 0, "recovery": answer}]}])
    assert (found.reason if isinstance(expected, str) else found) == expected
