"""A size of the sweep that is far slower than the links: known from the size before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent.collectives import CUT_SHORT, cut_short, size_to_run

MIB = 1 << 20


def context(*before: Any) -> Any:
    timed = {("all_reduce", "float32"): before} if before else {}
    return SimpleNamespace(timed=timed)


def step(size: int, longest: float | None) -> dict[str, Any]:
    return {
        "op": "all_reduce",
        "dtype": "float32",
        "bytes": size,
        "longest": longest,
        "fit": False,
    }


def test_what_20_mbit_leave_of_64_mib_takes_seconds_instead_of_a_minute() -> None:
    """1 MiB took 0.63 s where one of four hosts had 20 Mbit/s, so 64 MiB would take 40 s."""
    size, why = size_to_run(context(MIB, 0.63, 0.7), step(64 * MIB, 5.0), 60.0)
    assert (size, why) == (int(CUT_SHORT / 0.63 * MIB), "links")


@pytest.mark.parametrize(
    ("before", "size", "longest"),
    [
        pytest.param((MIB, 0.03, 0.04), 64 * MIB, 5.0, id="healthy"),
        pytest.param((MIB, 0.63, 0.7), 64 * MIB, 41.0, id="all-links-are-slow"),
        pytest.param((MIB, 0.63, 0.7), 64 * MIB, None, id="links-not-measured"),
        pytest.param((1024, 0.2, 0.2), MIB, 5.0, id="small-messages-measure-latency"),
        pytest.param((), MIB, 5.0, id="the-first"),
    ],
)
def test_other_sizes_are_run_whole(before: Any, size: int, longest: float | None) -> None:
    assert cut_short(context(*before), step(size, longest), 60.0) == size
