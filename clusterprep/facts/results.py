"""The findings of deep checks that a node keeps, and how old they are by the node's own clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.facts.journal import STATE
from clusterprep.frozen import dataclass
from clusterprep.model import Finding, Node, Read

SCHEMA = 1
NAME = "deep.json"
CUT = 2000  # characters of one text of a finding
MOST = 2000  # findings; a node has some thirty
_TEXTS = ("check", "message", "seen", "wanted", "remedy")
_VERDICTS, _SEVERITIES = ("pass", "fail", "unknown", "skip"), ("error", "warning")


@dataclass(frozen=True)
class Results:
    """What an earlier look left. `age` in seconds is None where this boot is not the one that it was in.

    Within a boot the age is told by the time since the boot, for the clock may have been set meanwhile.
    `about` says which settings of the node it was about, `checks` which checks were judged.
    """

    age: float | None
    about: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]


def path_of(node: Node) -> str:
    """Where a node keeps them, below its root."""
    return under(node, f"{STATE}/{NAME}")


def parse_results(answer: Mapping[str, Any] | None) -> Results | None:
    """None where nothing was ever stored. Raises ValueError for whatever we would not have written."""
    if answer is None:
        return None
    kept = json.loads(answer["text"])
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
        raise ValueError(f"{NAME} is no store of schema {SCHEMA}")
    rows, checks = kept["findings"], kept["checks"]
    if not isinstance(rows, list) or not isinstance(checks, list) or max(len(rows), len(checks)) > MOST:
        raise ValueError("its findings are no list, or too long a one")
    age = None
    if _text(kept["boot"]) == answer["boot"]:
        age = float(answer["uptime"]) - float(kept["uptime"])
        if not 0 <= age < float("inf"):
            raise ValueError(f"it was stored {-age:g} s from now")
    return Results(age, _text(kept["about"]), tuple(map(_text, checks)), tuple(map(_finding, rows)))


def rows_of(findings: tuple[Finding, ...], node: Node) -> list[dict[str, Any]]:
    """The findings about one node as they are kept; a silence is asked for again when they are read."""
    mine = [finding for finding in findings if node.name in finding.nodes]
    keys = (*_TEXTS, "verdict", "severity", "reason")
    rows = [{key: getattr(finding, key) for key in keys} for finding in mine]
    return [{key: text if text is None else text[:CUT] for key, text in row.items()} for row in rows]


def _finding(row: Any) -> Finding:
    if not isinstance(row, dict):
        raise ValueError("a finding is no object")  # noqa: TRY004 - bad data, not a bad call
    verdict, severity = row["verdict"], row["severity"]
    if verdict not in _VERDICTS or severity not in _SEVERITIES:
        raise ValueError("a finding has a verdict or a severity that is none")
    check, message, seen, wanted, remedy = (_text(row[key]) for key in _TEXTS)
    found = Finding(check, verdict, severity, (), message, seen, wanted, remedy)
    return replace(found, reason=(_text(row["reason"]) or "not said") if verdict in ("unknown", "skip") else None)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > CUT:
        raise ValueError(f"{value!r:.40} is no text, or too long a one")
    return value


RESULTS = Fact("store.results", lambda node, inventory: (Read("results", (path_of(node),)),), parse_results)
