"""The end of a budget while nodes are dialled, of all agents, and the wait for answers."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from clusterprep.errors import OutOfTime
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.remote.transports.link import Link
from clusterprep.remote.transports.protocol import Channel
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey import registry
from clusterprep.survey.fanout import CLOSERS, SILENT_LIMIT, SWEEP, Fanout, _take_answers
from clusterprep.survey.queries import plan_queries
from tests.support.patience import LONG, eventually
from tests.support.silent import SilentTransport


class EndingBudget(Budget, frozen=True, dict=True):
    """A budget that has a moment left when it is first asked, and then none."""

    @functools.cached_property
    def _moments(self) -> Iterator[float]:
        return iter([0.001])

    def left(self, until: float | None = None) -> float:
        return next(self._moments, 0.0)


class Watch:
    def stage(self, name: str, total: int, nodes: Collection[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


class Steps(Watch):
    """The outcome of each node."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        self.outcomes[node] = outcome


class RefusingTransport(SilentTransport):
    """A transport that notes when it has refused its node, as the command ended."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    def open(self, node: Node, command: str) -> Channel:
        try:
            return super().open(node, command)
        finally:
            self.refused.set()


def test_a_node_that_is_dialled_when_the_command_ends_is_not_told_as_hung() -> None:
    inventory = Inventory("ending", (Node("n1", "n1", 0),))
    plan = plan_queries([], registry.facts())
    transport = RefusingTransport()
    transports = {"ssh": transport}
    steps = Steps()
    deadline = Deadline(0.1)
    with (
        deadline,
        pytest.raises(OutOfTime),
        Fanout(inventory, transports, 1, lambda node: None, steps, None, deadline) as fanout,
    ):
        fanout.survey(plan)
    assert transport.refused.wait(LONG)
    assert not eventually(lambda: bool(steps.outcomes), seconds=0.5)


def survey_until_the_end() -> tuple[Fleet, float]:
    """Return what a look at a silent node gives within such a budget, and its seconds."""
    inventory = Inventory("ending", (Node("n1", "n1", 0),))
    plan = plan_queries([], registry.facts())
    transports = {"ssh": SilentTransport()}
    budget = EndingBudget(60.0, time.monotonic())
    with Fanout(inventory, transports, 1, lambda node: None, Watch(), budget) as fanout:
        began = time.monotonic()
        fleet = fanout.survey(plan)
        return fleet, time.monotonic() - began


def test_no_node_is_waited_for_once_the_budget_is_over() -> None:
    fleet, _ = survey_until_the_end()
    assert fleet.snapshots["n1"].reason == "timed_out"
    # More than once, for a busy machine may delay one of them by as much.
    assert eventually(lambda: survey_until_the_end()[1] < SILENT_LIMIT, seconds=10)


class Meeting:
    """A channel that is only closed together with all others."""

    peer = None
    near = False

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def close(self) -> None:
        self._barrier.wait(LONG)


def test_agents_that_are_slow_to_end_are_ended_side_by_side() -> None:
    count = 2 * CLOSERS
    barrier = threading.Barrier(count)
    with Fanout(Inventory("slow", ()), {}, count, lambda node: None, Watch()) as fanout:
        for number in range(count):
            channel: Any = Meeting(barrier)
            node = Node(f"n{number}", "127.0.0.1", number)
            fanout.links[node.name] = Link(node, channel, "nonce")
    assert not barrier.broken


class Scripted:
    """A link with the answers to its reads one by one, None for none; notes how long each waits."""

    received = 0

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.waits: list[float] = []

    def receive_now(self, number: int, timeout: float) -> Any:
        self.waits.append(timeout)
        answer = self._answers.pop(0)
        if answer is not None:
            self.received += 1
        return None if answer == "a part" else answer


def taken(**links: Any) -> list[str]:
    names: list[str] = []
    awaited = {name: (link, 1) for name, link in links.items()}
    _take_answers(awaited, lambda name, answer: names.append(name), LONG, lambda: LONG)
    return names


def test_links_are_not_read_all_the_time_while_answers_come_one_by_one() -> None:
    first, last = Scripted({}), Scripted(None, {})
    assert taken(first=first, last=last) == ["first", "last"]
    assert last.waits == [0.0, SWEEP]


def test_the_rest_of_an_answer_is_not_waited_for() -> None:
    link, other = Scripted("a part", {}), Scripted(None, {})
    assert taken(link=link, other=other) == ["other", "link"]
    assert other.waits == [0.0, 0.0]
