"""Clocks: far apart, near the limit, measured too coarsely, not synchronised, slow to read."""

from __future__ import annotations

import math

import pytest

from clusterprep.facts.clock import ClockSource, Daemon, Offset
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, same, told

FINE = 0.0004  # seconds; what a quiet network gives
STRADDLES = "the error bound straddles the limit"


def clocks(*seconds: float, bound: float = FINE, **options: object) -> object:
    return fleet(**options, **same("clock.offset", *(Offset(s, bound) for s in seconds)))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param([0.0, 0.001, -0.002], ["pass"] * 3, id="together"),
        pytest.param([0.0, 0.0, 5.001], ["pass", "pass", "fail error"], id="five-seconds-ahead"),
        pytest.param([0.0, 0.0, -3600.0], ["pass", "pass", "fail error"], id="an-hour-behind"),
        pytest.param([0.0, 0.0, 0.2], ["pass", "pass", "fail warning"], id="a-fifth-of-a-second"),
        pytest.param(
            [0.0, 0.0, 1.0],
            ["pass", "pass", "fail warning"],
            id="a-second-is-no-more-than-a-second",
        ),
        pytest.param([0.0, 0.0, 1.001], ["pass", "pass", "fail error"], id="more-than-a-second"),
        pytest.param([100.0, 100.0, 100.0], ["pass"] * 3, id="it-is-the-controller-that-is-wrong"),
        pytest.param([0.0, 0.0, 0.0496], ["pass"] * 3, id="at-the-limit-with-its-bound"),
        pytest.param(
            [0.0, 0.0, 0.0505], ["pass", "pass", "fail warning"], id="just-over-it-with-its-bound"
        ),
        pytest.param(
            [0.0, 0.0, 0.0502],
            ["pass", "pass", f"unknown warning {STRADDLES}"],
            id="straddles-from-above",
        ),
        pytest.param(
            [0.0, 0.0, -0.0498],
            ["pass", "pass", f"unknown warning {STRADDLES}"],
            id="straddles-from-below",
        ),
        pytest.param([5.0], ["fail error"], id="one-node-against-the-controller"),
        pytest.param([0.0, 5.0], ["pass", "fail error"], id="two-nodes-against-the-controller"),
        pytest.param(
            [5.0, 5.0], ["fail error"] * 2, id="two-nodes-agree-and-the-controller-does-not"
        ),
        pytest.param([0.0, 0.0, 10.0, 10.0], ["fail error"] * 4, id="two-against-two"),
    ],
)
def test_clocks_are_judged_against_their_median(seconds: list[float], expected: list[str]) -> None:
    assert list(told(clocks(*seconds), "time.offset").values()) == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        pytest.param(0.02, "pass", id="coarse-and-still-within"),
        pytest.param(0.2, f"unknown warning {STRADDLES}", id="too-coarse"),
        pytest.param(3.0, f"unknown error {STRADDLES}", id="could-be-seconds"),
    ],
)
def test_a_coarse_measurement_is_never_a_pass_beyond_its_bound(bound: float, expected: str) -> None:
    assert told(clocks(0.0, 0.0, 0.01, bound=bound), "time.offset")["n3"] == expected


@pytest.mark.parametrize(
    "clock", [Offset(math.nan, 0.0), Offset(0.0, math.nan), Offset(math.inf, 1.0)]
)
def test_a_clock_that_is_no_number_is_not_known_and_spoils_no_other(clock: Offset) -> None:
    seen = fleet(
        **same("clock.offset", Offset(0.0, FINE), Offset(0.0, FINE), Offset(9.0, FINE), clock)
    )
    assert told(seen, "time.offset") == {
        "n1": "pass", "n2": "pass", "n3": "fail error", "n4": "unknown error garbled"
    }  # fmt: skip


def test_what_is_required_replaces_the_limit_and_is_an_error() -> None:
    strict = {"require": {"time.offset": "1ms"}}
    assert told(clocks(0.0, 0.0, 0.01, each=strict), "time.offset")["n3"] == "fail error"
    assert (
        told(clocks(0.0, 0.0, 0.0011, each=strict), "time.offset")["n3"]
        == f"unknown error {STRADDLES}"
    )
    loose = {"require": {"time.offset": "2s"}}
    assert told(clocks(0.0, 0.0, 1.5, each=loose), "time.offset")["n3"] == "pass"


def test_an_unmeasured_node_does_not_take_part_in_the_median() -> None:
    seen = fleet(**same("clock.offset", Offset(0.0, FINE), Offset(5.0, FINE), absent("hung")))
    assert told(seen, "time.offset") == {
        "n1": "pass",
        "n2": "fail error",
        "n3": "unknown error hung",
    }


def test_the_report_says_which_way_and_how_sure() -> None:
    (bad,) = [f for f in findings(clocks(0.0, 0.0, 5.001), "time.offset") if f.verdict == "fail"]
    assert bad.seen.startswith("+5.001 s ±")
    assert bad.wanted == "≤ 50 ms"
    assert "ahead of the median" in bad.message
    (bad,) = [f for f in findings(clocks(0.0, -5.001), "time.offset") if f.verdict == "fail"]
    assert bad.seen.startswith("-5.001 s ±")
    assert "behind the controller" in bad.message


@pytest.mark.parametrize(
    ("daemon", "expected"),
    [
        pytest.param(Daemon("chronyd", True, "10.0.0.254"), "pass", id="chrony"),
        pytest.param(Daemon("systemd-timesyncd", True), "pass", id="timesyncd"),
        pytest.param(Daemon(None, True), "pass", id="the-kernel-says-synchronised"),
        pytest.param(Daemon("chronyd", False), "fail warning", id="chrony-without-a-source"),
        pytest.param(Daemon(None, False), "fail warning", id="nothing-runs"),
        pytest.param(Daemon("chronyd", None), "fail warning", id="a-daemon-that-does-not-say"),
        pytest.param(absent("missing_tool"), "unknown warning missing_tool", id="no-tool-to-ask"),
        pytest.param(absent("hung"), "unknown warning hung", id="hung"),
    ],
)
def test_a_clock_needs_somebody_who_keeps_it_right(daemon: object, expected: str) -> None:
    assert told(fleet(**same("clock.daemon", daemon)), "time.daemon") == {"n1": expected}


def test_nothing_that_runs_is_told_from_something_that_has_no_source() -> None:
    seen = fleet(**same("clock.daemon", Daemon(None, False), Daemon("chronyd", False)))
    assert {f.nodes: f.seen for f in findings(seen, "time.daemon")} == {
        ("n1",): "no daemon answers",
        ("n2",): "chronyd runs and is not synchronised",
    }


def test_each_node_stands_for_itself_in_time_daemon() -> None:
    seen = fleet(**same("clock.daemon", Daemon("chronyd", True), Daemon("chronyd", False)))
    assert told(seen, "time.daemon") == {"n1": "pass", "n2": "fail warning"}


# ---------------------------------------------------------------- clock sources

FEW = "unknown warning fewer than two nodes have a value to compare"


def source(name: str, *others: str) -> ClockSource:
    return ClockSource(name, (name, *others))


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param([source("tsc")] * 3, ["pass"] * 3, id="metal"),
        pytest.param([source("kvm-clock", "tsc")] * 2, ["pass"] * 2, id="kvm"),
        pytest.param([source("hyperv_clocksource_tsc_page")] * 2, ["pass"] * 2, id="azure"),
        pytest.param([source("arch_sys_counter")] * 2, ["pass"] * 2, id="grace"),
        pytest.param(
            [source("tsc"), source("hpet"), source("tsc")],
            ["pass", "fail warning", "pass"],
            id="unstable-tsc",
        ),
        pytest.param([source("hpet")] * 3, ["fail warning"] * 3, id="all-slow-is-no-pass"),
        pytest.param([source("acpi_pm")], ["fail warning"], id="one-slow-node"),
        pytest.param(
            [source("jiffies"), source("refined-jiffies")], ["fail warning"] * 2, id="ticks"
        ),
        pytest.param([source("tsc")], ["pass"], id="one-node"),
        pytest.param(
            [source("tsc"), source("kvm-clock")], ["fail warning"] * 2, id="metal-and-virtual"
        ),
        pytest.param(
            [source("tsc"), source("tsc"), absent("denied")],
            ["pass", "pass", "unknown warning denied"],
            id="no",
        ),
        pytest.param(
            [source("tsc"), absent("garbled")], [FEW, "unknown warning garbled"], id="garbled"
        ),
    ],
)
def test_a_clock_is_quick_to_read_and_the_same_everywhere(
    sources: list[object], expected: list[str]
) -> None:
    assert (
        list(told(fleet(**same("clock.source", *sources)), "time.clocksource").values()) == expected
    )


def test_another_kind_of_machine_may_have_another_clock() -> None:
    some = {"n3": {"gpus": Gpus(0)}}
    sources = same("clock.source", source("tsc"), source("tsc"), source("kvm-clock"))
    assert set(
        told(fleet(each={"gpus": Gpus(8)}, some=some, **sources), "time.clocksource").values()
    ) == {"pass"}


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"),
    [
        pytest.param("tsc", "tsc", "pass", id="as-required"),
        pytest.param("tsc", "kvm-clock", "fail error", id="another"),
        pytest.param("hpet", "hpet", "pass", id="slow-on-purpose"),
    ],
)
def test_a_source_may_be_required(wanted: str, seen: str, expected: str) -> None:
    nodes = fleet(
        each={"require": {"time.clocksource": wanted}}, **same("clock.source", source(seen))
    )
    assert told(nodes, "time.clocksource") == {"n1": expected}


@pytest.mark.parametrize(
    ("seen", "wanted", "cure"),
    [
        (source("hpet", "tsc"), "tsc", "echo tsc > /sys"),
        (source("hpet", "acpi_pm"), "tsc, or the", "dmesg"),
    ],
)
def test_the_better_source_is_named_where_there_is_one(
    seen: ClockSource, wanted: str, cure: str
) -> None:
    (bad,) = findings(fleet(**same("clock.source", seen)), "time.clocksource")
    assert bad.wanted.startswith(wanted)
    assert bad.remedy.startswith(cure)
