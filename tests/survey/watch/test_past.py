"""Counters that grow are seen within two looks, and a day of looks is held in little."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier
from clusterprep.history.samples import LEAST, LONGEST
from clusterprep.model import Absent
from clusterprep.survey.watch.past import Past, earlier_of, kept_looks
from tests.support.fleet import fleet

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


# ---------------------------------------------------------------- recorded runs


def first_and_second(
    recorded: list[dict[str, Any]], *looks: dict[str, Any]
) -> list[Earlier | None]:
    """Return what the looks of a watch are compared with where runs were recorded before."""
    past = Past({"n1": recorded})
    compared = []
    for look in looks:
        seen = past.with_earlier(fleet(n1=look))
        compared.append(seen.fact("n1", "counters.earlier"))
    return compared


def test_what_grew_before_the_first_look_is_judged_since_the_newest_run() -> None:
    recorded = [facts(17_000.0, 5), facts(10_000.0, 2)]
    first, second = first_and_second(recorded, facts(20_000.0, 300), facts(20_060.0, 301))
    assert first is not None
    assert (first.recent.seconds, first.recent.ib[PORT]["symbol_error"]) == (3000.0, 5)
    assert (first.long.seconds, first.long.ib[PORT]["symbol_error"]) == (10_000.0, 2)
    assert second is not None
    assert second.recent.ib[PORT]["symbol_error"] == 300, "from then on a look counts"
    assert second.long.ib[PORT]["symbol_error"] == 2


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(facts(17_000.0, boot="b0"), id="another-boot"),
        pytest.param(facts(17_000.0, 400), id="began-anew"),
        pytest.param(facts(19_990.0), id="too-young"),
        pytest.param(facts(21_000.0), id="from-the-future"),
        pytest.param({**facts(17_000.0), "host.uptime": Absent("denied")}, id="not-known-then"),
        pytest.param({}, id="not-asked-then"),
    ],
)
def test_what_a_run_cannot_tell_is_not_known(recorded: dict[str, Any]) -> None:
    assert first_and_second([recorded], facts(20_000.0, 300)) == [None]


def test_a_run_is_awaited_until_the_node_tells_its_counters() -> None:
    silent = {**facts(19_940.0), "host.uptime": Absent("denied")}
    nothing, first = first_and_second([facts(17_000.0, 5)], silent, facts(20_000.0, 300))
    assert nothing is None
    assert first is not None
    assert first.recent.ib[PORT]["symbol_error"] == 5
