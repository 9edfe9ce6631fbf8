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

from msgspec import Struct

from clusterprep.checks import Check
from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Node, Read
from clusterprep.model.alike import Settings, settings_of
from clusterprep.nccl.interfaces import FACTS as INTERFACE_FACTS
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.survey.answers import bounded, digest, narrowed, parse_fact
from clusterprep.survey.parse_process import CPU_LIMIT, LARGE, ParseProcess

MOST_ENDLESS = 4  # answers on which a site's expression may run out of time, each for a second
PORT_FACTS = ("net.port_range",)  # where the nodes listen for each other

# For each fact, the positions of its answers among the answers of a sheet.
Layout = tuple[tuple[int, ...], ...]
Positions = dict[Read, int]
Key = tuple[object, ...]
Part = tuple[bytes, int, Json]  # of a fact's answers: digest, size in bytes, raw answer


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
    once. Parsing is pure and values are frozen: equal answers of many nodes are parsed once and
    share one value. Several threads may use an instance side by side; at worst two of them parse
    the same answer.
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
        # Values by the name of the fact and the digests of its answers.
        self._values: dict[Key, Any] = {}
        self._parse_process = ParseProcess()
        self._endless: dict[str, int] = {}  # answers that a guarded fact was not read from, by fact

    def close(self) -> None:
        """End the process that parses large answers, if there is one."""
        self._parse_process.close()

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

    def facts(self, sheet: Sheet, answers: Sequence[Json]) -> dict[str, Any]:
        """Return facts by name from a node's answers to its sheet; an unknown fact is an Absent.

        Raises LinkLost for answers that take too long to parse.
        """
        digested: list[Part] = []
        for read, answer in zip(sheet.reads, answers, strict=True):
            raw = answer
            mark, size = digest(raw)
            if size > MAX_TEXT:
                raw = bounded(read.kind, answer)
                mark, size = digest(raw)
            digested.append((mark, size, raw))
        values: dict[str, Any] = {}
        asked = (*self._shared_facts, *self._own_facts)
        for fact, positions in zip(asked, sheet.layout, strict=True):
            parts = [digested[position] for position in positions]
            if fact.guarded:
                values[fact.name] = self._guarded_value(fact, parts)
                continue
            if sum(size for _, size, _ in parts) > LARGE:
                values[fact.name] = self._value_of_large(fact, parts)
                continue
            if fact.narrow:
                _, _, whole = parts[0]
                part = narrowed(fact, whole)
                if part is not None:
                    parts[0] = (*digest(part), part)
            values[fact.name] = self._value(fact, parts)
        return values

    def _value(self, fact: Fact, parts: Sequence[Part]) -> Any:
        """Return a fact from its raw answers. Equal ones are parsed once."""
        key = (fact.name, *(mark for mark, _, _ in parts))
        if key not in self._values:
            self._values[key] = parse_fact(fact, _raw_answers(parts))
        return self._values[key]

    def _value_of_large(self, fact: Fact, parts: Sequence[Part]) -> Any:
        """Return a fact from large answers, parsed where that can be killed. Raises LinkLost."""
        key = (fact.name, *(mark for mark, _, _ in parts))
        if key not in self._values:
            self._values[key] = self._parse_process.parse(fact, _raw_answers(parts))
        return self._values[key]

    def _guarded_value(self, fact: Fact, parts: Sequence[Part]) -> Any:
        """Return a fact whose parser may never end, or the Absent that says that it does not.

        After MOST_ENDLESS answers that it does not read in time the others are not tried: each
        takes a second, and there may be one for every node.
        """
        key = (fact.name, *(mark for mark, _, _ in parts))
        if key in self._values or not parts:
            return self._value(fact, parts)
        if self._endless.get(fact.name, 0) >= MOST_ENDLESS:
            return Absent("timed_out", "the expression of this check takes too long on other nodes")
        try:
            return self._value_of_large(fact, parts)
        except LinkLost:
            self._endless[fact.name] = self._endless.get(fact.name, 0) + 1
            why = f"the expression of this check takes more than {CPU_LIMIT:g} s on this answer"
            self._values[key] = Absent("timed_out", why)
            return self._values[key]


def _raw_answers(parts: Sequence[Part]) -> list[Json]:
    """Return raw answers; one without a digest is handled as if it were missing."""
    return [raw if mark else None for mark, _, raw in parts]
