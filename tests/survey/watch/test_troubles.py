"""Which findings of a row of looks are told: once when they come, once when they go."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.model import Finding
from clusterprep.survey.watch.troubles import (
    MOST_PER_NODE,
    MOST_RISES,
    STEADY,
    WINDOW,
    Trouble,
    Troubles,
)

NODES = ("n1", "n2")


def finding(
    check: str = "eth.mtu",
    message: str = "the MTU differs",
    *,
    verdict: Literal["fail", "unknown"] = "fail",
    severity: Literal["error", "warning"] = "warning",
) -> Finding:
    return Finding(check, verdict, severity, ("n1",), message)


def trouble(node: str = "n1", *, counts: bool = True, **about: str) -> Trouble:
    return Trouble(node, finding(**about), counts)  # type: ignore[arg-type]


class Watched:
    """Looks at n1 and n2, ten seconds apart, and the kinds of what was told."""

    def __init__(self) -> None:
        self.troubles = Troubles()
        self.now = 0.0
        self.look()

    def look(self, *present: Trouble, nodes: tuple[str, ...] = NODES) -> list[str]:
        self.now += 10.0
        changes = self.troubles.look(self.now, present, nodes)
        return [f"{change.kind} {change.check} {change.nodes[0]}" for change in changes]


def test_what_fails_is_told_at_once_and_what_is_over_too() -> None:
    watched = Watched()
    assert watched.look(trouble()) == ["new eth.mtu n1"]
    assert watched.look(trouble()) == []
    assert watched.look() == ["gone eth.mtu n1"]
    assert watched.look() == []


def test_what_is_gone_says_how_long_it_was_there() -> None:
    watched = Watched()
    watched.look(trouble())
    watched.look(trouble())
    (gone,) = watched.troubles.look(50.0, (), NODES)
    assert gone.seconds == 30.0


def test_what_is_there_at_the_first_look_is_not_new() -> None:
    watched = Watched()
    watched.troubles = Troubles()
    assert watched.look(trouble(), trouble(verdict="unknown", check="a.b")) == [
        "there eth.mtu n1",
        "there a.b n1",
    ]


def test_what_is_unknown_is_told_when_three_looks_have_it() -> None:
    watched = Watched()
    unknown = trouble(verdict="unknown", message="no answer")
    assert watched.look(unknown) == []
    assert watched.look(unknown) == []
    assert watched.look() == []
    assert watched.look(unknown) == []
    assert watched.look(unknown) == []
    assert watched.look(unknown) == ["new eth.mtu n1"]


def test_what_followed_from_another_finding_is_told_when_it_outlives_it() -> None:
    watched = Watched()
    cause, following = trouble(), trouble(check="eth.path_mtu", counts=False)
    assert watched.look(cause, following) == ["new eth.mtu n1"]
    alone = replace(following, counts=True)
    assert watched.look(alone) == ["gone eth.mtu n1"]
    assert watched.look(alone) == ["new eth.path_mtu n1"]


def test_what_was_told_stays_told_where_a_cause_is_found_later() -> None:
    watched = Watched()
    assert watched.look(trouble(check="eth.path_mtu")) == ["new eth.path_mtu n1"]
    following = trouble(check="eth.path_mtu", counts=False)
    assert watched.look(following, trouble()) == ["new eth.mtu n1"]
    assert watched.look() == ["gone eth.path_mtu n1", "gone eth.mtu n1"]


def test_numbers_and_times_in_a_message_are_no_change() -> None:
    watched = Watched()
    watched.look(trouble(message="3 times, last 50 s ago, 1.5 GiB free"))
    assert watched.look(trouble(message="4 times, last 2 min ago, 900 MiB free")) == []


def test_another_thing_of_the_same_kind_is_a_change() -> None:
    watched = Watched()
    watched.look(trouble(message="eth0 is down"))
    assert watched.look(trouble(message="eth1 is down")) == ["changed eth.mtu n1"]


def test_two_things_of_one_check_come_and_go_by_themselves() -> None:
    watched = Watched()
    first, second = trouble(message="a disk is lost"), trouble(message="memory is lost")
    watched.look(first)
    assert watched.look(first, second) == ["new eth.mtu n1"]
    assert watched.look(second) == ["gone eth.mtu n1"]


def test_a_warning_that_becomes_an_error_is_worse_and_told_once() -> None:
    watched = Watched()
    watched.look(trouble())
    worse = trouble(severity="error")
    assert watched.look(worse) == ["worse eth.mtu n1"]
    assert watched.look(worse) == []
    assert watched.look(trouble()) == []
    assert watched.look(worse) == []


def test_what_was_unknown_and_has_failed_is_worse() -> None:
    watched = Watched()
    unknown = trouble(verdict="unknown", message="no answer")
    for _ in range(3):
        watched.look(unknown)
    assert watched.look(trouble()) == ["worse eth.mtu n1"]


def test_what_cannot_be_judged_any_more_is_not_gone() -> None:
    watched = Watched()
    unknown = trouble(verdict="unknown", message="no answer")
    watched.look(trouble())
    assert watched.look(unknown) == []
    assert watched.look(trouble()) == []
    assert watched.look() == ["gone eth.mtu n1"]


def test_a_node_that_was_not_looked_at_keeps_what_it_had() -> None:
    watched = Watched()
    watched.look(trouble("n1"), trouble("n2"))
    assert watched.look(trouble("n1"), nodes=("n1",)) == []
    assert watched.look(trouble("n1"), trouble("n2")) == []
    assert watched.look(trouble("n1")) == ["gone eth.mtu n2"]


def test_what_comes_and_goes_is_told_once_until_it_stays_away() -> None:
    watched = Watched()
    told = []
    for _ in range(12):
        told += watched.look(trouble())
        told += watched.look()
    assert told == [
        *["new eth.mtu n1", "gone eth.mtu n1"] * (MOST_RISES - 1),
        "unsteady eth.mtu n1",
    ]
    quiet = [watched.look() for _ in range(STEADY)]
    assert [words for words in quiet if words] == [["gone eth.mtu n1"]]


def test_what_comes_and_goes_is_told_again_when_it_stays() -> None:
    watched = Watched()
    for _ in range(MOST_RISES):
        watched.look()
        watched.look(trouble())
    told = [words for _ in range(STEADY) for words in watched.look(trouble())]
    assert told == ["stays eth.mtu n1"]
    assert watched.look() == ["gone eth.mtu n1"]


def test_what_comes_seldom_is_told_each_time() -> None:
    watched = Watched()
    for _ in range(MOST_RISES + 1):
        assert watched.look(trouble()) == ["new eth.mtu n1"]
        assert watched.look() == ["gone eth.mtu n1"]
        for _ in range(WINDOW):
            assert watched.look() == []
    assert watched.troubles.size == 0


def test_a_node_that_makes_up_findings_is_not_remembered_without_end() -> None:
    watched = Watched()
    for number in range(3):
        made_up = [
            trouble(message=f"disk {chr(97 + number)}{letter:x}x is lost") for letter in range(500)
        ]
        watched.look(*made_up)
        assert watched.troubles.size <= MOST_PER_NODE


looks = st.lists(
    st.sets(
        st.tuples(
            st.sampled_from(NODES),
            st.sampled_from(["a.one", "a.two"]),
            st.sampled_from(["fail", "unknown"]),
            st.sampled_from(["error", "warning"]),
            st.booleans(),
        ),
        max_size=6,
    ),
    max_size=90,
)


@given(looks)
def test_each_thing_that_is_told_ends_at_most_once_before_it_is_told_again(
    rows: list[set[tuple[str, str, str, str, bool]]],
) -> None:
    troubles = Troubles()
    open_places: Counter[tuple[str, str]] = Counter()
    for number, row in enumerate(rows):
        present = [
            trouble(node, check=check, verdict=verdict, severity=severity, counts=counts)
            for node, check, verdict, severity, counts in row
        ]
        for change in troubles.look(10.0 * number, present, NODES):
            place = (change.check, change.nodes[0])
            if change.kind in ("there", "new", "unsteady"):
                open_places[place] += 1
            elif change.kind == "gone":
                open_places[place] -= 1
            assert open_places[place] >= 0


@given(looks)
def test_looks_that_repeat_the_last_one_tell_nothing_in_the_end(
    rows: list[set[tuple[str, str, str, str, bool]]],
) -> None:
    troubles = Troubles()
    present: list[Trouble] = []
    for number, row in enumerate(rows):
        present = [
            trouble(node, check=check, verdict=verdict, severity=severity, counts=counts)
            for node, check, verdict, severity, counts in row
        ]
        troubles.look(10.0 * number, present, NODES)
    told = [troubles.look(1000.0 + number, present, NODES) for number in range(2 * WINDOW)]
    assert not any(told[STEADY:])
