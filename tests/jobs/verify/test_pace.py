"""When a trial goes on and when it has seen enough, by events and times alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.pace import (
    GRACE,
    QUIET_LIMIT,
    SETTLE,
    START_LIMIT,
    START_MOST,
    STOPPED,
    Decision,
    Pace,
)
from tests.jobs.verify.stories import MILESTONES, at_node, make_plan, on

TIMEOUT = 10.0
RANKS = range(4)


def new() -> Pace:
    return Pace(make_plan(timeout=TIMEOUT), 0.0)


def reach(pace: Pace, milestone: str, at: float, ranks: range | tuple[int, ...] = RANKS) -> None:
    for rank in ranks:
        pace.note(on(rank, milestone.partition(" ")[0], at), at)


def gone(at: float = 5.0) -> Pace:
    """A trial whose ranks were let go."""
    pace = new()
    reach(pace, "ready", at)
    assert pace.decide(at) is Decision.GO
    pace.note_go(at)
    return pace


def test_a_trial_goes_when_torch_is_there_everywhere() -> None:
    pace = new()
    reach(pace, "ready", 3.0, (0, 1, 2))
    assert pace.decide(3.0) is Decision.WAIT
    reach(pace, "ready", 4.0, (3,))
    assert pace.decide(4.0) is Decision.GO


def test_a_trial_is_done_when_all_have_finished() -> None:
    pace = gone()
    for milestone in MILESTONES[4:-1]:
        reach(pace, milestone, 6.0)
    reach(pace, "finished", 6.0, (0, 1, 2))
    assert pace.decide(6.0) is Decision.WAIT
    reach(pace, "finished", 6.5, (3,))
    assert pace.decide(6.5) is Decision.DONE


def test_sockets_are_looked_at_before_the_ranks_give_up_and_not_while_they_go_on() -> None:
    pace = gone()
    assert not pace.stalls(5.0 + 0.7 * TIMEOUT)
    assert pace.stalls(5.0 + 0.9 * TIMEOUT)
    reach(pace, "store", 5.0 + 0.7 * TIMEOUT)
    pace.decide(5.0 + 0.7 * TIMEOUT)
    assert not pace.stalls(5.0 + 0.9 * TIMEOUT)
    assert not new().stalls(START_LIMIT)


def test_a_rank_that_is_at_work_may_take_longer_to_start() -> None:
    pace = new()
    reach(pace, "ready", 3.0, (0, 1, 2))
    for second in range(5, 400, 5):
        reach(pace, "working", float(second), (3,))
        if second > START_MOST:
            break
        assert pace.decide(second + 4.0 if second < START_MOST else second) is Decision.WAIT
    assert pace.decide(START_MOST + 5.0) is Decision.OVERDUE


def test_a_rank_that_stops_working_is_late_after_the_usual_limit() -> None:
    pace = new()
    reach(pace, "ready", 3.0, (0, 1))
    for second in range(5, 70, 5):
        reach(pace, "working", float(second), (2, 3) if second < 50 else (2,))
    assert pace.decide(START_LIMIT + 5.0) is Decision.OVERDUE


def test_nccl_has_a_longer_limit_until_the_ranks_are_connected() -> None:
    plan = replace(make_plan(timeout=TIMEOUT), meeting=100.0)
    pace = Pace(plan, 0.0)
    reach(pace, "ready", 5.0)
    assert pace.decide(5.0) is Decision.GO
    pace.note_go(5.0)
    for milestone in ("store", "joined"):
        reach(pace, milestone, 6.0)
    assert pace.decide(6.0 + 99.0) is Decision.WAIT
    assert not pace.stalls(6.0 + 70.0)
    reach(pace, "met", 50.0)
    assert pace.decide(50.0) is Decision.WAIT
    assert pace.stalls(50.0 + 0.9 * TIMEOUT)
    assert pace.decide(50.0 + TIMEOUT + GRACE + 0.1) is Decision.OVERDUE


def test_the_start_has_a_limit_of_its_own() -> None:
    pace = new()
    reach(pace, "ready", 3.0, (0, 1, 2))
    assert pace.decide(START_LIMIT - 0.1) is Decision.WAIT
    assert pace.decide(START_LIMIT + 0.1) is Decision.OVERDUE


@pytest.mark.parametrize(
    "fault", [on(3, "no_torch"), on(3, "exit"), on(3, "error"), on(3, "no_cuda")]
)
def test_a_fault_before_the_start_waits_for_the_others_answers(fault: Event) -> None:
    pace = new()
    pace.note(fault, 1.0)
    assert pace.decide(1.0 + SETTLE + 1) is Decision.WAIT
    reach(pace, "ready", 6.0, (0, 1, 2))
    assert pace.decide(6.0) is Decision.SEEN_ENOUGH


def test_and_waits_for_them_no_longer_than_the_time_limit() -> None:
    pace = new()
    pace.note(at_node("n2", "lost"), 1.0)
    assert pace.decide(1.0 + TIMEOUT - 0.1) is Decision.WAIT
    assert pace.decide(1.0 + TIMEOUT + 0.1) is Decision.SEEN_ENOUGH


@pytest.mark.parametrize("what", ["lost", "refused"])
def test_a_node_that_drops_out_stands_for_all_its_ranks(what: str) -> None:
    pace = new()
    pace.note(at_node("n2", what), 1.0)
    reach(pace, "ready", 2.0, (0, 1))
    assert pace.decide(2.0) is Decision.SEEN_ENOUGH


def test_after_a_fault_its_cascade_is_still_collected() -> None:
    pace = gone()
    pace.note(on(1, "exit"), 7.0)
    assert pace.decide(7.0 + SETTLE - 0.1) is Decision.WAIT
    assert pace.decide(7.0 + SETTLE + 0.1) is Decision.SEEN_ENOUGH


def test_a_stopped_rank_is_given_a_moment_to_go_on() -> None:
    pace = gone()
    pace.note(on(1, "state", state="stopped"), 7.0)
    assert pace.decide(7.0 + STOPPED - 0.1) is Decision.WAIT
    pace.note(on(1, "state", state=""), 9.9)
    assert pace.decide(7.0 + STOPPED + 0.1) is Decision.WAIT
    pace.note(on(1, "state", state="stopped"), 11.0)
    assert pace.decide(11.0 + STOPPED) is Decision.SEEN_ENOUGH


def test_a_rank_that_stays_stopped_is_seen_after_three_seconds() -> None:
    pace = gone()
    pace.note(on(1, "state", state="stopped"), 7.0)
    assert [pace.decide(moment) for moment in (9.9, 10.1)] == [Decision.WAIT, Decision.SEEN_ENOUGH]


def test_every_step_of_the_slowest_rank_starts_the_time_limit_again() -> None:
    pace, now = gone(), 5.0
    for milestone in MILESTONES[4:]:
        assert pace.decide(now + TIMEOUT + GRACE - 0.1) is Decision.WAIT
        now += TIMEOUT
        reach(pace, milestone, now)
        pace.decide(now)
    assert pace.decide(now) is Decision.DONE


def test_one_rank_that_does_not_come_along_ends_the_trial() -> None:
    pace = gone()
    reach(pace, "store", 6.0)
    pace.decide(6.0)
    reach(pace, "met", 7.0, (0, 1, 2))
    reach(pace, "entered", 15.0, (0, 1, 2))
    assert pace.decide(6.0 + TIMEOUT + GRACE - 0.1) is Decision.WAIT
    assert pace.decide(6.0 + TIMEOUT + GRACE + 0.1) is Decision.OVERDUE


@pytest.mark.parametrize("fault", [True, False])
def test_a_quiet_node_is_waited_for_until_it_is_known_to_be_lost(fault: bool) -> None:
    """With a short time limit the ranks err before five seconds of silence have passed."""
    pace = gone()
    enough = 5.0 + TIMEOUT + GRACE
    if fault:
        pace.note(on(1, "error"), 7.0)
        enough = 7.0 + SETTLE
    assert pace.decide(enough + 1.0, quiet=2.5) is Decision.WAIT
    assert pace.decide(enough + 1.0, quiet=0.3) is not Decision.WAIT
    assert pace.decide(enough + QUIET_LIMIT + 0.1, quiet=7.0) is not Decision.WAIT
