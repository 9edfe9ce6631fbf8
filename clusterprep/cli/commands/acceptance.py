"""The rounds of `verify --for`: a trial that passed is repeated until the time is over."""

from __future__ import annotations

import msgspec

from clusterprep.cli.commands.picked_trial import Tried
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Trial
from clusterprep.model import Fleet
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import apply_silences

TOLD = 10  # times at most that the progress says how far the rounds are


def accept_tried(invocation: Invocation, fanout: Fanout, tried: Tried) -> Tried:
    """Return what was tried with what the rounds added; the same if the trial did not pass."""
    from clusterprep.jobs.acceptance.stage import accept

    seconds = invocation.settings.accept_for
    trial = tried.trial
    if trial.result is None or seconds is None:
        return tried
    if not tried.passes:
        invocation.notices.append("no round of --for was run, as the first trial did not pass")
        return tried
    fleet = tried.surveyed.fleet
    progress = _Progress(invocation, fleet, seconds)
    accepted = accept(
        fanout,
        fleet,
        tried.environment,
        trial.result,
        trial.findings,
        seconds,
        progress.tell,
    )
    today = invocation.started.date()
    findings = apply_silences(accepted.findings, fleet.inventory, today)
    before = tuple(one for one in tried.surveyed.findings if one not in trial.findings)
    surveyed = msgspec.structs.replace(tried.surveyed, findings=before)
    return msgspec.structs.replace(
        tried,
        trial=Trial(accepted.result, findings),
        surveyed=surveyed.with_findings(findings),
    )


class _Progress:
    """Shows how far the rounds are, as stages of the progress display."""

    def __init__(self, invocation: Invocation, fleet: Fleet, seconds: float) -> None:
        self._watch = invocation.watch
        self._nodes = [node.name for node in fleet.reached]
        self._seconds = seconds
        self._next = 0.0
        self.tell(0, 0.0)

    def tell(self, rounds: int, passed: float) -> None:
        """Begin another stage of the display if a tenth of the time is over since the last one."""
        if passed < self._next:
            return
        self._next = passed + self._seconds / TOLD
        if rounds:
            for name in self._nodes:
                self._watch.step(name, "finished")
        left = max(self._seconds - passed, 0.0)
        self._watch.stage(f"round {rounds + 1}, {left:.0f} s left", len(self._nodes))
