"""One node of a plan by itself: what it is asked, and what its answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.model import Inventory, Json, Node, Read
from clusterprep.remote.transports.frames import plain
from clusterprep.remote.transports.link import Link
from clusterprep.runtime.budget import Budget
from clusterprep.survey.queries import Queries, QueryPlan
from clusterprep.survey.reads import ask_reads


def reads(plan: QueryPlan, node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Everything to look at on one node, each thing once."""
    return Queries(plan, inventory).of(node).reads


def interpret(
    plan: QueryPlan, node: Node, inventory: Inventory, answers: Mapping[Read, Json]
) -> dict[str, Any]:
    """The facts of one node from its answers."""
    queries = Queries(plan, inventory)
    sheet = queries.of(node)
    try:
        return queries.facts(sheet, [answers.get(read) for read in sheet.reads])
    finally:
        queries.close()


def answered(link: Link, asked: Sequence[Read], budget: Budget | None = None) -> list[Json]:
    """The values that an agent answers."""
    values: list[Json] = plain({"answers": ask_reads(link, asked, budget=budget)})["answers"]
    return values
