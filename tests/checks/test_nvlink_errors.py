"""Error counters of NVLinks between two runs: none before, no growth, a marginal link, a reset."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.nvlink import LinkErrors
from tests.support.fleet import absent, findings, fleet, told


def node(now: Any, before: dict[str, int] | None) -> dict[str, Any]:
    earlier = None
    if before is not None:
        sample = Sample(1200.0, {}, gpu={"GPU-1": before})
        earlier = Earlier(sample, sample)
    return {"nvlink.errors": {0: now}, "counters.earlier": earlier}


def one(**kinds: int) -> LinkErrors:
    return LinkErrors("GPU-1", {3: kinds})


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        pytest.param(one(replay=9), None, "skip first_sample", id="first-look"),
        pytest.param(one(replay=9), {}, "skip first_sample", id="an-older-run-without-them"),
        pytest.param(one(replay=9), {"link 3 replay": 9}, "pass", id="no-growth"),
        pytest.param(one(replay=13), {"link 3 replay": 9}, "pass", id="a-little"),
        pytest.param(one(replay=14), {"link 3 replay": 9}, "fail warning", id="replays"),
        pytest.param(one(recovery=1), {"link 3 recovery": 0}, "fail warning", id="one-recovery"),
        pytest.param(one(recovered=1), {"link 3 recovered": 0}, "fail warning", id="nvlink-5"),
        pytest.param(one(symbol=900), {"link 3 symbol": 0}, "fail warning", id="symbol-errors"),
        pytest.param(one(replay=0), {"link 3 replay": 9}, "skip first_sample", id="a-reset"),
        pytest.param(absent("denied"), {}, "unknown warning denied", id="not-known"),
        pytest.param(absent("not_applicable"), {}, "skip not_applicable", id="no-nvlink"),
    ],
)
def test_errors_by_their_growth(now: Any, before: dict[str, int] | None, expected: str) -> None:
    assert told(fleet(n1=node(now, before)), "nvl.errors") == {"n1": expected}


def test_link_and_kind_are_named() -> None:
    before = {"link 3 crc": 1, "link 3 recovery": 0}
    (found,) = findings(fleet(n1=node(one(crc=800, recovery=2), before)), "nvl.errors")
    assert found.seen == "GPU 0: link 3 +799 CRC errors, link 3 +2 recoveries in 20 min"
