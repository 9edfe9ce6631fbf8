"""When nodes are tried again, and when a watch itself did not look."""

from __future__ import annotations

import itertools

import pytest

from clusterprep.model import Fleet, Inventory, Node, NodeSnapshot, SshSettings
from clusterprep.survey.watch.schedule import (
    LATE,
    LEAST_LOGIN,
    MOST_WAIT,
    Backoff,
    Moment,
    clipped_logins,
    unseen_seconds,
    with_last_words,
)

EVERY = 10.0
NODES = tuple(Node(f"n{number}", f"10.0.0.{number}", number - 1) for number in (1, 2, 3))
INVENTORY = Inventory("test", NODES)


def snapshot(node: str, *, reached: bool = True, answered: bool = True) -> NodeSnapshot:
    facts = {"host.name": "as it was"} if reached else {}
    return NodeSnapshot(node, node, reached=reached, answered=answered, facts=facts)


@pytest.mark.parametrize(
    ("wall", "running", "unseen"),
    [
        pytest.param(10.0, 10.0, None, id="as-it-should-be"),
        pytest.param(10.5, 10.0, None, id="clocks-drift"),
        pytest.param(EVERY + LATE, EVERY + LATE, None, id="a-little-late"),
        pytest.param(3610.0, 10.0, 3600.0, id="the-machine-slept"),
        pytest.param(-3590.0, 10.0, -3600.0, id="the-clock-was-set-back"),
        pytest.param(400.0, 400.0, 400.0, id="the-process-was-stopped"),
    ],
)
def test_time_without_a_look_is_noticed(wall: float, running: float, unseen: float | None) -> None:
    before = Moment(1_800_000_000.0, 500.0)
    now = Moment(before.wall + wall, before.running + running)
    assert unseen_seconds(before, now, EVERY) == unseen


def tries(answered: bool, looks: int) -> list[int]:
    """Return the looks in which a node that is never reached was tried."""
    backoff = Backoff(EVERY)
    tried = []
    for look in range(looks):
        now = look * EVERY
        if NODES[0] in backoff.due(NODES, now):
            tried.append(look)
            backoff.note([snapshot("n1", reached=False, answered=answered)], now)
    return tried


def test_a_node_without_an_answer_is_tried_in_every_look() -> None:
    assert tries(answered=False, looks=50) == list(range(50))


def test_a_node_that_refuses_is_tried_less_and_less_often() -> None:
    tried = tries(answered=True, looks=200)
    assert tried[:5] == [0, 2, 6, 14, 30]
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert max(waits) == MOST_WAIT / EVERY


def test_a_node_that_is_back_is_looked_at_each_time() -> None:
    backoff = Backoff(EVERY)
    backoff.note([snapshot("n1", reached=False)], 0.0)
    assert NODES[0] not in backoff.due(NODES, EVERY)
    backoff.note([snapshot("n1")], 2 * EVERY)
    assert backoff.due(NODES, 2 * EVERY) == NODES


def test_a_login_takes_half_an_interval_at_most() -> None:
    quick = Node("n2", "n2", 1, ssh=SshSettings(connect_timeout=2.0))
    clipped = clipped_logins(Inventory("test", (NODES[0], quick)), EVERY)
    assert [node.ssh.connect_timeout for node in clipped.nodes] == [5.0, 2.0]


def test_a_login_may_take_seconds_where_looks_are_close() -> None:
    clipped = clipped_logins(Inventory("test", NODES[:1]), 1.0)
    assert [node.ssh.connect_timeout for node in clipped.nodes] == [LEAST_LOGIN]


def test_a_node_that_is_down_is_compared_by_what_it_said_last() -> None:
    heard = {"n3": snapshot("n3")}
    seen = {
        "n1": snapshot("n1"),
        "n2": snapshot("n2"),
        "n3": snapshot("n3", reached=False, answered=False),
    }
    fleet = with_last_words(Fleet(INVENTORY, seen), heard)
    assert fleet.fact("n3", "host.name") == "as it was"


def test_what_a_majority_said_earlier_says_nothing_of_now() -> None:
    heard = {"n2": snapshot("n2"), "n3": snapshot("n3")}
    seen = {
        "n1": snapshot("n1"),
        "n2": snapshot("n2", reached=False),
        "n3": snapshot("n3", reached=False),
    }
    fleet = with_last_words(Fleet(INVENTORY, seen), heard)
    assert [node.name for node in fleet.reached] == ["n1"]
