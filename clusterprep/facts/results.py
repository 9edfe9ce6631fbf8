"""The findings of deep checks that a node keeps, and how old they are by the node's own clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.facts.journal import STATE
from clusterprep.model import Finding, Node, Read
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.untrusted import require_number, require_text
from clusterprep.runtime.lazy_dataclass import dataclass

SCHEMA = 1
NAME = "deep.json"
CUT = 2000  # characters of one text of a finding
MOST = 2000  # findings; a node has some thirty
_TEXTS = ("check", "message", "seen", "wanted", "remedy")
_TROUBLE = ("fail", "unknown")
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
    kept = json.loads(
        require_text(answer["text"], MAX_TEXT),
        object_pairs_hook=_once_each,
        parse_constant=_no_number,
    )
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
        raise ValueError(f"{NAME} is no store of schema {SCHEMA}")
    rows, checks = kept["findings"], kept["checks"]
    if (
        not isinstance(rows, list)
        or not isinstance(checks, list)
        or max(len(rows), len(checks)) > MOST
    ):
        raise ValueError("its findings are no list, or too long a one")
    findings = tuple(map(_finding, rows))
    _refuse_contradictions(findings)
    return Results(
        _age(kept, answer),
        require_text(kept["about"], CUT),
        tuple(require_text(name, CUT) for name in checks),
        findings,
    )


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; ValueError where a key stands twice, for readers would differ in which one counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _age(kept: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """The seconds since it was stored in this boot; None where that was another one."""
    stored, now = require_number(kept["uptime"]), require_number(answer["uptime"])
    if require_text(kept["boot"], CUT) != answer["boot"]:
        return None
    if not 0 <= stored <= now:
        raise ValueError(f"it was stored {stored:g} s after the boot, which was {now:g} s ago")
    return now - stored


def _refuse_contradictions(findings: tuple[Finding, ...]) -> None:
    """Raise ValueError where a check passes and also does not; a look never ends like that."""
    passed = {finding.check for finding in findings if finding.verdict == "pass"}
    if both := sorted(
        passed.intersection(finding.check for finding in findings if finding.verdict in _TROUBLE)
    ):
        raise ValueError(f"{both[0]!r:.40} passes and does not pass")


def rows_of(findings: tuple[Finding, ...], node: Node) -> list[dict[str, Any]]:
    """The findings about one node as they are kept; a silence is asked for again when they are read."""
    mine = [finding for finding in findings if node.name in finding.nodes]
    keys = (*_TEXTS, "verdict", "severity", "reason")
    rows = [{key: getattr(finding, key) for key in keys} for finding in mine]
    return [
        {key: value if value is None else value[:CUT] for key, value in row.items()} for row in rows
    ]


def _finding(row: Any) -> Finding:
    if not isinstance(row, dict):
        raise ValueError("a finding is no object")  # noqa: TRY004 - bad data, not a bad call
    verdict, severity = row["verdict"], row["severity"]
    if verdict not in _VERDICTS or severity not in _SEVERITIES:
        raise ValueError("a finding has a verdict or a severity that is none")
    check, message, seen, wanted, remedy = (require_text(row[key], CUT) for key in _TEXTS)
    found = Finding(check, verdict, severity, (), message, seen, wanted, remedy)
    return replace(
        found,
        reason=(require_text(row["reason"], CUT) or "not said")
        if verdict in ("unknown", "skip")
        else None,
    )


RESULTS = Fact(
    "store.results", lambda node, inventory: (Read("results", (path_of(node),)),), parse_results
)
