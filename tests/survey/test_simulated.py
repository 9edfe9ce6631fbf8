"""Fleets of any size: a planted fault is found on its nodes alone, and work grows with nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import simulated
from clusterprep import reports
from clusterprep.changes.file_plan import change_rows, plan_file_changes
from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Fleet, Inventory, Node, Report
from clusterprep.nccl.environment import render
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import Queries, QueryPlan
from tests.support import grown


class Counted(str):
    """The name of a node that counts how often it is compared or looked up."""

    __slots__ = ()
    uses = 0

    def __eq__(self, other: object) -> bool:
        Counted.uses += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.uses += 1
        return str.__hash__(self)


class Walked(tuple[Node, ...]):
    """Nodes that count how many of them are walked past."""

    __slots__ = ()
    steps = 0

    def __iter__(self) -> Iterator[Node]:
        for node in super().__iter__():
            Walked.steps += 1
            yield node


def inventory(folder: Path, nodes: int) -> Inventory:
    path = folder / f"{nodes}.yaml"
    path.write_text(grown.inventory_text(nodes))
    return load_inventory(path)


def looked(of: Inventory) -> tuple[Fleet, QueryPlan, grown.Fates]:
    plan, fated = simulated.everything(of), grown.fates(of)
    fleet = grown.planted(grown.looked(Queries(plan, of), of, fated), fated)
    fleet = probe_pairs(grown.Wires(fleet, fated.deaf), fleet, of.nodes[0].name)  # type: ignore[arg-type]
    return grown.dialled(fleet, fated), plan, fated


def computed(fleet: Fleet, plan: QueryPlan) -> None:
    """Everything that follows from a look."""
    findings = judge(fleet, plan.checks, simulated.TODAY)
    environment = render(fleet)
    planned, _ = plan_file_changes(fleet, load_playbook("site").steps, environment)
    rest = (
        tuple(fleet.snapshots.values()),
        findings,
        environment.values,
        (),
        change_rows(planned, {}, {}),
    )
    report = Report(
        "apply", "20261122-104500-c0de", "large", "2026-11-22T10:45:00Z", 1.0, "fail", 1, *rest
    )
    for fmt in reports.SUFFIXES:
        for _ in reports.pieces(report, fmt):
            pass


def work(folder: Path, nodes: int) -> tuple[int, int]:
    """How often nodes were compared or looked up by name, and how many were walked past."""
    of = inventory(folder, nodes)
    of = replace(of, nodes=Walked(replace(node, name=Counted(node.name)) for node in of.nodes))
    before = Counted.uses, Walked.steps
    fleet, plan, _ = looked(of)
    computed(fleet, plan)
    return Counted.uses - before[0], Walked.steps - before[1]


def test_what_is_planted_is_found_and_nothing_else(tmp_path: Path) -> None:
    fleet, plan, fated = looked(inventory(tmp_path, 1000))
    assert len(fated.checks) >= 16
    grown.compare(judge(fleet, plan.checks, simulated.TODAY), fated)


def test_twice_the_nodes_are_twice_the_work(tmp_path: Path) -> None:
    few, many = work(tmp_path, 100), work(tmp_path, 200)
    assert many[0] / few[0] < 2.3
    assert many[1] / few[1] < 2.3


def test_nodes_that_differ_in_their_numbers_are_judged_together_as_each_by_itself(
    tmp_path: Path,
) -> None:
    """Faults on some, and no two nodes with the same serial numbers, counters and free space.

    A site's check is asked for every node, as nothing is known of what it looks at.
    """
    fleet, plan, _ = looked(inventory(tmp_path, 120))
    apart = [replace(check, source="site/checks.py") for check in plan.checks]
    findings = judge(fleet, plan.checks, simulated.TODAY)
    assert findings == judge(fleet, apart, simulated.TODAY)


@pytest.mark.parametrize(
    "nodes", [120, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_all_stages_agree_on_who_is_to_blame(nodes: int) -> None:
    meter = simulated.Meter(nodes)
    simulated.measured(nodes, meter)
    assert {cost.stage for cost in meter.costs} >= {
        "parse",
        "judge",
        "render",
        "diff",
        "blame, hung",
        "report json",
    }


def test_questions_name_their_node_only_where_they_say_so() -> None:
    """All others are asked for once for nodes that are alike."""
    twins = [
        Node(name, address, place)
        for place, (name, address) in enumerate([("a", "10.0.0.1"), ("b", "10.0.0.2")])
    ]
    of = Inventory("test", tuple(twins))
    for fact in registry.facts().values():
        assert fact.apiece or fact.reads(twins[0], of) == fact.reads(twins[1], of), fact.name
