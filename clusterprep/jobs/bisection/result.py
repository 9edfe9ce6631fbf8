"""Make the result of a bisect of its search: culprits, and the runs that show them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterprep.jobs.bisection.evidence import Fault
from clusterprep.jobs.bisection.search import Run, Search
from clusterprep.model import BisectResult, BisectRun, Culprit, Verdict
from clusterprep.model.nodeset import fold

SHOWN = 3  # runs of each kind that are quoted for a culprit
SURE, SO_FAR = 0.95, 0.5


def result_of(
    search: Search, command: Sequence[str], most_runs: int, stopped: str, logs: str
) -> BisectResult:
    """Return the result. `stopped` says why the search did not come to its end; "" if it did."""
    undecided = stopped
    notes: tuple[str, ...] = ()
    if search.found is not None:
        undecided = search.found.undecided
        notes = search.found.notes
    confidence = SO_FAR if undecided else SURE
    culprits = [_culprit(fault, search.runs, confidence) for fault in search.faults]
    verdict: Verdict = "pass"
    if undecided:
        verdict = "unknown"
    elif culprits:
        verdict = "fail"
    return BisectResult(
        verdict=verdict,
        command=tuple(command),
        most_runs=most_runs,
        runs=tuple(_rows(search.runs)),
        culprits=tuple(culprits),
        message="; ".join((undecided, *notes)) if undecided else "; ".join(notes),
        logs=logs,
    )


def _rows(runs: Iterable[Run]) -> Iterable[BisectRun]:
    for number, run in enumerate(runs, 1):
        seconds = round(run.outcome.seconds, 3)
        yield BisectRun(number, run.nodes, run.ended, seconds, run.outcome.why)


def _culprit(fault: Fault, runs: Sequence[Run], confidence: float) -> Culprit:
    names = " and ".join(fault.nodes)
    verb = _verb(fault, runs)
    if len(fault.nodes) > 1:
        cause = f"the command {verb} where {names} run it together, and not with one of them"
        return Culprit("link", fault.nodes, confidence, cause, _evidence(fault, runs))
    cause = f"the command {verb} wherever {names} is among the nodes, and not without it"
    return Culprit("node", fault.nodes, confidence, cause, _evidence(fault, runs))


def _verb(fault: Fault, runs: Iterable[Run]) -> str:
    """Return what the command does with a fault: it fails in some way unless it always hangs."""
    if fault.slow:
        return "is slow"
    ends = {run.ended for run in runs if frozenset(fault.nodes) <= frozenset(run.nodes)}
    return "hangs" if ends == {"hung"} else "fails"


def _evidence(fault: Fault, runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the smallest runs with the fault, and those most like them without it."""
    nodes = frozenset(fault.nodes)
    failed, passed = [], []
    for number, run in enumerate(runs, 1):
        if nodes <= frozenset(run.nodes):
            if run.ended != "passed":
                failed.append((len(run.nodes), number, run))
        elif run.ended == "passed":
            # Runs with a part of a pair tell most.
            without = -len(nodes & frozenset(run.nodes))
            passed.append((without, len(run.nodes), number, run))
    shown = [_line(number, run) for _, number, run in sorted(failed, key=_place)[:SHOWN]]
    shown += [_line(number, run) for _, _, number, run in sorted(passed, key=_place)[:SHOWN]]
    return tuple(shown)


def _place(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return a row without its run, which has no order."""
    return row[:-1]


def _line(number: int, run: Run) -> str:
    seconds = f"{run.outcome.seconds:.1f} s"
    words = {
        "passed": f"passed in {seconds}",
        "failed": f"failed after {seconds}",
        "hung": f"hung for {seconds}",
        "slow": f"was slow: {seconds}",
    }
    why = f": {run.outcome.why}" if run.outcome.why else ""
    return f"run {number} on {fold(run.nodes)} {words[run.ended]}{why}"
