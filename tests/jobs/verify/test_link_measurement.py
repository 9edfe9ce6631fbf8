"""The links stage of verify on real hosts.

Slow and lossy nodes, one bad pair, and healthy hosts that are not blamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.link_measurement import (
    FIRST_ROUNDS,
    PARTNERS,
    measure_again,
    measure_first,
    measure_links,
)
from clusterprep.jobs.verify.link_verdicts import MeasuredLinks, findings, judge_links
from clusterprep.model import EnvSetting, Fleet, Inventory
from tests.support.command import Answer, clusterprep
from tests.support.fleet import eth, fleet
from tests.support.lab import Lab, faults


def hosts(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.hosts(pytest.mark.torch(test))


QUICK = {"sizes": ["8"], "timeout": 40}


# ---------------------------------------------------------------- recorded answers

GOOD = {
    "connect": 0.0004,
    "rtt": 0.0001,
    "worst": 0.001,
    "pings": 200,
    "resent": 0,
    "out": 1.2e9,
    "back": 1.1e9,
}


class Agents:
    """What a Fanout offers to this stage; `answer(dialer, listener)` is that of one pair."""

    def __init__(
        self,
        inventory: Inventory,
        names: list[str],
        answer: Callable[[str, str], Any],
        **serve: Any,
    ) -> None:
        self.inventory = inventory
        self.links, self.answer, self.serve = dict.fromkeys(names), answer, serve
        self.numbers = {name: 40000 + place for place, name in enumerate(names)}
        self.asked: list[tuple[str, str]] = []
        self.dialled: list[tuple[str, str]] = []
        self.ended: set[str] = set()

    def load(self, part: str) -> None:
        assert part in ("stream", "dial")

    def ask(self, op: str, bodies: dict[str, Any], timeout: float) -> dict[str, Any]:
        if op == "serve":
            return {name: self.serve.get(name, {"port": self.numbers[name]}) for name in bodies}
        if op == "unserve":
            self.ended |= set(bodies)
            return {name: {} for name in bodies}
        if op == "dial":
            return {
                name: {
                    "dials": [
                        row
                        for target in body["targets"]
                        for row in [self.dial(name, *target)] * len(body["sizes"])
                    ]
                }
                for name, body in bodies.items()
            }
        return {name: self.look(name, body["reads"][0]) for name, body in bodies.items()}

    def dial(self, dialer: str, address: str, port: int) -> list[Any]:
        listener = next(name for name, number in self.numbers.items() if number == port)
        self.dialled.append((dialer, listener))
        word = self.answer(dialer, listener)["answers"][0][0]
        return ["ok", 100, 1500, True, 1500] if word == "ok" else ["timed_out"]

    def look(self, dialer: str, read: list[Any]) -> Any:
        kind, (_, port, token, *_), _ = read
        assert (kind, len(token)) == ("stream", 32)
        listener = next(name for name, number in self.numbers.items() if number == port)
        self.asked.append((dialer, listener))
        return self.answer(dialer, listener)


def stage(
    count: int, answer: Callable[[str, str], Any], here: Collection[str] = (), **serve: Any
) -> tuple[MeasuredLinks, Agents]:
    names = [f"n{number}" for number in range(1, count + 1)]
    facts = {
        name: {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)}
        for n, name in enumerate(names, 1)
    }
    seen = one_machine(fleet(**facts), here)
    agents = Agents(seen.inventory, names, answer, **serve)
    return measure_links(agents, seen, None), agents  # type: ignore[arg-type]


def one_machine(seen: Fleet, names: Collection[str]) -> Fleet:
    """The fleet, in which the nodes of these names are this machine on purpose."""
    nodes = [
        replace(node, transport="local", env={"NCCL_HOSTID": EnvSetting(node.name, "declared")})
        if node.name in names
        else node
        for node in seen.inventory.nodes
    ]
    return replace(seen, inventory=replace(seen.inventory, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    ("here", "named"),
    [((), [("n1", "n2")]), (("n1", "n2", "n3"), []), (("n3", "n4"), [("n1", "n2")])],
)
def test_between_nodes_of_one_machine_no_link_is_slow(
    here: tuple[str, ...], named: list[tuple[str, ...]]
) -> None:
    def answer(dialer: str, listener: str) -> Any:
        rate = 2e6 if {dialer, listener} == {"n1", "n2"} else 1e9
        return {"answers": [["ok", {**GOOD, "out": rate, "back": rate}]]}

    links, _ = stage(4, answer, here=here)
    assert [guilt.nodes for guilt in judge_links(links)] == named


def good(dialer: str, listener: str) -> Any:
    return {"answers": [["ok", GOOD]]}


def dead(name: str) -> Callable[[str, str], Any]:
    no = {"answers": [["no", "timed_out", "connecting: timed out"]]}
    return lambda dialer, listener: no if name in (dialer, listener) else good(dialer, listener)


def test_every_pair_is_asked_once_where_all_is_well() -> None:
    links, agents = stage(6, good)
    assert {frozenset(pair) for pair in agents.asked} == {
        frozenset((w.dialer, w.listener)) for w in links.pairs
    }
    assert len(agents.asked) == len(links.pairs) == 15
    assert judge_links(links) == ()
    assert agents.ended == set(agents.links)


def test_a_dead_node_of_many_costs_a_few_pairs_and_not_one_each_round() -> None:
    links, agents = stage(64, dead("n7"))
    assert [guilt.nodes for guilt in judge_links(links)] == [("n7",)]
    assert sum("n7" in pair for pair in agents.asked) == 3
    assert {frozenset(pair) for pair in agents.dialled} >= {
        frozenset(pair) for pair in agents.asked if "n7" in pair
    }
    assert len({frozenset(pair) for pair in agents.asked if "n7" not in pair}) == 63 * 62 // 2


def test_a_node_that_lets_nobody_in_is_found_by_dialling_it_from_everywhere() -> None:
    no = {"answers": [["no", "timed_out", "connecting: timed out"]]}
    links, agents = stage(
        4, lambda dialer, listener: no if listener == "n2" else good(dialer, listener)
    )
    assert [guilt.nodes for guilt in judge_links(links)] == [("n2",)]
    assert len(agents.dialled) == len(set(agents.dialled))
    assert {pair for pair in agents.dialled if pair[1] == "n2"} == {
        (name, "n2") for name in ("n1", "n3", "n4")
    }


def test_a_pair_that_connects_when_it_is_dialled_again_is_measured() -> None:
    asked: Counter[tuple[str, str]] = Counter()
    no = {"answers": [["no", "timed_out", "connecting: timed out"]]}

    def answer(dialer: str, listener: str) -> Any:
        asked[dialer, listener] += 1
        first = asked[dialer, listener] == 1 and asked[listener, dialer] == 0
        return no if first and {dialer, listener} == {"n1", "n3"} else good(dialer, listener)

    links, _ = stage(4, answer)
    assert judge_links(links) == ()
    assert all(way.outcome == "ok" for way in links.pairs)


def test_a_slow_node_of_many_costs_a_few_pairs_too() -> None:
    slow = {"answers": [["ok", {**GOOD, "out": 2.5e6, "back": 2.5e6}]]}
    links, agents = stage(
        64, lambda dialer, listener: slow if "n7" in (dialer, listener) else good(dialer, listener)
    )
    assert [guilt.nodes for guilt in judge_links(links)] == [("n7",)]
    assert sum("n7" in pair for pair in agents.asked) <= 12


def test_before_the_collectives_a_node_of_many_has_a_few_partners() -> None:
    names = [f"n{number}" for number in range(1, 65)]
    seen = fleet(
        **{
            name: {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)}
            for n, name in enumerate(names, 1)
        }
    )
    agents = Agents(seen.inventory, names, good)
    first = measure_first(agents, seen)  # type: ignore[arg-type]
    partners = Counter(name for pair in agents.asked for name in pair)
    assert set(partners.values()) == {FIRST_ROUNDS}
    assert judge_links(first) == ()


def test_a_pair_that_was_bad_before_is_bad_if_it_is_so_once_more() -> None:
    asked: Counter[frozenset[str]] = Counter()
    slow = {"answers": [["ok", {**GOOD, "out": 2.5e6, "back": 2.5e6}]]}

    def answer(dialer: str, listener: str) -> Any:
        asked[frozenset((dialer, listener))] += 1
        return slow if "n3" in (dialer, listener) else good(dialer, listener)

    seen = fleet(
        **{f"n{n}": {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)} for n in range(1, 5)}
    )
    agents = Agents(seen.inventory, list(seen.snapshots), answer)
    first = measure_first(agents, seen)  # type: ignore[arg-type]
    assert [guilt.nodes for guilt in judge_links(first)] == [("n3",)]
    before = asked.copy()
    links = measure_links(agents, seen, first)  # type: ignore[arg-type]
    assert [guilt.nodes for guilt in judge_links(links)] == [("n3",)]
    assert {pair: asked[pair] - before[pair] for pair in asked} == dict.fromkeys(asked, 1)


def test_what_was_slow_before_and_is_not_later_blames_no_node() -> None:
    times = 0
    busy = {"answers": [["ok", {**GOOD, "out": 1e8, "back": 1e8}]]}

    def answer(dialer: str, listener: str) -> Any:
        return busy if times == 0 and "n2" in (dialer, listener) else good(dialer, listener)

    seen = fleet(
        **{f"n{n}": {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)} for n in range(1, 5)}
    )
    agents = Agents(seen.inventory, list(seen.snapshots), answer)
    first = measure_first(agents, seen)  # type: ignore[arg-type]
    times = 1
    assert judge_links(measure_links(agents, seen, first)) == ()  # type: ignore[arg-type]


def test_a_node_that_is_slower_than_its_peers_is_measured_again_with_some_of_them() -> None:
    seen = fleet(
        **{f"n{n}": {"net.interfaces": (eth("eth0", f"10.0.0.{n}/16"),)} for n in range(1, 9)}
    )
    agents = Agents(seen.inventory, list(seen.snapshots), good)
    pairs = measure_again(agents, seen, ["n3", "n5"])  # type: ignore[arg-type]
    assert Counter(measured.dialer for measured in pairs) == {"n3": PARTNERS, "n5": PARTNERS}
    assert not {"n3", "n5"}.intersection(measured.listener for measured in pairs)
    assert agents.ended == set(agents.links)


def test_what_is_slow_for_a_moment_is_looked_at_again() -> None:
    seen: Counter[frozenset[str]] = Counter()
    busy = {"answers": [["ok", {**GOOD, "out": 1e8}]]}

    def answer(dialer: str, listener: str) -> Any:
        seen[frozenset((dialer, listener))] += 1
        first = seen[frozenset((dialer, listener))] < 3
        return busy if first and {dialer, listener} == {"n2", "n3"} else good(dialer, listener)

    links, _ = stage(5, answer)
    assert judge_links(links) == ()
    assert seen[frozenset(("n2", "n3"))] == 3


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"answers": []},
        {"answers": [["ok"]]},
        {"answers": [["ok", {"connect": 1}]]},
        {"answers": [["ok", {**GOOD, "out": "fast"}]]},
        {"answers": [["ok", {**GOOD, "resent": None}]]},
        {"answers": "x"},
        {"no": "agent_error", "why": "x"},
        LinkLost("hung", "no sign of life"),
        {"answers": [["no", "hung", "no answer within 14 s"]]},
    ],
)
def test_an_unreadable_answer_passes_and_blames_no_node(answer: Any) -> None:
    links, _ = stage(3, lambda dialer, listener: answer)
    assert judge_links(links) == ()
    assert {row.verdict for row in findings(links)} == {"unknown"}


def test_a_node_that_cannot_serve_is_not_known_and_the_others_are() -> None:
    links, _ = stage(4, good, n2={"no": "agent_error", "why": "no port"})
    rows = {row.verdict: row.nodes for row in findings(links)}
    assert rows == {"unknown": ("n2",), "pass": ("n1", "n3", "n4")}


# ---------------------------------------------------------------- real hosts


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    for host in lab4.hosts:
        assert host.processes("clusterprep") == []
        assert "LISTEN" not in host.run(["sh", "-c", "ss -Htlnp | grep -v sshd || true"]).stdout


def verify(lab: Lab) -> Answer:
    # Where a third of the packets is lost a verify takes two minutes on a busy machine.
    return clusterprep(lab, "verify", inventory=lab.inventory(verify=QUICK), timeout=240)


def culprits(found: Answer) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["nodes"]) for one in found.report["verify"]["culprits"]]


def names(lab: Lab) -> list[str]:
    return [host.name for host in lab.hosts]


@pytest.mark.hosts
@hosts
@pytest.mark.timeout(300)
def test_healthy_links_blame_no_node(lab: Lab) -> None:
    for _ in range(5):
        found = verify(lab)
        assert (found.code, culprits(found)) == (0, []), found.report["verify"]["culprits"]
        (row,) = found.findings("net.tcp_bw", "pass")
        assert row["nodes"] == names(lab)
        assert "12 of 12 directed pairs" in row["message"]
        stages = {one["name"]: one["verdict"] for one in found.report["verify"]["stages"]}
        assert stages["links"] == "pass"
        # Links that a busy machine makes look slow are tried by groups of nodes, which acquit them.
        if stages.get("groups", "pass") == "pass":
            assert found.findings("nccl.busbw_multi", "fail") == []


@pytest.mark.hosts
@hosts
@pytest.mark.timeout(300)
def test_a_slow_node_is_named_though_every_sum_is_right(lab: Lab) -> None:
    with faults.slow(lab.host("n3"), "20mbit"):
        found = verify(lab)
    assert (found.code, culprits(found)) == (1, [("node", ["n3"])])
    (row,) = found.findings("net.tcp_bw")
    assert "the network of n3 is slow, with 3 of 3 others" in row["message"]
    assert found.blamed("nccl.correct", "pass") == names(lab)


@pytest.mark.hosts
@hosts
@pytest.mark.timeout(300)
@pytest.mark.parametrize("share", [0.02, pytest.param(0.3, marks=pytest.mark.slow)])
def test_a_node_that_loses_packets_is_named(lab: Lab, share: float) -> None:
    with faults.loss(lab.host("n4"), share, spare_ssh=True):
        found = verify(lab)
    assert ("node", ["n4"]) in culprits(found)
    assert {tuple(nodes) for _, nodes in culprits(found)} == {("n4",)}
    assert found.code == 1
