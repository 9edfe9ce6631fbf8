"""The list of what is in a bundle: index.html for people, contents.json for programs. Pure.

What is missing, and why, is as prominent as what is there.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from clusterprep import __version__
from clusterprep.model import Finding, Json
from clusterprep.model.units import pluralize
from clusterprep.reports.blocks import summarize
from clusterprep.reports.bundle.contents import Contents, Member, NodePart, Row
from clusterprep.reports.bundle.node_answers import rough_size
from clusterprep.reports.html_report import environment, page_parts
from clusterprep.reports.plain import fold_nodes
from clusterprep.survey.consequences import standing

TEMPLATE = "bundle.html"
SCHEMA = 1
FINDINGS = 50  # shown; all are in the report
# CSS classes by state; others are unknown.
KINDS = {
    "present": "p",
    "empty": "n",
    "absent": "n",
    "refused": "f",
    "failed": "f",
}


# What is missing because it is not there comes last.
_WEIGHTS = {"present": 1, "empty": 2, "absent": 3}


class Missing(Struct, frozen=True):
    """What is not there, or not whole, for the same reason on some nodes."""

    title: str
    state: str
    note: str
    nodes: str = ""


def with_index(contents: Contents) -> tuple[Member, ...]:
    """Return all files of the archive, the two lists of them included."""
    pages = (
        _member("contents.json", list_for_programs(contents)),
        _member("index.html", page(contents)),
    )
    return (*contents.members, *pages)


def _member(path: str, text: str) -> Member:
    data = text.encode("utf-8", "backslashreplace")
    return Member(path, zlib.compress(data), len(data))


def list_for_programs(contents: Contents) -> str:
    """Return the list as JSON."""
    document: Json = {"schema": SCHEMA, "tool": __version__, "run": contents.report.run}
    document["redacted"] = not contents.has_names
    document["files"] = [_file(member) for member in contents.members]
    rows = [_row(row, None) for row in contents.rows]
    for part in contents.nodes:
        rows.extend(_row(row, part.node) for row in part.rows)
    document["answers"] = rows
    document["nodes_not_asked"] = contents.not_asked
    return json.dumps(document, indent=1) + "\n"


def _file(member: Member) -> Json:
    digest = hashlib.sha256(zlib.decompress(member.packed)).hexdigest()
    return {"path": member.path, "bytes": member.size, "sha256": digest}


def _row(row: Row, node: str | None) -> Json:
    return {
        "node": node,
        "title": row.title,
        "path": row.path or None,
        "state": row.state,
        "note": row.note,
    }


def page(contents: Contents) -> str:
    """Return the index page. It loads nothing, and every text in it is escaped."""
    findings = _counting(contents.report.findings or ())
    values: dict[str, Any] = {
        "report": contents.report,
        "tool": contents.tool,
        "version": __version__,
        "kinds": KINDS,
        "rough_size": rough_size,
    }
    values |= page_parts()
    values["counts"] = summarize(contents.report)
    values["has_names"] = contents.has_names
    values["asks_nodes"] = contents.asks_nodes
    sizes = [member.size for member in contents.members]
    values["files_text"] = _count_and_size(sizes)
    values["rows"] = contents.rows
    values["findings"] = [_finding(finding) for finding in findings[:FINDINGS]]
    values["findings_left"] = max(0, len(findings) - FINDINGS)
    values["missing"] = list(missing(contents))
    values["nodes"] = [_node(part) for part in contents.nodes]
    return environment(TEMPLATE).get_template(TEMPLATE).render(**values) + "\n"


def _counting(findings: Sequence[Finding]) -> list[Finding]:
    """Return the failed and unknown findings that count, errors first."""
    counting = []
    for finding in standing(findings):
        counts = finding.verdict in ("fail", "unknown")
        if counts and not finding.silenced and not finding.fixed:
            counting.append(finding)
    return sorted(counting, key=lambda one: (one.severity != "error", one.verdict != "fail"))


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "verdict": finding.verdict,
        "check": finding.check,
        "nodes": fold_nodes(finding.nodes),
        "message": finding.message,
        "seen": finding.seen,
    }


def _node(part: NodePart) -> dict[str, Any]:
    sizes = [row.size for row in part.rows if row.path]
    return {
        "node": part.node,
        "rows": part.rows,
        "text": _count_and_size(sizes),
    }


def _count_and_size(sizes: Sequence[int]) -> str:
    return f"{pluralize(len(sizes), 'file')}, {rough_size(sum(sizes))}"


def missing(contents: Contents) -> Iterable[Missing]:
    """Yield what is not there or not whole, the same of several nodes once."""
    for row in contents.rows:
        if row.state != "present":
            yield Missing(row.title, row.state, row.note)
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for part in contents.nodes:
        for row in part.rows:
            if row.state not in ("present", "empty") or row.note:
                nodes.setdefault((row.title, row.state, row.note), []).append(part.node)
    weightiest_first = sorted(nodes.items(), key=lambda item: _WEIGHTS.get(item[0][1], 0))
    for (title, state, note), names in weightiest_first:
        yield Missing(title, state, note, fold_nodes(names))
    if contents.not_asked:
        reason = "a bundle has evidence of so many nodes only; --limit chooses others"
        yield Missing("all of it", "not asked", reason, fold_nodes(contents.not_asked))
