"""Plan what each node is asked for the wanted checks, and say what its answers mean. Pure.

plan = plan_queries(checks, facts)
queries = Queries(plan, inventory)
sheet = queries.of(node)                # what to read on the node
queries.facts(sheet, answers)           # {"os.release": ..., "eth.mtu": ...}

The size of the fleet must not show here: questions that do not name their node are made once for
all nodes that are alike. Anything that looks at all nodes for each node would take a hundred
million steps at ten thousand nodes. tests/survey/test_simulated.py counts how often a node's name
is compared, looked up or passed, and twice the nodes may be only twice the work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.model import Inventory, Json, Node, Read
from clusterprep.model.alike import Settings, settings_of
from clusterprep.model.node_facts import NodeFacts, Rows
from clusterprep.nccl.interfaces import FACTS as INTERFACE_FACTS
from clusterprep.survey.meanings import Layout, Meanings

PORT_FACTS = ("net.port_range",)  # where the nodes listen for each other

Positions = dict[Read, int]


class QueryPlan(Struct, frozen=True, dict=True):
    """The checks to judge, the facts they need and the stages that bring facts without reads.

    `kept` are checks whose findings the nodes have stored; those are read instead.
    """

    checks: tuple[Check, ...]
    facts: tuple[Fact, ...]
    kept: tuple[Check, ...] = ()

    @functools.cached_property
    def stages(self) -> frozenset[str]:
        return frozenset(fact.stage for fact in self.facts if fact.stage)


def plan_queries(
    checks: Sequence[Check],
    facts: Mapping[str, Fact],
    extra: Iterable[Fact] = (),
    kept: Sequence[Check] = (),
) -> QueryPlan:
    """Return the plan with the facts that the checks need plus `extra`, each once."""
    needed: dict[str, Fact] = {}
    for check in checks:
        for name in (*check.facts, *check.uses):
            needed[name] = facts[name]
    for fact in extra:
        needed[fact.name] = fact
    dials_pairs = any(fact.stage == "pairs" for fact in needed.values())
    further: list[str] = []
    # The interface of NCCL must not depend on which other checks are selected: all its facts are
    # asked for.
    if dials_pairs or "net.interfaces" in needed:
        further.extend(INTERFACE_FACTS)
    if dials_pairs:
        further.extend(PORT_FACTS)
    for name in further:
        if name in facts:
            needed[name] = facts[name]
    return QueryPlan(tuple(checks), tuple(needed.values()), tuple(kept))


class Sheet(Struct, frozen=True):
    """What a node is asked, each thing once, and which answers each fact of the plan is made of."""

    reads: tuple[Read, ...]
    layout: Layout


class Queries:
    """What the nodes of an inventory are asked, and what their answers mean.

    Nodes of one kind, which differ in name and address alone, share most reads, so these are made
    once. Several threads may use an instance side by side.
    """

    def __init__(self, plan: QueryPlan, inventory: Inventory) -> None:
        self._inventory = inventory
        self._shared_facts: list[Fact] = []
        self._own_facts: list[Fact] = []
        for fact in plan.facts:
            if fact.stage is None:
                facts = self._own_facts if fact.apiece else self._shared_facts
                facts.append(fact)
        self._by_kind: dict[Settings, tuple[Positions, Layout]] = {}
        self._layouts: dict[Layout, Layout] = {}
        self._meanings = Meanings((*self._shared_facts, *self._own_facts))
        self._rows = Rows()

    def close(self) -> None:
        """End the process that parses large answers, if there is one."""
        self._meanings.close()

    def of(self, node: Node) -> Sheet:
        """Return what this node is asked."""
        kind = settings_of(node)
        if kind not in self._by_kind:
            common: Positions = {}
            common_layout = self._place_reads(self._shared_facts, node, common)
            self._by_kind[kind] = (common, common_layout)
        shared_positions, shared_layout = self._by_kind[kind]
        positions = dict(shared_positions)
        layout = shared_layout + self._place_reads(self._own_facts, node, positions)
        # Equal layouts are one object: a fleet has thousands of sheets and few layouts.
        layout = self._layouts.setdefault(layout, layout)
        return Sheet(tuple(positions), layout)

    def _place_reads(self, facts: Iterable[Fact], node: Node, positions: Positions) -> Layout:
        """Add the reads of the facts to `positions` and return where the reads of each fact are."""
        layout: list[tuple[int, ...]] = []
        for fact in facts:
            reads = fact.reads(node, self._inventory)
            of_fact: list[int] = []
            for read in reads:
                position = positions.setdefault(read, len(positions))
                of_fact.append(position)
            layout.append(tuple(of_fact))
        return tuple(layout)

    def facts(self, sheet: Sheet, answers: Sequence[msgspec.Raw | Json]) -> dict[str, Any]:
        """Return facts by name from a node's answers to its sheet; an unknown fact is an Absent.

        Raises LinkLost for answers that no agent writes, or that take too long to parse.
        """
        return self._meanings.of(sheet.reads, sheet.layout, answers)

    def row(self, facts: Mapping[str, Any], others: Mapping[str, Any]) -> NodeFacts:
        """Return the facts of a node with others besides, as a row of values.

        Rows of all nodes share the names, so a fleet of them takes a fifth of the memory.
        """
        return self._rows.extended(facts, others)
