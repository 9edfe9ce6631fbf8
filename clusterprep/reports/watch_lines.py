"""Render what a watch tells: a line for each change, or a JSON object for each. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from clusterprep.model.units import format_duration, pluralize
from clusterprep.reports.plain import fold_nodes, safe_text
from clusterprep.survey.watch.changes import Change

SCHEMA = 1
_KIND_WIDTH = len("unsteady")
_INDENT = " " * len("10:15:03  ")


def console_lines(changes: Iterable[Change], at: datetime) -> Iterator[str]:
    """Yield the lines of the changes of one look, as a person reads them."""
    for change in changes:
        yield f"{at:%H:%M:%S}  {change.kind:<{_KIND_WIDTH}}  {_subject(change)}"
        if change.kind not in ("gone", "back") and change.remedy:
            yield f"{_INDENT}do: {safe_text(change.remedy)}"
        for line in change.lines:
            yield f"{_INDENT}| {safe_text(line)}"
        if change.left_out:
            yield f"{_INDENT}| and {pluralize(change.left_out, 'line')} before"


def _subject(change: Change) -> str:
    """Return nodes, severity, check and what it says."""
    parts = []
    if change.nodes:
        parts.append(fold_nodes(change.nodes))
    if change.kind not in ("down", "back") and change.check:
        parts.append(f"{_grade(change)} {change.check}")
    words = ": ".join((" ".join(parts), *_said(change))) if parts else "; ".join(_said(change))
    if change.seconds is not None:
        return f"{words}, after {format_duration(round(change.seconds))}"
    return words


def _grade(change: Change) -> str:
    """Return the severity, and that it is not known whether anything is wrong."""
    grade = str(change.severity)
    return f"{grade} (unknown)" if change.verdict == "unknown" else grade


def _said(change: Change) -> Iterator[str]:
    """Yield what was said, with what was seen and wanted where that is of interest."""
    text = safe_text(change.message)
    if change.kind == "gone":
        if text:
            yield text
        return
    if change.seen:
        text = f"{text}; seen {safe_text(change.seen)}" if text else safe_text(change.seen)
    if change.wanted:
        text = f"{text}; wanted {safe_text(change.wanted)}"
    if text:
        yield text


def json_rows(changes: Iterable[Change], at: datetime, cluster: str) -> Iterator[str]:
    """Yield the changes of one look as JSON, an object on a line for each."""
    for change in changes:
        row = {
            "schema": SCHEMA,
            "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "cluster": cluster,
            **object_of(change),
        }
        yield json.dumps(row, ensure_ascii=True)


def object_of(change: Change) -> dict[str, Any]:
    """Return a change as JSON values. What does not apply to its kind is left out."""
    row: dict[str, Any] = {
        "kind": change.kind,
        "nodes": list(change.nodes),
    }
    texts = {
        "check": change.check,
        "verdict": change.verdict,
        "severity": change.severity,
        "message": change.message,
        "seen": change.seen,
        "wanted": change.wanted,
        "remedy": change.remedy,
    }
    for name, text in texts.items():
        if text:
            row[name] = safe_text(text)
    if change.seconds is not None:
        row["seconds"] = round(change.seconds, 1)
    if change.lines:
        row["lines"] = [safe_text(line) for line in change.lines]
        row["left_out"] = change.left_out
    return row
