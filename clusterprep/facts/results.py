"""The findings of deep checks that a node stores, and their age by the node's own clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts import Fact, under
from clusterprep.facts.journal import STATE
from clusterprep.model import Finding, Inventory, Node, Read
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.untrusted import require_number, require_text

SCHEMA = 1
NAME = "deep.json"
LONGEST_TEXT = 2000  # characters of one text of a finding
MAX_FINDINGS = 2000  # findings; a node has some thirty
_TEXTS = ("check", "message", "seen", "wanted", "remedy")
_TROUBLE = ("fail", "unknown")
_VERDICTS, _SEVERITIES = ("pass", "fail", "unknown", "skip"), ("error", "warning")


class Results(Struct, frozen=True):
    """The stored results of an earlier run.

    `age` in seconds is None where the node was booted since. It comes from the time since the boot,
    because the clock may have been set meanwhile. `about` identifies the settings of the node at
    that time, `checks` has the names of the checks that were judged.
    """

    age: float | None
    about: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]


def path_of(node: Node) -> str:
    """Return the path of the store on a node, below its root."""
    return under(node, f"{STATE}/{NAME}")


def parse_results(answer: Mapping[str, Any] | None) -> Results | None:
    """Return the results, None where none were ever stored.

    Raises ValueError for what we would not have written.
    """
    if answer is None:
        return None
    text = require_text(answer["text"], MAX_TEXT)
    stored = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_constant=_refuse_constant,
    )
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        raise ValueError(f"{NAME} is no store of schema {SCHEMA}")
    rows = _short_list(stored["findings"])
    names = _short_list(stored["checks"])
    findings = tuple(map(_finding, rows))
    _refuse_contradictions(findings)
    return Results(
        age=_age(stored, answer),
        about=require_text(stored["about"], LONGEST_TEXT),
        checks=tuple(require_text(name, LONGEST_TEXT) for name in names),
        findings=findings,
    )


def _short_list(rows: object) -> list[Any]:
    if not isinstance(rows, list) or len(rows) > MAX_FINDINGS:
        raise ValueError("its findings are no list, or too long a one")
    return rows


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs.

    Raises ValueError where a key stands twice, for readers would differ in which one counts.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice")
    return members


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _age(stored: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """Return the seconds since the results were stored, None where that was in another boot."""
    stored_at = require_number(stored["uptime"])
    now = require_number(answer["uptime"])
    if require_text(stored["boot"], LONGEST_TEXT) != answer["boot"]:
        return None
    if not 0 <= stored_at <= now:
        raise ValueError(f"it was stored {stored_at:g} s after the boot, which was {now:g} s ago")
    return now - stored_at


def _refuse_contradictions(findings: tuple[Finding, ...]) -> None:
    """Raise ValueError where a check both passes and does not; no run ends like that."""
    passed = set()
    troubled = set()
    for finding in findings:
        if finding.verdict == "pass":
            passed.add(finding.check)
        elif finding.verdict in _TROUBLE:
            troubled.add(finding.check)
    if contradicting := passed & troubled:
        raise ValueError(f"{min(contradicting)!r:.40} passes and does not pass")


def rows_of(findings: tuple[Finding, ...], node: Node) -> list[dict[str, Any]]:
    """Return the findings about one node as they are stored.

    Silences are not stored: whether one applies is decided again when the results are read.
    """
    return [_row(finding) for finding in findings if node.name in finding.nodes]


def _row(finding: Finding) -> dict[str, Any]:
    row = {}
    for key in (*_TEXTS, "verdict", "severity", "reason"):
        text = getattr(finding, key)
        row[key] = None if text is None else text[:LONGEST_TEXT]
    return row


def _finding(row: Any) -> Finding:
    """Return a stored finding, without its nodes. Raises ValueError if it has wrong values."""
    if not isinstance(row, dict):
        raise ValueError("a finding is no object")  # noqa: TRY004 - bad data, not a bad call
    verdict = row["verdict"]
    severity = row["severity"]
    if verdict not in _VERDICTS or severity not in _SEVERITIES:
        raise ValueError("a finding has a verdict or a severity that is none")
    check, message, seen, wanted, _ = (require_text(row[key], LONGEST_TEXT) for key in _TEXTS)
    finding = Finding(
        check,
        verdict,
        severity,
        (),
        message,
        seen,
        wanted,
    )
    if verdict not in ("unknown", "skip"):
        return finding
    reason = require_text(row["reason"], LONGEST_TEXT) or "not said"
    return replace(finding, reason=reason)


def _result_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("results", (path_of(node),)),)


RESULTS = Fact("store.results", _result_reads, parse_results, moves=True)
