"""A signal at two hundred moments of apply and rollback over three played nodes.

The moments are counted: calls of Python functions. After each the files of all nodes, their
journals and the sentence of the command have to agree.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from clusterprep.errors import ClusterprepError, Interrupted, OutOfTime
from clusterprep.model import Report
from tests.changes.test_apply_orchestration import (
    FILE,
    NAMES,
    OLD,
    SWITCH,
    Command,
    Make,
    command,
    motd,
    states,
    switches,
)
from tests.support.fake_agents import FakeAgents

__all__ = ["command"]

POINTS = 200
PUT_BACK = "; what had been written was put back on all nodes"
STAYS = "; what was written stays on n[1-3]"


class Counter:
    """Counts the calls of a run, and does something at one of them."""

    def __init__(self, at: int, do: Callable[[], None]) -> None:
        self.count = 0
        self._at = at
        self._do = do

    def note(self, frame: FrameType, event: str, value: object) -> None:
        if event != "call":
            return
        self.count += 1
        if self.count == self._at:
            self._do()


def played(
    run: Callable[[], Report], at: int, do: Callable[[], None]
) -> tuple[Report | ClusterprepError, int]:
    """Return the report or the error of a run, and the number of its events."""
    counter = Counter(at, do)
    outcome: Report | ClusterprepError
    sys.setprofile(counter.note)
    try:
        outcome = run()
    except ClusterprepError as error:
        outcome = error
    finally:
        sys.setprofile(None)
    return outcome, counter.count


def moments(events: int) -> list[int]:
    return sorted({1 + (events - 1) * number // (POINTS - 1) for number in range(POINTS)})


def interrupts(done: Command, hurried: bool) -> Callable[[], None]:
    def interrupt() -> None:
        done.agents.deadline.stop(Interrupted("interrupted by SIGTERM"))
        if hurried:
            done.agents.deadline.hurry()

    return interrupt


@pytest.mark.parametrize("hurried", [False, True], ids=["one-signal", "two-signals"])
@pytest.mark.parametrize("steps", [(FILE,), (FILE, SWITCH)], ids=["files", "files-and-steps"])
def test_an_apply_that_is_interrupted_anywhere(
    command: Make, steps: tuple[object, ...], hurried: bool
) -> None:
    _, events = played(command(*steps).apply, 0, lambda: None)
    outcomes = set()
    for at in moments(events):
        done = command(*steps)
        outcome, _ = played(done.apply, at, interrupts(done, hurried))
        has_new = motd(done.agents) == dict.fromkeys(NAMES, b"new\n")
        has_old = motd(done.agents) == dict.fromkeys(NAMES)
        assert has_new or has_old, f"event {at}: mixed"
        switched = set(switches(done.agents).values())
        assert switched == ({"on"} if has_new and len(steps) > 1 else {"off"}), f"event {at}"
        left = set(states(done.agents).values())
        # An agent that ends removes what it has only staged.
        assert left <= ({"done"} if has_new else {"undone", "staged", None}), f"event {at}: {left}"
        if isinstance(outcome, Report):
            assert has_new, f"event {at}: it ended well without its files"
        else:
            assert outcome.code == 130
            assert (STAYS in outcome.message) == has_new, f"event {at}: {outcome.message}"
        outcomes.add("report" if isinstance(outcome, Report) else outcome.message)
    assert "report" in outcomes
    assert {f"interrupted by SIGTERM{more}" for more in ("", PUT_BACK)} <= outcomes


def test_a_rollback_that_is_interrupted_anywhere(command: Make) -> None:
    def applied() -> Command:
        agents = FakeAgents()
        command(agents=agents, run=OLD).apply()
        fresh = FakeAgents()
        for name in NAMES:
            fresh.nodes[name].runs = agents.nodes[name].runs
            fresh.nodes[name].files = agents.nodes[name].files
        return command(agents=fresh)

    _, events = played(applied().rollback, 0, lambda: None)
    outcomes = set()
    for at in moments(events):
        done = applied()
        outcome, _ = played(done.rollback, at, interrupts(done, hurried=False))
        is_back = motd(done.agents) == dict.fromkeys(NAMES)
        is_applied = motd(done.agents) == dict.fromkeys(NAMES, b"new\n")
        assert is_back or is_applied, f"event {at}: mixed"
        assert set(states(done.agents, OLD).values()) == {"undone" if is_back else "done"}
        if isinstance(outcome, Report):
            assert is_back, f"event {at}"
        else:
            assert outcome.code == 130
            assert (STAYS in outcome.message) == is_back, f"event {at}: {outcome.message}"
        outcomes.add("report" if isinstance(outcome, Report) else outcome.message)
    assert "report" in outcomes
    assert {f"interrupted by SIGTERM{more}" for more in ("", PUT_BACK)} <= outcomes


def test_a_time_limit_after_the_commit_is_a_failure_since_the_change_was_undone(
    command: Make,
) -> None:
    limit = OutOfTime("--timeout of 9 s reached")
    codes = {}
    _, events = played(command().apply, 0, lambda: None)
    for at in moments(events):
        done = command()
        stop = functools.partial(done.agents.deadline.stop, limit)
        outcome, _ = played(done.apply, at, stop)
        if isinstance(outcome, Report) and outcome.error is not None:
            # What is known is reported, and what is said of the change is so.
            codes[outcome.error["message"].removeprefix(limit.message)] = outcome.code
            for row in outcome.changes or ():
                has_it = {motd(done.agents)[name] == b"new\n" for name in row.nodes}
                assert has_it == {row.outcome == "done"}, f"event {at}: {row}"
        if isinstance(outcome, ClusterprepError):
            codes[outcome.message.removeprefix(limit.message)] = outcome.code
        assert motd(done.agents)[NAMES[0]] in (None, b"new\n")
    assert codes == {"": 3, PUT_BACK: 1, STAYS: 3}
