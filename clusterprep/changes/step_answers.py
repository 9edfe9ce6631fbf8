"""What nodes answer about steps: their facts read again, and why something failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.changes.agents import Agents, Answer, lost_text
from clusterprep.changes.playbook.steps import Step, fact_names, own_facts
from clusterprep.errors import LinkLost
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.survey import registry
from clusterprep.survey.queries import Queries, Sheet, plan_queries
from clusterprep.survey.reads import MARGIN, look_request

LONGEST = 6000  # characters of what a node says about a failure


def look_again(
    agents: Agents, fleet: Fleet, step: Step, nodes: Sequence[Node]
) -> tuple[Fleet, dict[str, str]]:
    """Ask these nodes again for the facts that a step depends on.

    Returns the fleet with the new facts, and why some nodes gave no answer.
    """
    queries = _queries(step, fleet.inventory)
    sheets: dict[str, Sheet] = {}
    for node in nodes:
        sheet = queries.of(node)
        if sheet.reads:
            sheets[node.name] = sheet
    try:
        new_facts, lost = _parsed(queries, sheets, _ask(agents, sheets))
    finally:
        queries.close()
    return fleet.with_facts(new_facts), lost


def _parsed(
    queries: Queries, sheets: Mapping[str, Sheet], answers: Mapping[str, Answer]
) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the facts by node, and why some nodes gave no answer that can be read."""
    new_facts: dict[str, Mapping[str, Any]] = {}
    lost: dict[str, str] = {}
    for name, answer in answers.items():
        sheet = sheets[name]
        rows = _rows(answer, len(sheet.reads))
        if rows is None:
            lost[name] = failure_text(answer)
            continue
        try:
            new_facts[name] = queries.facts(sheet, rows)
        except LinkLost as unreadable:
            lost[name] = failure_text(unreadable)
    return new_facts, lost


def _queries(step: Step, inventory: Inventory) -> Queries:
    """Return what the conditions, the variables and the resource of a step need to know."""
    steps = [step]
    known_facts = registry.of(inventory).facts
    wanted = [known_facts[name] for name in fact_names(steps)]
    wanted.extend(own_facts(steps, inventory))
    query_plan = plan_queries((), known_facts, wanted)
    return Queries(query_plan, inventory)


def _rows(answer: Answer, count: int) -> list[Any] | None:
    """Return the answers to so many reads; None if the node was lost or answered otherwise."""
    if isinstance(answer, LinkLost):
        return None
    rows = answer.get("answers")
    if not isinstance(rows, list) or len(rows) != count:
        return None
    return rows


def _ask(agents: Agents, sheets: Mapping[str, Sheet]) -> Mapping[str, Answer]:
    """Send the reads of each node, and return the answers by node.

    Reads of one node may run one after the other, so their limits are added up.
    """
    bodies = {}
    limit = 0.0
    for name, sheet in sheets.items():
        _, bodies[name] = look_request(sheet.reads)
        seconds = sum(read.limit for read in sheet.reads)
        limit = max(limit, seconds)
    return agents.ask("look", bodies, limit + MARGIN)


def failure_text(answer: Answer) -> str:
    """Return why something was not done, and the last lines of the command that failed.

    Control characters are escaped, but for ends of lines.
    """
    if isinstance(answer, LinkLost):
        return lost_text(answer)
    text = str(answer.get("why"))
    output = str(answer.get("said") or "").strip()
    if output:
        text = f"{text}\n{output}"
    letters = []
    for letter in text[:LONGEST]:
        is_shown = letter.isprintable() or letter == "\n"
        letters.append(letter if is_shown else ascii(letter)[1:-1])
    return "".join(letters)
