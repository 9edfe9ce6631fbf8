"""The rounds of `verify --for`: a trial that passed is repeated until the time is over."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from clusterprep.cli import exit_codes, signing
from clusterprep.cli.commands.picked_trial import Tried
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey, Trial
from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.history.certificate import certificate_text
from clusterprep.model import Fleet, Report
from clusterprep.nccl.environment import render
from clusterprep.remedies import shell_line
from clusterprep.reports import files
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import apply_silences

TOLD = 10  # times at most that the progress says how far the rounds are


def cut_before_rounds(invocation: Invocation, surveyed: Survey, during: str) -> Tried:
    """Return an acceptance that something ended before its rounds, with what is known by then.

    `during` says what was under way, such as "the first trial".
    """
    from clusterprep.jobs.acceptance.stage import not_begun

    ended_by = invocation.deadline.ended_by
    environment = render(surveyed.fleet)
    cut = not_begun(
        surveyed.fleet,
        environment,
        invocation.settings.accept_for or 0.0,
        ended_by.message if ended_by else "ended",
        during,
    )
    findings = apply_silences(cut.findings, invocation.inventory, invocation.started.date())
    return Tried(Trial(cut.result, findings), environment, surveyed.with_findings(findings))


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


class Seal(Struct, frozen=True):
    """Where a certificate will be, and the private key that will sign it."""

    place: str
    key: Path


def prepared_seal(invocation: Invocation) -> Seal | None:
    """Return the seal of an acceptance, None without --for.

    Raises InputError for a file that cannot be written and for a key that does not sign: at the end
    of the rounds, after hours, it would be of no use.
    """
    settings = invocation.settings
    if settings.accept_for is None:
        return None
    if settings.accept_for <= 0:
        raise InputError.of("rounds take time; give a time such as 30m", key="--for")
    place = settings.certificate
    if not place:
        place = str(_folder() / f"{invocation.run}.json")
    files.check_places((place, place + signing.SUFFIX), key="--certificate")
    key = Path(settings.sign_key) if settings.sign_key else signing.make_site_key()
    signing.sign(b"", key)
    return Seal(place, key)


def _folder() -> Path:
    """Return the folder for certificates, which is made if need be. Raises InputError."""
    folder = state_folder() / "certificates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        hint = "--certificate FILE names another place"
        raise InputError.of(f"{folder} cannot be made: {error.strerror}", hint=hint) from None
    return folder


def certified(report: Report, seal: Seal) -> Report:
    """Write and sign the certificate of an acceptance that passed, and say where it is.

    A report that did not pass has none, and says so. One that could not be written is said too,
    and the report is kept.
    """
    if report.verdict != "pass" or report.verify is None or report.verify.acceptance is None:
        return _noted(report, "no certificate was made, as this is no pass of an acceptance")
    why = _write(certificate_text(report), seal)
    if why:
        code = exit_codes.UNKNOWN
        report = msgspec.structs.replace(report, code=code, verdict=exit_codes.verdict_of(code))
        return _noted(report, f"the nodes passed, and there is no certificate of it: {why}")
    line = shell_line("clusterprep certificate verify {place}", place=seal.place)
    return _noted(report, f"the certificate is {seal.place}: {line}")


def _write(text: str, seal: Seal) -> str:
    """Write a certificate and its signature. Return "", or why that failed."""
    try:
        signature = signing.sign(text.encode("ascii"), seal.key)
    except InputError as error:
        return str(error)
    # A certificate without its signature is not valid; a signature of nothing would be in the way.
    return files.write(seal.place, (text,)) or files.write(
        seal.place + signing.SUFFIX, (signature,)
    )


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
