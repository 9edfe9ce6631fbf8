"""Counters that grow are seen within two looks, and a day of looks is held in little."""

from __future__ import annotations

from typing import Any

from clusterprep.facts.counters import Earlier
from clusterprep.history.samples import LEAST, LONGEST
from clusterprep.model import Absent
from clusterprep.survey.watch.past import earlier_of, kept_looks

PORT = "mlx5_0:1"


def facts(uptime: float, errors: int = 0, boot: str = "b1") -> dict[str, Any]:
    return {
        "host.boot_id": boot,
        "host.uptime": uptime,
        "ib.counters": {PORT: {"symbol_error": errors}},
    }


def watched(*looks: dict[str, Any]) -> tuple[tuple[Any, ...], Earlier | None]:
    """Return what is held after these looks, and what the last one is compared with."""
    kept: tuple[Any, ...] = ()
    earlier = None
    for look in looks:
        earlier = earlier_of(look, kept)
        kept = kept_looks(kept, look)
    return kept, earlier


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert watched(facts(1000.0))[1] is None


def test_growth_within_ten_seconds_counts_as_growth_within_ten_minutes() -> None:
    _, earlier = watched(facts(1000.0, 5), facts(1010.0, 300))
    assert earlier is not None
    assert earlier.recent.ib == {PORT: {"symbol_error": 5}}
    assert earlier.recent.seconds == LEAST


def test_growth_is_seen_for_ten_minutes_and_no_longer() -> None:
    looks = [facts(1000.0 + 10 * number, 0 if number < 3 else 300) for number in range(200)]
    _, soon = watched(*looks[:60])
    _, late = watched(*looks)
    assert soon is not None
    assert soon.recent.ib[PORT]["symbol_error"] == 0
    assert late is not None
    assert late.recent.ib[PORT]["symbol_error"] == 300
    assert late.long.ib[PORT]["symbol_error"] == 0


def test_looks_that_are_further_apart_are_compared_too() -> None:
    _, earlier = watched(facts(1000.0), facts(4600.0, 7))
    assert earlier is not None
    assert earlier.recent.seconds == 3600.0


def test_counters_of_an_earlier_boot_are_not_compared() -> None:
    _, earlier = watched(facts(9000.0, 500), facts(60.0, 0, boot="b2"))
    assert earlier is None


def test_counters_that_began_anew_are_not_compared() -> None:
    _, earlier = watched(facts(1000.0, 500), facts(1100.0, 3))
    assert earlier is None


def test_a_week_of_looks_is_held_in_the_space_of_a_day() -> None:
    kept, _ = watched(*(facts(1000.0 + 120 * number) for number in range(7 * 720)))
    assert len(kept) <= 12 + 26
    newest, oldest = kept[-1]["host.uptime"], kept[0]["host.uptime"]
    assert LONGEST - 2 * 3600 <= newest - oldest <= LONGEST


def test_counters_that_do_not_change_are_held_once() -> None:
    kept, _ = watched(facts(1000.0), facts(1100.0))
    assert kept[0]["ib.counters"] is kept[1]["ib.counters"]


def test_a_node_that_does_not_know_its_uptime_holds_nothing() -> None:
    unknown = {**facts(0.0), "host.uptime": Absent("denied")}
    assert watched(unknown, unknown) == ((), None)
