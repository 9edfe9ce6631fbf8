"""The rounds of `verify --for`: a trial that passed is repeated until the time is over."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clusterprep.cli.commands.picked_trial import Tried
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Trial
from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.model import Fleet, Report
from clusterprep.remedies import shell_line
from clusterprep.reports import files
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


def certified(invocation: Invocation, report: Report) -> Report:
    """Write and sign the certificate of an acceptance that passed, and say where it is.

    A report that did not pass has none, and says so. Raises InputError if it cannot be written.
    """
    from clusterprep.cli import signing
    from clusterprep.history.certificate import certificate_text

    if report.verdict != "pass" or report.verify is None or report.verify.acceptance is None:
        return _noted(report, "no certificate was made, as this is no pass of an acceptance")
    settings = invocation.settings
    place = settings.certificate
    if not place:
        folder = state_folder() / "certificates"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = str(folder / f"{report.run}.json")
    text = certificate_text(report)
    key = Path(settings.sign_key) if settings.sign_key else signing.make_site_key()
    signature = signing.sign(text.encode("ascii"), key)
    for name, part in ((place, text), (place + signing.SUFFIX, signature)):
        why = files.write(name, (part,))
        if why:
            raise InputError.of(why, key="--certificate")
    line = shell_line("clusterprep certificate verify {place}", place=place)
    return _noted(report, f"the certificate is {place}: {line}")


def _noted(report: Report, notice: str) -> Report:
    return msgspec.structs.replace(report, notices=(*report.notices, notice))


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
