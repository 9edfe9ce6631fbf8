"""Turn what the processes of the stress tier said into the results of a node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from clusterprep.facts.stress import DeviceResult, FailedTest, StressResults
from clusterprep.jobs.stress.plan import Seat, StressPlan
from clusterprep.remote.agent.stress import LIMITS
from clusterprep.remote.untrusted import require_integer, require_number, shortened

ALARM = 14  # SIGALRM: the process was ended at the limit of a test
RATES = ("gemm", "copy", "to_device", "to_host")
MOST_PAIRS = 64 * 63
EVERY = "every test"  # a failure that leaves none to be run


def results_of(plan: StressPlan, said: Iterable[Mapping[str, Any]]) -> StressResults:
    """Return the results of a node from the reports of its processes, in their order.

    Raises ValueError, LookupError or TypeError for reports that no process of ours sends.
    """
    by_number: dict[int, list[Mapping[str, Any]]] = {seat.number: [] for seat in plan.seats}
    for report in said:
        by_number[require_integer(report["rank"])].append(report)
    devices = [seat for seat in plan.seats if seat.tests == "device"]
    results = StressResults(tuple(_device(seat, by_number[seat.number]) for seat in devices))
    for seat in plan.seats:
        if seat.tests != "device":
            results = _with_host(results, plan, seat, by_number[seat.number])
    return results


def _device(seat: Seat, said: Iterable[Mapping[str, Any]]) -> DeviceResult:
    result = DeviceResult(seat.gpus[0] if seat.gpus else None, "")
    running = "import"
    for report in said:
        what = report["what"]
        running = _next_running(what, report, running)
        if what == "bound":
            result = replace(result, model=shortened(report["model"], 120))
        elif what == "value":
            result = _with_value(result, report["values"])
        else:
            failed = {**result.failed, **_failure(what, report, running)}
            result = replace(result, failed=failed)
    return result


def _with_host(
    results: StressResults, plan: StressPlan, seat: Seat, said: Iterable[Mapping[str, Any]]
) -> StressResults:
    """Return the results with what the process of the seat measured of the node as a whole."""
    running = "import"
    for report in said:
        what = report["what"]
        running = _next_running(what, report, running)
        if what == "imported":
            results = replace(results, torch=shortened(report["torch"], 60))
        elif what == "value":
            values = report["values"]
            if "stream" in values:
                speed = require_number(values["stream"])
                threads = require_integer(values["threads"])
                results = replace(results, stream=speed, threads=threads)
            else:
                results = replace(results, pairs=_pairs(plan, values["pairs"]))
        else:
            # A process that runs none of its tests has but one.
            found = _failure(what, report, running)
            own = {seat.tests if name == EVERY else name: found[name] for name in found}
            results = replace(results, failed={**results.failed, **own})
    return results


def _next_running(what: str, report: Mapping[str, Any], running: str) -> str:
    """Return what a process does after a report: the import, a test by its name, or nothing."""
    if what == "begins":
        return str(report["test"])
    if what in ("value", "failed", "done", "imported", "bound", "unbound", "no_torch"):
        return ""
    return running


def _with_value(result: DeviceResult, values: Mapping[str, Any]) -> DeviceResult:
    if "checksum" in values:
        return replace(
            result,
            checksum=shortened(values["checksum"], 64),
            repeated=require_integer(values["repeated"]),
            differing=require_integer(values["differing"]),
        )
    rates = {name: require_number(values[name]) for name in (*RATES, "alive") if name in values}
    return replace(result, values={**result.values, **rates})


def _pairs(plan: StressPlan, rows: Any) -> dict[str, float]:
    """Return GB/s by the two GPUs, which the process numbers in the order that it sees them."""
    if len(rows) > MOST_PAIRS:
        raise ValueError("more pairs than a node has")
    pairs = {}
    for near, far, speed in rows:
        source, target = plan.gpus[require_integer(near)], plan.gpus[require_integer(far)]
        pairs[f"GPU {source} to GPU {target}"] = require_number(speed)
    return pairs


def _failure(what: str, report: Mapping[str, Any], running: str) -> dict[str, FailedTest]:
    """Return the failed test that a report tells of; nothing for any other report."""
    text = shortened(report.get("text", ""))
    if what == "failed":
        kind = "room" if report["memory"] else "wrong"
        said = f"{shortened(report['type'], 60)}: {text}"
        return {str(report["test"]): FailedTest(kind, said)}
    if what == "unbound":
        # In a compute mode that lets only one process use a GPU, the others cannot bind it.
        cannot = any(words in text for words in ("build for CPUs only", "busy or unavailable"))
        kind = "missing" if cannot else "wrong"
        return {EVERY: FailedTest(kind, text)}
    if what == "no_torch":
        return {EVERY: FailedTest("missing", text)}
    if what == "exit" and running:
        return {_test_name(running): _ended(report, running)}
    if what == "late":
        return {_test_name(running): FailedTest("hung", "no answer, and it could not be ended")}
    return {}


def _test_name(running: str) -> str:
    return running if running in LIMITS else EVERY


def _ended(report: Mapping[str, Any], running: str) -> FailedTest:
    if report.get("signal") == ALARM:
        limit = LIMITS.get(running, LIMITS["liveness"])
        if running == "import":
            return FailedTest("missing", "torch was not imported in time")
        return FailedTest("hung", f"no answer within {limit:g} s")
    if report.get("signal"):
        return FailedTest("wrong", f"its process was ended by {shortened(report.get('name'), 20)}")
    return FailedTest("wrong", f"its process ended with {report.get('code')}")
