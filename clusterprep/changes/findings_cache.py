"""Has every node store the findings of its deep checks, for commands that have no time for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterprep.changes.agents import Agents, Answer, refusal
from clusterprep.checks import Check
from clusterprep.errors import LinkLost
from clusterprep.facts.results import path_of
from clusterprep.model import ChangeRow, Finding, Fleet, Node
from clusterprep.survey import registry
from clusterprep.survey.cached import is_deep, stored_document

LIMIT = 20.0  # seconds for one small file and its fsyncs


def store(
    agents: Agents, fleet: Fleet, findings: tuple[Finding, ...], checks: Sequence[Check]
) -> tuple[ChangeRow, ...]:
    """Have every node that was reached write its findings to its file.

    Returns one row per node, with the reason if its file could not be written.
    """
    known_facts = registry.of(fleet.inventory).facts
    deep = [check for check in checks if is_deep(check, known_facts)]
    agents.load("store")
    nodes = {node.name: node for node in fleet.reached}
    bodies = {}
    for name, node in nodes.items():
        bodies[name] = _request(node, findings, deep)
    rows = []
    for name, answer in agents.ask("store", bodies, LIMIT).items():
        row = _row(nodes[name], answer)
        rows.append(row)
    return tuple(rows)


def _request(node: Node, findings: tuple[Finding, ...], deep: Sequence[Check]) -> dict[str, Any]:
    results = stored_document(findings, deep, node)
    return {
        "path": path_of(node),
        "root": node.root,
        "results": results,
    }


def _row(node: Node, answer: Answer) -> ChangeRow:
    why = refusal(answer)
    is_new = not isinstance(answer, LinkLost) and answer.get("before") is False
    action = "create" if is_new else "update"
    path = path_of(node)
    if why is not None:
        return ChangeRow(
            (node.name,),
            "store",
            path,
            action,
            "failed",
            detail=why,
        )
    return ChangeRow(
        (node.name,),
        "store",
        path,
        action,
        "done",
    )
