"""The stage of `verify --for`: repeats the trial for a time, and returns what changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.errors import Interrupted, OutOfTime
from clusterprep.jobs.acceptance.findings import Judgement, judge_rounds, unfinished
from clusterprep.jobs.acceptance.model import NO_ROUNDS, Rounds
from clusterprep.jobs.acceptance.rounds import run_rounds
from clusterprep.jobs.load import sampling
from clusterprep.jobs.verify.stage import not_run, plan_of
from clusterprep.model import Acceptance, Finding, Fleet, SpeedRange, VerifyResult
from clusterprep.nccl.environment import Environment
from clusterprep.survey.fanout import Fanout


class Accepted(Struct, frozen=True):
    """The result of the trial before the rounds with what these added, and all findings."""

    result: VerifyResult
    findings: tuple[Finding, ...]


def accept(
    fanout: Fanout,
    fleet: Fleet,
    environment: Environment,
    trial: VerifyResult,
    findings: Iterable[Finding],
    seconds: float,
    told: Callable[[int, float], None],
) -> Accepted:
    """Repeat the trial that passed for `seconds`, and judge what changed.

    What ends the command meanwhile is not raised: the result says that it is not finished.
    `findings` are those of `trial`. Heat, clocks, counters and kernel logs of all rounds are judged
    together, as those of one long job.
    """
    plan = plan_of(fleet, environment)
    rounds = NO_ROUNDS
    of_load: tuple[Finding, ...] = ()
    try:
        load = sampling.begin(fanout, fleet)
        rounds = run_rounds(
            fanout,
            fleet,
            plan,
            seconds,
            told,
        )
        of_load = sampling.end(fanout, load, on_gpus=plan.backend == "nccl")
    except (Interrupted, OutOfTime) as error:
        rounds = replace(rounds, stopped_by=error.message)
    judgement = judge_rounds(rounds, plan)
    result = _with_rounds(trial, rounds, judgement, seconds)
    return Accepted(
        result, (*_outdone(findings, judgement.findings), *judgement.findings, *of_load)
    )


def not_begun(
    fleet: Fleet,
    environment: Environment,
    seconds: float,
    ended_by: str,
    during: str,
) -> Accepted:
    """Return an acceptance that something ended before its rounds: unknown for all nodes.

    `ended_by` says what did, and `during` what was under way, such as "the first trial".
    """
    nodes = tuple(node.name for node in fleet.inventory.nodes)
    finding = unfinished(nodes, f"{ended_by} during {during}", "0 rounds")
    result = replace(
        not_run(fleet, environment, ()),
        message=f"{ended_by} during {during}: no round was run",
        acceptance=Acceptance(wanted=seconds, seconds=0.0, rounds=0, finished=False),
    )
    return Accepted(result, (finding,))


def _with_rounds(
    trial: VerifyResult, rounds: Rounds, judgement: Judgement, seconds: float
) -> VerifyResult:
    verdict = trial.verdict
    if any(one.verdict == "fail" and one.severity == "error" for one in judgement.findings):
        verdict = "fail"
    elif verdict == "pass" and any(one.verdict == "unknown" for one in judgement.findings):
        verdict = "unknown"
    acceptance = Acceptance(
        wanted=seconds,
        seconds=round(rounds.seconds, 3),
        rounds=rounds.count,
        speeds=_speeds(rounds),
        finished=rounds.finished,
    )
    return replace(
        trial,
        verdict=verdict,
        culprits=(*trial.culprits, *judgement.culprits),
        acceptance=acceptance,
    )


def _speeds(rounds: Rounds) -> tuple[SpeedRange, ...]:
    """Return the slowest, the median and the fastest round of each size of the all-reduce."""
    ranges: list[SpeedRange] = []
    for size, speeds in sorted(rounds.speeds.items()):
        ordered = sorted(speeds)
        middle = ordered[len(ordered) // 2]
        ranges.append(SpeedRange(size, ordered[0], middle, ordered[-1]))
    return tuple(ranges)


def _outdone(before: Iterable[Finding], after: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of the trial without passes that the rounds have proven wrong."""
    failed = {(one.check, name) for one in after if one.verdict == "fail" for name in one.nodes}
    kept = []
    for one in before:
        names = tuple(name for name in one.nodes if (one.check, name) not in failed)
        if one.verdict != "pass" or len(names) == len(one.nodes):
            kept.append(one)
        elif names:
            kept.append(replace(one, nodes=names))
    return tuple(kept)
