"""Values of diagnose: lines of logs, signs of causes, evidence for causes, and the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Literal

from msgspec import Struct, field

from clusterprep.remedies import Remedy

Severity = Literal["fatal", "degraded", "benign"]


class Weight(IntEnum):
    """How much a sign says about its cause. Causes are ranked by their weightiest sign."""

    ECHO = 0  # the failure of another process, seen from this one
    SYMPTOM = 1  # something failed, and this cause is one of several that look like that
    LIKELY = 2  # this is what the cause looks like, though others may
    PLAIN = 3  # the message says the cause itself


_DIGITS = str.maketrans("123456789", "000000000")


def form_of(text: str) -> str:
    """Return the text in small letters with every digit as 0: `form_of("Rank 12")` is `"rank 00"`.

    Lines that differ only in numbers have the same form.
    """
    return text.lower().translate(_DIGITS)


# What lines of one kind differ in: the host and process before NCCL's messages, digits, and
# hexadecimal numbers such as pointers, bus ids and names of containers.
NUMBER = r"(?<![\w.-])[\w.-]+:0+:0+ (?=\[0+\])|0x[0-9a-f]+\b|\b(?=[a-f]*0)[0-9a-f]{5,}\b|0+"
_NUMBER = re.compile(NUMBER)


def kind_of(form: str) -> str:
    """Return a form with every number as one 0: `kind_of("comm 0x00ab busid db000")`.

    There are far fewer kinds than forms. The kind of a needle is part of the kind of every line
    that has the needle.
    """
    return _NUMBER.sub("0", form)


Place = tuple[str, int]  # file and line number


class LogLine(Struct, frozen=True):
    """One line that may matter.

    `text` is the whole line, `message` is the same without prefixes of launchers and loggers.
    """

    file: str
    number: int  # from 1
    text: str
    message: str
    order: int = 0  # among all lines of all files, in the order of reading
    level: str = ""  # WARN, INFO, ERROR, E, W, I ... as the program wrote it
    source: str = ""  # nccl, c10d, kernel, slurm, or empty
    rank: int | None = None
    local: int | None = None  # the local rank: the rank on its node
    host: str | None = None
    gpu: int | None = None
    # Seconds in a year of 31-day months. They serve to compare lines; logs seldom have the year.
    time: float | None = None
    pid: int | None = None

    @property
    def place(self) -> Place:
        return self.file, self.number


class Sign(Struct, frozen=True):
    """A message that tells a cause.

    `pattern` is searched in the message of a line, ignoring case. It describes the message and not
    the program that wrote it.
    `needle` is in small letters and part of every line that can match. Searching for needles first
    is what makes reading fast.
    `culprit` is «kind {name}», filled from the groups of the pattern and from rank, host and gpu of
    the line. If one of these is unknown, the alternative after «|» is tried; if there is none, the
    line names no culprit.
    `example` is such a line, for tests and for the page of the cause.
    """

    needle: str
    pattern: str
    example: str
    weight: Weight = Weight.PLAIN
    culprit: str = ""
    note: str = ""  # what this sign adds to the message, filled like the culprit
    severity: Severity | None = None  # if it differs from the severity of the cause
    # For signs that name the source file, which is in NCCL's prefix.
    searches_whole_line: bool = False


Culprit = tuple[str, str]  # (kind, name); the kind may have {} where names go
Culprits = tuple[Culprit, ...]


class Evidence(Struct, frozen=True):
    """A line that speaks for a cause."""

    cause: str
    line: LogLine
    weight: Weight
    culprits: Culprits = ()
    note: str = ""
    severity: Severity | None = None  # if it differs from the severity of the cause


class LogFile(Struct, frozen=True, dict=True):
    """The lines kept of all files, in order."""

    lines: tuple[LogLine, ...]
    hosts: frozenset[str] = frozenset()
    files: Mapping[str, int] = field(default_factory=dict)  # number of lines read, by file

    @cached_property
    def ranks(self) -> frozenset[int]:
        ranks = {line.rank for line in self.lines}
        return frozenset(rank for rank in ranks if rank is not None)

    @cached_property
    def forms(self) -> Mapping[str, list[LogLine]]:
        """Lines by their kind (see `kind_of`): there are far fewer kinds than lines to search."""
        kinds: dict[str, str] = {}  # by form
        lines_of_kind: dict[str, list[LogLine]] = {}
        for line in self.lines:
            form = form_of(line.text)
            kind = kinds.get(form)
            if kind is None:
                kind = kind_of(form)
                kinds[form] = kind
            lines_of_kind.setdefault(kind, []).append(line)
        return lines_of_kind

    def lines_with(self, *needles: str) -> list[LogLine]:
        """Return the lines that have one of the needles, in order. Needles are in small letters."""
        matching: dict[str, list[LogLine]] = {}  # by kind
        for needle in needles:
            for kind in self._kinds_with(needle):
                matching[kind] = self.forms[kind]
        lines = [line for lines in matching.values() for line in lines]
        if len(matching) > 1:
            lines.sort(key=lambda line: line.order)
        return lines

    def _kinds_with(self, needle: str) -> list[str]:
        kinds = self._kinds_by_needle.get(needle)
        if kinds is None:
            part = kind_of(form_of(needle))
            kinds = [kind for kind in self.forms if part in kind]
            self._kinds_by_needle[needle] = kinds
        return kinds

    @cached_property
    def _kinds_by_needle(self) -> dict[str, list[str]]:
        """What `lines_with` found so far, as several causes ask for the same."""
        return {}


Detector = Callable[[LogFile], Iterator[Evidence]]


class Cause(Struct, frozen=True):
    """Something that makes jobs fail, and what its failure looks like in a log.

    `name` is one of the names that the JSON schema of diagnoses lists.
    """

    name: str
    severity: Severity
    title: str
    message: str  # what happened, for the report
    looks: str  # what the log looks like
    unlike: str  # what looks similar and is something else
    remedy: Remedy
    check: str | None  # the check that finds it, or what `finds` says, before the job starts
    signs: tuple[Sign, ...] = ()
    detect: Detector | None = None  # for causes that only several lines together show
    needles: tuple[str, ...] = ()  # in small letters, part of the lines that `detect` needs
    yields_to: frozenset[str] = field(default_factory=frozenset)  # causes that explain this one
    # Whether the hosts that wrote the lines are to blame if no sign names a culprit.
    blames_host: bool = False
    # Whether the process that prints a line may be to blame. It is not where it tells of another.
    blames_process: bool = True
    # What happened as far as it is known where no line says the cause itself; else `message`.
    doubt: str = ""
    # What the check finds, where that is one of the reasons that the cause may have.
    finds: str = ""


class DiagnosedCause(Struct, frozen=True):
    """One cause in the diagnosis."""

    cause: Cause
    severity: Severity
    confidence: float
    culprit: str | None
    lines: tuple[LogLine, ...]
    message: str
    more: int = 0  # number of lines beyond those shown
    live: tuple[str, ...] = ()  # what the check says now, with --inventory


class Diagnosis(Struct, frozen=True):
    """Causes, most likely first, and lines that look like errors and belong to no known cause."""

    causes: tuple[DiagnosedCause, ...]
    unexplained: tuple[LogLine, ...] = ()
    notices: tuple[str, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict)  # number of lines read, by file
    ended_well: bool = False  # the log says so, or shows steps to its end, and no failure
    has_succeeded: bool = False  # launch saw all ranks end with exit code 0

    @property
    def code(self) -> int:
        """The exit code: 1 if a cause is not benign, 0 if all are benign and the job ended well.

        It is 3 if no cause is known, or if nothing shows a good end. Without a cause it is 0 only
        if launch saw all ranks succeed.
        """
        if any(found.severity != "benign" for found in self.causes):
            return 1
        if self.has_succeeded or (self.causes and self.ended_well):
            return 0
        return 3
