"""Has every node keep the findings of its deep checks, for commands that may not wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterprep.changes.transaction import refusals
from clusterprep.checks import Check
from clusterprep.facts.results import path_of
from clusterprep.model import ChangeRow, Finding, Fleet
from clusterprep.survey.cached import cached_checks, is_deep
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.registry import facts

LIMIT = 20.0  # seconds for one small file and its syncs


def store(
    fanout: Fanout, fleet: Fleet, findings: tuple[Finding, ...], checks: Sequence[Check]
) -> tuple[ChangeRow, ...]:
    """One row per node that was reached: its file, and why it could not be written where it could not."""
    deep = [check for check in checks if is_deep(check, facts())]
    fanout.load("store")
    nodes = {node.name: node for node in fleet.reached}
    bodies = {
        name: {
            "path": path_of(node),
            "root": node.root,
            "results": cached_checks(findings, deep, node),
        }
        for name, node in nodes.items()
    }
    answers = fanout.ask("store", bodies, LIMIT)
    failed = refusals(answers)
    new = {
        name
        for name, answer in answers.items()
        if isinstance(answer, dict) and answer.get("before") is False
    }
    return tuple(
        ChangeRow(
            nodes=(name,),
            resource="store",
            target=path_of(nodes[name]),
            action="create" if name in new else "update",
            outcome="failed" if name in failed else "done",
            detail=failed.get(name, ""),
        )
        for name in answers
    )


def store_code(rows: Iterable[ChangeRow] | None) -> int:
    """1 where a node could not keep them, as for every change that failed."""
    return int(any(row.outcome == "failed" for row in rows or ()))
