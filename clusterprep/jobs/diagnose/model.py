"""What travels through diagnose: lines of logs, signs of causes, what the signs found, and the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Literal

Severity = Literal["fatal", "degraded", "benign"]


class Weight(IntEnum):
    """How much a sign says about the cause. Causes are ranked by their weightiest sign, then by time."""

    ECHO = 0  # somebody else's failure, seen from here
    SYMPTOM = 1  # something failed, and this cause is one of several that look like that
    LIKELY = 2  # this is what the cause looks like, though others may
    PLAIN = 3  # the message says the cause itself


_DIGITS = str.maketrans("123456789", "000000000")


def form_of(text: str) -> str:
    """What lines that differ in numbers have in common."""
    return text.lower().translate(_DIGITS)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that may matter. `text` is what stands there, `said` is without prefixes of launchers and loggers."""

    file: str
    number: int  # from 1
    text: str
    said: str
    order: int = 0  # of all lines of all files, in the order of reading
    level: str = ""  # WARN, INFO, ERROR, E, W, I ... as the program wrote it
    source: str = ""  # nccl, c10d, kernel, slurm, or empty
    rank: int | None = None
    local: int | None = None  # the local rank, which is the rank on one node alone
    host: str | None = None
    gpu: int | None = None
    time: float | None = (
        None  # seconds in a year of 31-day months: for comparing, years are seldom in logs
    )
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Sign:
    """A message by which a cause is known.

    `pattern` is searched in what a line says, without regard to case, and says what the message is, not who wrote it.
    `needle` stands in every line that can match, in small letters; looking for it is what makes reading fast.
    `culprit` is «kind {name}», filled from the groups of the pattern and from rank, host and gpu of the line; where one
    of these is not known there is no culprit, or the one after «|». `example` is such a line, for tests and for the
    page of the cause.
    """

    needle: str
    pattern: str
    example: str
    weight: Weight = Weight.PLAIN
    culprit: str = ""
    note: str = ""  # what this sign adds to the message, filled like the culprit
    severity: Severity | None = None  # where it is another than the cause's own
    whole: bool = (
        False  # searched in the whole line, for signs that name the source file in NCCL's prefix
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that speaks for a cause. `culprits` are (kind, name) pairs; a kind may have a {} where names go."""

    cause: str
    line: LogLine
    weight: Weight
    culprits: tuple[tuple[str, str], ...] = ()
    note: str = ""
    severity: Severity | None = None  # where it is another than the cause's own


@dataclass(frozen=True)
class LogFile:
    """All that was kept of all files, in order."""

    lines: tuple[LogLine, ...]
    hosts: frozenset[str] = frozenset()
    files: Mapping[str, int] = field(default_factory=dict)  # lines read of each

    @cached_property
    def ranks(self) -> frozenset[int]:
        return frozenset(line.rank for line in self.lines if line.rank is not None)

    @cached_property
    def forms(self) -> Mapping[str, list[LogLine]]:
        """Lines by their text in small letters with every digit as 0: what is asked of all lines is asked of these."""
        found: dict[str, list[LogLine]] = {}
        for line in self.lines:
            found.setdefault(form_of(line.text), []).append(line)
        return found

    def saying(self, *words: str) -> list[LogLine]:
        """Lines that hold one of the words, which are in small letters, in their order."""
        wanted = [form_of(word) for word in words]
        found = [
            line
            for form, lines in self.forms.items()
            if any(word in form for word in wanted)
            for line in lines
        ]
        return sorted(found, key=lambda line: line.order)


Look = Callable[[LogFile], Iterator[Evidence]]


@dataclass(frozen=True)
class Cause:
    """Something that makes jobs fail, and how its failure reads. `name` is one of the contract's vocabulary."""

    name: str
    severity: Severity
    title: str
    message: str  # what happened, for the report
    looks: str  # what the log looks like
    unlike: str  # what looks alike and is something else
    remedy: str
    check: str | None  # the check of ours that finds it before the job starts
    signs: tuple[Sign, ...] = ()
    look: Look | None = None  # for what takes several lines
    needles: tuple[
        str, ...
    ] = ()  # what stands, in small letters, in the lines that `look` asks for
    yields_to: frozenset[str] = field(
        default_factory=frozenset
    )  # causes that explain this one away
    of_host: bool = False  # where no sign names anybody, the host whose lines these are is meant


@dataclass(frozen=True, slots=True)
class Found:
    """One cause in the diagnosis."""

    cause: Cause
    severity: Severity
    confidence: float
    culprit: str | None
    lines: tuple[LogLine, ...]
    message: str
    more: int = 0  # lines beyond those shown
    live: tuple[str, ...] = ()  # what the check says now, with --inventory


@dataclass(frozen=True)
class Diagnosis:
    """Causes, most likely first, and lines that look like errors and that nobody knows."""

    causes: tuple[Found, ...]
    unexplained: tuple[LogLine, ...] = ()
    notices: tuple[str, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict)  # lines read of each
    failed: bool = False  # a worker failed, so harmless lines alone do not make it well

    @property
    def code(self) -> int:
        """1 for anything that is not benign, 0 for benign lines alone, 3 where what went wrong was not recognised."""
        if any(found.severity != "benign" for found in self.causes):
            return 1
        return 0 if self.causes and not self.failed else 3
