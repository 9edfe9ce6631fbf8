"""Which causes a log speaks for, in which order, and what is left unexplained. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from clusterprep.jobs.diagnose import echoes, limits
from clusterprep.jobs.diagnose.culprit import filled, named, worded
from clusterprep.jobs.diagnose.exits import ended
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import (
    Cause,
    Diagnosis,
    Evidence,
    Found,
    LogFile,
    LogLine,
    Severity,
    Sign,
    Weight,
    form_of,
)

SHOWN = 5  # lines of a cause
LEFT = 8  # lines that nobody explains
_CONFIDENCE = {Weight.PLAIN: 0.95, Weight.LIKELY: 0.75, Weight.SYMPTOM: 0.45, Weight.ECHO: 0.2}
_LATER = 0.6  # of that for a cause that is not the first
_GRADES: tuple[Severity, ...] = ("fatal", "degraded", "benign")
CONTEXT = ("terminated with the following error",)  # what no sign asks for and a culprit does
_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b(?!s)|\berror\b|\bfatal\b|\bfailed\b|\bfailure\b|\babort|segfault|\bpanic\b|\bkilled\b|"
    r"core dumped",
    re.IGNORECASE,
)
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b\s*(?::|$|\()")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


def needles() -> tuple[bytes, ...]:
    """Everything that any cause looks for, in small letters and with every digit as 0, as forms of lines are."""
    words = {sign.needle for cause in causes().values() for sign in cause.signs}
    words |= {word for cause in causes().values() for word in cause.needles}
    words |= {*CONTEXT, *limits.NEEDLES}
    return tuple(sorted(form_of(word).encode() for word in words))


def diagnose(
    lines: Sequence[LogLine], files: dict[str, int] | None = None, notices: Iterable[str] = ()
) -> Diagnosis:
    """Causes, most likely first."""
    log = LogFile(tuple(lines), frozenset(line.host for line in lines if line.host), files or {})
    evidence = [*_signs(log), *_looks(log)]
    failed = bool(ended(log) or log.saying("childfailederror"))
    found = _ordered([_found(cause, of_it, log) for cause, of_it in _by_cause(evidence)])
    if failed and all(one.severity == "benign" for one in found):
        found = [
            one for one in found if one.cause.name != "benign_shutdown_warning"
        ]  # the end of what failed is no noise
    found = limits.told(found, log)
    taken = {(e.line.file, e.line.number, e.line.order) for e in evidence}
    left = _unexplained(log, taken, bool(found))
    return Diagnosis(tuple(found), left, tuple(notices), files or {}, failed)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@functools.cache
def _by_needle() -> dict[str, list[tuple[Cause, Sign]]]:
    found: dict[str, list[tuple[Cause, Sign]]] = {}
    for cause in causes().values():
        for sign in cause.signs:
            found.setdefault(form_of(sign.needle), []).append((cause, sign))
    return found


def _signs(log: LogFile) -> Iterator[Evidence]:
    for form, lines in log.forms.items():
        pairs = [pair for needle, of_it in _by_needle().items() if needle in form for pair in of_it]
        for line in lines if pairs else ():
            yield from _matching(line, pairs)


def _matching(line: LogLine, pairs: Sequence[tuple[Cause, Sign]]) -> Iterator[Evidence]:
    """Of one cause the first sign that matches, in the order in which the cause has them."""
    done: set[str] = set()
    for cause, sign in pairs:
        if cause.name in done:
            continue
        if match := _compiled(sign.pattern).search(line.text if sign.whole else line.said):
            done.add(cause.name)
            note = filled(sign.note, match, line) or ""
            yield Evidence(
                cause.name, line, sign.weight, named(sign, match, line), note, sign.severity
            )


def _looks(log: LogFile) -> Iterator[Evidence]:
    for cause in causes().values():
        if cause.look is not None:
            yield from cause.look(log)


def _by_cause(evidence: Iterable[Evidence]) -> list[tuple[Cause, list[Evidence]]]:
    found: dict[str, list[Evidence]] = {}
    for one in evidence:
        found.setdefault(one.cause, []).append(one)
    return [
        (causes()[name], sorted(of_it, key=lambda e: e.line.order)) for name, of_it in found.items()
    ]


# ---------------------------------------------------------------- one cause


def _found(cause: Cause, evidence: list[Evidence], log: LogFile) -> tuple[Found, Weight]:
    weight = max(e.weight for e in evidence)
    main = [e for e in evidence if e.weight == weight]
    grades = [e.severity or cause.severity for e in evidence]
    notes = list(dict.fromkeys(e.note for e in main if e.note))[:2]
    message = " ".join(
        [
            cause.message,
            *(f"Here {note}." if not note[0].isupper() else f"{note}." for note in notes),
        ]
    )
    shown, more = _shown(main, evidence)
    severity = min(grades, key=_GRADES.index)
    culprit = None if severity == "benign" else worded(cause, evidence, log)
    return Found(cause, severity, _CONFIDENCE[weight], culprit, shown, message, more), weight


def _shown(
    main: Sequence[Evidence], evidence: Sequence[Evidence]
) -> tuple[tuple[LogLine, ...], int]:
    """A few lines, no two of one form, the weightiest first and then in their order."""
    lines: dict[str, LogLine] = {}
    every = {(e.line.file, e.line.number): e.line for e in (*main, *evidence)}
    for line in every.values():
        lines.setdefault(_NUMBER.sub("0", line.said), line)
    chosen = list(lines.values())[:SHOWN]
    return tuple(sorted(chosen, key=lambda line: line.order)), len(every) - len(chosen)


# ---------------------------------------------------------------- their order


def _ordered(found: list[tuple[Found, Weight]]) -> list[Found]:
    """Fatal before degraded before benign, plain before likely before symptoms, earlier before later."""
    plain = {
        one.cause.name
        for one, weight in found
        if weight >= Weight.LIKELY and one.severity != "benign"
    }
    rows = []
    for one, weight in found:
        explained = one.cause.yields_to & plain
        rows.append(
            (
                one,
                Weight.SYMPTOM if explained and weight > Weight.SYMPTOM else weight,
                bool(explained),
            )
        )
    timed = all(one.lines and one.lines[0].time is not None for one, _ in found)
    rows.sort(key=lambda row: _key(*row, timed=timed))
    return [_less_sure(one, weight, place) for place, (one, weight, _) in enumerate(rows)]


def _key(one: Found, weight: Weight, explained: bool, *, timed: bool) -> tuple[float, ...]:
    first = one.lines[0]
    when = first.time if timed and first.time is not None else 0.0
    return (_GRADES.index(one.severity), explained, -weight, when, first.order)


def _less_sure(one: Found, weight: Weight, place: int) -> Found:
    if one.severity == "benign":
        return replace(one, confidence=0.9 if weight == Weight.PLAIN else 0.7)
    return replace(one, confidence=round(_CONFIDENCE[weight] * (_LATER if place else 1.0), 2))


# ---------------------------------------------------------------- what is left


def _unexplained(
    log: LogFile, taken: set[tuple[str, int, int]], explained: bool
) -> tuple[LogLine, ...]:
    """Lines that look most like errors, each form once; echoes only where nothing else is known."""
    rows: dict[str, tuple[int, LogLine]] = {}
    for line in log.lines:
        if (line.file, line.number, line.order) in taken or not _ERROR.search(line.said):
            continue
        echo = echoes.meaning(line) is not None
        if echo and (explained or line.said.startswith("Traceback")):
            continue
        grade = 2 if echo else 0 if _RAISED.match(line.said) else 1
        rows.setdefault(_NUMBER.sub("0", line.said), (grade, line))
    best = sorted(rows.values(), key=lambda row: (row[0], row[1].order))[:LEFT]
    return tuple(line for _, line in sorted(best, key=lambda row: row[1].order))
