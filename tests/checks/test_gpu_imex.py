"""IMEX that is ready, degraded, failed, idle, without nodes, and not installed."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.imex import Imex
from tests.support.fleet import absent, findings, fleet, same, told


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (Imex("active", "UP", (), 18), "pass"),
        (Imex("active", "DEGRADED", ("10.0.0.2 UNAVAILABLE",), 18), "fail warning"),
        (Imex("active", "DOWN", (), 18), "fail warning"),
        (Imex("active", "UP", ("10.0.0.2 UNAVAILABLE",), 18), "fail warning"),
        (Imex("active", "UP", (), None), "skip not_applicable"),
        (Imex("active", "DEGRADED", (), 0), "skip not_applicable"),
        (Imex("inactive", None, (), 18), "skip not_applicable"),
        (Imex("failed", None, (), 18), "fail warning"),
        (absent("not_applicable"), "skip not_applicable"),
        (absent("garbled"), "unknown warning garbled"),
        (absent("timed_out"), "unknown warning timed_out"),
    ],
)
def test_the_domain_is_ready_where_it_is_in_use(state: Any, expected: str) -> None:
    assert told(fleet(**same("gpu.imex", state)), "gpu.imex") == {"n1": expected}


def test_nodes_that_are_not_ready_are_named() -> None:
    state = Imex("active", "DEGRADED", ("10.0.0.2 UNAVAILABLE",), 18)
    (found,) = findings(fleet(**same("gpu.imex", state)), "gpu.imex")
    assert found.seen == "the domain is DEGRADED; 10.0.0.2 UNAVAILABLE"
