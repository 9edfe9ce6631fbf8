"""Counts how many messages of each program the rules know, and as what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from clusterprep.jobs.diagnose import messages
from clusterprep.jobs.diagnose.messages import Message, Rule

KINDS = ("cause", "harmless", "echo", "program", "open")


@dataclass(frozen=True)
class Coverage:
    """What the rules say of one program's messages.

    `informing` is the number of messages that the program itself takes for information. They need
    no rule. `unclassified` are the others that no rule fits, `unused` the rules that fit none.
    """

    program: str
    first: str
    last: str
    informing: int
    kinds: Counter[str]
    unclassified: tuple[Message, ...]
    unused: tuple[Rule, ...]

    @property
    def total(self) -> int:
        return self.informing + sum(self.kinds.values()) + len(self.unclassified)


def of(program: str) -> Coverage:
    """Return the coverage of one program."""
    kinds: Counter[str] = Counter()
    unclassified: list[Message] = []
    used: set[Rule] = set()
    informing = 0
    versions: set[str] = set()
    for message in messages.messages_of(program):
        versions |= {message.first, message.last}
        rule = messages.rule_for(program, message.text)
        if rule:
            used.add(rule)
        if message.kind == "i":
            informing += 1
        elif rule is None:
            unclassified.append(message)
        else:
            kinds[rule.kind if rule.kind in messages.WORDS else "cause"] += 1
    ordered = sorted(versions, key=lambda label: tuple(map(int, label.split("."))))
    unused = tuple(rule for rule in messages.rules(program) if rule not in used)
    return Coverage(
        program,
        ordered[0],
        ordered[-1],
        informing,
        kinds,
        tuple(unclassified),
        unused,
    )


def table() -> str:
    """Return the coverage of all programs as a table in Markdown."""
    head = (
        "program",
        "versions",
        "messages",
        *KINDS,
        "information",
        "without a rule",
    )
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for program in messages.programs():
        found = of(program)
        counts = [found.total, *(found.kinds[kind] for kind in KINDS), found.informing]
        counts.append(len(found.unclassified))
        numbers = " | ".join(f"{count:,}" for count in counts)
        rows.append(f"| {program} | {found.first} to {found.last} | {numbers} |")
    return "\n".join(rows) + "\n"
