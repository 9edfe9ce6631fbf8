"""Repeat a failed trial with settings that may help, on the same agents; nothing is written.

The same trial without a setting comes first: a fault that has gone by itself is cured by nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterprep.model import Fleet, VerifyResult
from clusterprep.nccl.interfaces import common_networks
from clusterprep.survey.fanout import Fanout

if TYPE_CHECKING:
    from clusterprep.jobs.verify.blame import Judged
    from clusterprep.jobs.verify.schedule import TrialPlan
    from clusterprep.jobs.verify.workarounds import Attempt

NEVER = frozenset({"torch.version", "net.ports"})  # checks whose failure no setting cures


def with_workarounds(
    fanout: Fanout, fleet: Fleet, plan: TrialPlan, first: Judged, result: VerifyResult
) -> VerifyResult:
    """Return the result with the settings that help, if it failed and settings may help.

    `first` is the trial alone, without links and groups.
    """
    from clusterprep.jobs.verify import workarounds

    if result.verdict != "fail":
        return result
    why_not = _why_no_setting_helps(first)
    if why_not:
        return _with_sentence(result, f"no setting was tried: {why_not}")
    names = {node.name for node in plan.nodes}
    networks = [network for network in common_networks(fleet) if names <= set(network)]
    known = workarounds.available_settings(plan, networks)
    attempts: list[Attempt] = []
    ended_early = ""
    while known and not ended_early:
        chosen = workarounds.next_settings(known, attempts)
        if chosen is None:
            break
        trial = _run(fanout, workarounds.with_settings(plan, chosen))
        why_not = _why_no_setting_helps(trial)
        if why_not:
            count = len(attempts)
            ended_early = f"no more than {count} trials were made with other settings: {why_not}"
        else:
            attempts.append(workarounds.judge_attempt(chosen, trial, first))
    result = replace(result, workarounds=workarounds.workaround_rows(attempts))
    return _with_sentence(result, ended_early or workarounds.conclusion(known, attempts))


def _run(fanout: Fanout, plan: TrialPlan) -> Judged:
    from clusterprep.jobs.verify import blame, collect

    links = [fanout.links[node.name] for node in plan.nodes]
    timeline = collect.run_verify(links, plan, check=fanout.check)
    return blame.judge(timeline)


def _why_no_setting_helps(trial: Judged) -> str:
    """Return why no setting can help; empty if one may."""
    from clusterprep.jobs.verify.culprits import Fault

    timeline = trial.timeline
    if timeline is not None:
        lost = timeline.first("lost")
        if lost is not None:
            return f"{lost.node} fell silent"
        left_over = timeline.first("left_over")
        if left_over is not None:
            return f"processes on {left_over.node} could not be ended"
    for culprit in trial.culprits:
        if isinstance(culprit, Fault) and culprit.check in NEVER:
            return culprit.cause
    return ""


def _with_sentence(result: VerifyResult, sentence: str) -> VerifyResult:
    sentences = filter(None, [result.message, sentence])
    return replace(result, message="; ".join(sentences))
