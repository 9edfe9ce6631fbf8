"""Reads travel in one request, which waits as long as the slowest lane of reads may take."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Read
from clusterprep.runtime.budget import Budget
from clusterprep.survey.reads import MARGIN, ask_reads, look_request

FILE, SHELL = Read("file", ("/a",), limit=2.0), Read("command", ("true",), limit=3.0)


class Agent:
    """What a Link offers here: gives one answer, and notes what it was asked and for how long."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: tuple[Any, ...] = ()
        self.timeout = 0.0

    def send_all(self, *requests: Any) -> list[int]:
        self.requests = requests
        return [7]

    def receive_pieces(self, number: int, timeout: float) -> Any:
        assert number == 7
        self.timeout = timeout
        return self.answer


def test_a_request_names_every_read_with_its_limit() -> None:
    body = {"reads": [["file", ["/a"], 2.0], ["command", ["true"], 3.0]]}
    assert look_request([FILE, SHELL]) == ("look", body)


def test_under_a_budget_a_request_says_when_the_time_for_reads_is_over() -> None:
    _, body = look_request([FILE], Budget(60.0, time.monotonic()))
    assert 50 < body["within"] < 60


@pytest.mark.parametrize(
    ("reads", "seconds"),
    [
        pytest.param([FILE, SHELL], 3.0, id="side-by-side"),
        pytest.param([FILE, FILE, SHELL], 4.0, id="one-after-the-other"),
    ],
)
def test_the_limit_is_that_of_the_slowest_lane(reads: list[Read], seconds: float) -> None:
    agent = Agent({"answers": [["ok", ""]] * len(reads)})
    assert ask_reads(agent, reads) == agent.answer["answers"]  # type: ignore[arg-type]
    assert agent.timeout == seconds + MARGIN
    assert agent.requests == (look_request(reads),)


@pytest.mark.parametrize("answer", [{}, {"answers": []}, {"answers": "x"}, {"why": "no"}])
def test_an_answer_of_another_shape_loses_the_node(answer: Any) -> None:
    with pytest.raises(LinkLost) as raised:
        ask_reads(Agent(answer), [FILE], 7)  # type: ignore[arg-type]
    assert raised.value.reason == "garbled"
