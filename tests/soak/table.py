"""What was tried and what was survived, by fault and command, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.soak.observer import Size
from tests.soak.schedule import KINDS

COMMANDS = ("check", "apply", "rollback", "verify")
MEBI = 1024  # KiB


@dataclass
class Tally:
    """Counts of a run. A fault is survived in a round that has no violation."""

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)  # fault and command
    survived: Counter[tuple[str, str]] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    looked_at: int = 0  # nodes on which nothing was wrong, over all commands
    unreached: int = 0  # of these
    peaks: dict[str, list[int]] = field(default_factory=dict)  # command → KiB, in turn
    sizes: list[Size] = field(
        default_factory=list
    )  # of the one process, before each of its commands
    wrong: list[str] = field(default_factory=list)

    def count(self, command: str, kinds: Iterable[str], wrong: Sequence[str]) -> None:
        self.commands[command] += 1
        self.wrong += wrong
        for kind in kinds:
            self.tried[kind, command] += 1
            self.survived[kind, command] += not wrong


def lines(tally: Tally) -> list[str]:
    """The table as text."""
    head = f"{'fault':<62}" + "".join(f"{command:>12}" for command in COMMANDS)
    rows = [
        f"{kind.title:<62}" + "".join(f"{_cell(tally, kind.name, c):>12}" for c in COMMANDS)
        for kind in KINDS
    ]
    return [head, *rows, "", *_figures(tally)]


def _cell(tally: Tally, kind: str, command: str) -> str:
    tried = tally.tried[kind, command]
    return f"{tally.survived[kind, command]} of {tried}" if tried else "–"


def _figures(tally: Tally) -> list[str]:
    told = ", ".join(f"{count} {command}" for command, count in sorted(tally.commands.items()))
    peaks = "; ".join(
        f"{name} {_halves(values)}"
        for name, values in sorted(tally.peaks.items())
        if len(values) > 1
    )
    rows = [
        f"Commands: {told}; {sum(tally.tried.values())} faults took effect.",
        f"Violations: {len(tally.wrong)}.",
        f"Nodes on which nothing was wrong: looked at {tally.looked_at} times, not reached {tally.unreached} times.",
        f"Peak memory of a command, median of the first half and of the second: {peaks}.",
    ]
    if len(tally.sizes) > 1:
        first, last = tally.sizes[1], tally.sizes[-1]
        rows.append(
            f"One process that ran {len(tally.sizes)} checks had {first.rss // MEBI} MiB, {first.threads} threads and "
            f"{first.files} open files after the first, {last.rss // MEBI} MiB, {last.threads} and {last.files} "
            "after the last."
        )
    return rows


def _halves(values: Sequence[int]) -> str:
    half = len(values) // 2
    return f"{median(values[:half]) / MEBI:.0f} and {median(values[half:]) / MEBI:.0f} MiB"


def markdown(tally: Tally, conditions: Sequence[str]) -> str:
    """The page docs/reliability.md; `conditions` are those of the run, in words."""
    said = ", ".join(conditions)
    head = ["| fault | " + " | ".join(COMMANDS) + " |", "|---|" + "---:|" * len(COMMANDS)]
    rows = [
        f"| {kind.title} | "
        + " | ".join(_cell(tally, kind.name, command) for command in COMMANDS)
        + " |"
        for kind in KINDS
        if any(tally.tried[kind.name, command] for command in COMMANDS)
    ]
    figures = [f"* {figure}" for figure in _figures(tally)]
    return "\n".join([_HEADER, f"The run: {said}.", "", *figures, "", *head, *rows, "", _READING])


_HEADER = """\
# What it survives

Written by `make soak`, from a run over hosts of the lab with real OpenSSH. Commands follow each other without a pause,
and while each of them works, a share of the nodes is broken in ways that are drawn anew for each command. A stranger
who shares no code with clusterprep then looks into every host and says whether the command told the truth and left
nothing behind.
"""
_READING = """\
## How to read it

*12 of 12*: the fault took effect during twelve commands of that kind, and nothing was wrong with any of the twelve. A
command that fails, is refused or does not know is not wrong: with a node gone that is what it has to say. It is wrong
when any of this is seen:

* **A wrong pass.** A node that was down passed `ssh.reach`, one whose clock was off by five seconds passed
  `time.offset`, or another fault that was there from before the command until after it was not named; or exit 0 then.
* **A wrong failure.** A node on which nothing was wrong failed a check, or was named as the culprit of a verify.
* **Half a file.** A file is not, byte for byte, what some apply wrote. Or a node has another version than was told:
  the new one where the change is `done`, the old one where it is `rolled-back`, `not-started` or refused, the one
  before the apply where it is `undone`. A node that was lost in between may have either, and then its journal says so.
* **Something left.** A process on a node or on the controller, a lock, a file that was laid beside another one, a file
  in a folder where all may write, more runs in the state folder than are kept.
* **Growth.** The peak memory of commands of one kind, or memory, threads and open files of one process that runs
  checks again and again.

Several faults are there at once, on different nodes, and each of them counts. Faults that come and go start at a random
moment, and take effect only if the command still runs then; the last three rows are done to the command. An apply over
nodes that are down is told to go on without them (`--partial`). A node on which nothing was wrong and that was not
reached is no violation, as a busy machine may be the reason, but it is counted above. The figures say what was tried,
not that nothing else can happen.

`make soak ARGS='--seed N'` repeats the same schedule; what happens within a command depends on moments and differs.
"""
