"""Render the result of `diagnose --live` for the console, and as the document of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterprep.jobs.live.model import JobRow, LiveDiagnosis
from clusterprep.model import Json
from clusterprep.model.units import pluralize
from clusterprep.reports import diagnosis as pages
from clusterprep.reports.plain import clean, safe_text

if TYPE_CHECKING:
    from clusterprep.jobs.diagnose.model import DiagnosedCause
    from clusterprep.reports.page import Part, ReportPage

_STYLES = {"stuck": "bold red", "moving": "bold green", "unknown": "bold yellow"}
_LINE = 300  # characters of a line on the console
_MESSAGE = 1000
_MOST_ROWS = 16  # ranks of a job that are shown without -v


def render(
    found: LiveDiagnosis, fmt: str, *, color: bool, verbose: int, width: int, ascii_only: bool
) -> str:
    """Return the live diagnosis as text in the format "console" or "json"."""
    if fmt == "json":
        return pages.as_text(document(found))
    from clusterprep.reports.page import QUIET, ReportPage

    page = ReportPage(color=color, verbose=verbose, width=width, ascii_only=ascii_only)
    label: Part = (found.state.upper(), _STYLES[found.state])
    if verbose == QUIET:
        page.line(label, _verdict(found))
        return page.show()
    nodes = pluralize(len(found.diagnosis.files), "node")
    jobs = pluralize(len(found.jobs), "job")
    command: Part = ("diagnose --live", "bold")
    head: Part = ("clusterprep", "bold")
    page.row(head, command, f"  {jobs} on {nodes}", indent=len("clusterprep "))
    page.blank()
    for notice in found.diagnosis.notices:
        page.row(("note", "yellow"), safe_text(notice))
    for job in found.jobs:
        _write_job(page, job)
    for cause in found.diagnosis.causes:
        _write_cause(page, cause)
    page.blank()
    page.row(label, (_verdict(found), "bold"))
    return page.show()


def document(found: LiveDiagnosis) -> dict[str, Json]:
    """Return the diagnosis as what json.loads gives, with `live` besides."""
    jobs: list[Json] = [_job(job) for job in found.jobs]
    notices: list[Json] = [clean(notice) for notice in found.diagnosis.notices]
    live: dict[str, Json] = {"state": found.state, "jobs": jobs, "notices": notices}
    return {**pages.document(found.diagnosis), "live": live}


def _job(job: JobRow) -> Json:
    ranks: list[Json] = []
    for row in job.ranks:
        rank: dict[str, Json] = {"rank": row.rank, "node": row.node, "pid": row.pid}
        rank["does"] = clean(row.does)
        ranks.append(rank)
    return {"name": clean(job.name), "state": job.state, "size": job.size, "ranks": ranks}


def _write_job(page: ReportPage, job: JobRow) -> None:
    page.blank()
    label: Part = (job.state.upper(), _STYLES[job.state])
    page.row(label, (safe_text(job.name), "bold"))
    if job.state == "moving" and not page.verbose:
        return
    for row in page.shown(job.ranks, _MOST_ROWS):
        number = "rank ?" if row.rank is None else f"rank {row.rank}"
        place: Part = (f"{number} on {row.node}, pid {row.pid}: ", "dim")
        page.under(place, safe_text(row.does, _LINE))


def _write_cause(page: ReportPage, found: DiagnosedCause) -> None:
    page.blank()
    sure: Part = (f"  ({found.confidence:.0%} sure)", "dim")
    page.row(("CAUSE", "bold red"), (found.cause.name, "bold"), f"  {found.cause.title}", sure)
    if found.culprit:
        page.under(("culprit: ", "dim"), (safe_text(found.culprit), "bold"))
    page.under(safe_text(found.message, _MESSAGE))
    for line in found.lines:
        page.under((f"{safe_text(line.file)}  ", "dim"), safe_text(line.text, _LINE))
    remedy = found.cause.remedy
    page.fix(remedy, remedy.note, "cyan")


def _verdict(found: LiveDiagnosis) -> str:
    if found.state == "moving":
        return "every job moves"
    if found.state == "unknown":
        return "whether a job hangs is not known"
    culprits = [cause.culprit for cause in found.diagnosis.causes if cause.culprit]
    return f"a job hangs: {', '.join(culprits[:3])}" if culprits else "a job hangs"
