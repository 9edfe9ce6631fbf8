"""What counters were before.

Only of this boot, at least ten minutes ago, and not if they began anew.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from clusterprep.history.database import NAME
from clusterprep.history.runs import Runs, packed
from clusterprep.history.samples import earlier_of, with_earlier
from clusterprep.model import Absent, NodeSnapshot, Report
from clusterprep.model.history import RecordedRun
from tests.support.fleet import fleet

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
TEN = 600.0


def look(uptime: float, errors: int = 0, boot: str = "b", **more: Any) -> dict[str, Any]:
    counters = {"mlx5_0:1": {"symbol_error": errors}}
    return {"host.boot_id": boot, "host.uptime": uptime, "ib.counters": counters, **more}


def seconds(earlier: Earlier | None) -> tuple[float, float] | None:
    return None if earlier is None else (earlier.recent.seconds, earlier.long.seconds)


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([look(9400.0)], (TEN, TEN), id="ten-minutes"),
        pytest.param([look(9401.0)], None, id="too-young"),
        pytest.param(
            [look(9000.0), look(5000.0), look(1000.0)], (1000.0, 9000.0), id="newest-and-oldest"
        ),
        pytest.param([look(9000.0, boot="other")], None, id="another-boot"),
        pytest.param([look(9000.0, errors=8)], None, id="began-anew"),
        pytest.param(
            [look(9000.0, errors=8), look(5000.0)], (5000.0, 5000.0), id="one-of-them-began-anew"
        ),
        pytest.param([look(11_000.0)], None, id="from-the-future"),
        pytest.param(
            [look(9000.0, **{"ib.counters": Absent("denied")})], None, id="not-known-then"
        ),
        pytest.param([{}], None, id="not-asked-then"),
    ],
)
def test_which_earlier_looks_count(
    old: list[dict[str, Any]], expected: tuple[float, float] | None
) -> None:
    assert seconds(earlier_of(look(10_000.0, errors=7), old)) == expected


def test_nothing_is_told_of_what_is_not_known_now() -> None:
    assert earlier_of(look(10_000.0, **{"host.boot_id": Absent("denied")}), [look(9000.0)]) is None


def test_a_sample_of_more_than_a_day_ago_is_none() -> None:
    assert earlier_of(look(200_000.0), [look(200_000.0 - 24 * 3600 - 1)]) is None


def record(runs: Runs, ago: float, **nodes: dict[str, Any]) -> None:
    """A run that began so many seconds before now."""
    moment = NOW - timedelta(seconds=ago)
    name, started = f"{moment:%Y%m%d-%H%M%S}-0000", f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    rows = tuple(NodeSnapshot(node, "", True, facts=facts) for node, facts in nodes.items())
    report = Report("check", name, "test", started, 1.0, "pass", 0, rows)
    runs.record(
        packed(
            report,
            RecordedRun(
                name, "check", "test", "", started, 1.0, "pass", 0, len(rows), len(rows), 0, 0, 0
            ),
        )
    )


def test_the_stage_looks_through_earlier_runs(tmp_path: Path) -> None:
    """n2 had no part in the newest run that is old enough, n3 in none."""
    runs = Runs(tmp_path)
    record(runs, 30 * 3600.0, n1=look(1.0), n2=look(1.0))
    record(runs, 7200.0, n1=look(2800.0), n2=look(2800.0, errors=3))
    record(runs, 900.0, n1=look(9100.0, errors=5), other={"host.uptime": 3.0})
    record(runs, 60.0, n1=look(9940.0, errors=6), n2=look(9940.0))
    seen = with_earlier(
        runs, fleet(n1=look(10_000.0, errors=7), n2=look(10_000.0, errors=7), n3=look(5.0)), NOW
    )
    n1, n2, n3 = (seen.fact(name, "counters.earlier") for name in ("n1", "n2", "n3"))
    assert n1 == Earlier(
        Sample(900.0, {"mlx5_0:1": {"symbol_error": 5}}),
        Sample(7200.0, {"mlx5_0:1": {"symbol_error": 0}}),
    )
    assert seconds(n2) == (7200.0, 7200.0)
    assert n3 is None


def test_a_history_that_cannot_be_used_is_no_history(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("no database")
    assert (
        with_earlier(Runs(tmp_path), fleet(n1=look(10_000.0)), NOW).fact("n1", "counters.earlier")
        is None
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"0000:18:00.0": {"correctable RxErr": 2}}, {"0000:18:00.0": {"correctable RxErr": 2}}),
        (Absent("hung"), None),
        (None, None),
    ],
)
def test_errors_of_pci_functions_come_with_the_sample(recorded: Any, expected: Any) -> None:
    old = look(9000.0) if recorded is None else look(9000.0, **{"pci.errors": recorded})
    found = earlier_of(look(10_000.0), [old])
    assert found is not None
    assert found.recent.pcie == expected


def test_the_counters_of_gpus_come_with_the_sample(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    counted = {"GPU-1": {"ecc corrected": 5, "link 3 replay": 0}}
    record(
        runs,
        900.0,
        n1={**look(9100.0), "gpu.counters": counted},
        n2={**look(9100.0), "gpu.counters": Absent("hung")},
        n3=look(9100.0),
    )
    now = {name: look(10_000.0) for name in ("n1", "n2", "n3")}
    seen = with_earlier(runs, fleet(**now), NOW)
    earlier = [seen.fact(name, "counters.earlier").recent.gpu for name in now]
    assert earlier == [counted, None, None]
