"""Knows the messages that other programs print, by tables made from their sources.

`known(line)` returns the message of a line: its program, source file and versions. `meaning(line)`
says what the rules, which are written by hand, take it for. data/messages/ has both: a table and
the rules of each program. tests/support/messages makes the tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Evidence, LogFile, LogLine, Weight

FOLDER = Path(__file__).parents[2] / "data" / "messages"
GAP = "…"  # stands in tables and rules for what is only known when a program runs
# What lines of these programs have, as forms, so that reading keeps them.
NEEDLES = ("nccl warn", "slurmstepd: error", "srun: error", "pyxis: ", "ucx  error", "ucx  warn")
# What rules say beside names of causes. `program`: the program's own mistake; `open`: the cause
# is not known; `echo`: repeats a failure that another line tells.
WORDS = frozenset({"harmless", "echo", "program", "open"})
_NEEDS_NO_CAUSE = frozenset({"harmless", "echo"})
_INFORMING = frozenset({"INFO", "DEBUG", "TRACE", "I"})  # levels of lines that tell no failure
_NAMES = {
    "nccl": "NCCL",
    "ucx": "UCX",
    "slurm": "Slurm",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
    "ray": "Ray",
    "kubernetes": "Kubernetes",
}
_WORD = re.compile(r"[A-Za-z]{4,}")
_HEADING = re.compile(r"\[(?P<kind>\w+)(?:, (?P<weight>plain|symptom))?\] (?P<reason>.+)")
_WEIGHTS = {"plain": Weight.PLAIN, "symptom": Weight.SYMPTOM}
_DISTINCT = 30  # characters of its own that only one program prints
_LONGEST = 2_000  # characters of a line that are compared


class Message(Struct, frozen=True):
    """A message of a program, with GAP for what differs from line to line."""

    program: str
    text: str
    kind: str  # "w" for warnings and errors, "i" for information that sounds like one
    file: str
    first: str
    last: str

    @property
    def origin(self) -> str:
        """The program with its versions, and the file: `NCCL 2.18.1 to 2.30.7, src/proxy.cc`."""
        name = _NAMES.get(self.program, self.program)
        versions = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return f"{name} {versions}, {self.file}"


class Rule(Struct, frozen=True):
    """What messages with these texts, in this order, mean.

    `kind` is the name of a cause, or one of WORDS.
    """

    kind: str
    weight: Weight
    reason: str
    parts: tuple[str, ...]


# ---------------------------------------------------------------- what a line means


def known(line: LogLine) -> Message | None:
    """Return the message that the line is, or None. Of several it is the longest."""
    return _known(_squeezed(line.message))


def meaning(line: LogLine) -> Rule | None:
    """Return what the line means by the rules, or None if no rule fits or it is not known."""
    message = known(line)
    return rule_for(message.program, message.text) if message else None


@functools.lru_cache(maxsize=4096)
def rule_for(program: str, text: str) -> Rule | None:
    """Return the first rule of a program that fits a message of its table.

    What stood in the gaps of a line is not looked at: that is what signs of causes are for.
    """
    for rule in rules(program):
        if _fits(rule.parts, text):
            return rule
    return None


def origin(line: LogLine) -> str:
    """Return the program, versions and file that print the line, or "" if it is not known.

    What is so short that other programs may print it too has no origin.
    """
    message = known(line)
    if message is None or len(message.text.replace(GAP, "")) < _DISTINCT:
        return ""
    return message.origin


def tells_nothing(line: LogLine) -> bool:
    """Whether the line is harmless, or repeats what another line tells."""
    rule = meaning(line)
    return rule is not None and rule.kind in _NEEDS_NO_CAUSE


def evidence(log: LogFile, explained: Collection[int]) -> Iterator[Evidence]:
    """Yield evidence of lines whose message has a cause by the rules.

    `explained` are the lines that have a cause already, by their order.
    """
    for lines in log.forms.values():
        first = lines[0]
        if first.level in _INFORMING:
            continue
        text = _squeezed(first.message)
        # Nearly no line has the words of a rule, and to look for these is fast.
        if not any(_fits(rule.parts, text) for rule in _rules_with_causes()):
            continue
        rule = meaning(first)
        if rule is None or rule.kind in WORDS:
            continue
        for line in lines:
            if line.order not in explained:
                yield Evidence(rule.kind, line, rule.weight)


# ---------------------------------------------------------------- finding


@functools.lru_cache(maxsize=4096)
def _known(text: str) -> Message | None:
    best: Message | None = None
    for word in dict.fromkeys(_WORD.findall(text)):  # each once, in order
        for program, row in _rows().get(word, ()):
            message_text = row.partition("\t")[0]
            longer = best is None or len(message_text) > len(best.text)
            if longer and _fits(message_text.split(GAP), text):
                best = Message(program, *row.split("\t"))
    return best


def _squeezed(text: str) -> str:
    return " ".join(text[:_LONGEST].split())


def _fits(parts: Sequence[str], text: str) -> bool:
    """Whether the text has all parts, in this order."""
    position = 0
    for part in parts:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


# ---------------------------------------------------------------- tables and rules


def programs() -> tuple[str, ...]:
    """Return the names of the programs that have a table, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.tsv")))


def messages_of(program: str) -> list[Message]:
    """Return all messages of a program."""
    return [Message(program, *row.split("\t")) for _, row in _table(program)]


def _table(program: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table, each with the word that it is found by."""
    text = (FOLDER / f"{program}.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        word, _, row = line.partition("\t")
        yield word, row


@functools.cache
def _rows() -> Mapping[str, list[tuple[str, str]]]:
    """Return program and row of all messages by the word that they are found by.

    Rows are taken apart only when a line has their word: most never are.
    """
    by_word: dict[str, list[tuple[str, str]]] = {}
    for program in programs():
        for word, row in _table(program):
            by_word.setdefault(word, []).append((program, row))
    return by_word


@functools.cache
def rules(program: str) -> tuple[Rule, ...]:
    """Return the rules of a program, in order. Raises ValueError for a line that is none."""
    path = FOLDER / f"{program}.rules"
    if not path.exists():
        return ()
    found: list[Rule] = []
    heading: re.Match[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and _HEADING.fullmatch(line):
            heading = _HEADING.fullmatch(line)
            continue
        if heading is None:
            raise ValueError(f"{path}:{number} stands before the first heading")
        weight = _WEIGHTS.get(heading["weight"] or "", Weight.LIKELY)
        parts = tuple(line.split(GAP))
        found.append(Rule(heading["kind"], weight, heading["reason"], parts))
    return tuple(found)


@functools.cache
def _rules_with_causes() -> tuple[Rule, ...]:
    """Return the rules of all programs that name a cause."""
    every = (rule for program in programs() for rule in rules(program))
    return tuple(rule for rule in every if rule.kind not in WORDS)
