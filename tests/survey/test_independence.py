"""No node waits for another one: signs of life, requests and answers, beside nodes that misbehave.

The agents are real. Some have a way to them that takes nothing more, loses what it takes, or brings
bytes without end.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Inventory, Node
from clusterprep.remote.transports.local import LocalChannel
from clusterprep.remote.transports.protocol import Channel
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import plan_queries
from clusterprep.survey.senders import WIDTH
from tests.support.patience import LONG, eventually

STALL = 20.0  # seconds that a channel waits for a peer that takes nothing
BAD = ("closed", "silent", "endless")


class Way(LocalChannel):
    """The way to an agent of this machine, which turns bad when `turn` is set."""

    def __init__(self, command: str, kind: str, turn: threading.Event) -> None:
        super().__init__(command)
        self.kind = kind
        self.pulses = 0
        self._turn = turn
        self._closed_at = threading.Event()

    def send(self, data: bytes) -> None:
        self.pulses += data.count(b'{"op":"pulse"}')
        if self._turn.is_set() and self.kind == "closed":
            self._closed_at.wait(STALL)
            raise LinkLost("hung", f"took nothing for {STALL:.0f} s")
        if self._turn.is_set() and self.kind == "silent":
            return
        super().send(data)

    def recv(self, timeout: float) -> bytes:
        if self._turn.is_set() and self.kind == "endless":
            return b"\n"
        return super().recv(timeout)

    def close(self) -> None:
        self._closed_at.set()
        self.kill()
        super().close()


class Ways:
    """A transport to nodes whose names begin with the kind of their way."""

    def __init__(self) -> None:
        self.turn = threading.Event()
        self.ways: dict[str, Way] = {}

    def open(self, node: Node, command: str) -> Channel:
        kind = node.name.partition("-")[0]
        self.ways[node.name] = Way(command, kind, self.turn)
        return self.ways[node.name]

    def unheard(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        pass


class Watch:
    def stage(self, name: str, total: int, nodes: Collection[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


class Lively(Fanout):
    pulse_interval = 0.1


@contextmanager
def connected(*names: str) -> Iterator[tuple[Fanout, Ways]]:
    """Agents that are up, and ways that are bad from then on."""
    nodes = tuple(Node(name, name, index) for index, name in enumerate(names))
    ways = Ways()
    inventory = Inventory("ways", nodes)
    with Lively(inventory, {"ssh": ways}, 64, lambda node: None, Watch()) as fanout:
        fanout.survey(plan_queries([], registry.facts()))
        assert set(fanout.links) == set(names)
        ways.turn.set()
        yield fanout, ways


def test_signs_of_life_go_on_beside_nodes_that_take_nothing() -> None:
    """Without them an agent ends itself and all that it started."""
    closed = [f"closed-{number}" for number in range(WIDTH + 4)]
    with connected(*closed, "good-1", "good-2") as (_, ways):
        before = [ways.ways[name].pulses for name in ("good-1", "good-2")]
        assert eventually(
            lambda: all(
                ways.ways[name].pulses > count + 20
                for name, count in zip(("good-1", "good-2"), before, strict=True)
            ),
            seconds=STALL / 2,
        )


@pytest.mark.parametrize("kind", BAD)
def test_an_answer_comes_whatever_the_others_do(kind: str) -> None:
    bad = [f"{kind}-{number}" for number in range(4)]
    names = [*bad, "good-1", "good-2"]
    with connected(*names) as (fanout, _):
        began = time.monotonic()
        answers = fanout.ask("ping", {name: {} for name in names}, 1.0)
        assert time.monotonic() - began < STALL / 4
        assert list(answers) == names
        assert ["seen" in answers[name] for name in ("good-1", "good-2")] == [True, True]
        assert {type(answers[name]) for name in bad} == {LinkLost}


def test_large_answers_come_whole_when_a_node_before_them_uses_up_the_time() -> None:
    script = "head -c 250000 /dev/zero | tr '\\0' x"
    reads = [["command", ["sh", "-c", script], LONG] for _ in range(8)]
    names = ["silent-1", "good-1", "good-2"]
    with connected(*names) as (fanout, _):
        answers = fanout.ask("look", {name: {"reads": reads} for name in names}, 3.0)
        for name in ("good-1", "good-2"):
            answer = answers[name]
            assert not isinstance(answer, LinkLost)
            assert [len(row[1]["out"]) for row in answer["answers"]] == [250_000] * 8


@pytest.mark.parametrize("kind", BAD)
def test_what_is_told_and_loaded_is_waited_for_on_no_node(kind: str) -> None:
    with connected(f"{kind}-1", f"{kind}-2", "good-1") as (fanout, _):
        began = time.monotonic()
        fanout.load("stream")
        fanout.tell("unlisten", list(fanout.links))
        assert time.monotonic() - began < 1.0
        answer = fanout.ask("serve", {"good-1": {"token": "x" * 32}}, LONG)["good-1"]
        assert not isinstance(answer, LinkLost)
        assert answer["port"]


def test_a_node_that_took_nothing_once_is_never_waited_for_again() -> None:
    with connected("closed-1", "good-1") as (fanout, ways):
        fanout.tell("unlisten", ["closed-1"])
        link = fanout.links["closed-1"]
        assert eventually(lambda: link.under_way)
        ways.ways["closed-1"]._closed_at.set()
        assert eventually(lambda: not link.under_way)
        began = time.monotonic()
        with pytest.raises(LinkLost, match="took nothing"):
            link.request("ping", LONG)
        answers = fanout.ask("ping", {"closed-1": {}, "good-1": {}}, LONG)
        assert time.monotonic() - began < LONG / 2
        assert "took nothing" in str(answers["closed-1"])
        assert "seen" in answers["good-1"]


def test_what_a_node_has_answered_counts_also_when_it_takes_no_more() -> None:
    with connected("good-1") as (fanout, ways):
        link = fanout.links["good-1"]
        number = link.send("ping")
        way = ways.ways["good-1"]
        assert eventually(lambda: way._wait(way._stdout, select.POLLIN, 0.1))
        way._stdin.close()
        fanout.tell("unlisten", ["good-1"])
        assert eventually(lambda: link.lost)
        assert "seen" in link.receive(number, LONG)
        with pytest.raises(LinkLost):
            link.request("ping", LONG)


def test_requests_leave_in_the_order_in_which_they_were_made() -> None:
    with connected("good-1") as (fanout, _):
        link = fanout.links["good-1"]
        fanout.load("stream")
        posted = [link.post("ping") for _ in range(50)]
        last = link.send("serve", token="x" * 32)
        assert link.receive(last, LONG)["port"]
        assert all("seen" in link.receive(number, LONG) for number in posted)
