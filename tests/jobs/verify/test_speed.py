"""Is the number normal.

Which yardstick is used, what it says, and what is told where there is none.
"""

from __future__ import annotations

import pytest

from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.hardware_model import Expected
from clusterprep.jobs.verify.link_verdicts import MeasuredPair, best_speeds
from clusterprep.jobs.verify.speed import Yardsticks, largest, speed_finding
from clusterprep.model import CollectiveResult, Finding
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


def test_small_messages_are_not_held_against_the_hardware() -> None:
    small = judged(40, Yardsticks(model=MODEL), size=64 << 20)
    assert (small.verdict, small.reason) == ("skip", "first_sample")
    assert "the hardware model holds from 1 GiB on: set verify.sizes" in small.message
    assert (
        words(judged(40, Yardsticks(model=MODEL, earlier=(100.0,) * 3), size=64 << 20))
        == "fail error"
    )


def test_too_few_earlier_runs_say_nothing() -> None:
    found = judged(40, Yardsticks(earlier=(100.0, 100.0)))
    assert found.verdict == "skip"
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
    assert judged(0.2, Yardsticks(peers={**ALIKE, "n3": 0.5e9}), "nccl").verdict == "skip"


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
