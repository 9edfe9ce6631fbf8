"""Is the number normal.

Which yardstick is used, what it says, and what is told where there is none.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import findings, judge, with_speed
from clusterprep.jobs.verify.group_verdicts import is_worthwhile
from clusterprep.jobs.verify.hardware_model import Expected
from clusterprep.jobs.verify.link_verdicts import MeasuredPair, best_speeds, peer_speeds
from clusterprep.jobs.verify.schedule import plan_trial
from clusterprep.jobs.verify.speed import Baseline, Yardsticks, largest, least_gbs, speed_finding
from clusterprep.model import CollectiveResult, Finding, Node, VerifySettings
from tests.jobs.verify.stories import make_plan, story

NODES = ("n1", "n2", "n3", "n4")
MODEL = Expected(368.0, "8 RDMA ports of 400 Gbit/s per node")
ALIKE = {"n1": 2.0e9, "n2": 2.1e9, "n3": 1.9e9, "n4": 2.0e9}


def row(busbw: float, size: int = 1 << 30, op: str = "all_reduce") -> CollectiveResult:
    return CollectiveResult(op, size, 0.01, busbw, busbw, 0)


def judged(busbw: float, yard: Yardsticks, backend: str = "nccl", size: int = 1 << 30) -> Finding:
    return speed_finding(row(busbw, size), NODES, backend, yard)


def words(found: Finding) -> str:
    return f"{found.verdict} {found.severity}" if found.verdict == "fail" else found.verdict


@pytest.mark.parametrize(
    ("busbw", "expected"),
    [
        (368, "pass"),
        (295, "pass"),
        (294, "fail warning"),
        (184.1, "fail warning"),
        (183.9, "fail error"),
        (3, "fail error"),
    ],
)
def test_half_is_an_error_and_four_fifths_a_warning(busbw: float, expected: str) -> None:
    found = judged(busbw, Yardsticks(model=MODEL))
    assert words(found) == expected
    assert (
        f"{busbw / 368:.0%} of 368 GB/s by the hardware model (8 RDMA ports of 400 Gbit/s per node)"
        in found.message
    )
    assert found.wanted == "≥ 294 GB/s"
    assert bool(found.remedy) == (found.verdict == "fail")


@pytest.mark.parametrize(
    ("yard", "says"),
    [
        pytest.param(Yardsticks(300.0, MODEL, (200.0,) * 3), "≥ 300 GB/s", id="declared-first"),
        pytest.param(
            Yardsticks(None, MODEL, (200.0,) * 3),
            "368 GB/s by the hardware model",
            id="then-the-model",
        ),
        pytest.param(
            Yardsticks(None, Expected(None, "joined by PCIe alone"), (190.0, 200.0, 400.0)),
            "200 GB/s by the median of 3 earlier runs",
            id="then-the-history",
        ),
    ],
)
def test_the_first_yardstick_that_there_is_counts_and_is_named(yard: Yardsticks, says: str) -> None:
    found = judged(250, yard)
    assert says in f"{found.message} {found.wanted}"


@pytest.mark.parametrize(
    ("yard", "least"),
    [
        pytest.param(Yardsticks(300.0), 300.0, id="declared"),
        pytest.param(Yardsticks(None, None, (200.0,) * 3), 160.0, id="four-fifths-of-the-median"),
        pytest.param(Yardsticks(), None, id="nothing-is-known"),
    ],
)
def test_what_the_speed_has_to_reach_is_known_to_charts(
    yard: Yardsticks, least: float | None
) -> None:
    assert least_gbs([judged(250, yard)]) == least


def test_small_messages_are_not_held_against_the_hardware() -> None:
    small = judged(40, Yardsticks(model=MODEL), size=64 << 20)
    assert (small.verdict, small.reason) == ("unknown", "first_sample")
    assert "the hardware model holds from 1 GiB on: verify.sizes end before it" in small.message
    assert (
        words(judged(40, Yardsticks(model=MODEL, earlier=(100.0,) * 3), size=64 << 20))
        == "fail error"
    )


def test_too_few_earlier_runs_say_nothing() -> None:
    found = judged(40, Yardsticks(earlier=(100.0, 100.0)))
    assert found.verdict == "unknown"
    assert "2 of 3 earlier runs of these nodes are known" in found.message
    assert "the hardware was not looked at" in found.message


def test_latency_is_held_against_nothing() -> None:
    found = judged(0.0001, Yardsticks(earlier=(0.01,) * 5, peers=ALIKE), "gloo", size=1024)
    assert found.verdict == "skip"
    assert "less than 1 MiB measures latency" in found.message


@pytest.mark.parametrize(
    ("busbw", "expected"), [(0.31, "pass"), (0.29, "skip"), (0.13, "skip"), (0.11, "fail error")]
)
def test_gloo_fails_only_under_a_fifth_of_its_slowest_run(busbw: float, expected: str) -> None:
    """One healthy machine gave 0.65 alone and 0.21 while others used it.

    Half, or any median, would have accused it.
    """
    found = judged(
        busbw, Yardsticks(model=MODEL, earlier=(1.3, 1.2, 0.6, 1.25)), "gloo", size=64 << 20
    )
    assert words(found) == expected
    assert "of 0.6 GB/s by the slowest of 4 earlier runs" in found.message
    assert found.reason == ("busy" if expected == "skip" else None)


def test_peers_accuse_a_node_and_acquit_nobody() -> None:
    odd = judged(0.2, Yardsticks(peers={**ALIKE, "n3": 0.5e9}), "gloo")
    assert (words(odd), odd.nodes) == ("fail warning", ("n3",))
    assert odd.seen.startswith("n3 4 Gbit/s (z = -")
    assert odd.wanted == "about 16 Gbit/s like its peers"
    alike = judged(0.2, Yardsticks(peers=ALIKE), "gloo")
    assert (alike.verdict, alike.nodes) == ("skip", NODES)
    assert "no node's links stand out" in alike.message


def test_links_over_tcp_say_nothing_of_a_job_over_rdma() -> None:
    assert judged(0.2, Yardsticks(peers={**ALIKE, "n3": 0.5e9}), "nccl").verdict == "unknown"


def test_the_largest_all_reduce_is_judged() -> None:
    rows = [row(1, 8), row(2, 1 << 20), row(3, 1 << 30, "broadcast"), row(4, 1 << 19)]
    assert largest(rows) == rows[1]
    assert largest(rows[2:3]) is None
    assert largest([]) is None


def test_a_node_is_as_fast_as_its_best_link() -> None:
    ways = (
        MeasuredPair("n1", "n2", "ok", out=5.0, back=4.0),
        MeasuredPair("n2", "n3", "ok", out=1.0, back=2.0),
        MeasuredPair("n3", "n4", "refused", "x"),
    )
    assert best_speeds(ways) == {"n1": 5.0, "n2": 5.0, "n3": 2.0}


# ---------------------------------------------------------------- with a trial


def of_trial(yard: Yardsticks | None, **plan: float) -> list[str]:
    timeline = story(plan=make_plan(**plan))
    return [words(f) for f in findings(judge(timeline), yard) if f.check == "nccl.busbw_multi"]


def test_a_trial_is_judged_by_what_it_is_given() -> None:
    size = largest(judge(story()).collectives)
    assert size is not None
    assert of_trial(None) == []
    assert of_trial(Yardsticks()) == ["skip"]
    assert of_trial(Yardsticks(), min_busbw=0.3) == ["pass"]
    assert of_trial(Yardsticks(earlier=(10.0,) * 3)) == (
        ["fail error"] if size.bytes >= 1 << 20 else ["skip"]
    )


def test_a_trial_that_did_not_finish_is_not_judged() -> None:
    timeline = story(until="entered 1", end="overdue")
    assert [
        f for f in findings(judge(timeline), Yardsticks()) if f.check == "nccl.busbw_multi"
    ] == []


# ---------------------------------------------------------------- without a yardstick


def test_over_nccl_a_speed_without_a_yardstick_is_not_known_and_says_what_would_give_one() -> None:
    found = judged(40, Yardsticks(model=Expected(None, "joined by PCIe alone")))
    assert (found.verdict, found.severity, found.reason) == ("unknown", "error", "first_sample")
    assert "joined by PCIe alone" in found.message
    assert "no run was recorded with --baseline" in found.message
    assert "clusterprep verify INVENTORY --baseline" in found.remedy
    assert "min_busbw" in found.remedy.note


def test_over_gloo_it_stays_skipped() -> None:
    found = judged(0.4, Yardsticks(), "gloo", 64 << 20)
    assert (found.verdict, found.reason) == ("skip", "first_sample")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_says_nothing_about_a_job_is_skipped(backend: str) -> None:
    yard = Yardsticks(model=MODEL, says_nothing="one rank alone sends nothing")
    found = judged(0.0, yard, backend)
    assert (found.verdict, found.reason) == ("skip", "not_applicable")
    assert found.message.endswith("one rank alone sends nothing")


def test_a_size_that_did_not_fit_is_not_what_was_declared() -> None:
    found = judged(40, Yardsticks(model=MODEL, is_scaled_down=True), size=200 << 20)
    assert "the hardware model holds from 1 GiB on, which did not fit" in found.message


def test_a_run_of_seconds_is_held_against_the_hardware_whatever_its_size() -> None:
    slow = CollectiveResult("all_reduce", 2 << 20, 1.6, 0.002, 0.002, 0)
    found = speed_finding(slow, NODES, "nccl", Yardsticks(model=MODEL, is_cut_short=True))
    assert words(found) == "fail error"
    assert "0% of 368 GB/s by the hardware model" in found.message


def test_without_a_model_a_twentieth_of_the_links_is_a_failure_over_nccl_alone() -> None:
    slow = CollectiveResult("all_reduce", 2 << 20, 1.6, 0.002, 0.002, 0)
    yard = Yardsticks(links=1.25e9, is_cut_short=True)
    found = speed_finding(slow, NODES, "nccl", yard)
    assert words(found) == "fail error"
    assert "over 20 times slower than what most links carry over TCP (1.25 GB/s)" in found.message
    assert speed_finding(slow, NODES, "gloo", yard).verdict == "skip"


# ---------------------------------------------------------------- a baseline


@pytest.mark.parametrize(
    ("busbw", "backend", "expected"),
    [
        (160, "nccl", "pass"),
        (159, "nccl", "fail warning"),
        (99, "nccl", "fail error"),
        (101, "gloo", "pass"),
        (99, "gloo", "skip"),
        (39, "gloo", "fail error"),
    ],
)
def test_one_recorded_run_is_a_yardstick(busbw: float, backend: str, expected: str) -> None:
    yard = Yardsticks(model=Expected(None, "x"), baseline=Baseline(200.0, "20261123-1"))
    found = judged(busbw, yard, backend)
    assert words(found) == expected
    assert "of 200 GB/s by the baseline of run 20261123-1" in found.message


def test_a_baseline_goes_before_the_model_which_is_told_if_it_expects_more() -> None:
    found = judged(190, Yardsticks(model=MODEL, baseline=Baseline(200.0, "r")))
    assert found.verdict == "pass"
    assert "though the hardware model expects 368 GB/s (8 RDMA ports" in found.message
    as_expected = judged(360, Yardsticks(model=MODEL, baseline=Baseline(367.0, "r")))
    assert "though" not in as_expected.message


def test_what_is_declared_goes_before_a_baseline() -> None:
    assert words(judged(190, Yardsticks(300.0, baseline=Baseline(200.0, "r")))) == "fail error"


def test_a_run_that_is_recorded_is_not_held_against_the_baseline_before() -> None:
    found = judged(40, Yardsticks(baseline=Baseline(200.0, "r"), records=True))
    assert (found.verdict, found.seen) == ("pass", "40 GB/s")
    assert "which is now what is normal for these nodes" in found.message
    assert words(judged(40, Yardsticks(model=MODEL, records=True))) == "fail error"


# ---------------------------------------------------------------- peers


@pytest.mark.parametrize(
    ("speed", "confirmed", "expected"),
    [
        (0.9e9, True, "fail error"),
        (0.9e9, False, "fail warning"),
        (1.1e9, True, "fail warning"),
        (1.5e9, True, "fail warning"),
        (1.7e9, True, "skip"),
    ],
)
def test_under_half_of_the_peers_is_an_error_once_it_is_confirmed(
    speed: float, confirmed: bool, expected: str
) -> None:
    names = frozenset(NODES if confirmed else ())
    found = judged(0.2, Yardsticks(peers={**ALIKE, "n3": speed}, confirmed=names), "gloo")
    assert words(found) == expected
    if found.verdict == "fail":
        assert found.nodes == ("n3",)


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ({"n1": 1.2e9, "n2": 1.2e9, "n3": 0.5e9}, "fail error"),
        ({"n1": 1.2e9, "n2": 1.2e9, "n3": 0.7e9}, "skip"),
        ({"n1": 1.2e9, "n2": 0.1e9}, "skip"),
    ],
)
def test_of_three_nodes_one_under_half_is_accused_and_of_two_neither(
    peers: dict[str, float], expected: str
) -> None:
    found = judged(0.2, Yardsticks(peers=peers, confirmed=frozenset(peers)), "gloo")
    assert words(found) == expected
    if expected != "skip":
        assert (found.nodes, found.seen) == (("n3",), "n3 4 Gbit/s")


def test_the_error_names_the_grave_ones_alone() -> None:
    peers = {f"n{number}": 2.0e9 for number in range(1, 9)}
    peers.update(n3=0.2e9, n5=1.4e9)
    found = judged(0.2, Yardsticks(peers=peers, confirmed=frozenset(("n3", "n5"))), "gloo")
    assert (words(found), found.nodes) == ("fail error", ("n3",))
    assert "n5 11 Gbit/s" in found.seen


def test_no_link_needs_to_be_faster_than_its_interface() -> None:
    """What virtual interfaces reach beyond their rate varies by chance, and accuses no node."""
    pairs = [
        MeasuredPair("n1", "n2", "ok", out=4.0e9, back=3.0e9),
        MeasuredPair("n3", "n4", "ok", out=1.4e9, back=1.3e9),
    ]
    assert peer_speeds(1.25e9, pairs) == dict.fromkeys(("n1", "n2", "n3", "n4"), 1.25e9)
    later = [MeasuredPair("n3", "n4", "ok", out=0.5e9, back=1.9e9)]
    assert peer_speeds(1e12, pairs, later)["n3"] == 1.9e9


def test_the_speed_alone_is_judged_anew() -> None:
    trial = judge(story())
    first = findings(trial, Yardsticks())
    again = with_speed(first, trial, Yardsticks(declared=None, earlier=(0.001,) * 3))
    changed = [one.check for one, other in zip(first, again, strict=True) if one != other]
    assert changed == ["nccl.busbw_multi"]


def test_a_trial_over_nccl_that_is_slow_is_worth_group_tests() -> None:
    """The largest size is a gigabyte by default, which the model of the hardware judges."""
    nodes = [Node(f"n{i + 1}", f"10.0.0.{i + 1}", i, nproc_per_node=2) for i in range(4)]
    gpus = {node.name: 2 for node in nodes}
    made = plan_trial(nodes, {}, ("h", 1), VerifySettings(timeout=10.0), gpus)
    steps = (made.steps[0], made.steps[-1])
    assert steps[1].bytes == 1 << 30
    trial = judge(story(plan=replace(made, steps=steps)))
    for gbs, expected in ((200.0, False), (2000.0, True)):
        found = findings(trial, Yardsticks(model=Expected(gbs, "8 cards")))
        assert is_worthwhile(trial, found, len(nodes)) is expected
