"""One node of a plan by itself: what it is asked, and what its answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.model import Inventory, Json, Node, Read
from clusterprep.survey.queries import Queries, QueryPlan


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
