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
        (
            f"Nodes without a fault: inspected {tally.looked_at} times, "
            f"not reached {tally.unreached} times."
        ),
        f"Peak memory of a command, median of the first half and of the second: {peaks}.",
    ]
    if len(tally.sizes) > 1:
        first, last = tally.sizes[1], tally.sizes[-1]
        rows.append(
            f"One process that ran {len(tally.sizes)} checks had {first.rss // MEBI} MiB, "
            f"{first.threads} threads and {first.files} open files after the first, "
            f"{last.rss // MEBI} MiB, {last.threads} and {last.files} after the last."
        )
    return rows


def _halves(values: Sequence[int]) -> str:
    half = len(values) // 2
    return f"{median(values[:half]) / MEBI:.0f} and {median(values[half:]) / MEBI:.0f} MiB"


def markdown(tally: Tally, conditions: Sequence[str]) -> str:
    """The page docs/why/reliability.md; `conditions` are those of the run, in words."""
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
# Reliability: faults during commands

Written by `make soak`, from a run on lab hosts with real OpenSSH. Commands follow each other
without a pause. During each command a share of the nodes has faults, which are drawn again for each
command. An independent observer, which shares no code with clusterprep, then inspects every host:
it decides whether the report of the command was true, and whether the command left anything behind.
"""
_READING = """\
## How to read it

*12 of 12*: the fault took effect during twelve commands of that kind, and none of the twelve had a
violation. A command may fail, be refused or report unknown: with a node gone, that is the correct
answer. Each of these is a violation:

* **A wrong pass.** A node that was down passed `ssh.reach`, or one whose clock was off by five
  seconds passed `time.offset`. Or another fault that lasted from before the command until after it
  was not named, or the exit code was 0 in spite of it.
* **A wrong failure.** A node without a fault failed a check, or was named as the culprit of a
  verify.
* **Half a file.** A file is not, byte for byte, what some apply wrote. Or a node has another
  version than reported: the new one is expected if the change is `done`, the old one if it is
  `rolled-back`, `not-started` or refused, the one before the apply if it is `undone`. A node that
  was lost in between may have either, and then its journal says so.
* **Leftovers.** A process on a node or on the controller, a lock, a staged file beside its target,
  a file in a folder that all may write to, or more runs in the state folder than are kept.
* **Growth.** The peak memory of commands of one kind grows, or memory, threads and open files of
  one process that runs checks repeatedly.

Several faults are present at once, on different nodes, and each of them counts. Faults that come
and go start at a random moment, and take effect only if the command still runs then. The last three
rows are faults of the command itself. An apply with nodes that are down runs with `--partial`, to
continue without them. A node without a fault that was not reached is no violation, because a busy
machine may be the reason, but it is counted above. The figures say what was tried, not that nothing
else can happen.

`make soak ARGS='--seed N'` repeats the same schedule; the timing within a command differs.
"""
