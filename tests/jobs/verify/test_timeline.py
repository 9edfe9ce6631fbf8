"""Events in the order in which they happened.

By clocks of nodes that are set against the controller's.
"""

from __future__ import annotations

from clusterprep.jobs.verify.events import Event, SharedEvents
from clusterprep.jobs.verify.timeline import EventLog, ordered_timeline
from tests.jobs.verify.stories import make_plan


def test_the_event_that_came_fastest_sets_a_nodes_clock() -> None:
    events = [
        Event("n1", "joined", 4.5, 0, mono=103.0),
        Event("n1", "store", 2.0, 0, mono=101.0),  # underway for half a second less than the others
        Event("n1", "met", 6.5, 0, mono=105.0),
        Event("n2", "store", 3.0, 2, mono=7.0),
        Event("", "go", 2.5),
    ]
    placed = [
        (event.node, event.what, event.at) for event in ordered_timeline(make_plan(), events).events
    ]
    assert placed == [
        ("n1", "store", 2.0),
        ("", "go", 2.5),
        ("n2", "store", 3.0),
        ("n1", "joined", 4.0),
        ("n1", "met", 6.0),
    ]


def test_what_all_ranks_say_in_the_same_words_is_kept_once() -> None:
    kept = SharedEvents()
    first, second = (
        kept.event("n1", "entered", 1.0, rank, {"op": "all_reduce"}, 2.0) for rank in (0, 1)
    )
    assert first == Event("n1", "entered", 1.0, 0, {"op": "all_reduce"}, 2.0)
    assert first.data is second.data
    ends = [kept.event("n1", "left", 1.0, rank, {"op": "all_reduce"}, 2.0) for rank in (0, 1)]
    assert ends[0].data is not ends[1].data
    assert kept.event("n1", "entered", 1.0, 0, {"op": ["a list"]}, 2.0).data == {"op": ["a list"]}


def test_what_ranks_hold_is_kept_once_and_only_if_it_is_the_same() -> None:
    kept = SharedEvents()

    def held(rank: int, value: object) -> object:
        data = {"part": "packages", "items": {"torch": value}}
        return kept.event("n1", "holds", 1.0, rank, data, 2.0).data

    assert held(0, "2.6") is held(1, "2.6")
    for other in ("2.7", 1, True, 1.0, ["EACCES"]):
        assert held(2, other) == {"part": "packages", "items": {"torch": other}}
        assert held(3, other) is not held(0, "2.6")
    assert held(4, 1) is not held(5, True)


def test_that_a_rank_is_within_a_collective_is_kept_until_it_has_left() -> None:
    log = EventLog(make_plan())
    for event in (
        Event("n1", "entered", 1.0, 0),
        Event("n1", "warmed", 2.0, 0),
        Event("n1", "left", 3.0, 0),
        Event("n1", "entered", 4.0, 0),
        Event("n1", "warmed", 5.0, 0),
        Event("n2", "warmed", 4.5, 2),
        Event("", "stopping", 9.0),
    ):
        log.add(event)
    timeline = log.timeline()
    assert [(event.what, event.at) for event in timeline.events] == [
        ("entered", 1.0),
        ("left", 3.0),
        ("entered", 4.0),
        ("warmed", 4.5),
        ("warmed", 5.0),
        ("stopping", 9.0),
    ]
