"""The rounds that are kept: the first ones, and of very many later ones some, evenly."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from clusterprep.errors import OutOfTime
from clusterprep.jobs.acceptance.drift import FIRST
from clusterprep.jobs.acceptance.rounds import MOST, KeptRounds, run_rounds
from clusterprep.jobs.acceptance.stage import accept
from clusterprep.jobs.verify.schedule import plan_trial
from clusterprep.model import (
    Acceptance,
    CollectiveResult,
    Fleet,
    Gpus,
    Inventory,
    Node,
    NodeSnapshot,
    VerifyResult,
    VerifySettings,
)
from clusterprep.nccl.environment import render

ENDS = [("n1", "n2"), ("n2", "n1")]


class QuietLink:
    """A conversation with an agent whose ranks say nothing."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.received = 0
        self.asked: list[str] = []

    def request(self, op: str, timeout: float, **body: Any) -> dict[str, Any]:
        self.asked.append(op)
        return {}

    def poll(self, timeout: float) -> list[dict[str, Any]]:
        return []

    def silent_for(self) -> float:
        return 0.0


class EndingFanout:
    """The connections of a command whose time is over."""

    def __init__(self, node: Node) -> None:
        self.links = {node.name: QuietLink(node)}
        self.asked: list[str] = []

    def load(self, part: str) -> None:
        pass

    def check(self) -> None:
        raise OutOfTime("--timeout of 9 s reached")

    def ask(self, op: str, bodies: Any, timeout: float) -> dict[str, Any]:
        self.asked.append(op)
        return {}


def kept(count: int) -> KeptRounds:
    rounds = KeptRounds()
    for number in range(count):
        speed = 1.0 + number
        row = CollectiveResult("all_reduce", 8, 0.1, speed, speed, 0)
        rounds.add(float(number), dict.fromkeys(ENDS, speed), {0: 0.1}, (row,))
    return rounds


@pytest.mark.parametrize("count", [0, 1, FIRST, FIRST + 1, MOST, 5 * MOST])
def test_all_are_counted_and_the_first_ones_kept(count: int) -> None:
    rounds = kept(count).rounds(60.0)
    assert rounds.count == count
    assert [one.at for one in rounds.rounds[:FIRST]] == [0.0, 1.0, 2.0][:count]
    assert len(rounds.rounds) <= FIRST + MOST
    assert len(rounds.speeds.get(8, ())) == count


def test_what_ends_the_command_ends_the_rounds() -> None:
    node = Node("n1", "127.0.0.1", 0)
    fleet = Fleet(
        Inventory("demo", (node,)),
        {node.name: NodeSnapshot(node.name, node.address, reached=True)},
    )
    plan = plan_trial((node,), {}, ("127.0.0.1", 29500), VerifySettings(), {})
    fanout: Any = EndingFanout(node)
    rounds = run_rounds(fanout, fleet, plan, 60.0, lambda count, seconds: None)
    assert (rounds.count, rounds.seconds, rounds.finished) == (0, 0.0, False)
    assert rounds.stopped_by == "--timeout of 9 s reached"
    assert "unserve" in fanout.asked
    assert fanout.links["n1"].asked[-1] == "stop"


class EndedFanout(EndingFanout):
    """The same, and no answer is awaited any more."""

    def ask(self, op: str, bodies: Any, timeout: float) -> dict[str, Any]:
        self.check()
        return {}


def test_what_ends_the_command_before_the_first_round_is_reported_as_not_finished() -> None:
    node = Node("n1", "127.0.0.1", 0, gpus=Gpus(0))
    fleet = Fleet(
        Inventory("demo", (node,)),
        {node.name: NodeSnapshot(node.name, node.address, reached=True)},
    )
    passed = VerifyResult("pass", "gloo", 1, 1, "127.0.0.1:29500")
    fanout: Any = EndedFanout(node)
    accepted = accept(
        fanout,
        fleet,
        render(fleet),
        passed,
        (),
        60.0,
        lambda count, seconds: None,
    )
    assert accepted.result.verdict == "unknown"
    assert accepted.result.acceptance == Acceptance(60.0, 0.0, 0, (), finished=False)
    (finding,) = accepted.findings
    assert (finding.verdict, finding.reason) == ("unknown", "not finished")
    assert "--timeout of 9 s reached after 0 rounds" in finding.message


def test_of_very_many_those_kept_are_evenly_spread_to_the_end() -> None:
    times = [one.at for one in kept(40 * MOST).rounds(60.0).rounds[FIRST:]]
    steps = {after - before for before, after in itertools.pairwise(times)}
    assert len(steps) == 1
    assert times[-1] > 40 * MOST - 2 * steps.pop()
    assert len(times) > MOST // 3


def test_a_direction_that_was_not_measured_has_no_number() -> None:
    rounds = KeptRounds()
    rounds.add(0.0, dict.fromkeys(ENDS, 5.0), {}, ())
    rounds.add(1.0, {ENDS[1]: 6.0}, {}, ())
    first, second = rounds.rounds(2.0).rounds
    assert list(first.links) == [5.0, 5.0]
    assert math.isnan(second.links[0])
    assert second.links[1] == 6.0
