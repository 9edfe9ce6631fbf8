"""Says which causes a log speaks for, in which order, and which lines remain unexplained. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.diagnose import crashes, echoes, endings, limits, lost_peers, messages
from clusterprep.jobs.diagnose.culprit import filled, named, worded
from clusterprep.jobs.diagnose.endings import Aftermath, Endings
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import (
    Cause,
    DiagnosedCause,
    Diagnosis,
    Evidence,
    LogFile,
    LogLine,
    Place,
    Severity,
    Sign,
    Weight,
    form_of,
    kind_of,
)
from clusterprep.jobs.diagnose.records import records as job_records
from clusterprep.jobs.diagnose.settings import is_setting

SHOWN = 5  # lines of a cause
MOST_UNEXPLAINED = 8  # lines that belong to no known cause
_CONFIDENCE = {Weight.PLAIN: 0.95, Weight.LIKELY: 0.75, Weight.SYMPTOM: 0.45, Weight.ECHO: 0.2}
_LATER = 0.6  # share of that for a cause that is not the first
_GRADES: tuple[Severity, ...] = ("fatal", "degraded", "benign")
CONTEXT = ("terminated with the following error",)  # what only culprits are read from
_ENDS = frozenset({"program", "host_oom_kill", "external_termination"})
_WAITS = frozenset(
    {"rank_desync_uneven_data", "rank_desync_control_flow", "slow_work_exceeds_timeout"}
)
_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b(?!s)|\berror\b|\bfatal\b|\bfailed\b|\bfailure\b|\babort"
    r"|segfault|\bpanic\b|\bkilled\b|core dumped",
    re.IGNORECASE,
)
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b\s*(?::|$|\()")
_OF_TRACEBACK = re.compile(
    r"^Traceback|^\s+(?:raise|return|File|assert) |^raise \w|^\s{4}.*: raise \w"
    r"|\babove exception\b|^[\w./-]+ FAILED$"
)
_NO_ERRORS = frozenset({"DEBUG", "INFO", "I", "TRACE"})
_WARNINGS = frozenset({"WARN", "WARNING", "W"})
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


_TRIED_AGAIN = frozenset({"rank_gpu_oom"})


class _Weighed(Struct, frozen=True):
    """A cause with the weight of its weightiest sign. `is_explained`: another cause explains it."""

    found: DiagnosedCause
    weight: Weight
    is_explained: bool = False

    @property
    def first_line(self) -> LogLine:
        return self.found.lines[0]


def needles() -> tuple[bytes, ...]:
    """Return what any cause looks for, as forms: small letters, every digit a 0."""
    texts = {
        *CONTEXT,
        *limits.NEEDLES,
        *messages.NEEDLES,
        *crashes.NEEDLES,
        *endings.NEEDLES,
        *job_records.NEEDLES,
    }
    for cause in causes().values():
        texts.update(cause.needles)
        texts.update(sign.needle for sign in cause.signs)
    return tuple(sorted(form_of(text).encode() for text in texts))


def diagnose(
    lines: Sequence[LogLine],
    files: dict[str, int] | None = None,
    notices: Iterable[str] = (),
    records: job_records.Records | None = None,
) -> Diagnosis:
    """Return the diagnosis of the lines, and of records of the job: causes, most likely first."""
    files = files or {}
    hosts = frozenset(line.host for line in lines if line.host)
    log = LogFile(tuple(lines), hosts, files)
    log_endings = Endings(log)
    evidence = list(_by_signs(log))
    evidence.extend(_by_detectors(log))
    told = {piece.line.order for piece in evidence if not lost_peers.is_of_peer(piece)}
    evidence.extend(messages.evidence(log, told))
    evidence.extend(job_records.evidence(log, records or job_records.Records()))
    evidence = _without_survived(evidence, log_endings)
    if log_endings.launch_ended_others:
        evidence = _without_signals_of_launch(evidence)
    explained = _explained(evidence)
    evidence = _with_crashes_weighed(evidence, explained, log_endings)
    evidence.extend(crashes.evidence(log, explained, log_endings))
    if _has_lost_a_rank(evidence, log_endings):
        evidence = _with_waits_as_echoes(evidence)
    has_failure = any(_is_of_failure(piece) for piece in evidence)
    evidence = lost_peers.weighed(evidence, log_endings, has_failure=has_failure)
    weighed = _weighed_causes(evidence, log)
    ordered = _ordered(weighed)
    if log_endings.has_failed:
        ordered = _without_shutdown_noise(ordered)
    ordered = limits.with_limits(ordered, log)
    unexplained = _unexplained(log, evidence, has_causes=bool(ordered))
    ended_well = not log_endings.has_failed and log_endings.ended_well(unexplained)
    return Diagnosis(
        tuple(ordered),
        unexplained,
        tuple(notices),
        files,
        ended_well,
        log_endings.has_succeeded,
    )


def _has_lost_a_rank(evidence: Iterable[Evidence], log_endings: Endings) -> bool:
    """Whether a rank ended before any rank told of a time-out or of a peer's end."""
    for piece in evidence:
        is_end = piece.cause in _ENDS and piece.weight >= Weight.SYMPTOM
        if is_end and not log_endings.is_after_trouble(piece.line):
            return True
    return False


def _is_of_failure(piece: Evidence) -> bool:
    """Whether the evidence tells of a failure, and not only of a peer that went away."""
    if lost_peers.is_of_peer(piece) or lost_peers.may_follow(piece):
        return False
    severity = piece.severity or causes()[piece.cause].severity
    return severity == "fatal"


def _with_waits_as_echoes(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return the evidence with time-outs as echoes: the others waited for the rank that ended."""
    rows: list[Evidence] = []
    for piece in evidence:
        if piece.cause in _WAITS:
            weight = min(piece.weight, Weight.ECHO)
            rows.append(replace(piece, weight=weight))
        else:
            rows.append(piece)
    return rows


def _without_survived(evidence: Iterable[Evidence], log_endings: Endings) -> list[Evidence]:
    """Return the evidence without failures after which the job went on and finished.

    Memory of a GPU that ran out before many steps is a symptom at most: programs try again.
    """
    rows: list[Evidence] = []
    for piece in evidence:
        severity = piece.severity or causes()[piece.cause].severity
        if severity == "fatal" and log_endings.was_survived(piece.line):
            continue
        if piece.cause in _TRIED_AGAIN and log_endings.went_on(piece.line):
            rows.append(replace(piece, weight=min(piece.weight, Weight.SYMPTOM)))
        else:
            rows.append(piece)
    return rows


def _without_signals_of_launch(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return the evidence without the signals with which launch ended processes itself."""
    rows: list[Evidence] = []
    for piece in evidence:
        is_of_launch = piece.line.message.startswith(endings.LAUNCH)
        if is_of_launch or piece.cause != "external_termination":
            rows.append(piece)
    return rows


def _with_crashes_weighed(
    evidence: Iterable[Evidence], explained: Collection[Place], log_endings: Endings
) -> list[Evidence]:
    """Return the evidence with crashes as symptoms that follow from something else.

    That is a time-out or the end of a peer before it, or another cause that explains its line. A
    crash after which the log goes on for long is one too.
    """
    rows: list[Evidence] = []
    for piece in evidence:
        if piece.cause == crashes.CAUSE and _is_no_first_crash(piece.line, explained, log_endings):
            weight = min(piece.weight, Weight.SYMPTOM)
            rows.append(replace(piece, weight=weight))
        else:
            rows.append(piece)
    return rows


def _is_no_first_crash(line: LogLine, explained: Collection[Place], log_endings: Endings) -> bool:
    if line.place in explained or log_endings.is_after_trouble(line):
        return True
    # The kernel's log goes on whatever a process does.
    return line.source != "kernel" and log_endings.after(line) is Aftermath.WENT_ON


def _explained(evidence: Iterable[Evidence]) -> set[Place]:
    """Return the places of lines that a likely cause explains, other than the program's own."""
    places: set[Place] = set()
    for piece in evidence:
        severity = piece.severity or causes()[piece.cause].severity
        is_other = piece.cause != crashes.CAUSE
        if is_other and severity == "fatal" and piece.weight >= Weight.LIKELY:
            places.add(piece.line.place)
    return places


def _without_shutdown_noise(causes_found: list[DiagnosedCause]) -> list[DiagnosedCause]:
    """Drop warnings of the end if all causes are benign: a job that failed had no good end."""
    if any(found.severity != "benign" for found in causes_found):
        return causes_found
    return [found for found in causes_found if found.cause.name != "benign_shutdown_warning"]


# ---------------------------------------------------------------- evidence


_CauseAndSign = tuple[Cause, Sign]


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@functools.cache
def _signs_by_needle() -> dict[str, list[_CauseAndSign]]:
    signs: dict[str, list[_CauseAndSign]] = {}
    for cause in causes().values():
        for sign in cause.signs:
            needle = kind_of(form_of(sign.needle))
            signs.setdefault(needle, []).append((cause, sign))
    return signs


def _by_signs(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence of every line with a sign of a cause.

    Needles are looked for in kinds of lines, of which there are few; patterns only in what remains.
    """
    signs_by_needle = _signs_by_needle()
    for kind, lines in log.forms.items():
        candidates: list[_CauseAndSign] = []
        for needle, signs in signs_by_needle.items():
            if needle in kind:
                candidates += signs
        if not candidates:
            continue
        for line in lines:
            if not is_setting(line.message):
                yield from _matching(line, candidates)


def _matching(line: LogLine, candidates: Sequence[_CauseAndSign]) -> Iterator[Evidence]:
    """Yield evidence of the first sign of each cause that matches, in the order of the signs."""
    done: set[str] = set()
    for cause, sign in candidates:
        if cause.name in done:
            continue
        text = line.text if sign.searches_whole_line else line.message
        match = _compiled(sign.pattern).search(text)
        if match is None:
            continue
        done.add(cause.name)
        culprits = named(sign, match, line)
        note = filled(sign.note, match, line) or ""
        yield Evidence(
            cause.name,
            line,
            sign.weight,
            culprits,
            note,
            sign.severity,
        )


def _by_detectors(log: LogFile) -> Iterator[Evidence]:
    for cause in causes().values():
        if cause.detect is not None:
            yield from cause.detect(log)


# ---------------------------------------------------------------- one cause


def _weighed_causes(evidence: Iterable[Evidence], log: LogFile) -> list[_Weighed]:
    """Return every cause that has evidence, in the order in which the evidence came."""
    evidence_of: dict[str, list[Evidence]] = {}
    for piece in evidence:
        evidence_of.setdefault(piece.cause, []).append(piece)
    weighed: list[_Weighed] = []
    for name, pieces in evidence_of.items():
        pieces.sort(key=lambda piece: piece.line.order)
        weighed.append(_weigh(causes()[name], pieces, log))
    return weighed


def _weigh(cause: Cause, evidence: list[Evidence], log: LogFile) -> _Weighed:
    """Return a cause with what its evidence says together.

    The weightiest evidence gives the message and the confidence, the gravest one the severity.
    """
    weight = max(piece.weight for piece in evidence)
    weightiest = [piece for piece in evidence if piece.weight == weight]
    severities = [piece.severity or cause.severity for piece in evidence]
    severity = min(severities, key=_GRADES.index)
    culprit = None
    if severity != "benign":
        culprit = worded(cause, evidence, log)
    message = _message(cause, weightiest)
    shown, more = _shown(weightiest, evidence)
    confidence = _CONFIDENCE[weight]
    found = DiagnosedCause(
        cause,
        severity,
        confidence,
        culprit,
        shown,
        message,
        more,
    )
    return _Weighed(found, weight)


def _message(cause: Cause, weightiest: Sequence[Evidence]) -> str:
    """Return the message of the cause with the first two notes of its evidence.

    What no line says plainly is not told as a fact if the cause has words for the doubt.
    """
    notes = dict.fromkeys(piece.note for piece in weightiest if piece.note)
    is_plain = any(piece.weight == Weight.PLAIN for piece in weightiest)
    sentences = [cause.message if is_plain else cause.doubt or cause.message]
    for note in list(notes)[:2]:
        start = "" if note[0].isupper() else "Here "
        sentences.append(f"{start}{note}.")
    return " ".join(sentences)


def _shown(
    weightiest: Sequence[Evidence], evidence: Sequence[Evidence]
) -> tuple[tuple[LogLine, ...], int]:
    """Return a few lines of different forms, and how many others there are.

    The weightiest are chosen, and shown in their order.
    """
    by_place: dict[Place, LogLine] = {}
    for piece in (*weightiest, *evidence):
        by_place[piece.line.place] = piece.line
    by_form: dict[str, LogLine] = {}
    for line in by_place.values():
        by_form.setdefault(_form(line), line)
    candidates = list(by_form.values())
    chosen = _in_order(candidates[:SHOWN])
    more = len(by_place) - len(chosen)
    return chosen, more


def _form(line: LogLine) -> str:
    """Return what messages have in common that differ in numbers, hexadecimal ones too."""
    return _NUMBER.sub("0", line.message)


def _in_order(lines: Iterable[LogLine]) -> tuple[LogLine, ...]:
    return tuple(sorted(lines, key=lambda line: line.order))


# ---------------------------------------------------------------- the order of causes


def _ordered(weighed: Sequence[_Weighed]) -> list[DiagnosedCause]:
    """Return causes in order, with their confidence.

    Fatal ones come before degraded and benign ones, plain before likely before symptoms, earlier
    before later.
    """
    rows = _with_explained(weighed)
    has_times = all(row.first_line.time is not None for row in rows)
    rows.sort(key=lambda row: _sort_key(row, has_times=has_times))
    ordered: list[DiagnosedCause] = []
    for row in rows:
        confidence = _confidence(row, is_first=not ordered)
        found = replace(row.found, confidence=confidence)
        ordered.append(found)
    return ordered


def _with_explained(weighed: Sequence[_Weighed]) -> list[_Weighed]:
    """Mark causes that a likely cause explains. Such a cause counts as a symptom at most."""
    likely: set[str] = set()
    for row in weighed:
        found = row.found
        if found.severity != "benign" and row.weight >= Weight.LIKELY:
            likely.add(found.cause.name)
    rows: list[_Weighed] = []
    for row in weighed:
        weight = row.weight
        is_explained = not likely.isdisjoint(row.found.cause.yields_to)
        if is_explained:
            weight = min(weight, Weight.SYMPTOM)
        rows.append(_Weighed(row.found, weight, is_explained))
    return rows


def _sort_key(row: _Weighed, *, has_times: bool) -> tuple[float, ...]:
    first = row.first_line
    time = first.time if has_times and first.time is not None else 0.0
    grade = _GRADES.index(row.found.severity)
    return (grade, row.is_explained, -row.weight, time, first.order)


def _confidence(row: _Weighed, *, is_first: bool) -> float:
    if row.found.severity == "benign":
        return 0.9 if row.weight == Weight.PLAIN else 0.7
    confidence = _CONFIDENCE[row.weight]
    if not is_first:
        confidence *= _LATER
    return round(confidence, 2)


# ---------------------------------------------------------------- unexplained lines


def _unexplained(
    log: LogFile, evidence: Sequence[Evidence], *, has_causes: bool
) -> tuple[LogLine, ...]:
    """Return lines that look most like errors, one of each form.

    Lines like one that is explained are left out, and echoes if a cause is known.
    """
    explained = {_form(piece.line) for piece in evidence}
    rows: dict[str, tuple[int, int, LogLine]] = {}  # by form: (grade, order, line)
    for line in _errorlike(log):
        if _is_silent(line):
            continue
        form = _form(line)
        is_echo = echoes.meaning(line) is not None or messages.tells_nothing(line)
        if form in explained or (is_echo and has_causes):
            continue
        grade = _grade(line, is_echo=is_echo)
        rows.setdefault(form, (grade, line.order, line))
    ranked = sorted(rows.values(), key=lambda row: row[:2])
    return _in_order(line for _, _, line in ranked[:MOST_UNEXPLAINED])


def _errorlike(log: LogFile) -> Iterator[LogLine]:
    """Yield the lines that look like errors. All lines of a kind have the same words.

    NCCL warns of what fails, in whatever words, and of little else.
    """
    for lines in log.forms.values():
        first = lines[0]
        if _ERROR.search(first.message) or _warns_of_failure(first):
            yield from lines


def _warns_of_failure(line: LogLine) -> bool:
    """Whether NCCL warns of what is not known as harmless."""
    if line.source != "nccl" or line.level != "WARN":
        return False
    rule = messages.meaning(line)
    return rule is None or rule.kind != "harmless"


def _is_silent(line: LogLine) -> bool:
    """Whether a line is no error: a part of a traceback, a setting, or of level INFO or DEBUG."""
    if line.level in _NO_ERRORS or is_setting(line.message):
        return True
    return bool(_OF_TRACEBACK.search(line.message))


def _grade(line: LogLine, *, is_echo: bool) -> int:
    """Return 0 for exceptions that Python prints, 1 for errors, 2 for warnings, 3 for echoes."""
    if is_echo:
        return 3
    if line.level in _WARNINGS or "Warning:" in line.message:
        return 2
    return 0 if _RAISED.match(line.message) else 1
