"""Offsets from four time stamps: the shortest exchange counts, coarse ones are measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts.clock import Offset
from clusterprep.model import Absent
from clusterprep.survey.clock_sync import best_clock, measure_clock, refine_clocks
from tests.support.fleet import fleet

COARSE = Offset(7.0, 5.0)


class NodeClock:
    """What a Link offers to this protocol, of a node whose clock is `ahead` seconds ahead."""

    def __init__(self, *answers: Any, ahead: float = 2.0) -> None:
        self._answers = list(answers)
        self._ahead = ahead
        self.sent = 0

    def send(self, op: str) -> int:
        assert op == "ping"
        self.sent += 1
        return self.sent

    def receive(self, number: int, timeout: float) -> Any:
        answer = self._answers.pop(0) if self._answers else {}
        if isinstance(answer, Exception):
            raise answer
        now = time.time() + self._ahead
        return {"seen": now, "sent": now, **answer}


def run_each(items: Iterable[Any], work: Callable[[Any], None]) -> None:
    for item in items:
        work(item)


def test_the_offset_is_that_of_the_node_and_its_bound_half_of_the_way() -> None:
    offset = measure_clock(NodeClock())  # type: ignore[arg-type]
    assert isinstance(offset, Offset)
    assert abs(offset.seconds - 2.0) <= offset.bound + 0.001
    assert 0 <= offset.bound < 1


def test_the_exchange_with_the_smallest_bound_counts() -> None:
    """A node that works at an answer for a while takes this time off the way."""
    sent_at = time.time() - 1.0
    quick = {"seen": sent_at + 2.1, "sent": sent_at + 2.9}
    offset = best_clock(NodeClock({}, quick, {}), sent_at, [1, 2, 3])  # type: ignore[arg-type]
    assert isinstance(offset, Offset)
    assert 0.05 < offset.bound < 0.4


def test_an_exchange_without_time_stamps_is_garbled() -> None:
    answers = ({"seen": "now"}, {"sent": None}, {"seen": True})
    for answer in answers:
        offset = measure_clock(NodeClock(answer))  # type: ignore[arg-type]
        assert offset == Absent("garbled", "a clock exchange brought no time stamps")


def test_a_coarse_offset_is_measured_again_and_a_fine_one_is_not() -> None:
    fine = Offset(0.0, 0.001)
    before = fleet(
        n1={"clock.offset": COARSE},
        n2={"clock.offset": fine},
        n3={"clock.offset": COARSE},
        n4={"clock.offset": Absent("garbled")},
    )
    links = {"n1": NodeClock(), "n2": NodeClock(), "n4": NodeClock()}
    after = refine_clocks(before, links, run_each)  # type: ignore[arg-type]
    assert [links[name].sent for name in ("n1", "n2", "n4")] == [3, 0, 0]
    better = after.fact("n1", "clock.offset")
    assert abs(better.seconds - 2.0) < 0.5
    assert better.bound < COARSE.bound
    assert after.fact("n2", "clock.offset") == fine
    assert after.fact("n3", "clock.offset") == COARSE  # its link is lost


def test_a_node_that_is_lost_meanwhile_keeps_its_offset() -> None:
    before = fleet(n1={"clock.offset": COARSE})
    links = {"n1": NodeClock(LinkLost("hung", "no sign of life"))}
    after = refine_clocks(before, links, run_each)  # type: ignore[arg-type]
    assert after.fact("n1", "clock.offset") == COARSE
