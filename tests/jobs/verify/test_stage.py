"""What the findings about the speed make of the result of a trial."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.link_measurement import LOOKS, measure_first, measure_links
from clusterprep.jobs.verify.speed import Yardsticks, slow_peers
from clusterprep.jobs.verify.stage import limited_by_speed, with_peers
from clusterprep.model import Culprit, Finding, VerifyResult
from tests.jobs.verify.stories import story
from tests.jobs.verify.test_link_measurement import GOOD, Agents
from tests.support.fleet import eth, fleet


@pytest.mark.parametrize(
    ("verdict", "severity", "expected"),
    [
        ("pass", "error", "pass"),
        ("skip", "error", "pass"),
        ("fail", "error", "fail"),
        ("fail", "warning", "pass"),
        ("unknown", "error", "unknown"),
    ],
)
def test_a_speed_that_is_not_known_leaves_the_trial_unknown(
    verdict: str, severity: str, expected: str
) -> None:
    found = Finding("nccl.busbw_multi", verdict, severity, ("n1",), "why")  # type: ignore[arg-type]
    result = limited_by_speed(judge(story()), [found])
    assert result.verdict == expected
    stages = {stage.name: stage.verdict for stage in result.stages}
    assert stages["bandwidth"] == verdict


def test_a_trial_that_failed_is_no_better_for_what_is_not_known() -> None:
    found = Finding("nccl.busbw_multi", "unknown", "error", ("n1",), "why")
    failed = judge(story(wrong={1: 5}))
    assert limited_by_speed(failed, [found]).verdict == "fail"


def test_findings_of_other_checks_change_nothing() -> None:
    found = Finding("nccl.nvls", "fail", "warning", ("n1",), "why")
    assert limited_by_speed(judge(story()), [found]).verdict == "pass"


# ---------------------------------------------------------------- peers

RATED = 1.25e9  # bytes per second of an interface of 10 Gbit/s


def peers_of(speeds: list[float], culprits: tuple[str, ...] = ()) -> tuple[Yardsticks, Agents]:
    """The peers of four nodes, of which n3 reaches these speeds, one after the other."""
    turn = 0

    def answer(dialer: str, listener: str) -> Any:
        rate = speeds[min(turn, len(speeds) - 1)] if "n3" in (dialer, listener) else RATED
        return {"answers": [["ok", {**GOOD, "out": rate, "back": rate}]]}

    facts = {f"n{n}": {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)} for n in range(1, 5)}
    seen = fleet(**facts)
    agents = Agents(seen.inventory, list(facts), answer)
    first = measure_first(agents, seen)  # type: ignore[arg-type]
    turn = 1
    second = measure_links(agents, seen, None)  # type: ignore[arg-type]
    turn = 2
    accused = tuple(Culprit("node", (name,), 0.9, "slow") for name in culprits)
    result = replace(judge(story()), culprits=accused)
    agents.asked.clear()
    agents.ended.clear()
    found = with_peers(agents, seen, Yardsticks(), (first, second), result)  # type: ignore[arg-type]
    return found, agents


def test_a_node_that_is_slow_each_time_stays_accused() -> None:
    found, agents = peers_of([0.4 * RATED])
    assert slow_peers(found.peers) == ("n3",)
    assert len(agents.asked) == LOOKS * 3
    assert {dialer for dialer, _ in agents.asked} == {"n3"}


def test_a_node_that_was_slow_for_a_moment_is_not_accused() -> None:
    """As a busy processor makes links slow and never faster, the best measurement counts."""
    found, agents = peers_of([0.4 * RATED, 0.4 * RATED, RATED])
    assert slow_peers(found.peers) == ()
    assert len(agents.asked) == 3
    found, agents = peers_of([0.4 * RATED, RATED])
    assert slow_peers(found.peers) == ()
    assert agents.asked == []


def test_a_node_that_is_a_culprit_already_is_not_measured_again() -> None:
    found, agents = peers_of([0.02 * RATED], culprits=("n3",))
    assert slow_peers(found.peers) == ("n3",)
    assert agents.asked == []


def test_reports_and_the_history_have_no_events_of_ranks() -> None:
    judged = judge(story())
    reported = judged.without_timeline()
    assert type(reported) is VerifyResult
    for name in VerifyResult.__struct_fields__:
        assert getattr(reported, name) == getattr(judged, name)
