"""Checks of single nodes are asked once for nodes that are alike, and say the same as for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import date
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, NodeJudge, Outcome, each, passed
from clusterprep.cli.commands.selftest import recorded_fleet, turned_bad
from clusterprep.facts.bonding import Bond
from clusterprep.facts.counters import Counters, Earlier
from clusterprep.facts.network import Interface
from clusterprep.facts.nvme import Disk
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Fleet, Node
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import Queries, plan_queries
from tests.support import grown as grown_fleet
from tests.support.fleet import fleet

TODAY = date(2026, 11, 21)
FLEETS = sorted(
    path.name.removesuffix(".yaml")
    for path in resources.files("clusterprep").joinpath("data/fleets").iterdir()
    if path.name.endswith(".yaml")
)
ALIKE = {
    name: check
    for name, check in registry.checks().items()
    if isinstance(check.judge, NodeJudge) and not check.judge.per_node
}


@functools.cache
def recorded(name: str) -> Fleet:
    return recorded_fleet(name, tuple(registry.checks().values()))


def grown(of: Fleet, copies: int) -> Fleet:
    """The fleet with every node so many times, under names of their own, with equal values."""
    nodes, snapshots = [], {}
    for node in of.inventory.nodes:
        for copy in range(copies):
            name = node.name if copy == 0 else f"{node.name}x{copy}"
            nodes.append(replace(node, name=name, index=len(nodes)))
            snapshots[name] = replace(of.snapshots[node.name], node=name)
    return replace(of, inventory=replace(of.inventory, nodes=tuple(nodes)), snapshots=snapshots)


def one_by_one(check: Check) -> Check:
    """The check as one of a site, which is asked for every node by itself."""
    return replace(check, source="site/checks.py")


def plantable(name: str) -> list[Check]:
    """Checks whose proof is a fact of one node of this fleet."""
    found = []
    for check in registry.checks().values():
        proof = check.proof
        if proof is not None and proof.fleet == name and proof.fact and not proof.between:
            found.append(check)
    return found


@pytest.mark.parametrize("name", FLEETS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_findings_are_those_of_node_by_node(name: str, data: st.DataObject) -> None:
    """Whatever faults are planted, on whatever nodes."""
    of = grown(recorded(name), 3)
    names = [node.name for node in of.inventory.nodes]
    for check in data.draw(st.lists(st.sampled_from(plantable(name)), max_size=6)):
        proof = check.proof
        assert proof is not None
        sick = turned_bad(of, data.draw(st.sampled_from(names)), proof)
        if isinstance(sick, Fleet):
            of = sick
    together = tuple(registry.checks().values())
    apart = [one_by_one(check) for check in together]
    assert judge(of, together, TODAY) == judge(of, apart, TODAY)


@pytest.fixture(scope="session")
def own_serials(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet in which each node has its own addresses, serial numbers, counters and loads."""
    path = tmp_path_factory.mktemp("fleet") / "inventory.yaml"
    path.write_text(grown_fleet.inventory_text(12))
    inventory = load_inventory(path)
    checks = tuple(registry.checks().values())
    queries = Queries(plan_queries(checks, registry.facts()), inventory)
    healthy = grown_fleet.Fates()
    of = grown_fleet.planted(grown_fleet.looked(queries, inventory, healthy), healthy)
    wires: Any = grown_fleet.Wires(of)
    of = probe_pairs(wires, of, inventory.nodes[0].name)
    return grown_fleet.dialled(of, healthy)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_findings_are_those_of_node_by_node_if_no_two_nodes_are_equal(
    own_serials: Fleet, data: st.DataObject
) -> None:
    of = own_serials
    names = [node.name for node in of.inventory.nodes]
    for check in data.draw(st.lists(st.sampled_from(grown_fleet.proofs()), max_size=6)):
        assert check.proof is not None
        for victim in data.draw(st.lists(st.sampled_from(names), max_size=9, unique=True)):
            sick = turned_bad(of, victim, check.proof)
            if isinstance(sick, Fleet):
                of = sick
    together = tuple(registry.checks().values())
    apart = [one_by_one(check) for check in together]
    assert judge(of, together, TODAY) == judge(of, apart, TODAY)


# ---------------------------------------------------------------- one value that is another


def with_value(name: str, **changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Change fields of one of a node's values by name."""
    return lambda values: {**values, name: replace(values[name], **changes)}


def bond_with(**changes: Any) -> Callable[[dict[str, Bond]], dict[str, Bond]]:
    return with_value("bond0", **changes)


def card_with(**changes: Any) -> Callable[[tuple[Interface, ...]], tuple[Interface, ...]]:
    """Change the first card of the bond that carries NCCL's sockets."""

    def turn(interfaces: tuple[Interface, ...]) -> tuple[Interface, ...]:
        return tuple(
            replace(interface, **changes) if interface.name == "eno1np0" else interface
            for interface in interfaces
        )

    return turn


def in_two_aggregators(bonds: dict[str, Bond]) -> dict[str, Bond]:
    first, *others = bonds["bond0"].members
    return bond_with(members=(replace(first, aggregator="7"), *others))(bonds)


def held_down(counters: Counters) -> Counters:
    return {gpu: {**own, "held down by thermal": 10**13} for gpu, own in counters.items()}


def lost_often(earlier: Earlier) -> Earlier:
    """Links that went down often in the last day, and not since the newest run."""
    before = {port: {**own, "link_downed": 0} for port, own in earlier.long.ib.items()}
    grown_since = {port: {**own, "link_downed": 9} for port, own in earlier.long.ib.items()}
    recent = replace(earlier.recent, ib=grown_since)
    return Earlier(recent, replace(earlier.long, ib=before))


def with_first_disk(**changes: Any) -> Callable[[tuple[Disk, ...]], tuple[Disk, ...]]:
    return lambda disks: (replace(disks[0], **changes), *disks[1:])


# What a check that is asked once for a class reads of a node, each changed alone.
DIFFERENCES = [
    ("eth.bond", "net.bonds", bond_with(policy="layer2")),
    ("eth.bond", "net.bonds", bond_with(partner="00:00:00:00:00:00")),
    ("eth.bond", "net.bonds", bond_with(members=())),
    ("eth.bond", "net.bonds", in_two_aggregators),
    ("eth.bond", "net.bonds", lambda bonds: {}),
    ("eth.bond", "net.interfaces", lambda interfaces: interfaces[:1]),
    ("eth.speed", "net.interfaces", card_with(speed=1000)),
    ("eth.speed", "net.interfaces", card_with(speed=None)),
    ("eth.speed", "net.interfaces", card_with(duplex="half")),
    ("eth.speed", "net.interfaces", card_with(running=False)),
    ("eth.speed", "net.interfaces", card_with(master=None)),
    ("eth.speed", "net.interfaces", card_with(carrier_changes=500)),
    ("irq.balance", "irq.counts", lambda found: replace(found, seconds=50.0)),
    ("irq.balance", "irq.counts", lambda found: replace(found, devices=())),
    ("gpu.throttle_hw", "gpu.counters", held_down),
    ("gpu.throttle_hw", "gpu.throttle", lambda found: {**found, 5: Absent("denied")}),
    ("gpu.throttle_hw", "counters.earlier", lambda earlier: None),
    ("ib.counters", "counters.earlier", lambda earlier: None),
    ("ib.counters", "ib.counters", lambda counted: {port: {} for port in counted}),
    ("ib.counters", "rdma.devices", lambda devices: ()),
    ("ib.downed", "counters.earlier", lost_often),
    ("gpu.gemm", "stress.results", lambda results: Absent("hung", "no answer")),
    ("gpu.h2d", "stress.results", lambda results: Absent("hung", "no answer")),
    ("gpu.sdc", "stress.results", lambda results: Absent("hung", "no answer")),
    ("gpu.p2p", "stress.results", lambda results: Absent("hung", "no answer")),
    ("gpu.liveness", "stress.results", lambda results: Absent("hung", "no answer")),
    ("mem.stream", "stress.results", lambda results: Absent("hung", "no answer")),
    ("gpu.dcgm", "stress.dcgm", lambda found: Absent("missing_tool")),
    ("svc.required", "svc.states", lambda states: (*states[1:], (states[0][0], "failed"))),
    ("svc.required", "svc.states", lambda states: states[1:]),
    ("host.uptime", "host.uptime", lambda seconds: 30.0),
    ("host.uptime", "host.boot_before", lambda boot: "another boot"),
    ("ssh.sudo", "ssh.rights", lambda rights: replace(rights, uid=1000)),
    ("disk.nvme", "disk.nvme", lambda disks: disks[1:]),
    ("disk.nvme", "disk.nvme", with_first_disk(state="dead")),
    ("disk.nvme", "disk.nvme", with_first_disk(health=Absent("missing_tool"))),
    ("time.offset", "clock.offset", lambda clock: replace(clock, seconds=-3.0)),
    ("time.offset", "clock.offset", lambda clock: replace(clock, bound=3.0)),
    ("time.offset", "clock.offset", lambda clock: replace(clock, seconds=float("nan"))),
    ("fw.bios", "host.bios", lambda found: replace(found, date="2020-01-01")),
    ("fw.bios", "host.bios", lambda found: replace(found, virtual=True)),
    ("launch.ranks", "env.paths", registry.checks()["launch.ranks"].proof.turn),  # type: ignore[union-attr]
]


@pytest.mark.parametrize(("name", "fact", "turn"), DIFFERENCES)
def test_a_node_of_which_one_value_is_another_is_judged_by_it(
    own_serials: Fleet, name: str, fact: str, turn: Callable[[Any], Any]
) -> None:
    victims = {node.name for node in own_serials.reached[5:7]}
    changed = {victim: {fact: turn(own_serials.fact(victim, fact))} for victim in victims}
    of = own_serials.with_facts(changed)
    check = registry.checks()[name]
    findings = judge(of, [check], TODAY, by_message=True)
    assert findings == judge(of, [one_by_one(check)], TODAY, by_message=True)
    assert any(victims.issuperset(finding.nodes) for finding in findings)


# ---------------------------------------------------------------- what a judge looks at


READ: set[str] = set()


class WatchedNode(Node):
    """A node that notes when a judge reads what tells it from nodes that are alike."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("address", "index"):
            READ.add(f"node.{name}")
        return super().__getattribute__(name)


class WatchedFacts(dict[str, Any]):
    """Facts of a node that note which of them a judge reads."""

    def get(self, name: str, default: Any = None) -> Any:
        READ.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        READ.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        READ.add("all facts")
        return super().__iter__()

    def items(self) -> Any:
        READ.add("all facts")
        return super().items()


def watched(of: Fleet) -> Fleet:
    nodes = []
    for node in of.inventory.nodes:
        values = {name: getattr(node, name) for name in Node.__struct_fields__}
        nodes.append(WatchedNode(**values))
    snapshots = {}
    for name, snapshot in of.snapshots.items():
        snapshots[name] = replace(snapshot, facts=WatchedFacts(snapshot.facts))
    return replace(of, inventory=replace(of.inventory, nodes=tuple(nodes)), snapshots=snapshots)


def renamed(of: Fleet, victim: str) -> Fleet:
    """The fleet with another name, address and position of one node."""
    nodes = [node for node in of.inventory.nodes if node.name != victim]
    (node,) = (node for node in of.inventory.nodes if node.name == victim)
    nodes.append(replace(node, name="another", address="192.0.2.77", index=len(nodes)))
    snapshots = dict(of.snapshots)
    snapshots["another"] = replace(snapshots.pop(victim), node="another", address="192.0.2.77")
    return replace(of, inventory=replace(of.inventory, nodes=tuple(nodes)), snapshots=snapshots)


def outcomes_on(of: Fleet, check: Check, name: str) -> list[Outcome] | None:
    """What a check says of one node; None if a fact that it needs is absent there."""
    assert isinstance(check.judge, NodeJudge)
    (node,) = (node for node in of.inventory.nodes if node.name == name)
    if any(isinstance(of.fact(name, fact), Absent) for fact in check.facts):
        return None
    context = CheckContext(of, of.reached, check.name, (*check.facts, *check.uses))
    return list(check.judge.outcomes_of(context, node))


def situations(name: str) -> Iterator[tuple[Fleet, str]]:
    """Yield a recorded fleet as it is, and with each proof's fault; and the node with the fault."""
    of = recorded(name)
    victim = of.inventory.nodes[-1].name
    yield of, victim
    for check in plantable(name):
        assert check.proof is not None
        sick = turned_bad(of, victim, check.proof)
        if isinstance(sick, Fleet):
            yield sick, victim


@pytest.mark.parametrize("name", FLEETS)
def test_a_judge_looks_at_nothing_that_it_does_not_declare(name: str) -> None:
    undeclared: dict[str, set[str]] = {}
    for of, victim in situations(name):
        seen = watched(of)
        for check in ALIKE.values():
            READ.clear()
            outcomes_on(seen, check, victim)
            more = READ - {*check.facts, *check.uses}
            if more:
                undeclared.setdefault(check.name, set()).update(more)
    assert not undeclared, "these need per_node=True, or the facts among their `uses`"


@pytest.mark.parametrize("name", FLEETS)
def test_a_judge_says_the_same_of_a_node_under_another_name(name: str) -> None:
    for of, victim in situations(name):
        other = renamed(of, victim)
        for check in ALIKE.values():
            before = outcomes_on(of, check, victim)
            after = outcomes_on(other, check, "another")
            if before is None or after is None:
                assert before == after, check.name
                continue
            assert {outcome.nodes for outcome in (*before, *after)} <= {(victim,), ("another",)}
            assert [replace(outcome, nodes=()) for outcome in before] == [
                replace(outcome, nodes=()) for outcome in after
            ], check.name


# ---------------------------------------------------------------- how often it is asked


def counted(per_node: bool, source: str = "") -> tuple[list[str], Check]:
    """A check that notes the nodes for which it is asked, and these."""
    asked: list[str] = []

    def judge_one(context: CheckContext, node: Node, kernel: str) -> Outcome:
        asked.append(node.name)
        return passed(node, "it is a kernel", kernel)

    check = registry.checks()["kernel.version"]
    judge_all = each(judge_one, "kernel.release", per_node=per_node)
    facts = ("kernel.release",)
    return asked, replace(check, facts=facts, uses=("os.release",), judge=judge_all, source=source)


def three(**settings: Any) -> Fleet:
    """Two nodes that are alike, and one with another release."""
    kernel, debian, ubuntu = "6.1", "Debian", "Ubuntu"
    facts = {"kernel.release": kernel, "os.release": debian}
    return fleet(n1=facts, n2=facts, n3={**facts, "os.release": ubuntu}, **settings)


def test_nodes_that_are_alike_are_judged_once() -> None:
    asked, check = counted(per_node=False)
    (finding,) = judge(three(), [check], TODAY)
    assert finding.nodes == ("n1", "n2", "n3")
    assert asked == ["n1", "n3"]


def test_other_settings_make_another_kind() -> None:
    asked, check = counted(per_node=False)
    judge(three(some={"n2": {"require": {check.name: "6.1"}}}), [check], TODAY)
    assert asked == ["n1", "n2", "n3"]


@pytest.mark.parametrize(("per_node", "source"), [(True, ""), (False, "site/kernel.py")])
def test_a_judge_that_may_look_at_more_is_asked_for_every_node(per_node: bool, source: str) -> None:
    asked, check = counted(per_node, source)
    (finding,) = judge(three(), [check], TODAY)
    assert finding.nodes == ("n1", "n2", "n3")
    assert asked == ["n1", "n2", "n3"]
