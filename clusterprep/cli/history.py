"""The commands about recorded runs: `history`, `compare` and `report`. They contact no node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from clusterprep.cli import completion, options
from clusterprep.errors import InputError

if TYPE_CHECKING:
    from clusterprep.history.parts import Parts
    from clusterprep.history.runs import Runs
    from clusterprep.model import Report
    from clusterprep.model.history import FactChange, PartMove, RecordedRun

LISTED = 20  # runs shown without --all
PLAIN = ("console", "json")  # formats of lists and comparisons, which are no reports of one run

Answer = TypeVar("Answer")

run_argument = click.argument("run", metavar="RUN", shell_complete=completion.runs)


@click.group(invoke_without_command=True)
@click.option("--cluster", metavar="NAME", help="Only runs of this cluster.")
@click.option("--all", "everything", is_flag=True, help=f"Not only the newest {LISTED}.")
@options.reporting
def history(**params: Any) -> None:
    """Earlier runs, newest first; `history show RUN` shows one of them."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    _check_formats(params, PLAIN)
    cluster = params["cluster"]
    limit = -1 if params["everything"] else LISTED
    recorded = _read(lambda runs: runs.all(cluster, limit))
    notices: tuple[str, ...] = ()
    if cluster is not None and not recorded:
        known = sorted({run.cluster for run in _read(lambda runs: runs.all())})
        if known:
            notices = (f"no run of cluster {cluster!r} is recorded, but of {', '.join(known)}",)
    answer = _new_report("history", cluster or "", runs=tuple(recorded), notices=notices)
    _finish(answer, params)


@history.command()
@run_argument
@options.reporting
def show(run: str, **params: Any) -> None:
    """One run with its inventory. RUN: its name, the beginning of it, `last`, `last~1`."""
    from msgspec.structs import replace

    params = _with_options_of_group(params)
    _check_formats(params)
    recorded_run, whole_report = _read(lambda runs: _whole_report(runs, run))
    inventory = recorded_run.inventory or "no inventory"
    notice = f"recorded by clusterprep {recorded_run.tool} from {inventory}; no node was asked"
    notices = (notice, *whole_report.notices)
    _finish(replace(whole_report, notices=notices), params)


@click.command()
@run_argument
@options.reporting
def report(run: str, **params: Any) -> None:
    """Render the report of an earlier run again, in any format. RUN: its name, or `last`."""
    _check_formats(params)
    _, whole_report = _read(lambda runs: _whole_report(runs, run))
    _finish(whole_report, params)


@click.command()
@click.argument("before", metavar="A", shell_complete=completion.runs)
@click.argument("after", metavar="B", default="last", shell_complete=completion.runs)
@options.reporting
def compare(before: str, after: str, **params: Any) -> None:
    """What changed from run A to run B: failures, parts, facts, environment, bandwidth.

    B by default: `last`.
    """
    _check_formats(params, PLAIN)
    _finish(_read(lambda runs: _comparison(runs, before, after)), params)


def show_findings(run: str, check: str, params: dict[str, Any]) -> NoReturn:
    """Show what a check found in an earlier run, whole, and exit with 0.

    `check` may be the beginning of several names, such as `time.`. Raises InputError if the run is
    not recorded or has nothing of that name.
    """
    from clusterprep.cli.commands.report import findings_report

    def read(runs: Runs) -> Report:
        return findings_report(runs.report(runs.named(run, key="--run").run), check)

    found = _read(read)
    _finish(found, {**params, "verbose": max(params["verbose"], 1)})


# ---------------------------------------------------------------- reading the history


def _read(ask: Callable[[Runs], Answer]) -> Answer:
    """Return what `ask` reads from the recorded runs. Raises InputError if they cannot be read."""
    from clusterprep.history import state_folder
    from clusterprep.history.database import Unusable
    from clusterprep.history.runs import Runs

    try:
        return ask(Runs(state_folder()))
    except Unusable as error:
        raise InputError.of(str(error)) from None


def _whole_report(runs: Runs, name: str) -> tuple[RecordedRun, Report]:
    """Return a run by its name, and its report with the facts of the nodes."""
    run = runs.named(name)
    return run, runs.whole(run.run)


def _comparison(runs: Runs, before: str, after: str) -> Report:
    """Return the report of `compare` for two runs, given by name."""
    from clusterprep.history import compare as comparing
    from clusterprep.history.parts import moves

    old = runs.named(before)
    new = runs.named(after)
    old_report = runs.report(old.run)
    new_report = runs.report(new.run)
    moved = moves(_parts(runs, old_report), _parts(runs, new_report))
    changes, lacking = _fact_changes(
        runs,
        (old, old_report),
        (new, new_report),
        moved,
    )
    comparison = comparing.compare(
        (old, old_report),
        (new, new_report),
        changes,
        lacking,
        moved,
    )
    notices: list[str] = []
    if old.cluster != new.cluster:
        notice = f"{old.run} was of cluster {old.cluster}, {new.run} of {new.cluster}"
        notices.append(notice)
    return _new_report(
        "compare",
        new.cluster,
        comparison=comparison,
        notices=tuple(notices),
    )


def _fact_changes(
    runs: Runs,
    before: tuple[RecordedRun, Report],
    after: tuple[RecordedRun, Report],
    moved: Sequence[PartMove],
) -> tuple[list[FactChange], list[str]]:
    """Return the changed facts, and the names of facts that only one of the runs has.

    `moved` are the parts that are told to have moved, come or gone: they are not told again. Facts
    that differ from one moment to the next are left out. One fact is read at a time, since all
    facts of a large fleet would take much memory.
    """
    from clusterprep.history.compare import fact_changes
    from clusterprep.history.parts import with_common_parts
    from clusterprep.survey import registry

    old, old_report = before
    new, new_report = after
    moving = {name for name, fact in registry.facts().items() if fact.moves}
    for earlier in (old_report, new_report):
        for site_check in earlier.site_checks or ():
            moving.update(site_check.moving)
    old_names = set(runs.facts(old.run)) - moving
    new_names = set(runs.facts(new.run)) - moving
    old_nodes = _node_names(old_report)
    new_nodes = _node_names(new_report)
    changes: list[FactChange] = []
    for fact in sorted(old_names & new_names):
        old_values = runs.column(old.run, fact, old_nodes)
        new_values = runs.column(new.run, fact, new_nodes)
        common = with_common_parts(fact, old_values, new_values, moved)
        changes.extend(fact_changes(fact, *common))
    return changes, sorted(old_names ^ new_names)


def _parts(runs: Runs, report: Report) -> Parts:
    """Return which parts were where in a recorded run."""
    from clusterprep.history.parts import FACTS, parts_of

    nodes = _node_names(report)
    return parts_of({fact: runs.column(report.run, fact, nodes) for fact in FACTS})


def _node_names(report: Report) -> Sequence[str]:
    snapshots = report.nodes or ()
    return [snapshot.node for snapshot in snapshots]


# ---------------------------------------------------------------- options and showing


def _with_options_of_group(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options, also those given before `show`, as in `history --format json show`."""
    context = click.get_current_context()
    group = context.parent.params if context.parent else {}
    default = click.core.ParameterSource.DEFAULT
    combined = dict(params)
    for name in params:
        if context.get_parameter_source(name) == default and name in group:
            combined[name] = group[name]
    return combined


def _check_formats(params: dict[str, Any], formats: Sequence[str] | None = None) -> None:
    """Raise InputError for an unknown format or a file that cannot be written.

    `formats` limits the formats that the command has.
    """
    from clusterprep.reports import select_format
    from clusterprep.reports.files import check

    check(params["fmt"], params["output"])
    for fmt in (params["fmt"], *map(select_format, params["output"])):
        if formats and fmt not in formats:
            raise InputError.of(
                f"this cannot be shown as '{fmt}'",
                key="--format",
                hint=f"one of {', '.join(formats)}",
            )


def _new_report(command: str, cluster: str, **sections: Any) -> Report:
    from clusterprep.cli.commands.report import new_report
    from clusterprep.cli.exit_codes import OK

    return new_report(command, OK, cluster=cluster, **sections)


def _finish(report: Report, params: dict[str, Any]) -> NoReturn:
    """Show a report and exit with 0, as it could be shown. With --format nagios its code counts."""
    from clusterprep.cli.terminal import show as show_text
    from clusterprep.reports import exit_code, pieces

    def render(fmt: str, **page: Any) -> Iterable[str]:
        return pieces(report, fmt, **page)

    code = exit_code(report, params["fmt"]) if params["fmt"] == "nagios" else 0
    show_text(params, code, render)
