"""Render the result of `diagnose` for the console, and as the JSON document of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.known import command_that_finds
from clusterprep.jobs.diagnose.messages import origin
from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis, LogLine
from clusterprep.model import Json
from clusterprep.model.units import pluralize
from clusterprep.remedies import NOTE, Remedy
from clusterprep.reports.plain import clean, safe_text

if TYPE_CHECKING:
    from clusterprep.reports.page import Part, ReportPage

SCHEMA = 1
QUOTED = 400  # characters of a quoted line in the document
_SHOWN = 200  # characters of a quoted line on the console
_LONGEST_NAME = 60  # characters of a file's name on the console
_MESSAGE = 1000  # characters of a cause's message
_STYLES = {"fatal": "bold red", "degraded": "bold yellow", "benign": "green"}
FORMATS = ("console", "json")


def check_formats(*wanted: str) -> None:
    """Raise InputError for a format in which a diagnosis cannot be written."""
    for fmt in wanted:
        if fmt not in FORMATS:
            choices = ", ".join(FORMATS)
            raise InputError.of(f"a diagnosis is not written as '{fmt}'", hint=f"one of {choices}")


def render(
    diagnosis: Diagnosis, fmt: str, *, color: bool, verbose: int, width: int, ascii_only: bool
) -> str:
    """Return the diagnosis as text in the format "console" or "json"."""
    if fmt == "json":
        return to_json(diagnosis)
    from clusterprep.reports.page import QUIET, ReportPage

    page = ReportPage(color=color, verbose=verbose, width=width, ascii_only=ascii_only)
    if verbose == QUIET:
        _write_one_line(page, diagnosis)
        return page.show()
    _write_header(page, diagnosis)
    for cause in diagnosis.causes:
        _write_cause(page, cause)
    _write_unexplained(page, diagnosis)
    _write_verdict(page, diagnosis)
    return page.show()


# ---------------------------------------------------------------- JSON


def document(diagnosis: Diagnosis) -> dict[str, Json]:
    """Return the diagnosis as what json.loads gives.

    Quoted lines have no control characters and at most 400 characters.
    """
    causes: list[Json] = [_cause(cause) for cause in diagnosis.causes]
    return {
        "schema": SCHEMA,
        "causes": causes,
        "unexplained": _quoted(diagnosis.unexplained),
    }


def to_json(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as the text of its document."""
    return as_text(document(diagnosis))


def as_text(content: dict[str, Json]) -> str:
    """Return a document in ASCII, with markup escaped so that it is safe inside HTML too."""
    text = json.dumps(content, indent=2, allow_nan=False)
    for char, escaped in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(char, escaped)
    return text + "\n"


def _cause(found: DiagnosedCause) -> Json:
    row: dict[str, Json] = {"cause": found.cause.name}
    row["severity"] = found.severity
    row["confidence"] = found.confidence
    row["culprit"] = None
    if found.culprit is not None:
        row["culprit"] = clean(found.culprit)
    row["lines"] = _quoted(found.lines)
    row["message"] = clean(found.message)
    row["remedy"] = _remedy(found.cause.remedy)
    row["check"] = found.cause.check
    if found.live:
        row["now"] = [clean(sentence) for sentence in found.live]
    return row


def _remedy(remedy: Remedy) -> str:
    """Return the line with its note as a comment, for the keys of a row are fixed.

    Remedies of causes are ours, and hold no word of a log.
    """
    return f"{remedy}{NOTE}{remedy.note}" if remedy.note else str(remedy)


def _quoted(lines: Iterable[LogLine]) -> list[Json]:
    """Return file, number and text of each line."""
    rows: list[Json] = []
    for line in lines:
        text = safe_text(_stripped(line), QUOTED)
        rows.append([clean(line.file), line.number, text])
    return rows


def _stripped(line: LogLine) -> str:
    """Return the line's text without spaces around it and without lone surrogates."""
    text = line.text.encode("utf-8", "replace").decode()
    return text.strip()


# ---------------------------------------------------------------- console


def _write_header(page: ReportPage, diagnosis: Diagnosis) -> None:
    lines = pluralize(sum(diagnosis.files.values()), "line")
    files = pluralize(len(diagnosis.files), "file")
    command: Part = ("diagnose", "bold")
    indent = len("clusterprep ")
    page.row(("clusterprep", "bold"), command, f"  {lines} of {files}", indent=indent)
    page.blank()
    for notice in diagnosis.notices:
        page.row(("note", "yellow"), safe_text(notice))


def _write_cause(page: ReportPage, found: DiagnosedCause) -> None:
    benign = found.severity == "benign"
    _write_cause_head(page, found)
    if benign and not page.verbose:
        _write_line(page, found.lines[0])
        return
    page.under(safe_text(found.message, _MESSAGE))
    for line in found.lines:
        _write_line(page, line)
    if found.more > 0:
        more = pluralize(found.more, "more line")
        page.under((f"… and {more}", "dim"))
    if not benign:
        _write_remedy(page, found)
    for sentence in found.live:
        page.row(("    now:", "dim"), safe_text(sentence))


def _write_cause_head(page: ReportPage, found: DiagnosedCause) -> None:
    page.blank()
    label: Part = (found.severity.upper(), _STYLES[found.severity])
    name: Part = (found.cause.name, "bold")
    confidence = ""
    if found.severity != "benign":
        confidence = f"  ({found.confidence:.0%} sure)"
    page.row(label, name, f"  {found.cause.title}", (confidence, "dim"))
    if found.culprit:
        culprit: Part = (safe_text(found.culprit), "bold")
        page.under(("culprit: ", "dim"), culprit)


def _write_remedy(page: ReportPage, found: DiagnosedCause) -> None:
    remedy = found.cause.remedy
    page.fix(remedy, remedy.note, "cyan")
    check = found.cause.check
    command = command_that_finds(check)
    if command:
        finds = found.cause.finds or "this"
        page.row((f"{command:>7}:", "dim"), f"{check} finds {finds} before the job starts")


def _write_unexplained(page: ReportPage, diagnosis: Diagnosis) -> None:
    """List the lines that no cause explains, of which a diagnosis has a few at most.

    They stand beside causes too: what is known may follow from what is not.
    """
    if not diagnosis.causes and not diagnosis.has_succeeded:
        page.blank()
        page.row(("UNKNOWN", "bold yellow"), "nothing in it is known")
    if not diagnosis.unexplained:
        return
    page.blank()
    page.row(("left", "yellow"), "these lines look like errors, and nothing here explains them:")
    for line in diagnosis.unexplained:
        _write_line(page, line)
        source = origin(line)
        if source:
            page.under((f"  printed by {source}", "dim"))


def _write_line(page: ReportPage, line: LogLine) -> None:
    place = f"{_short_name(line.file)}:{line.number}  "
    page.under((place, "dim"), safe_text(_stripped(line), _SHOWN))


def _short_name(file: str) -> str:
    """Return the name of a file; of a long one its end, which tells the rank."""
    if len(file) > _LONGEST_NAME:
        file = f"…{file[-_LONGEST_NAME:]}"
    return safe_text(file)


def _write_one_line(page: ReportPage, diagnosis: Diagnosis) -> None:
    """Write the verdict, and of a failure the causes."""
    grave = _grave(diagnosis)
    if grave:
        names = ", ".join(found.cause.name for found in grave)
        page.line(("FAIL", "bold red"), names)
    else:
        _write_no_failure(page, diagnosis)


def _grave(diagnosis: Diagnosis) -> list[DiagnosedCause]:
    """Return the causes of a failure, without harmless lines."""
    return [found for found in diagnosis.causes if found.severity != "benign"]


def _write_verdict(page: ReportPage, diagnosis: Diagnosis) -> None:
    page.blank()
    grave = _grave(diagnosis)
    if grave:
        _write_failure(page, grave, len(diagnosis.causes) - len(grave))
        return
    _write_no_failure(page, diagnosis)
    if diagnosis.code == 0:
        return
    advice = "give the logs of all ranks, and the kernel's log of the nodes (journalctl -k)"
    page.row(("   next:", "dim"), advice)


def _write_no_failure(page: ReportPage, diagnosis: Diagnosis) -> None:
    if diagnosis.code == 0:
        verdict = "only harmless lines"
        if diagnosis.has_succeeded:
            verdict = "launch saw all ranks end with exit code 0"
        page.row(("PASS", "bold green"), (verdict, "bold"))
        return
    verdict = "no known cause"
    if diagnosis.causes:
        verdict = "only harmless lines, and nothing shows that the job ended well"
    page.row(("UNKNOWN", "bold yellow"), (verdict, "bold"))


def _write_failure(page: ReportPage, grave: list[DiagnosedCause], benign: int) -> None:
    summary = f"{pluralize(len(grave), 'cause')}, most likely first"
    if benign:
        summary += f", {benign} harmless"
    page.row(("FAIL", "bold red"), (summary, "bold"))
    command = f"clusterprep explain {grave[0].cause.name}"
    page.row(("   more:", "dim"), command, keep=True)
