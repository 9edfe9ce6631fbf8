"""Error counters: growth at and above each limit, no earlier sample, ports that do not count."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import hcas, node

HOUR = 3600.0
QUIET = {f"mlx5_{number}:1": {"symbol_error": 5, "link_downed": 1} for number in range(4)}


def grown(name: str, by: int, port: str = "mlx5_2:1") -> dict[str, dict[str, int]]:
    """Every port counts `name` from 0; one of them has come to `by`."""
    return {
        p: {**counted, name: counted.get(name, 0) + (by if p == port else 0)}
        for p, counted in QUIET.items()
    }


def seen(
    now: Any, then: Any, seconds: float = HOUR, long: Any = None, day: float = 20 * HOUR
) -> Any:
    """One node with these counters now, and as they were."""
    earlier = (
        None
        if then is None
        else Earlier(Sample(seconds, then), Sample(day, long) if long else Sample(seconds, then))
    )
    facts = {**node(hcas()), "ib.counters": now, "counters.earlier": earlier}
    return fleet(n1=facts)


@pytest.mark.parametrize(
    ("name", "seconds", "most"),
    [
        ("symbol_error", HOUR, 120),
        ("symbol_error", 600.0, 20),
        ("link_error_recovery", 600.0, 50),
        ("port_rcv_errors", 600.0, 6000),
        ("port_xmit_discards", 600.0, 60_000),
        ("local_ack_timeout_err", 600.0, 600),
        ("roce_slow_restart", 600.0, 6000),
        ("local_link_integrity_errors", HOUR, 0),
        ("excessive_buffer_overrun_errors", HOUR, 0),
        ("rnr_nak_retry_err", HOUR, 0),
    ],
)
def test_growth_up_to_the_limit_passes_and_beyond_fails(
    name: str, seconds: float, most: int
) -> None:
    before = grown(name, 0)
    (good,) = findings(seen(grown(name, most), before, seconds), "ib.counters")
    assert good.verdict == "pass"
    assert good.seen == ("growth below the limits" if most else "no growth")
    (bad,) = findings(seen(grown(name, most + 1), before, seconds), "ib.counters")
    assert (bad.verdict, bad.severity) == ("fail", "warning")
    assert f"mlx5_2:1 {name} +{most + 1} in " in bad.seen
    assert bad.remedy.startswith("mlxlink -d mlx5_2 -p 1 ")


@pytest.mark.parametrize("check", ["ib.counters", "ib.downed"])
@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        pytest.param(QUIET, None, "skip first_sample", id="nothing-earlier"),
        pytest.param(QUIET, QUIET, "pass", id="no-growth"),
        pytest.param(absent("denied"), QUIET, "unknown warning denied", id="not-readable"),
    ],
)
def test_what_is_told_without_growth(check: str, now: Any, then: Any, expected: str) -> None:
    assert told(seen(now, then), check) == {"n1": expected}


def test_large_totals_are_no_fault() -> None:
    worn = {port: {"symbol_error": 4_000_000, "link_downed": 300} for port in QUIET}
    assert {
        check: told(seen(worn, worn), check)["n1"] for check in ("ib.counters", "ib.downed")
    } == {
        "ib.counters": "pass",
        "ib.downed": "pass",
    }


def test_ports_beside_the_training_do_not_count() -> None:
    then, now = ({**QUIET, "storage0:1": {"symbol_error": number}} for number in (0, 10**6))
    assert told(seen(now, then), "ib.counters") == {"n1": "pass"}


def test_ports_that_do_not_count_are_not_judged() -> None:
    silent: dict[str, dict[str, int]] = {port: {} for port in QUIET}
    assert told(seen(silent, silent), "ib.counters") == {"n1": "skip not_applicable"}


@pytest.mark.parametrize("check", ["ib.counters", "ib.downed"])
def test_a_counter_that_is_gone_is_not_known(check: str) -> None:
    less = {**QUIET, "mlx5_1:1": {"link_downed": 1}}
    assert told(seen(less, QUIET), check) == {"n1": "unknown warning garbled"}
    assert told(seen(QUIET, less), check) == {"n1": "pass"}, "one that is new has no past"


def test_a_node_without_ports_is_not_judged() -> None:
    facts = {**node(()), "ib.counters": {}, "counters.earlier": None}
    assert told(fleet(n1=facts), "ib.counters") == {"n1": "skip not_applicable"}


@pytest.mark.parametrize(
    ("since", "day", "expected", "words"),
    [
        (0, 0, "pass", "none"),
        (1, 1, "fail warning", "mlx5_2:1 once in 1 h"),
        (0, 4, "pass", "none"),
        (0, 5, "fail warning", "mlx5_2:1 5 times in 20 h"),
        (1, 6, "fail warning", "mlx5_2:1 6 times in 20 h"),
    ],
)
def test_a_link_that_went_down(since: int, day: int, expected: str, words: str) -> None:
    now, hour_ago, day_ago = (grown("link_downed", 10 - ago) for ago in (0, since, day))
    looked = seen(now, hour_ago, long=day_ago)
    assert told(looked, "ib.downed") == {"n1": expected}
    assert findings(looked, "ib.downed")[0].seen == words
