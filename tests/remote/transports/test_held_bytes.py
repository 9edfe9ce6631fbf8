"""What links hold together is bounded, and the one that holds most goes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote.transports.held_bytes import HeldBytes
from clusterprep.remote.transports.link import MAX_HELD, Link

NONCE = "00112233aabbccdd"


class Played:
    """A channel that brings what it was given, over and over."""

    peer = None
    near = False
    alive = True

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = list(pieces)
        self._next = 0

    def send(self, data: bytes) -> None: ...

    def recv(self, timeout: float) -> bytes:
        piece = self._pieces[self._next % len(self._pieces)]
        self._next += 1
        return piece

    def stderr(self) -> bytes:
        return b""

    def kill(self) -> None: ...

    def close(self) -> None: ...


def framed(payload: bytes) -> bytes:
    return b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload)


def link(held_bytes: HeldBytes, *pieces: bytes, name: str = "n1") -> Link:
    return Link(Node(name, "10.0.0.1", 0), Played(pieces), NONCE, held_bytes=held_bytes)


def test_the_link_that_holds_most_is_dropped() -> None:
    held = HeldBytes(most=100)
    small, large, late = "small", "large", "late"
    assert not held.exceeds(small, 30)
    assert not held.exceeds(large, 60)
    assert not held.exceeds(late, 20)  # together too much: the largest goes, not the last
    assert held.exceeds(large, 60)
    assert not held.exceeds(small, 80)


def test_what_was_taken_counts_no_more() -> None:
    held = HeldBytes(most=100)
    for _ in range(5):
        assert not held.exceeds("a", 90)
        assert not held.exceeds("a", 0)
    held.exceeds("a", 90)
    held.forget("a")
    assert not held.exceeds("b", 90)


def test_events_that_nothing_takes_lose_their_node() -> None:
    event = framed(b'{"what":"x","d":"' + b"y" * 200_000 + b'"}')
    one = link(HeldBytes(), event)
    number = one.send("ping")
    with pytest.raises(LinkLost, match="more unrequested data"):
        one.receive(number, 30.0)
    assert one.received < MAX_HELD + 2 * len(event)


def test_all_nodes_together_lose_the_one_with_most() -> None:
    held = HeldBytes(most=1 << 20)
    others = [link(held, framed(b'{"what":"x"}'), name=f"n{number}") for number in range(8)]
    for other in others:
        assert other.poll(0.1)
    greedy = link(held, framed(b'{"what":"x","d":"' + b"y" * 200_000 + b'"}'), name="n9")
    number = greedy.send("ping")
    with pytest.raises(LinkLost, match=r"all nodes together .* and this one most of it"):
        greedy.receive(number, 30.0)
    for other in others:
        assert other.poll(0.1)


def test_an_honest_stream_of_events_is_taken_for_ever() -> None:
    """Also beside an answer that nothing takes, such as that to a further part of the agent."""
    event = framed(b'{"what":"x","d":"' + b"y" * 50_000 + b'"}')
    one = link(HeldBytes(), framed(b'{"id":1}') + event, event)
    one.send("load")
    for _ in range(1000):
        assert one.poll(0.1)
