"""The commands about earlier runs: `history`, `compare` and `report`. No node is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from clusterprep.cli import options
from clusterprep.errors import InputError

if TYPE_CHECKING:
    from clusterprep.history.runs import Runs
    from clusterprep.model import Report
    from clusterprep.model.history import FactChange, RecordedRun

LISTED = 20  # runs shown without --all
PLAIN = ("console", "json")  # formats of what is no report of a run

Answer = TypeVar("Answer")

_run = click.argument("run", metavar="RUN")


@click.group(invoke_without_command=True)
@click.option("--cluster", metavar="NAME", help="Only runs of this cluster.")
@click.option("--all", "everything", is_flag=True, help=f"Not only the newest {LISTED}.")
@options.reporting
def history(**words: Any) -> None:
    """Earlier runs, newest first; `history show RUN` shows one of them."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    most = -1 if words["everything"] else LISTED
    _check(words, PLAIN)
    runs = _readable(lambda runs: runs.all(words["cluster"], most))
    _finish(replace(_answer("history", words["cluster"] or ""), runs=tuple(runs)), words)


@history.command()
@_run
@options.reporting
def show(run: str, **words: Any) -> None:
    """One run, with the inventory that it was about. RUN: its name, what it begins with, `last`, `last~1`."""
    words = _with_those_before(words)
    _check(words)
    found, whole = _readable(lambda runs: _whole(runs, run))
    notice = f"recorded by clusterprep {found.tool} from {found.inventory or 'no inventory'}; no node was asked"
    _finish(replace(whole, notices=(notice, *whole.notices)), words)


@click.command()
@_run
@options.reporting
def report(run: str, **words: Any) -> None:
    """Render the report of an earlier run again, in any format. RUN: its name, or `last`."""
    _check(words)
    _, whole = _readable(lambda runs: _whole(runs, run))
    _finish(whole, words)


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B", default="last")
@options.reporting
def compare(before: str, after: str, **words: Any) -> None:
    """What changed from run A to run B: failures, facts, environment, bandwidth. B by default: `last`."""
    from clusterprep.history import compare as compared

    _check(words, PLAIN)

    def both(runs: Runs) -> Report:
        a, b = runs.named(before), runs.named(after)
        old, new = runs.report(a.run), runs.report(b.run)
        changes, beside = _facts(runs, (a, old), (b, new))
        comparison = compared.compare((a, old), (b, new), changes, beside)
        answer = replace(_answer("compare", b.cluster), comparison=comparison)
        if a.cluster != b.cluster:
            answer = replace(
                answer, notices=(f"{a.run} was of cluster {a.cluster}, {b.run} of {b.cluster}",)
            )
        return answer

    _finish(_readable(both), words)


def _facts(
    runs: Runs, a: tuple[RecordedRun, Report], b: tuple[RecordedRun, Report]
) -> tuple[list[FactChange], list[str]]:
    """What differs in facts that stand still, one fact at a time, and the names of those that one run lacks."""
    from clusterprep.history.compare import MOVING, fact_changes

    before, after = (set(runs.facts(run.run)) - MOVING for run, _ in (a, b))
    names = [[node.node for node in report.nodes or ()] for _, report in (a, b)]
    changes = [
        change
        for fact in sorted(before & after)
        for change in fact_changes(
            fact, runs.column(a[0].run, fact, names[0]), runs.column(b[0].run, fact, names[1])
        )
    ]
    return changes, sorted(before ^ after)


def _whole(runs: Runs, text: str) -> tuple[RecordedRun, Report]:
    run = runs.named(text)
    return run, runs.whole(run.run)


def _with_those_before(words: dict[str, Any]) -> dict[str, Any]:
    """Options of reports that were given before `show` count as those behind it."""
    context = click.get_current_context()
    group = context.parent.params if context.parent else {}
    default = click.core.ParameterSource.DEFAULT
    return {
        k: group.get(k, v) if context.get_parameter_source(k) == default else v
        for k, v in words.items()
    }


def _readable(ask: Callable[[Runs], Answer]) -> Answer:
    """The answer of the history; a file that cannot be used is wrong input here, where it is all that was asked for."""
    from clusterprep.history import state_folder
    from clusterprep.history.database import Unusable
    from clusterprep.history.runs import Runs

    try:
        return ask(Runs(state_folder()))
    except Unusable as error:
        raise InputError.of(str(error)) from None


def _answer(command: str, cluster: str) -> Report:
    from datetime import datetime, timezone

    from clusterprep.model import Report

    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    return Report(command, "", cluster, now, 0.0, "pass", 0)


def _check(words: dict[str, Any], formats: tuple[str, ...] | None = None) -> None:
    """Refuse a format that cannot be rendered, and a file that cannot be written, before anything is read."""
    from clusterprep.reports import select_format
    from clusterprep.reports.files import check

    check(words["fmt"], words["output"])
    for fmt in (words["fmt"], *map(select_format, words["output"])):
        if formats and fmt not in formats:
            raise InputError.of(
                f"this cannot be shown as '{fmt}'",
                key="--format",
                hint=f"one of {', '.join(formats)}",
            )


def _finish(report: Report, words: dict[str, Any]) -> NoReturn:
    """What was asked for could be shown, so the code is 0; who asks as Nagios gets the code of what is shown."""
    from clusterprep.cli.terminal import show as shown
    from clusterprep.reports import exit_code, pieces

    code = exit_code(report, words["fmt"]) if words["fmt"] == "nagios" else 0
    shown(words, code, lambda fmt, **page: pieces(report, fmt, **page))
    raise SystemExit(code)
