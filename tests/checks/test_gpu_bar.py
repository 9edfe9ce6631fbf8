"""BAR1 of equal GPUs, of one that differs, and of models that differ anyway."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu import Model
from tests.support.fleet import absent, findings, fleet, told

H100, L20 = Model("NVIDIA H100 80GB HBM3", 80 << 30, "9.0"), Model("NVIDIA L20", 46 << 30, "8.9")
FULL, SMALL = 128 << 30, 256 << 20


def node(*sizes: Any, model: Model = H100) -> dict[str, Any]:
    return {
        "gpu.bar": dict(enumerate(sizes)),
        "gpu.model": dict.fromkeys(range(len(sizes)), model),
    }


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(FULL, FULL), node(FULL, FULL)], ["pass", "pass"]),
        ([node(FULL, FULL), node(FULL, SMALL)], ["pass", "fail warning"]),
        ([node(FULL, FULL), node(SMALL, SMALL, model=L20)], ["pass", "pass"]),
        ([node(FULL), node(absent("denied"))], ["pass", "unknown warning denied"]),
        ([node(absent("not_applicable"))], ["skip not_applicable"]),
    ],
)
def test_bar_is_equal_by_model(nodes: list[Any], expected: list[str]) -> None:
    seen = fleet(**{f"n{number}": facts for number, facts in enumerate(nodes)})
    assert list(told(seen, "pcie.bar").values()) == expected


def test_what_most_have_is_the_remedy() -> None:
    (found,) = [
        f
        for f in findings(fleet(n1=node(FULL, FULL), n2=node(FULL, SMALL)), "pcie.bar")
        if f.verdict == "fail"
    ]
    assert (found.seen, found.wanted) == ("GPU 1: 256 MiB", "128 GiB")
    assert "which have 128 GiB" in found.remedy
