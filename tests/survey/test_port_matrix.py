"""The pairs stage on recorded nodes: strange answers, lost nodes, and nodes without an address."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clusterprep.errors import LinkLost
from clusterprep.facts.pairs import Dial, TableWhileDialling
from clusterprep.model import Absent
from clusterprep.survey.port_matrix import SIZES, knock, probe_pairs
from tests.support.command import clusterprep
from tests.support.fleet import eth, findings, fleet
from tests.support.lab import Lab

ROW = ["ok", 50, 1500, True, 1500]


class Agents:
    """What a Fanout offers to this stage, with answers by operation and node."""

    def __init__(self, names: list[str], **answers: dict[str, Any]) -> None:
        self.links = dict.fromkeys(names)
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def ask(self, op: str, bodies: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.asked += [(op, name, body) for name, body in bodies.items()]
        return {name: self._one(op, name, body) for name, body in bodies.items()}

    def ask_each(self, op: str, bodies: dict[str, Any], timeout: float, take: Any) -> None:
        for name, answer in self.ask(op, bodies, timeout).items():
            take(name, answer)

    def tell(self, op: str, names: Any) -> None:
        self.asked += [(op, name, {}) for name in names]

    def _one(self, op: str, name: str, body: dict[str, Any]) -> Any:
        answer = self.answers.get(op, {}).get(name)
        if callable(answer):
            return answer(body)
        if answer is not None:
            return answer
        if op == "listen":
            return {"ports": [first for first, _ in body["spans"]]}
        return (
            {"dials": [ROW for _ in body["targets"] for _ in body["sizes"] or [0]]}
            if op == "dial"
            else {}
        )


def three(**without: Any) -> Any:
    facts = {
        f"n{i}": {
            "net.interfaces": (eth("eth0", f"10.0.0.{i}/16"),),
            "net.port_range": (32768, 60999),
        }
        for i in (1, 2, 3)
    }
    return fleet(**{**facts, **without})


def probed(agents: Agents, seen: Any = None) -> Any:
    return probe_pairs(agents, seen or three(), "n1")  # type: ignore[arg-type]


def dials(seen: Any, name: str) -> Any:
    return seen.fact(name, "net.dials")


def test_everybody_dials_everybody_and_the_rendezvous_port_first() -> None:
    seen = probed(Agents(["n1", "n2", "n3"]))
    assert [(d.listener, d.word) for d in dials(seen, "n2")] == [("n1", "ok")] * 3 + [
        ("n3", "ok")
    ] * 2
    assert dials(seen, "n2")[0].port == 29500
    assert all(32768 <= d.port <= 60999 for d in dials(seen, "n1"))
    assert seen.fact("n1", "net.listen").word == "ok"
    assert seen.fact("n2", "net.listen") is None


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_however_few_the_nodes_every_port_of_each_is_dialled(count: int) -> None:
    names = [f"n{number}" for number in range(1, count + 1)]
    facts = {
        name: {
            "net.interfaces": (eth("eth0", f"10.0.0.{number}/16"),),
            "net.port_range": (32768, 60999),
        }
        for number, name in enumerate(names, 1)
    }
    agents = Agents(names)
    seen = probed(agents, fleet(**facts))
    spans = {name: body["spans"] for op, name, body in agents.asked if op == "listen"}
    dialled = {(dial.listener, dial.port) for name in names for dial in dials(seen, name)}
    assert dialled == {(name, first) for name in names for first, _ in spans[name]}


def everybody(names: Sequence[str]) -> dict[str, list[str]]:
    return {name: [other for other in names if other != name] for name in names}


def knocked(agents: Agents) -> dict[tuple[str, str], str]:
    dials = knock(agents, three(), everybody)  # type: ignore[arg-type]
    assert {dial.port for dial in dials} <= {29500}
    return {(dial.dialer, dial.listener): dial.word for dial in dials}


def test_a_knock_opens_no_port_and_sends_nothing() -> None:
    agents = Agents(["n1", "n2", "n3"])
    assert len(knocked(agents)) == 6
    assert {op for op, _, _ in agents.asked} == {"dial"}
    assert all(body["silent"] for _, _, body in agents.asked)


def test_a_refused_knock_has_reached_the_node_and_one_without_an_answer_has_not() -> None:
    def rows(word: str) -> Callable[[Any], Any]:
        return lambda body: {
            "dials": [[word] for _ in body["targets"] for _ in body["sizes"] or [0]]
        }

    words = knocked(
        Agents(["n1", "n2", "n3"], dial={"n1": rows("refused"), "n2": rows("timed_out")})
    )
    assert {words["n1", name] for name in ("n2", "n3")} == {"ok"}
    assert {words["n2", name] for name in ("n1", "n3")} == {"timed_out"}


def test_a_node_that_is_lost_meanwhile_is_blamed_by_none() -> None:
    lost = LinkLost("hung", "no answer")
    words = knocked(Agents(["n1", "n2", "n3"], dial={"n3": lost}))
    assert set(words) == {("n1", "n2"), ("n2", "n1")}


def test_all_ports_are_given_back() -> None:
    agents = Agents(["n1", "n2", "n3"])
    probed(agents)
    assert [name for op, name, _ in agents.asked if op == "unlisten"] == ["n1", "n2", "n3"]


def test_a_taken_rendezvous_port_is_said_with_its_owner_and_the_matrix_goes_on() -> None:
    def taken(body: Any) -> Any:
        no = {"no": "in_use", "why": "", "owner": {"pid": 7, "name": "redis"}}
        return {"ports": [no, *(first for first, _ in body["spans"][1:])]}

    seen = probed(Agents(["n1", "n2", "n3"], listen={"n1": taken}))
    listen = seen.fact("n1", "net.listen")
    assert (listen.word, listen.owner) == ("in_use", "redis (pid 7)")
    assert {d.port for d in dials(seen, "n2")}.isdisjoint({29500})
    assert len(dials(seen, "n2")) == 4


def test_what_was_not_carried_is_tried_with_smaller_sizes() -> None:
    def stuck(body: Any) -> Any:
        sizes = [size or 9000 for size in body["sizes"] or [0]]
        return {
            "dials": [
                ["ok", 50, size, size <= 1450, 9000] for _ in body["targets"] for size in sizes
            ]
        }

    agents = Agents(["n1", "n2", "n3"], dial={"n2": stuck})
    seen = probed(agents)
    assert {d.carried for d in dials(seen, "n2")} == {1450}
    assert [
        list(body["sizes"]) for op, name, body in agents.asked if (op, name) == ("dial", "n2")
    ] == [[], list(SIZES)]
    assert {d.carried for d in dials(seen, "n3")} == {1500}


def test_a_full_size_packet_that_was_lost_once_is_sent_again() -> None:
    """A path that loses packets is not too small for them."""

    def lossy(body: Any) -> Any:
        first, *_ = body["sizes"] or [None]
        tries = body["sizes"] or [0]
        rows = [["ok", 50, size or 9000, first is not None, 9000] for size in tries]
        return {"dials": rows * len(body["targets"])}

    seen = probed(Agents(["n1", "n2", "n3"], dial={"n2": lossy}))
    assert {(d.packet, d.carried) for d in dials(seen, "n2")} == {(9000, 9000)}


def test_sizes_of_connections_that_do_not_open_again_are_not_known() -> None:
    def gone(body: Any) -> Any:
        row = ["timed_out"] if body["sizes"] else ["ok", 50, 9000, False, 9000]
        return {"dials": [row for _ in body["targets"] for _ in body["sizes"] or [0]]}

    seen = probed(Agents(["n1", "n2", "n3"], dial={"n2": gone}))
    assert {(d.word, d.packet, d.carried) for d in dials(seen, "n2")} == {("ok", None, None)}


@pytest.mark.parametrize(
    ("word", "opens", "expected"),
    [
        pytest.param("timed_out", True, "ok", id="lost-packets"),
        pytest.param("no_route", True, "ok", id="lost-questions-for-the-hardware-address"),
        pytest.param("timed_out", False, "timed_out", id="a-filter"),
        pytest.param("refused", True, "refused", id="refused-is-an-answer"),
    ],
)
def test_what_gave_no_answer_is_dialled_again(word: str, opens: bool, expected: str) -> None:
    """One of eight tries that opens shows that the way is open."""

    def unanswered(body: Any) -> Any:
        if not body["sizes"]:
            return {"dials": [[word] for _ in body["targets"]]}
        tries = [[word]] * (len(body["sizes"]) - 1) + [ROW if opens else [word]]
        return {"dials": tries * len(body["targets"])}

    seen = probed(Agents(["n1", "n2", "n3"], dial={"n2": unanswered}))
    assert {d.word for d in dials(seen, "n2")} == {expected}


@pytest.mark.parametrize(
    "answer",
    [
        {"dials": [ROW]},
        {"dials": "ok"},
        {"dials": [["ok"]] * 3},
        {"dials": [["ok", "x", None, True, 0]] * 3},
        {"no": "agent_error", "why": "KeyError"},
        {},
    ],
    ids=["too-few", "no-list", "short-rows", "no-numbers", "an-error", "nothing"],
)
def test_an_answer_of_another_shape_is_not_known(answer: Any) -> None:
    seen = probed(Agents(["n1", "n2", "n3"], dial={"n2": answer}))
    assert dials(seen, "n2").reason == "garbled"
    assert all(isinstance(dial, Dial) for dial in dials(seen, "n3"))


@pytest.mark.parametrize(
    "answer", [{"ports": [1]}, {"ports": None}, {"ports": ["x"] * 4}, {}], ids=str
)
def test_a_listener_of_another_shape_is_not_known_and_not_dialled(answer: Any) -> None:
    seen = probed(Agents(["n1", "n2", "n3"], listen={"n1": answer}))
    assert seen.fact("n1", "net.listen").reason == "garbled"
    assert {d.listener for d in dials(seen, "n2")} == {"n3"}


def test_a_node_that_is_lost_meanwhile_keeps_its_reason() -> None:
    seen = probed(Agents(["n1", "n2", "n3"], dial={"n3": LinkLost("hung", "n3: no answer")}))
    assert dials(seen, "n3") == Absent("hung", "n3: no answer")


def test_a_node_without_a_usable_interface_is_left_out() -> None:
    bare = {"net.interfaces": (), "net.port_range": (32768, 60999)}
    seen = probed(Agents(["n1", "n2", "n3"]), three(n3=bare))
    assert dials(seen, "n3").reason == "eth.iface_choice"
    assert {d.listener for d in dials(seen, "n2")} == {"n1"}


def test_without_the_rendezvous_host_the_others_are_still_measured() -> None:
    seen = probed(Agents(["n2", "n3"]))
    assert seen.fact("n2", "net.listen").reason == "not_reached"
    assert [(d.listener, d.word) for d in dials(seen, "n2")] == [("n3", "ok")] * 3


def test_a_node_that_does_not_tell_its_range_listens_in_the_usual_one() -> None:
    agents = Agents(["n1", "n2", "n3"])
    probed(agents, three(n2={"net.interfaces": (eth("eth0", "10.0.0.2/16"),)}))
    spans = next(body["spans"] for op, name, body in agents.asked if (op, name) == ("listen", "n2"))
    assert all(32768 <= first <= last <= 60999 for first, last in spans)


# ---------------------------------------------------------------- around what failed


def many(fails: Callable[[str, str], bool], count: int = 200, size: int = 20) -> tuple[Agents, Any]:
    """A large fleet in racks of `size` in which some pairs do not reach each other, and its facts.

    What is said of pairs holds for all ports.
    """
    names = [f"n{number}" for number in range(1, count + 1)]
    address_of = {name: f"10.0.{number // 200}.{number % 200}" for number, name in enumerate(names)}
    name_of = {address: name for name, address in address_of.items()}
    racks = {
        f"rack{start // size + 1}": tuple(names[start : start + size])
        for start in range(0, count, size)
    }

    def answer(dialer: str, body: Any) -> Any:
        rows = []
        for address, _ in body["targets"]:
            row = ["refused"] if fails(dialer, name_of[address]) else ROW
            rows += [row] * max(1, len(body["sizes"]))
        return {"dials": rows}

    answers = {name: functools.partial(answer, name) for name in names}
    facts = {
        name: {
            "net.interfaces": (eth("eth0", f"{address}/16"),),
            "net.port_range": (32768, 60999),
        }
        for name, address in address_of.items()
    }
    agents = Agents(names, dial=answers)
    return agents, probed(agents, fleet(inventory={"groups": racks}, **facts))


def tried(seen: Any) -> set[tuple[str, str]]:
    pairs = set()
    for node in seen.reached:
        pairs |= {(dial.dialer, dial.listener) for dial in dials(seen, node.name)}
    return pairs


def requests(agents: Agents) -> int:
    """How many times the nodes were asked to dial."""
    return max(Counter(name for op, name, _ in agents.asked if op == "dial").values())


def test_where_nothing_fails_nothing_is_dialled_again() -> None:
    agents, seen = many(lambda dialer, listener: False)
    assert requests(agents) == 1
    assert findings(seen, "net.ports")[0].verdict == "pass"


def test_a_pair_that_failed_is_dialled_in_both_directions_and_on_every_port() -> None:
    _, healthy = many(lambda dialer, listener: False)
    before = tried(healthy)
    bad = min(pair for pair in before if pair[1] != "n1" and pair[::-1] not in before)
    _, seen = many(lambda dialer, listener: (dialer, listener) == bad)
    assert bad[::-1] in tried(seen)
    ports = {dial.port for dial in dials(seen, bad[0]) if dial.listener == bad[1]}
    assert len(ports) == 3
    (failed,) = [one for one in findings(seen, "net.ports") if one.verdict == "fail"]
    assert set(failed.nodes) == set(bad)


def test_two_racks_that_do_not_reach_each_other_are_told_as_that() -> None:
    racks = [{f"n{number}" for number in range(first, first + 20)} for first in (1, 21)]

    def fails(dialer: str, listener: str) -> bool:
        one, other = racks
        return (dialer in one and listener in other) or (dialer in other and listener in one)

    _, seen = many(fails)
    (failed,) = [one for one in findings(seen, "net.ports") if one.verdict == "fail"]
    assert failed.message == "rack1 and rack2 do not reach each other"
    assert set(failed.nodes) <= racks[0] | racks[1]


def test_deaf_nodes_dial_each_other_and_are_one_finding() -> None:
    deaf = {"n5", "n60", "n111"}
    _, seen = many(lambda dialer, listener: listener in deaf)
    assert set(itertools.permutations(deaf, 2)) <= tried(seen)
    (failed,) = [one for one in findings(seen, "net.ports") if one.verdict == "fail"]
    assert set(failed.nodes) == deaf
    assert failed.message == "3 nodes cannot be reached by the others"


# ---------------------------------------------------------------- the table of neighbours


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(
            {"most": 1024, "entries": 9, "refused": 4}, TableWhileDialling(1024, 9, 4), id="full"
        ),
        pytest.param(None, "not_applicable", id="a-kernel-that-does-not-say"),
        pytest.param({"most": 1024}, "garbled", id="a-part-of-it"),
        pytest.param({"most": -1, "entries": 9, "refused": 4}, "garbled", id="no-number"),
        pytest.param([1024, 9, 4], "garbled", id="another-shape"),
    ],
)
def test_what_a_kernel_says_of_its_table_is_a_fact(row: Any, expected: Any) -> None:
    def with_table(body: Any) -> Any:
        return {"dials": [ROW] * len(body["targets"]), "neighbours": row}

    table = probed(Agents(["n1", "n2", "n3"], dial={"n2": with_table})).fact(
        "n2", "net.dialling_table"
    )
    assert getattr(table, "reason", table) == expected


def test_refusals_of_all_requests_are_added() -> None:
    def unanswered(body: Any) -> Any:
        rows = [["timed_out"]] * len(body["targets"]) * max(1, len(body["sizes"]))
        return {"dials": rows, "neighbours": {"most": 1024, "entries": 1024, "refused": 5}}

    seen = probed(Agents(["n1", "n2", "n3"], dial={"n2": unanswered}))
    assert seen.fact("n2", "net.dialling_table").refused == 10


@pytest.mark.hosts
@pytest.mark.parametrize("check", ["net.ports", "eth.path_mtu"])
def test_asked_for_alone_the_nodes_still_know_at_which_interface(lab4: Lab, check: str) -> None:
    answer = clusterprep(lab4, "check", "--only", check)
    assert (answer.code, {f["check"]: f["verdict"] for f in answer.report["findings"]}[check]) == (
        0,
        "pass",
    )
