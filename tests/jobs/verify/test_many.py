"""Sixty-four nodes at once, without processes: one that is lost or slow holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.collect import run_verify
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Node
from tests.jobs.verify.stories import MILESTONES, make_plan

NODES = 64
HOURS = 36_000.0  # seconds
Frame = dict[str, Any]


class FakeLink:
    """A node whose ranks reach a milestone every time it is asked for news.

    Until `fate` says otherwise.
    """

    def __init__(
        self, node: Node, plan: TrialPlan, fate: Callable[[FakeLink, str], None] | None = None
    ) -> None:
        self.node, self._plan, self._fate = node, plan, fate
        self._ranks = plan.ranks_by_node[node.name]
        self._queue = list(MILESTONES[: MILESTONES.index("ready") + 1])
        self._heard = time.monotonic()
        self.asked: list[str] = []
        self.idle = (
            threading.Event()
        )  # set once it is asked for news after its last milestone was taken
        self._ended = False

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
            if self._ended:
                self.idle.set()
            time.sleep(timeout)
            return []
        milestone = self._queue.pop(0)
        self._ended = milestone == MILESTONES[-1]
        if self._fate:
            self._fate(self, milestone)
        self._heard = time.monotonic()
        return [self._frame(rank.rank, milestone) for rank in self._ranks]

    def _frame(self, rank: int, milestone: str) -> Frame:
        what, _, number = milestone.partition(" ")
        frame: Frame = {"rank": rank, "what": what, "mono": time.monotonic(), "wall": time.time()}
        if number:
            step = self._plan.steps[int(number)]
            frame |= {
                "op": step.op,
                "bytes": step.bytes,
                "seconds": 0.01,
                "wrong": 0,
                "first": None,
            }
        return frame

    received = 0

    def silent_for(self) -> float:
        return time.monotonic() - self._heard


def run(
    fate: Callable[[FakeLink, str], None] | None, links: list[FakeLink] | None = None
) -> tuple[Timeline, list[FakeLink]]:
    """Run a trial whose limit no test lives to see, with n7 under `fate`.

    All links are added to `links`.
    """
    plan, links = make_plan(NODES, 8, timeout=HOURS), [] if links is None else links
    links.extend(FakeLink(node, plan, fate if node.name == "n7" else None) for node in plan.nodes)
    return run_verify(links, plan), links


def test_all_are_started_let_go_and_stopped() -> None:
    timeline, links = run(None)
    result = judge(timeline)
    assert (result.verdict, result.world_size) == ("pass", NODES * 8)
    assert all(
        [op for op in link.asked if op != "hold"] == ["start", "go", "stop"] for link in links
    )
    assert threading.active_count() < NODES


def test_a_node_that_is_lost_leaves_the_others_results_complete() -> None:
    def lost(link: FakeLink, at: str) -> None:
        if at == "entered 1":
            raise LinkLost("hung", "the agent ended")

    timeline, links = run(lost)
    result = judge(timeline)
    assert [(culprit.kind, culprit.nodes) for culprit in result.culprits] == [("node", ("n7",))]
    assert {row.last_event for row in result.ranks if row.node != "n7"} == {"finished"}
    assert all(link.asked[-1] == "stop" for link in links if link.node.name != "n7")
    assert [row.bytes for row in result.collectives] == [8]


def test_a_node_that_hangs_before_it_is_lost_holds_up_no_other() -> None:
    links: list[FakeLink] = []

    def slow(link: FakeLink, at: str) -> None:
        if at == "entered 1":
            for other in links:
                assert other is link or other.idle.wait(60)
            raise LinkLost("hung", "no sign of life for 5.5 s")

    timeline, _ = run(slow, links)
    result = judge(timeline)
    (lost,) = timeline.of("lost")
    finished = list(timeline.of("finished"))
    assert len(finished) == (NODES - 1) * 8
    assert max(event.at for event in finished) <= lost.at
    assert [culprit.nodes for culprit in result.culprits] == [("n7",)]
    assert {f.check: f.nodes for f in findings(result) if f.verdict == "fail"} == {
        "nccl.hang": ("n7",)
    }


def test_a_bug_in_a_thread_is_raised_after_all_were_stopped() -> None:
    asked: list[FakeLink] = []

    def bug(link: FakeLink, at: str) -> None:
        asked.append(link)
        if at == "met":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(bug)
    assert asked
