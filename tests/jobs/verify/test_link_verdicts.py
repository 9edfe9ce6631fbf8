"""From measured pairs to the node or link at fault.

Tables, and properties over fleets of any size.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.jobs.verify.link_verdicts import (
    MeasuredLinks,
    MeasuredPair,
    bad_pairs,
    culprits,
    findings,
    judge_links,
    pairs_to_dial,
    usual_speed,
    with_dialled_pairs,
    with_further_look,
    with_links,
)
from clusterprep.model import Culprit, PairSpeed, VerifyResult
from clusterprep.model.pair_schedule import rounds

FAST, SLOW = 1.2e9, 2.4e6  # bytes per second


def way(dialer: str, listener: str, word: str = "ok", **fields: float) -> MeasuredPair:
    good = MeasuredPair(dialer, listener, "ok", "", 0.0004, 0.0001, 0.001, FAST, FAST, 0, 200)
    return replace(
        good if word == "ok" else MeasuredPair(dialer, listener, word, "connecting: no answer"),
        **fields,
    )  # type: ignore[arg-type]


def healthy(count: int, seed: str = "c") -> MeasuredLinks:
    names = tuple(f"n{number}" for number in range(1, count + 1))
    return MeasuredLinks(
        names, tuple(way(a, b) for pairs in rounds(names, seed) for a, b in pairs), 0.1
    )


def spoilt(links: MeasuredLinks, *ends: str, **fields: float) -> MeasuredLinks:
    """Pairs that have all the `ends`, made bad; `slow_from` names a node whose sending is slow."""
    word = str(fields.pop("word", "ok"))
    found = []
    for one in links.pairs:
        mine = set(ends) <= {one.dialer, one.listener}
        found.append(way(one.dialer, one.listener, word, **fields) if mine else one)
    return replace(links, pairs=tuple(found))


def slow_from(links: MeasuredLinks, name: str, *only: str) -> MeasuredLinks:
    """What a node sends is slow, to all or to some."""
    found = []
    for one in links.pairs:
        if one.dialer == name and (not only or one.listener in only):
            found.append(replace(one, out=SLOW))
        elif one.listener == name and (not only or one.dialer in only):
            found.append(replace(one, back=SLOW))
        else:
            found.append(one)
    return replace(links, pairs=tuple(found))


def blamed(links: MeasuredLinks) -> list[tuple[str, ...]]:
    return [guilt.nodes for guilt in judge_links(links)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 64, 65, 200])
def test_healthy_links_blame_no_node(count: int) -> None:
    links = healthy(count)
    assert judge_links(links) == ()
    (row,) = findings(links)
    assert (row.check, row.verdict, row.severity, row.nodes) == (
        "net.tcp_bw",
        "pass",
        "error",
        links.nodes,
    )
    result = with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), links)
    assert [(stage.name, stage.verdict, stage.seconds) for stage in result.stages] == [
        ("links", "pass", 0.1)
    ]


@pytest.mark.parametrize("count", [3, 4, 16, 100])
@pytest.mark.parametrize(
    "bad",
    [
        {"word": "timed_out"},
        {"word": "refused"},
        {"resent": 5},
        {"connect": 1.03},
        {"out": SLOW, "back": SLOW},
    ],
)
def test_a_bad_node_is_named_alone(count: int, bad: dict[str, float]) -> None:
    links = spoilt(healthy(count), "n2", **bad)
    assert blamed(links) == [("n2",)]
    (culprit,) = culprits(links)
    assert (culprit.kind, culprit.nodes, culprit.confidence) == ("node", ("n2",), 0.9)
    wanted = "no pair under a fifth of the usual speed, and no lost packets"
    assert {(row.check, row.severity, row.wanted) for row in findings(links)} == {
        ("net.tcp_bw", "error", wanted)
    }
    assert (
        with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), links).stages[-1].verdict == "fail"
    )


def test_links_that_were_not_measured_are_not_known() -> None:
    links = healthy(3)
    links = replace(
        links, pairs=tuple(one for one in links.pairs if "n3" not in (one.dialer, one.listener))
    )
    rows = {row.verdict: row for row in findings(links)}
    assert rows["pass"].nodes == ("n1", "n2")
    unknown = rows["unknown"]
    assert (unknown.check, unknown.severity, unknown.nodes) == ("net.tcp_bw", "error", ("n3",))
    none = replace(links, pairs=())
    assert (
        with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), none).stages[-1].verdict == "unknown"
    )


@pytest.mark.parametrize("count", [3, 4, 16])
@pytest.mark.parametrize("bad", [{"word": "timed_out"}, {"resent": 5}, {"out": SLOW, "back": SLOW}])
def test_a_bad_pair_is_a_link(count: int, bad: dict[str, float]) -> None:
    links = spoilt(healthy(count), "n3", "n2", **bad)
    assert blamed(links) == [("n2", "n3")]
    (culprit,) = with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), links).culprits
    assert (culprit.kind, culprit.nodes, culprit.source) == ("link", ("n2", "n3"), None)
    assert culprit.confidence == 0.85
    assert culprit.evidence


def test_a_slow_direction_of_a_pair_has_its_ends_in_order() -> None:
    links = slow_from(healthy(6), "n5", "n2")
    (culprit,) = with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), links).culprits
    assert (culprit.kind, culprit.source, culprit.target) == ("link", "n5", "n2")
    assert culprit.evidence == ("n5 to n2: 19.2 Mbit/s, usual 9.6 Gbit/s",)


def test_what_a_node_sends_and_what_it_gets_are_told_apart() -> None:
    (guilt,) = judge_links(slow_from(healthy(6), "n5"))
    assert guilt.nodes == ("n5",)
    (finding, *_) = findings(slow_from(healthy(6), "n5"))
    assert finding.message == "the network of n5 is slow in what it sends, with 5 of 5 others"


def test_a_node_and_a_link_at_once() -> None:
    links = spoilt(spoilt(healthy(8), "n2", word="timed_out"), "n5", "n6", resent=9)  # type: ignore[arg-type]
    assert sorted(blamed(links)) == [("n2",), ("n5", "n6")]


def test_nothing_needs_to_be_faster_than_its_interface() -> None:
    """A virtual interface of 10 Gbit/s moves three times as much on an idle machine.

    And less on a busy one.
    """
    links = healthy(4)
    lucky = tuple(replace(one, out=4e9, back=4e9) for one in links.pairs)
    busy = slow_from(replace(links, pairs=lucky), "n2", "n3")
    slower = tuple(
        replace(one, out=max(one.out, 5e8), back=max(one.back, 5e8)) for one in busy.pairs
    )
    assert blamed(replace(links, pairs=slower)) == [("n2", "n3")]
    assert blamed(replace(links, pairs=slower, rated=1.25e9)) == []
    assert blamed(replace(busy, rated=1.25e9)) == [("n2", "n3")]


@pytest.mark.parametrize(
    ("count", "named"),
    [
        pytest.param(5, [("n1",)], id="half"),
        pytest.param(6, [("n1", "n2"), ("n1", "n3")], id="less-than-half"),
    ],
)
def test_a_node_is_named_from_half_of_its_pairs_on(
    count: int, named: list[tuple[str, ...]]
) -> None:
    links = spoilt(spoilt(healthy(count), "n1", "n2", resent=5), "n1", "n3", resent=5)
    assert sorted(blamed(links)) == named


def test_the_pairs_are_told_as_they_were_measured() -> None:
    measured = MeasuredLinks(
        ("a", "b", "c"),
        (way("a", "b", rtt=0.25, out=2e9, back=1.5e9, resent=3), way("a", "c", "refused")),
        1,
    )
    first, second = with_links(VerifyResult("pass", "gloo", 2, 1, "a:1"), measured).pairs
    assert first == PairSpeed(("a", "b"), "ok", 2.0, 1.5, 0.25, 3)
    assert second == PairSpeed(("a", "c"), "refused")


def test_a_culprit_has_the_first_eight_of_its_faults() -> None:
    (culprit,) = culprits(spoilt(healthy(20), "n2", resent=5))
    assert len(culprit.evidence) == 8


def near(links: MeasuredLinks, *names: str) -> MeasuredLinks:
    """Of the nodes of these names all are one machine."""
    return replace(
        links,
        pairs=tuple(
            replace(w, same_machine={w.dialer, w.listener} <= set(names)) for w in links.pairs
        ),
    )


def test_between_nodes_of_one_machine_there_is_no_link_to_be_bad() -> None:
    links = slow_from(healthy(4), "n2", "n4")
    assert blamed(links) == [("n2", "n4")]
    assert blamed(near(links, *links.nodes)) == blamed(near(links, "n2", "n4")) == []
    for bad in ({"resent": 9}, {"connect": 1.2}):
        assert blamed(near(spoilt(links, "n2", "n4", **bad), *links.nodes)) == []
    (row,) = findings(near(links, *links.nodes))
    assert (row.verdict, row.nodes) == ("pass", links.nodes)


def test_what_one_machine_copies_is_no_speed_that_links_should_have() -> None:
    links = near(healthy(6), "n1", "n2", "n3", "n4")
    quick = replace(
        links,
        pairs=tuple(replace(w, out=2e10, back=2e10) if w.same_machine else w for w in links.pairs),
    )
    assert usual_speed(quick.pairs) == FAST
    assert blamed(quick) == []


def test_nodes_of_one_machine_that_do_not_connect_are_blamed() -> None:
    links = near(spoilt(healthy(4), "n2", word="refused"), "n1", "n2", "n3", "n4")
    assert blamed(links) == [("n2",)]


def test_two_nodes_are_a_link() -> None:
    assert blamed(spoilt(healthy(2), "n1", word="timed_out")) == [("n1", "n2")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"resent": 1}, {"worst": 0.4}, {"connect": 0.3}, {"out": FAST / 4}]
)
def test_what_a_busy_machine_does_is_no_fault(fields: dict[str, float]) -> None:
    assert judge_links(spoilt(healthy(4), "n2", **fields)) == ()


@pytest.mark.parametrize("word", ["lost", "garbled", "hung", "unknown_read"])
def test_pairs_that_were_not_measured_pass_no_node(word: str) -> None:
    links = spoilt(healthy(3), word=word)  # type: ignore[arg-type]
    rows = list(findings(links))
    assert [(row.verdict, row.reason) for row in rows] == [("unknown", "not measured")]
    assert (
        with_links(VerifyResult("pass", "gloo", 2, 1, "n1:1"), links).stages[-1].verdict
        == "unknown"
    )


def test_a_second_look_decides() -> None:
    links = spoilt(healthy(4), "n2", resent=9)
    doubtful = bad_pairs(links.pairs, usual_speed(links.pairs))
    assert {frozenset(pair) for pair in doubtful} == {
        frozenset(("n2", other)) for other in ("n1", "n3", "n4")
    }
    again = [way(a, b) for a, b in doubtful]
    assert judge_links(with_further_look(links, again, 0.1)) == ()
    assert blamed(with_further_look(links, [replace(one, resent=9) for one in again], 0.1)) == [
        ("n2",)
    ]
    assert blamed(with_further_look(links, [way(a, b, "lost") for a, b in doubtful], 0.1)) == [
        ("n2",)
    ]


def test_a_direction_is_as_fast_as_it_was_in_any_look() -> None:
    links = spoilt(healthy(4), "n2", out=FAST / 50)
    doubtful = bad_pairs(links.pairs, usual_speed(links.pairs))
    other_way = [way(a, b, back=FAST / 50) for a, b in doubtful]
    assert judge_links(with_further_look(links, other_way, 0.1)) == ()
    same_way = [way(a, b, out=FAST / 40) for a, b in doubtful]
    assert blamed(with_further_look(links, same_way, 0.1)) == [("n2",)]
    cut_off = with_further_look(links, [way(a, b, "timed_out") for a, b in doubtful], 0.1)
    assert {one.out for one in cut_off.pairs if one.outcome != "ok"} == {0.0}


def test_a_link_that_the_trial_named_is_one_with_what_was_measured() -> None:
    seen = Culprit("link", ("n2", "n4"), 0.85, "no answer", ("a socket",), None, "n4", "n2")
    result = with_links(
        VerifyResult("fail", "gloo", 2, 1, "n1:1", culprits=(seen,)),
        spoilt(healthy(4), "n2", "n4", word="timed_out"),  # type: ignore[arg-type]
    )
    (one,) = result.culprits
    assert (one.nodes, one.source, one.evidence[0]) == (("n2", "n4"), "n4", "a socket")
    assert len(one.evidence) == 2


def test_a_link_that_the_trial_named_is_its_node_where_all_links_of_that_are_bad() -> None:
    seen = Culprit("link", ("n1", "n4"), 0.85, "no answer", ("a socket",))
    links = spoilt(healthy(4), "n4", word="timed_out")  # type: ignore[arg-type]
    result = with_links(VerifyResult("fail", "gloo", 2, 1, "n1:1", culprits=(seen,)), links)
    assert [(one.kind, one.nodes) for one in result.culprits] == [("node", ("n4",))]
    other = with_links(VerifyResult("fail", "gloo", 2, 1, "n1:1", culprits=(seen,)), healthy(4))
    assert other.culprits == (seen,)


@pytest.mark.parametrize("count", [4, 7, 16])
def test_a_node_that_lets_no_connection_in_is_named_by_those_who_dial_it(count: int) -> None:
    """Only half of its pairs were dialled towards it; so are the others then."""

    def tried(dialer: str, listener: str) -> MeasuredPair:
        return way(dialer, listener, "timed_out" if listener == "n2" else "ok")

    links = healthy(count)
    first = replace(links, pairs=tuple(tried(one.dialer, one.listener) for one in links.pairs))
    asked = pairs_to_dial(first)
    assert {dialer for dialer, listener in asked if listener == "n2"} == set(links.nodes) - {"n2"}
    assert blamed(with_dialled_pairs(first, [tried(*pair) for pair in asked], 0.1)) == [("n2",)]


def test_a_pair_that_is_blocked_stays_a_link_and_one_that_connects_now_is_none() -> None:
    first = spoilt(healthy(4), "n2", "n4", word="timed_out")  # type: ignore[arg-type]
    asked = pairs_to_dial(first)
    assert {("n2", "n4"), ("n4", "n2")} <= set(asked)
    bad = [way(*pair, "timed_out") if set(pair) == {"n2", "n4"} else way(*pair) for pair in asked]
    assert blamed(with_dialled_pairs(first, bad, 0.1)) == [("n2", "n4")]
    assert judge_links(with_dialled_pairs(first, [way(*pair) for pair in asked], 0.1)) == ()
    assert pairs_to_dial(healthy(4)) == ()


def test_links_of_a_node_that_fell_silent_say_nothing_new() -> None:
    links = spoilt(healthy(4), "n2", word="timed_out")  # type: ignore[arg-type]
    silent = Culprit("node", ("n2",), 0.95, "the node fell silent")
    result = with_links(VerifyResult("fail", "gloo", 2, 1, "n1:1", culprits=(silent,)), links)
    assert result.culprits == (silent,)


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 150), st.integers(0, 1 << 32))
def test_one_fault_in_noise_is_found_whatever_the_size(count: int, seed: int) -> None:
    """Speeds scatter by a factor of two, and a node or a pair is ten times slower."""
    links, draw = healthy(count), random.Random(seed)
    noisy = tuple(
        replace(o, out=FAST * draw.uniform(0.6, 1.2), back=FAST * draw.uniform(0.6, 1.2))
        for o in links.pairs
    )
    links = replace(links, pairs=noisy)
    assert judge_links(links) == ()
    node = draw.choice(links.nodes)
    assert blamed(spoilt(links, node, out=FAST / 12, back=FAST / 12)) == [(node,)]
    pair = draw.choice(links.pairs)
    ends = tuple(sorted((pair.dialer, pair.listener), key=links.nodes.index))
    assert blamed(spoilt(links, *ends, out=FAST / 12, back=FAST / 12)) == [ends]
