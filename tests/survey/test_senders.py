"""How many threads send, while nodes take what is sent and while they do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from clusterprep.survey.senders import HELD_UP, SHARE, WIDTH, Senders
from tests.support.patience import LONG, eventually


class Held:
    """A link whose node takes nothing until the test lets it."""

    under_way = 0

    def __init__(self, may_leave: threading.Event) -> None:
        self.may_leave = may_leave
        self.is_sending = False

    def send_waiting(self) -> None:
        self.is_sending = True
        self.may_leave.wait(LONG)


@pytest.fixture
def links() -> Iterator[list[Any]]:
    may_leave = threading.Event()
    yield [Held(may_leave) for _ in range(2 * SHARE + WIDTH + 1)]
    may_leave.set()


def count(links: list[Any]) -> int:
    return sum(link.is_sending for link in links)


def test_a_thread_has_many_links_until_one_is_held_up(links: list[Any]) -> None:
    senders = Senders()
    for link in links[: 2 * SHARE]:
        senders.put(link)
    few = count(links)
    assert few <= 3
    for link in links[2 * SHARE :]:
        senders.put(link)
    assert not threading.Event().wait(1.5 * HELD_UP)
    senders.relieve()
    assert eventually(lambda: count(links) >= few + WIDTH)
