"""Sixty-four nodes at once, without processes: one that is lost or slow holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.verify.blame import findings, judge
from clusterprep.verify.collect import run_verify
from clusterprep.verify.schedule import TrialPlan
from clusterprep.verify.timeline import Timeline
from tests.verify.stories import MILESTONES, make_plan

NODES = 64
Frame = dict[str, Any]


class FakeLink:
    """A node whose ranks reach a milestone every time it is asked for news, until `fate` says otherwise."""

    def __init__(self, node: Node, plan: TrialPlan, fate: Callable[[FakeLink, str], None] | None = None) -> None:
        self.node, self._plan, self._fate = node, plan, fate
        self._ranks = plan.ranks_by_node[node.name]
        self._queue = list(MILESTONES[: MILESTONES.index("ready") + 1])
        self._heard = time.monotonic()
        self.asked: list[str] = []

    def request(self, op: str, timeout: float, **body: Any) -> Frame:
        if self._fate:
            self._fate(self, op)
        self.asked.append(op)
        if op == "go":
            self._queue.extend(MILESTONES[MILESTONES.index("store") :])
        self._heard = time.monotonic()
        return {"left": []} if op == "stop" else {}

    def poll(self, timeout: float) -> list[Frame]:
        if not self._queue:
            time.sleep(timeout)
            return []
        milestone = self._queue.pop(0)
        if self._fate:
            self._fate(self, milestone)
        self._heard = time.monotonic()
        return [self._frame(rank.rank, milestone) for rank in self._ranks]

    def _frame(self, rank: int, milestone: str) -> Frame:
        what, _, number = milestone.partition(" ")
        frame: Frame = {"rank": rank, "what": what, "mono": time.monotonic(), "wall": time.time()}
        if number:
            step = self._plan.steps[int(number)]
            frame |= {"op": step.op, "bytes": step.bytes, "seconds": 0.01, "wrong": 0, "first": None}
        return frame

    received = 0

    def silent_for(self) -> float:
        return time.monotonic() - self._heard


def run(fate: Callable[[FakeLink, str], None] | None, timeout: float = 10.0) -> tuple[Timeline, list[FakeLink], float]:
    """The fate is that of n7; the seconds are those of the whole trial."""
    plan = make_plan(NODES, 8, timeout=timeout)
    links = [FakeLink(node, plan, fate if node.name == "n7" else None) for node in plan.nodes]
    begin = time.monotonic()
    timeline = run_verify(links, plan)
    return timeline, links, time.monotonic() - begin


def test_all_are_started_let_go_and_stopped() -> None:
    timeline, links, seconds = run(None)
    result = judge(timeline)
    assert (result.verdict, result.world_size) == ("pass", NODES * 8)
    assert all([op for op in link.asked if op != "hold"] == ["start", "go", "stop"] for link in links)
    assert seconds < 10
    assert threading.active_count() < NODES


def test_a_node_that_is_lost_leaves_the_others_results_complete() -> None:
    def lost(link: FakeLink, at: str) -> None:
        if at == "entered 1":
            raise LinkLost("hung", "the agent ended")

    timeline, links, seconds = run(lost)
    result = judge(timeline)
    assert [(culprit.kind, culprit.nodes) for culprit in result.culprits] == [("node", ("n7",))]
    assert {row.last_event for row in result.ranks if row.node != "n7"} == {"finished"}
    assert all(link.asked[-1] == "stop" for link in links if link.node.name != "n7")
    assert [row.bytes for row in result.collectives] == [8]
    assert seconds < 10


def test_a_node_that_hangs_before_it_is_lost_holds_up_no_other() -> None:
    def slow(link: FakeLink, at: str) -> None:
        if at == "entered 1":
            time.sleep(5.5)
            raise LinkLost("hung", "no sign of life for 5.5 s")

    timeline, _, _ = run(slow)
    result = judge(timeline)
    (lost,) = timeline.of("lost")
    assert max(event.at for event in timeline.of("finished")) < lost.at - 2
    assert [culprit.nodes for culprit in result.culprits] == [("n7",)]
    assert {f.check: f.nodes for f in findings(result) if f.verdict == "fail"} == {"nccl.hang": ("n7",)}


def test_a_bug_in_a_thread_is_raised_after_all_were_stopped() -> None:
    asked: list[FakeLink] = []

    def bug(link: FakeLink, at: str) -> None:
        asked.append(link)
        if at == "met":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(bug)
    assert asked
