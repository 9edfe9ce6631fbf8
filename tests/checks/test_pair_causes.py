"""Many failed dials have few explanations: planted causes are found, and no innocent is blamed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.checks.pair_causes import MANY, MOST_PAIRS, Explanation, explain, find_causes
from clusterprep.facts.pairs import Dial, TableWhileDialling
from clusterprep.model.pair_schedule import pairing

FULL = TableWhileDialling(most=1024, entries=1024, refused=311)
ROOMY = TableWhileDialling(most=8192, entries=70, refused=0)
PORTS = (35000, 45000, 55000)


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def port_of(listener: str, turn: int) -> int:
    """One of three ports of a listener, which no other listener has."""
    return PORTS[turn % 3] + int(listener[1:])


def dialled(
    count: int,
    fails: Callable[[str, str, int], bool],
    groups: Mapping[str, Sequence[str]] | None = None,
    word: str = "timed_out",
) -> list[Dial]:
    """What a fleet dials by its schedule, each listener's ports in turn."""
    turns = {name: place for place, name in enumerate(names(count))}
    dials = []
    for dialer, listeners in pairing(names(count), "seed", groups).items():
        for listener in listeners:
            port = port_of(listener, turns[listener])
            turns[listener] += 1
            said = word if fails(dialer, listener, port) else "ok"
            dials.append(Dial(dialer, listener, f"10.0.0.{listener[1:]}", port, said))
    return dials


def explained(
    dials: Sequence[Dial],
    groups: Mapping[str, Collection[str]] | None = None,
    tables: Mapping[str, TableWhileDialling] | None = None,
) -> tuple[Explanation, ...]:
    return explain(dials, groups or {}, tables or {})


def only(explanations: Sequence[Explanation]) -> Explanation:
    (explanation,) = explanations
    return explanation


def racks(count: int, size: int) -> dict[str, list[str]]:
    members = names(count)
    return {
        f"rack{start // size + 1}": members[start : start + size] for start in range(0, count, size)
    }


# ---------------------------------------------------------------- planted causes


def test_where_all_gets_through_there_is_nothing_to_explain() -> None:
    assert explained(dialled(200, lambda *_: False)) == ()


@pytest.mark.parametrize("count", [8, 64, 65, 500])
def test_a_deaf_node_is_one_explanation(count: int) -> None:
    found = only(explained(dialled(count, lambda dialer, listener, port: listener == "n3")))
    assert (found.kind, found.nodes, found.roles) == ("nodes", ("n3",), ("listener",))
    assert len(found.failed) == found.tried


@pytest.mark.parametrize("count", [8, 64, 65, 500])
def test_a_node_that_cannot_dial_is_one_explanation(count: int) -> None:
    found = only(explained(dialled(count, lambda dialer, listener, port: dialer == "n3")))
    assert (found.kind, found.nodes, found.roles) == ("nodes", ("n3",), ("dialer",))


def test_a_node_that_is_cut_off_is_one_explanation_with_both_roles() -> None:
    found = only(explained(dialled(64, lambda dialer, listener, port: "n3" in (dialer, listener))))
    assert (found.kind, found.nodes, found.roles) == ("nodes", ("n3",), ("dialer", "listener"))


@pytest.mark.parametrize("count", [64, 500])
def test_deaf_nodes_are_one_explanation(count: int) -> None:
    deaf = {"n3", "n17", "n40", "n41", "n59"}
    found = only(explained(dialled(count, lambda dialer, listener, port: listener in deaf)))
    assert (found.kind, set(found.nodes), found.roles) == ("nodes", deaf, ("listener",))


def test_two_deaf_nodes_are_told_one_by_one() -> None:
    found = explained(dialled(64, lambda dialer, listener, port: listener in ("n3", "n17")))
    assert [explanation.nodes for explanation in found] == [("n3",), ("n17",)]


def test_deaf_nodes_that_are_a_group_are_told_as_that() -> None:
    groups = racks(64, 8)
    dead = set(groups["rack2"])
    found = only(explained(dialled(64, lambda dialer, listener, port: listener in dead), groups))
    assert (found.kind, set(found.nodes), found.subjects) == ("nodes", dead, ("rack2",))


@pytest.mark.parametrize(("count", "size"), [(64, 8), (64, 16), (500, 50)])
def test_a_group_that_is_cut_off_from_the_others(count: int, size: int) -> None:
    groups = racks(count, size)
    inside = set(groups["rack2"])

    def fails(dialer: str, listener: str, port: int) -> bool:
        return (dialer in inside) != (listener in inside)

    found = only(explained(dialled(count, fails, groups), groups))
    assert (found.kind, found.subjects) == ("apart", ("rack2",))
    assert set(found.nodes) == inside
    assert len(found.failed) == found.tried


@pytest.mark.parametrize(("count", "size"), [(64, 16), (500, 50), (1000, 100)])
def test_two_groups_that_do_not_reach_each_other(count: int, size: int) -> None:
    groups = racks(count, size)
    one, other = set(groups["rack1"]), set(groups["rack2"])

    def fails(dialer: str, listener: str, port: int) -> bool:
        return (dialer in one and listener in other) or (dialer in other and listener in one)

    found = only(explained(dialled(count, fails, groups), groups))
    assert (found.kind, found.subjects) == ("between", ("rack1", "rack2"))
    assert set(found.nodes) <= one | other


def test_two_halves_without_a_group_of_the_inventory() -> None:
    half = set(names(32))
    found = only(
        explained(
            dialled(64, lambda dialer, listener, port: (dialer in half) != (listener in half))
        )
    )
    assert found.kind == "apart"
    assert set(found.nodes) == set(names(64))


def test_nodes_behind_one_switch_without_a_group_of_the_inventory() -> None:
    inside = {"n5", "n6", "n7", "n20"}
    found = only(
        explained(
            dialled(64, lambda dialer, listener, port: (dialer in inside) != (listener in inside))
        )
    )
    assert (found.kind, set(found.nodes), found.subjects) == (
        "apart",
        inside,
        ("the 4 nodes around n5",),
    )


@pytest.mark.parametrize("count", [64, 500])
def test_a_range_of_ports_that_is_filtered_everywhere(count: int) -> None:
    found = only(explained(dialled(count, lambda dialer, listener, port: port >= PORTS[2])))
    assert (found.kind, set(found.nodes)) == ("ports", set(names(count)))
    assert tuple(map(int, found.subjects)) == (PORTS[2] + 1, PORTS[2] + count)


@pytest.mark.parametrize("count", [8, 64, 500])
def test_a_range_of_ports_of_one_node(count: int) -> None:
    found = only(
        explained(
            dialled(count, lambda dialer, listener, port: listener == "n3" and port >= PORTS[2])
        )
    )
    assert (found.kind, found.nodes, found.roles) == ("nodes", ("n3",), ("listener",))
    assert {dial.port for dial in found.failed} == {PORTS[2] + 3}


def test_a_network_in_which_no_node_reaches_another() -> None:
    found = only(explained(dialled(64, lambda *_: True)))
    assert (found.kind, len(found.nodes)) == ("everywhere", 64)


def test_a_pair_is_told_as_a_pair_with_all_its_ports() -> None:
    dials = dialled(8, lambda dialer, listener, port: (dialer, listener) == ("n1", "n2"))
    again = [replace(dial, port=dial.port + 5000) for dial in dials if dial.word != "ok"]
    found = only(explained([*dials, *again]))
    assert (found.kind, found.nodes, len(found.failed)) == ("pair", ("n1", "n2"), 2)


def test_pairs_with_one_end_in_common_are_one_explanation() -> None:
    """Fewer than half of its dialers do not reach it, so it is not to blame alone."""
    found = only(
        explained(
            dialled(
                64,
                lambda dialer, listener, port: listener == "n3" and dialer in ("n8", "n9", "n10"),
            )
        )
    )
    assert (found.kind, found.subjects, len(found.failed)) == ("pairs", ("n3",), 3)
    assert set(found.nodes) == {"n3", "n8", "n9", "n10"}


@pytest.mark.parametrize(("count", "number"), [(2, 2), (MOST_PAIRS, MOST_PAIRS), (20, 1)])
def test_pairs_with_nothing_in_common(count: int, number: int) -> None:
    bad = {(f"n{2 * place + 1}", f"n{2 * place + 2}") for place in range(count)}
    found = explained(dialled(64, lambda dialer, listener, port: (dialer, listener) in bad))
    assert len(found) == number
    assert sum(len(explanation.failed) for explanation in found) == count


# ---------------------------------------------------------------- the table of neighbours


@pytest.mark.parametrize("word", ["timed_out", "no_route", "error ENOBUFS"])
def test_a_full_table_explains_what_gave_no_answer(word: str) -> None:
    def fails(dialer: str, listener: str, port: int) -> bool:
        return (int(dialer[1:]) + int(listener[1:])) % 4 != 0

    dials = dialled(64, fails, word=word)
    found = only(explained(dials, tables=dict.fromkeys(names(64), FULL)))
    assert (found.kind, len(found.nodes)) == ("table", 64)
    assert found.tried == len(dials)


def test_a_table_with_room_explains_nothing() -> None:
    dials = dialled(64, lambda dialer, listener, port: listener == "n3")
    found = only(explained(dials, tables=dict.fromkeys(names(64), ROOMY)))
    assert found.kind == "nodes"


def test_a_refusal_is_no_matter_of_the_table() -> None:
    dials = dialled(64, lambda dialer, listener, port: listener == "n3", word="refused")
    found = only(explained(dials, tables=dict.fromkeys(names(64), FULL)))
    assert (found.kind, found.nodes) == ("nodes", ("n3",))


def test_beside_one_full_table_a_deaf_node_is_still_found() -> None:
    def fails(dialer: str, listener: str, port: int) -> bool:
        return listener == "n3" or (dialer == "n9" and int(listener[1:]) > 20)

    found = explained(dialled(64, fails), tables={"n9": FULL, "n3": ROOMY})
    assert [(one.kind, one.nodes) for one in found] == [("table", ("n9",)), ("nodes", ("n3",))]


# ---------------------------------------------------------------- whatever fails

NAMES = names(7)
ANY_GROUPS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sets(st.sampled_from(NAMES), min_size=1), max_size=3
)
ANY_TABLES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([FULL, ROOMY]))


@st.composite
def any_dials(draw: st.DrawFn) -> list[Dial]:
    """Dials of which some whole nodes, groups and ports, and some single ones fail."""
    deaf = draw(st.sets(st.sampled_from(NAMES), max_size=4))
    mute = draw(st.sets(st.sampled_from(NAMES), max_size=4))
    far = draw(st.sets(st.sampled_from(NAMES), max_size=5))
    single = draw(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20))
    shut = draw(st.sampled_from([0, 45000, 55000]))
    dials = []
    for place, (a, b) in enumerate(itertools.permutations(NAMES, 2)):
        port = port_of(b, place)
        fails = b in deaf or a in mute or (a in far) != (b in far) or (a, b) in single
        fails = fails or 0 < shut < port
        word = draw(st.sampled_from(["timed_out", "refused"])) if fails else "ok"
        dials.append(Dial(a, b, f"10.0.0.{b[1:]}", port, word))
    return dials


@settings(deadline=None, max_examples=80)
@given(any_dials(), ANY_GROUPS, ANY_TABLES)
def test_each_failed_dial_has_one_explanation_and_none_without_a_fault_is_blamed(
    dials: list[Dial], groups: dict[str, set[str]], tables: dict[str, TableWhileDialling]
) -> None:
    found = explain(dials, groups, tables)
    accused = [dial for explanation in found for dial in explanation.failed]
    assert sorted(accused, key=repr) == sorted((d for d in dials if d.word != "ok"), key=repr)
    full = {name for name, table in tables.items() if table.refused}
    for explanation in found:
        ends = {name for dial in explanation.failed for name in (dial.dialer, dial.listener)}
        assert set(explanation.nodes) <= ends
        assert len(explanation.failed) <= explanation.tried
        if explanation.kind == "table":
            assert set(explanation.nodes) <= full


@settings(deadline=None, max_examples=80)
@given(any_dials(), ANY_GROUPS)
def test_there_are_no_more_explanations_than_causes_and_they_blame_the_same_nodes(
    dials: list[Dial], groups: dict[str, set[str]]
) -> None:
    causes = find_causes(dials, by_port=True)
    found = explain(dials, groups, {})
    assert len(found) <= len(causes)
    blamed = {name for one in found for name in one.nodes}
    assert blamed <= {name for cause in causes for name in cause.nodes}
    if not any(one.kind == "apart" for one in found):
        assert blamed == {name for cause in causes for name in cause.nodes}
    assert len([one for one in found if one.kind in ("pair", "pairs")]) <= MOST_PAIRS
    for explanation in found:
        if explanation.kind in ("everywhere", "apart", "between", "ports"):
            assert explanation.tried >= len(explanation.failed) >= MANY


@settings(deadline=None, max_examples=30)
@given(st.sets(st.sampled_from(names(100)), min_size=1, max_size=8), st.sampled_from([64, 100]))
def test_deaf_nodes_are_found_exactly_whichever_they_are(deaf: set[str], count: int) -> None:
    present = deaf & set(names(count))
    found = explained(dialled(count, lambda dialer, listener, port: listener in present))
    assert {name for one in found for name in one.nodes} == present
    assert len(found) <= (1 if len(present) >= MANY else len(present))
