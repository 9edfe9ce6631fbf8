"""What `diagnose` found: for people, and as the document that the contract promises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis, LogLine
from clusterprep.model import Json
from clusterprep.reports.plain import clean, counted, field

if TYPE_CHECKING:
    from clusterprep.reports.page import Part, ReportPage

SCHEMA = 1
QUOTED = 400  # characters of a line in the document; on the page fewer
_SHOWN = 200
_STYLES = {"fatal": "bold red", "degraded": "bold yellow", "benign": "green"}
FORMATS = ("console", "json")


def check_formats(*wanted: str) -> None:
    """Refuse what a diagnosis cannot be written as, before anything is read."""
    for fmt in wanted:
        if fmt not in FORMATS:
            raise InputError.of(
                f"a diagnosis is not written as '{fmt}'", hint=f"one of {', '.join(FORMATS)}"
            )


def render(
    diagnosis: Diagnosis, fmt: str, *, color: bool, verbose: int, width: int, ascii_only: bool
) -> str:
    if fmt == "json":
        return as_json(diagnosis)
    from clusterprep.reports.page import ReportPage

    page = ReportPage(color=color, verbose=verbose, width=width, ascii_only=ascii_only)
    return _written(page, diagnosis)


# ---------------------------------------------------------------- for scripts


def document(diagnosis: Diagnosis) -> dict[str, Json]:
    """What json.loads gives. Quoted lines are without control characters and not longer than 400 characters."""
    causes: list[Json] = [_cause(found) for found in diagnosis.causes]
    return {
        "schema": SCHEMA,
        "causes": causes,
        "unexplained": [_quoted(line) for line in diagnosis.unexplained],
    }


def as_json(diagnosis: Diagnosis) -> str:
    """ASCII, and safe inside a page of HTML too: what a log says must not become markup on its way."""
    text = json.dumps(document(diagnosis), indent=2, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e") + "\n"


def _cause(found: DiagnosedCause) -> Json:
    row: dict[str, Json] = {
        "cause": found.cause.name,
        "severity": found.severity,
        "confidence": found.confidence,
        "culprit": None if found.culprit is None else clean(found.culprit),
        "lines": [_quoted(line) for line in found.lines],
        "message": clean(found.message),
        "remedy": found.cause.remedy,
        "check": found.cause.check,
    }
    if found.live:
        row["now"] = [clean(said) for said in found.live]
    return row


def _quoted(line: LogLine) -> Json:
    return [clean(line.file), line.number, field(_shortest(line), QUOTED)]


def _shortest(line: LogLine) -> str:
    return line.text.encode("utf-8", "replace").decode().strip()


# ---------------------------------------------------------------- for people


def _written(page: ReportPage, diagnosis: Diagnosis) -> str:
    read = f"{counted(sum(diagnosis.files.values()), 'line')} of {counted(len(diagnosis.files), 'file')}"
    page.row(("clusterprep", "bold"), ("diagnose", "bold"), f"  {read}", indent=len("clusterprep "))
    page.rule()
    for notice in diagnosis.notices:
        page.row(("note", "yellow"), field(notice))
    for found in diagnosis.causes:
        _write_cause(page, found)
    if not diagnosis.causes:
        page.blank()
        page.row(("UNKNOWN", "bold yellow"), "nothing in it is known")
    if diagnosis.unexplained and (not diagnosis.causes or page.verbose or diagnosis.code == 0):
        page.blank()
        page.row(
            ("left", "yellow"), "these lines look like errors, and nothing here explains them:"
        )
        for line in diagnosis.unexplained:
            _write_line(page, line)
    _write_end(page, diagnosis)
    return str(page.show())


def _write_cause(page: ReportPage, found: DiagnosedCause) -> None:
    page.blank()
    head: list[Part] = [(found.cause.name, "bold"), f"  {found.cause.title}"]
    sure = "" if found.severity == "benign" else f"  ({found.confidence:.0%} sure)"
    page.row((found.severity.upper(), _STYLES[found.severity]), *head, (sure, "dim"))
    if found.culprit:
        page.under(("culprit: ", "dim"), (field(found.culprit), "bold"))
    if found.severity == "benign" and not page.verbose:
        _write_line(page, found.lines[0])
        return
    page.under(field(found.message, 1000))
    for line in found.lines:
        _write_line(page, line)
    if found.more > 0:
        page.under((f"… and {counted(found.more, 'more line')}", "dim"))
    if found.severity != "benign":
        page.row(("    fix:", "dim"), (found.cause.remedy, "cyan"), keep=True)
        if found.cause.check:
            page.row(("  check:", "dim"), f"{found.cause.check} finds this before the job starts")
    for said in found.live:
        page.row(("    now:", "dim"), field(said))


def _write_line(page: ReportPage, line: LogLine) -> None:
    page.under((f"{field(line.file, 60)}:{line.number}  ", "dim"), field(_shortest(line), _SHOWN))


def _write_end(page: ReportPage, diagnosis: Diagnosis) -> None:
    page.blank()
    page.rule()
    grave = [found for found in diagnosis.causes if found.severity != "benign"]
    if grave:
        benign = len(diagnosis.causes) - len(grave)
        rest = f", {benign} harmless" if benign else ""
        page.row(
            ("FAIL", "bold red"),
            (f"{counted(len(grave), 'cause')}, most likely first{rest}", "bold"),
        )
        page.row(("   more:", "dim"), f"clusterprep explain {grave[0].cause.name}", keep=True)
    elif diagnosis.causes:
        page.row(("PASS", "bold green"), ("only harmless lines", "bold"))
    else:
        page.row(("UNKNOWN", "bold yellow"), ("no known cause", "bold"))
        page.row(
            ("   next:", "dim"),
            "give the logs of all ranks, and the kernel's log of the nodes (journalctl -k)",
        )
