"""Who is to blame when pairs of nodes do not reach each other, and what a taken port means."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.checks.pair_causes import Cause, find_causes
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.model import Finding
from tests.support.fleet import PORT, absent, findings, fleet, silent, told

NAMES = ("n1", "n2", "n3", "n4", "n5")


def dial(dialer: str, listener: str, word: str = "ok", port: int = PORT) -> Dial:
    return Dial(dialer, listener, f"10.0.0.{listener[1:]}", port, word)


def matrix(
    *bad: tuple[str, str], names: tuple[str, ...] = NAMES, word: str = "timed_out"
) -> list[Dial]:
    """Every node dials every other; the pairs named fail."""
    pairs = itertools.permutations(names, 2)
    return [dial(a, b, word if (a, b) in bad else "ok") for a, b in pairs]


def blamed(found: tuple[Cause, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(guilt.role, guilt.nodes) for guilt in found]


# ---------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param([], [], id="all-well"),
        pytest.param([("n1", "n2")], [("pair", ("n1", "n2"))], id="one-pair"),
        pytest.param(
            [("n1", "n2"), ("n2", "n1")],
            [("pair", ("n1", "n2")), ("pair", ("n2", "n1"))],
            id="both-ways",
        ),
        pytest.param(
            [("n1", "n5"), ("n2", "n5")], [("listener", ("n5",))], id="half-of-the-dialers-and-two"
        ),
        pytest.param(
            [(n, "n3") for n in NAMES if n != "n3"],
            [("listener", ("n3",))],
            id="a-listener-behind-a-firewall",
        ),
        pytest.param(
            [("n3", n) for n in NAMES if n != "n3"],
            [("dialer", ("n3",))],
            id="a-dialer-that-gets-nowhere",
        ),
        pytest.param(
            [(n, "n3") for n in NAMES if n != "n3"] + [("n3", n) for n in NAMES if n != "n3"],
            [("listener", ("n3",)), ("dialer", ("n3",))],
            id="a-node-cut-off",
        ),
        pytest.param(
            [(n, "n3") for n in NAMES if n != "n3"] + [("n1", "n2")],
            [("listener", ("n3",)), ("pair", ("n1", "n2"))],
            id="a-listener-and-a-pair",
        ),
    ],
)
def test_a_listener_first_then_a_dialer_then_pairs(
    bad: list[tuple[str, str]], expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert blamed(find_causes(matrix(*bad))) == expected


def test_fewer_than_half_of_the_dialers_are_pairs() -> None:
    dials = [dial(f"n{number}", "n1", "refused" if number < 4 else "ok") for number in range(2, 8)]
    assert blamed(find_causes(dials)) == [("pair", ("n2", "n1")), ("pair", ("n3", "n1"))]


def test_one_dialer_on_two_ports_is_one_dialer() -> None:
    dials = [
        dial("n2", "n1", "refused", 29500),
        dial("n2", "n1", "refused", 29501),
        dial("n3", "n1"),
    ]
    assert all(guilt.role != "listener" for guilt in find_causes(dials))


ANY_DIALS = st.lists(
    st.builds(
        Dial,
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.just("10.0.0.1"),
        st.sampled_from([PORT, 40000]),
        st.sampled_from(["ok", "refused", "timed_out"]),
    ),
    max_size=40,
)


SEVEN = tuple(f"n{number}" for number in range(1, 8))


def in_turn(*shut: tuple[str, int]) -> list[Dial]:
    """Every node dials every other on one of three ports; some listeners have some ports shut."""
    turns = dict.fromkeys(SEVEN, 0)
    dials = []
    for a, b in itertools.permutations(SEVEN, 2):
        port, turns[b] = 40000 + turns[b] % 3, turns[b] + 1
        dials.append(dial(a, b, "timed_out" if (b, port) in shut else "ok", port))
    return dials


@pytest.mark.parametrize("guilty", [("n3",), ("n3", "n5")])
def test_a_port_that_nobody_reaches_is_the_listeners_fault_alone(guilty: tuple[str, ...]) -> None:
    found = find_causes(in_turn(*((name, 40002) for name in guilty)), by_port=True)
    assert sorted(blamed(found)) == [("listener", (name,)) for name in guilty]


def test_one_pair_on_a_port_that_others_reach_is_a_pair() -> None:
    dials = [
        replace(d, word="timed_out") if (d.dialer, d.listener) == ("n1", "n2") else d
        for d in in_turn()
    ]
    assert blamed(find_causes(dials, by_port=True)) == [("pair", ("n1", "n2"))]


@settings(deadline=None)
@given(ANY_DIALS)
def test_blame_accounts_for_every_failed_pair_and_for_no_other(dials: list[Dial]) -> None:
    found = find_causes(dials)
    accused = [dial for guilt in found for dial in guilt.failed]
    assert sorted(accused, key=repr) == sorted((d for d in dials if d.word != "ok"), key=repr)
    assert all(len(guilt.nodes) == (2 if guilt.role == "pair" else 1) for guilt in found)


# ---------------------------------------------------------------- the check


def room(*words: str, listen: Any = None) -> Any:
    """n1 listens; the others dial it with these results."""
    host = listen or Listen("n1", PORT, "ok")
    dialers = {
        f"n{number}": {"net.listen": None, "net.dials": (dial(f"n{number}", "n1", word),)}
        for number, word in enumerate(words, 2)
    }
    return fleet(n1={"net.listen": host, "net.dials": ()}, **dialers)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], ["pass"], id="one-node"),
        pytest.param(["ok", "ok", "ok"], ["pass"] * 4, id="all-get-through"),
        pytest.param(["refused"], ["fail error"] * 2, id="two-nodes-both-ends"),
        pytest.param(
            ["ok", "timed_out", "ok"],
            ["fail error", "pass", "fail error", "pass"],
            id="one-pair-both-ends",
        ),
    ],
)
def test_each_node_reaches_the_rendezvous_host(words: list[str], expected: list[str]) -> None:
    assert list(told(room(*words), "net.ports").values()) == expected


@pytest.mark.parametrize(
    "words", [["timed_out", "timed_out", "ok"], ["refused", "refused"], ["no_route"] * 4]
)
def test_a_host_that_half_of_them_cannot_reach_is_blamed_alone(words: list[str]) -> None:
    answers = told(room(*words), "net.ports")
    assert answers["n1"] == "fail error"
    (bad,) = [
        finding for finding in findings(room(*words), "net.ports") if finding.verdict == "fail"
    ]
    assert bad.message.endswith(f"nodes cannot reach n1 at 10.0.0.1:{PORT}")
    assert bad.seen == f"10.0.0.1:{PORT} {words[0].replace('_', ' ')}"
    through = {f"n{number}": "pass" for number, word in enumerate(words, 2) if word == "ok"}
    assert {node: said for node, said in answers.items() if node != "n1"} == through


def test_every_pair_is_a_finding_of_its_own() -> None:
    found = findings(room("refused", "refused", "ok", "ok", "ok", "ok"), "net.ports")
    assert [f.nodes for f in found if f.verdict == "fail"] == [("n1", "n2"), ("n1", "n3")]


def test_both_directions_of_a_pair_are_one_finding_with_one_remedy() -> None:
    names = ("n1", "n2", "n3", "n4")
    facts: dict[str, Any] = {name: {"net.listen": None, "net.dials": ()} for name in names}
    facts["n1"]["net.listen"] = Listen("n1", PORT, "ok")
    for name in names:
        pairs = [(a, b) for a, b in itertools.permutations(names, 2) if a == name]
        facts[name]["net.dials"] = tuple(
            dial(a, b, "timed_out" if {a, b} == {"n2", "n4"} else "ok", port=40000 + int(b[1]))
            for a, b in pairs
        )
    (bad,) = [f for f in findings(fleet(**facts), "net.ports") if f.verdict == "fail"]
    assert bad.nodes == ("n2", "n4")
    assert bad.message == "n2 and n4 cannot reach each other"
    assert bad.seen == "n2 to 10.0.0.4:40004 timed out; n4 to 10.0.0.2:40002 timed out"
    assert "allow TCP 29500 and the ephemeral range" in bad.remedy.note, "no port that was drawn"


def test_an_endpoint_of_ipv6_has_its_address_in_brackets() -> None:
    assert Dial("n1", "n2", "fd00::2", 29500, "refused").endpoint == "[fd00::2]:29500"
    assert dial("n1", "n2").endpoint == f"10.0.0.2:{PORT}"


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        pytest.param(
            Listen("n1", PORT, "in_use", "python3 (pid 4711)"),
            "in use by python3 (pid 4711)",
            id="taken",
        ),
        pytest.param(Listen("n1", PORT, "denied"), "denied", id="not-allowed"),
    ],
)
def test_a_port_that_cannot_be_opened_is_the_hosts_fault_and_nobody_passes(
    listen: Listen, words: str
) -> None:
    seen = fleet(
        n1={"net.listen": listen, "net.dials": ()}, n2={"net.listen": None, "net.dials": ()}
    )
    assert told(seen, "net.ports") == {"n1": "fail error"}
    (bad,) = findings(seen, "net.ports")
    assert words in bad.seen
    assert f"sport = :{PORT}" in bad.remedy


def test_a_dialer_that_gave_no_answer_is_not_known() -> None:
    seen = fleet(
        n1={"net.listen": Listen("n1", PORT, "ok"), "net.dials": ()},
        n2={"net.listen": None, "net.dials": (dial("n2", "n1"),)},
        n3={"net.listen": None, "net.dials": absent("hung")},
    )
    assert told(seen, "net.ports") == {"n1": "pass", "n2": "pass", "n3": "unknown error hung"}


def test_without_the_rendezvous_host_nothing_is_known() -> None:
    lost = {"net.listen": absent("not_reached"), "net.dials": absent("not_reached")}
    seen = fleet(n1=silent("n1"), n2=lost, n3=lost)
    assert set(told(seen, "net.ports").values()) == {"unknown error not_reached"}


def test_a_node_that_tried_no_other_is_not_known() -> None:
    """All others are out of reach: what their ports are like was not seen."""
    alone = {"net.listen": Listen("n1", PORT, "ok"), "net.dials": ()}
    assert told(fleet(n1=alone, n2=silent("n2")), "net.ports")["n1"] == (
        "unknown error no other node was tried"
    )
    assert told(fleet(n1=alone), "net.ports") == {"n1": "pass"}


# ---------------------------------------------------------------- what many failures are told as


def told_as(bad: Callable[[str, str], bool], count: int = 16, **groups: tuple[str, ...]) -> Finding:
    """The one failure of a fleet in which some pairs do not reach each other."""
    names = tuple(f"n{number}" for number in range(1, count + 1))
    nodes: dict[str, dict[str, Any]] = {}
    for dialer in names:
        dials = []
        for place, listener in enumerate(names):
            if listener != dialer:
                word = "timed_out" if bad(dialer, listener) else "ok"
                dials.append(dial(dialer, listener, word, 40000 + place))
        listen = Listen("n1", PORT, "ok") if dialer == "n1" else None
        nodes[dialer] = {"net.listen": listen, "net.dials": tuple(dials)}
    seen = fleet(inventory={"groups": groups}, **nodes)
    (failed,) = [one for one in findings(seen, "net.ports") if one.verdict == "fail"]
    return failed


DEAF = ("n3", "n4", "n5")


@pytest.mark.parametrize(
    ("bad", "groups", "message", "seen"),
    [
        pytest.param(
            lambda a, b: b in DEAF,
            {},
            "3 nodes cannot be reached by the others",
            "45 of 45 dials fail, such as n1 to 10.0.0.3:40002 timed out",
            id="deaf-nodes",
        ),
        pytest.param(
            lambda a, b: b in DEAF,
            {"rack2": DEAF},
            "3 nodes, which are rack2, cannot be reached by the others",
            "45 of 45 dials fail, such as n1 to 10.0.0.3:40002 timed out",
            id="a-group-of-them",
        ),
        pytest.param(
            lambda a, b: a in DEAF,
            {},
            "3 nodes cannot reach the others",
            "45 of 45 dials fail, such as n3 to 10.0.0.1:40000 timed out",
            id="nodes-that-cannot-dial",
        ),
        pytest.param(
            lambda a, b: "n3" in (a, b),
            {},
            "n3 cannot reach the others, nor be reached by them",
            "30 of 30 dials fail, such as n1 to 10.0.0.3:40002 timed out",
            id="one-that-is-cut-off",
        ),
        pytest.param(
            lambda a, b: (a in DEAF) != (b in DEAF),
            {"rack2": DEAF},
            "rack2 and the other nodes do not reach each other",
            "78 of 78 dials fail, such as n1 to 10.0.0.3:40002 timed out",
            id="a-group-that-is-cut-off",
        ),
        pytest.param(
            lambda a, b: (a in DEAF) != (b in DEAF),
            {},
            "the 3 nodes around n3 and the other nodes do not reach each other",
            "78 of 78 dials fail, such as n1 to 10.0.0.3:40002 timed out",
            id="the-same-without-a-group",
        ),
        pytest.param(
            lambda a, b: b == "n9" and a in DEAF,
            {},
            "n9 and some other nodes do not reach each other",
            "3 of 30 dials fail, such as n3 to 10.0.0.9:40008 timed out",
            id="one-end-in-common",
        ),
        pytest.param(
            lambda a, b: True,
            {},
            "no node reaches another",
            "240 of 240 dials fail, such as n1 to 10.0.0.2:40001 timed out",
            id="no-dial-at-all",
        ),
    ],
)
def test_failures_with_something_in_common_are_one(
    bad: Callable[[str, str], bool], groups: dict[str, tuple[str, ...]], message: str, seen: str
) -> None:
    failed = told_as(bad, **groups)
    assert (failed.message, failed.seen) == (message, seen)


def test_pairs_without_anything_in_common_are_one_if_they_are_many() -> None:
    failed = told_as(lambda a, b: int(b[1:]) - int(a[1:]) == 9 and int(a[1:]) % 2 == 1, 32)
    assert failed.message == (
        "pairs do not reach each other that have no node, group or port in common"
    )
    assert failed.seen.startswith("12 of 992 dials fail")
