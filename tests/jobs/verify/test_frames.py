"""What a node may tell of ranks, and what becomes of it where it tells something else."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.collect import run_verify
from clusterprep.jobs.verify.frames import MOST_VALUES, parse_frame
from clusterprep.model import Node
from tests.jobs.verify.stories import make_plan
from tests.jobs.verify.test_many import HOURS, FakeLink

RANKS = (2, 3)
LEFT = {"rank": 2, "what": "left", "op": "all_reduce", "bytes": 8, "seconds": 0.1, "wrong": 0}


@pytest.mark.parametrize(
    "frame",
    [
        {"rank": 2, "what": "met"},
        {"what": "exit", "rank": None, "code": 0},
        {
            **LEFT,
            "first": {"index": 0, "seen": "nan", "wanted": 1.5, "turn": 0, "source": None},
            "own": 0.5,
        },
        {
            "rank": 3,
            "what": "holds",
            "part": "files",
            "items": {"/a": "sha256 1", "/b": ["Permission denied"], "c": None},
        },
    ],
    ids=lambda frame: frame["what"],
)
def test_what_an_agent_tells_is_taken(frame: dict[str, Any]) -> None:
    what, rank, data = parse_frame(frame, RANKS)
    assert (what, rank) == (frame["what"], frame["rank"])
    assert data == {key: value for key, value in frame.items() if key not in ("what", "rank")}


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param({**LEFT, "rank": 1}, id="rank-of-another-node"),
        pytest.param({**LEFT, "rank": "2"}, id="rank-as-text"),
        pytest.param({**LEFT, "rank": True}, id="rank-that-is-true"),
        pytest.param({"rank": 2, "what": ["left"]}, id="kind-that-is-a-list"),
        pytest.param({"rank": 2, "what": "overdue"}, id="kind-of-the-controller"),
        pytest.param({**LEFT, "bytes": None}, id="no-size"),
        pytest.param({**LEFT, "bytes": -1}, id="less-than-nothing"),
        pytest.param({**LEFT, "seconds": "1"}, id="seconds-as-text"),
        pytest.param({**LEFT, "wrong": 0.5}, id="half-an-element"),
        pytest.param({**LEFT, "op": "x" * 5000}, id="long-name"),
        pytest.param({**LEFT, "first": {"index": 0}}, id="first-that-is-cut"),
        pytest.param({"rank": 2, "what": "ready", "gpu": {"uuid": 7}}, id="gpu-without-place"),
        pytest.param({"rank": 2, "what": "state"}, id="no-state"),
        pytest.param({"rank": 2, "what": "exit"}, id="end-without-number"),
        pytest.param({"rank": 2, "what": "exit", "signal": "9"}, id="signal-as-text"),
        pytest.param({"rank": 2, "what": "lines", "lines": "abc"}, id="lines-that-are-a-text"),
        pytest.param({"rank": 2, "what": "lines", "lines": [1]}, id="line-that-is-a-number"),
        pytest.param({"rank": 2, "what": "lines", "lines": ["x" * 65537]}, id="long-line"),
        pytest.param(
            {"rank": 2, "what": "lines", "lines": [], "left_out": "x"}, id="left-out-as-text"
        ),
        pytest.param(
            {"rank": 2, "what": "nccl", "lines": [None], "cut": 0}, id="nccl-that-says-nothing"
        ),
        pytest.param(
            {"rank": 2, "what": "holds", "part": "files", "items": {"a": {"b": 1}}},
            id="deep-belongings",
        ),
    ],
)
def test_nothing_else_is(frame: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_frame(frame, RANKS)


class Liar(FakeLink):
    """Says one thing more as soon as its ranks are there."""

    def __init__(self, node: Node, plan: Any, more: dict[str, Any], times: int = 1) -> None:
        super().__init__(node, plan, None)
        self._more, self._times = {"mono": time.monotonic(), **more}, times

    def poll(self, timeout: float) -> list[dict[str, Any]]:
        frames = super().poll(timeout)
        return [*frames, *[self._more] * self._times]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"what": "left", "rank": 0, "op": "x"}, id="event-of-no-shape"),
        pytest.param(
            {"what": "error", "rank": 0, "stage": "store"}, id="error-of-the-rank-of-another-node"
        ),
        pytest.param({"what": "met", "rank": None, "mono": "never"}, id="no-time"),
        pytest.param({"what": "met", "rank": None, "mono": True}, id="time-that-is-true"),
    ],
)
def test_a_node_that_tells_something_else_is_lost_and_alone_to_blame(more: dict[str, Any]) -> None:
    plan = make_plan(4, 1, timeout=HOURS)
    links = [FakeLink(node, plan, None) for node in plan.nodes[:3]]
    result = judge(run_verify([*links, Liar(plan.nodes[3], plan, more)], plan))
    assert result.verdict == "fail"
    assert [culprit.nodes for culprit in result.culprits] == [("n4",)]


def test_what_a_node_says_without_end_ends_the_node() -> None:
    class Loud(FakeLink):
        @property
        def received(self) -> int:  # type: ignore[override]
            return 0 if not self.asked else 65 << 20

    plan = make_plan(4, 1, timeout=HOURS)
    links = [FakeLink(node, plan, None) for node in plan.nodes[:3]]
    result = judge(run_verify([*links, Loud(plan.nodes[3], plan, None)], plan))
    assert [culprit.nodes for culprit in result.culprits] == [("n4",)]


def test_values_without_end_end_the_node() -> None:
    plan = make_plan(4, 1, timeout=HOURS)
    links = [FakeLink(node, plan, None) for node in plan.nodes[:3]]
    much = {"what": "state", "rank": 3, "state": "S", "more": [[]] * 9_000}
    liar = Liar(plan.nodes[3], plan, much, times=MOST_VALUES // 9_000 + 1)
    result = judge(run_verify([*links, liar], plan))
    assert [culprit.nodes for culprit in result.culprits] == [("n4",)]
    assert f"more than {MOST_VALUES:,} values" in str(result)
