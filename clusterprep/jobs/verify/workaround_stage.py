"""Runs the trial again and again with settings that may help, on the same agents; nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterprep.model import Fleet, VerifyResult
from clusterprep.nccl.interfaces import common_networks
from clusterprep.survey.fanout import Fanout

if TYPE_CHECKING:
    from clusterprep.jobs.verify.blame import Judged
    from clusterprep.jobs.verify.schedule import TrialPlan

NEVER = frozenset({"torch.version", "net.ports"})  # checks whose failure no setting cures


def with_workarounds(
    fanout: Fanout, fleet: Fleet, plan: TrialPlan, first: Judged, result: VerifyResult
) -> VerifyResult:
    """The result with what settings would help, where it failed and they could. `first` is the trial alone."""
    from clusterprep.jobs.verify import knobs

    if result.verdict != "fail":
        return result
    if why := _hopeless(first):
        return _saying(result, f"no setting was tried: {why}")
    names = {node.name for node in plan.nodes}
    networks = [there for there in common_networks(fleet) if names <= set(there)]
    known, tried = knobs.knobs(plan, networks), list[knobs.Try]()
    while known and (chosen := knobs.next_try(known, tried)) is not None:
        now = _trial(fanout, knobs.turned(plan, chosen))
        if why := _hopeless(now):
            words = f"no more than {len(tried)} trials were made with other settings: {why}"
            return _saying(replace(result, workarounds=knobs.told(tried)), words)
        tried.append(knobs.judged(chosen, now, first))
    return _saying(replace(result, workarounds=knobs.told(tried)), knobs.conclusion(known, tried))


def _trial(fanout: Fanout, plan: TrialPlan) -> Judged:
    from clusterprep.jobs.verify import blame, collect

    return blame.judge(collect.run_verify([fanout.links[node.name] for node in plan.nodes], plan))


def _hopeless(trial: Judged) -> str:
    """Why no setting can help; empty where one may."""
    from clusterprep.jobs.verify.culprits import Fault

    timeline = trial.timeline
    if timeline is not None and (lost := timeline.first("lost")):
        return f"{lost.node} fell silent"
    if timeline is not None and (left := timeline.first("left_over")):
        return f"processes on {left.node} could not be ended"
    grave = [one for one in trial.culprits if isinstance(one, Fault) and one.check in NEVER]
    return grave[0].cause if grave else ""


def _saying(result: VerifyResult, words: str) -> VerifyResult:
    return replace(result, message="; ".join(filter(None, [result.message, words])))
