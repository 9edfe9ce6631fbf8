"""From sockets to the node or link that does not carry packets."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import plan_trial
from clusterprep.jobs.verify.sockets import SYN_RECV, SYN_SENT, Edge, _leads_out, _node_words, cuts
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import EnvSetting, Node, VerifySettings
from tests.jobs.verify.stories import at_node, killed, make_plan, on, story

ESTABLISHED = 1
Row = tuple[int | None, int, int, int, int]  # rank, state, node, peer's node, times sent again


def address(node: int) -> str:
    return f"10.0.0.{node}"


def looked(*rows: Row, at: float = 29.0) -> list[Event]:
    """One look at every node of four.

    A half-open connection is that of the node to the peer's port 5000.
    """
    by_node: dict[int, list[Any]] = {node: [] for node in range(1, 5)}
    for rank, state, node, peer, again in rows:
        ports = (6000, 5000) if rank is None else (5000, 6000)
        by_node[node].append([rank, state, address(node), ports[0], address(peer), ports[1], again])
    return [
        at_node(
            f"n{node}",
            "sockets",
            at,
            rows=mine,
            own=[address(node), "0.0.0.0", "127.0.0.1"],
            cut=False,
        )
        for node, mine in by_node.items()
    ]


def hung(*events: Event, **more: Any) -> Timeline:
    return story(*events, plan=make_plan(4, 2), until="store", end="overdue", **more)


def blamed(timeline: Timeline) -> list[tuple[str, tuple[str, ...], str | None, str | None]]:
    return [(one.kind, one.nodes, one.source, one.target) for one in judge(timeline).culprits]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("10.0.0.1", True),
        ("2001:db8::1", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("no address", False),
        (None, False),
    ],
)
def test_only_an_address_that_others_may_dial_tells_a_node(own: object, expected: bool) -> None:
    assert _leads_out(own) is expected


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        pytest.param([("n1", "n2")], "TCP to n2 gets no answer, with 1 other", id="to"),
        pytest.param(
            [("n2", "n1"), ("n2", "n3")], "TCP from n2 gets no answer, with 2 others", id="from"
        ),
        pytest.param(
            [("n1", "n2"), ("n2", "n3")],
            "TCP to and from n2 gets no answer, with 2 others",
            id="both",
        ),
    ],
)
def test_the_direction_that_gets_no_answer_is_said(ends: list[tuple[str, str]], words: str) -> None:
    assert _node_words("n2", [Edge(source, target, "") for source, target in ends]) == words


def test_an_address_of_a_machine_is_that_of_none_of_its_nodes() -> None:
    """Also where the other node did not come to tell its own addresses."""
    of = [
        Node(name, address(1), 0, transport="local", env={"NCCL_HOSTID": EnvSetting(name, "node")})
        for name in ("n1", "n2")
    ]
    plan = plan_trial(of, {}, (address(1), 29500), VerifySettings(sizes=(8,)), {})
    rows = [[0, SYN_SENT, address(1), 5000, address(1), 6000, 5]]
    look = at_node(
        "n1", "sockets", 29.0, rows=rows, own=[address(1), "0.0.0.0", "127.0.0.1"], cut=False
    )
    assert cuts(story(look, plan=plan, until="store", end="overdue")) == ()


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        pytest.param([(6, SYN_SENT, 4, 2, 5)], ("link", ("n2", "n4"), None, None), id="one-pair"),
        pytest.param(
            [(6, SYN_SENT, 4, 2, 5), (None, SYN_RECV, 2, 4, 3)],
            ("link", ("n2", "n4"), "n2", "n4"),
            id="one-direction-of-it",
        ),
        pytest.param(
            [(0, SYN_SENT, 1, 2, 5), (6, SYN_SENT, 4, 2, 5)],
            ("node", ("n2",), None, None),
            id="two-towards-one",
        ),
        pytest.param([(3, SYN_SENT, 2, 2, 5)], ("node", ("n2",), None, None), id="not-even-itself"),
        pytest.param(
            [(2, ESTABLISHED, 2, 1, 4), (2, ESTABLISHED, 2, 3, 2)],
            ("node", ("n2",), None, None),
            id="data-of-one",
        ),
        pytest.param(
            [(4, ESTABLISHED, 3, 1, 4)], ("link", ("n1", "n3"), None, None), id="data-on-one-pair"
        ),
    ],
)
def test_the_culprit_where_packets_get_no_answer(rows: list[Row], wanted: tuple[Any, ...]) -> None:
    assert blamed(hung(*looked(*rows))) == [wanted]


def test_two_pairs_that_share_no_node_are_two_links() -> None:
    found = blamed(hung(*looked((0, SYN_SENT, 1, 2, 5), (6, SYN_SENT, 4, 3, 5))))
    assert [(kind, nodes) for kind, nodes, _, _ in found] == [
        ("link", ("n1", "n2")),
        ("link", ("n3", "n4")),
    ]


def test_a_bad_node_takes_its_pairs_and_leaves_the_link() -> None:
    rows: list[Row] = [
        (0, SYN_SENT, 1, 2, 5),
        (4, SYN_SENT, 3, 2, 5),
        (6, SYN_SENT, 4, 2, 5),
        (7, SYN_SENT, 4, 3, 5),
    ]
    found = blamed(hung(*looked(*rows)))
    assert [(kind, nodes) for kind, nodes, _, _ in found] == [
        ("node", ("n2",)),
        ("link", ("n3", "n4")),
    ]


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_among_equally_bad_nodes_the_first_of_the_inventory_is_named(seed: str) -> None:
    """Also with another order of the strings in a set, so in an interpreter with this seed."""
    program = """
from clusterprep.jobs.verify.sockets import SYN_SENT, cuts
from tests.jobs.verify.test_sockets import hung, looked
pairs = [(0, 1, 4), (2, 2, 3), (4, 3, 1), (6, 4, 2)]
rows = [(rank, SYN_SENT, node, peer, 5) for rank, node, peer in pairs]
print(*(cut.nodes for cut in cuts(hung(*looked(*rows)))))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "('n1',) ('n2',)\n"


def test_ranks_that_did_not_reach_the_store_are_a_link_where_a_socket_shows_it() -> None:
    timeline = hung(*looked((6, SYN_SENT, 4, 1, 5)), but={6: "ready", 7: "ready"})
    assert blamed(timeline) == [("link", ("n1", "n4"), None, None)]


def test_what_went_on_later_was_a_stall() -> None:
    rows: list[Row] = [(6, SYN_SENT, 4, 2, 5)]
    assert cuts(hung(*looked(*rows, at=2.0))) == ()
    assert len(cuts(hung(*looked(*rows, at=20.0)))) == 1


def test_a_socket_that_was_closed_before_the_end_is_known_from_the_earlier_look() -> None:
    timeline = hung(*looked((6, SYN_SENT, 4, 2, 5), at=20.0), *looked(at=29.0))
    assert [cut.nodes for cut in cuts(timeline)] == [("n2", "n4")]


def test_a_process_that_was_killed_outranks_what_sockets_show() -> None:
    timeline = hung(killed(2), *looked((6, SYN_SENT, 4, 2, 5)))
    assert blamed(timeline) == [("rank", ("n2",), None, None)]


def test_an_address_that_two_nodes_have_leads_nowhere() -> None:
    events = [
        at_node(f"n{node}", "sockets", 29.0, rows=rows, own=["172.17.0.1"], cut=False)
        for node, rows in ((1, [[0, SYN_SENT, address(1), 1, "172.17.0.1", 2, 5]]), (2, []))
    ]
    assert cuts(hung(*events)) == ()


STRANGE = [
    {},
    {"rows": "x", "own": 3},
    {"rows": [[1, 2]], "own": ["nonsense", None]},
    {"rows": [[6, SYN_SENT, "10.0.0.1", 5000, "10.0.0.2", 6000, "often"]], "own": ["10.0.0.2"]},
    {"rows": [["6", SYN_SENT, "10.0.0.1", 5000, ["10.0.0.2"], 6000, 5]]},
    {"rows": [[{}, None, 1, 2, 3, 4, 5]]},
]


@pytest.mark.parametrize("data", STRANGE)
def test_an_answer_that_cannot_be_read_blames_nobody(data: dict[str, Any]) -> None:
    assert cuts(hung(at_node("n1", "sockets", 29.0, **data), on(0, "state", 3.0, state=""))) == ()


def test_a_row_that_cannot_be_read_hides_none_behind_it() -> None:
    events = looked((0, SYN_SENT, 1, 2, 3))
    bare = blamed(hung(*looked((0, SYN_SENT, 1, 2, 3))))
    for event in events:
        event.data["rows"][:0] = [None, [1, 2], ["0", *[None] * 6]]
    assert bare == [("link", ("n1", "n2"), None, None)]
    assert blamed(hung(*events)) == bare


def test_the_sockets_are_the_evidence() -> None:
    (culprit,) = judge(hung(*looked((6, SYN_SENT, 4, 2, 5), (7, ESTABLISHED, 4, 2, 2)))).culprits
    assert culprit.evidence == (
        "rank 6 on n4 to 10.0.0.2:6000 on n2: no answer to a new connection, asked for 6 times",
        "rank 7 on n4 to 10.0.0.2:6000 on n2: data sent again 2 times without an acknowledgement",
    )


LIES = {
    "for-the-ranks-of-others": {
        "rows": [[rank, SYN_SENT, address(4), 5000, address(2), 6000, 5] for rank in (0, 2, 4)],
    },
    "as-a-listener-of-others": {
        "rows": [[None, SYN_RECV, address(2), 6000, address(1), 5000, 3]],
    },
    "with-the-addresses-of-others": {"own": [address(node) for node in range(1, 5)]},
}


@pytest.mark.parametrize("lie", list(LIES))
@pytest.mark.parametrize("fault", [[], [(0, SYN_SENT, 1, 2, 5)]], ids=["healthy", "a-bad-link"])
def test_a_node_speaks_for_itself_alone(lie: str, fault: list[Row]) -> None:
    """Whatever n4 says about the others, the sockets lead to the same as without it."""
    honest = looked(*fault)
    lying = [event for event in honest if event.node != "n4"]
    lying.append(at_node("n4", "sockets", 29.0, **{"rows": [], "own": [], **LIES[lie]}))
    assert cuts(hung(*lying)) == cuts(hung(*honest))
