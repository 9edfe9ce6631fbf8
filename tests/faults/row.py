"""One fault as data: what is done to a host, and what a check has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.lab import Host, Lab
from tests.support.lab.faults import Fault

Prepare = Callable[[Lab], Iterable[Fault]]
Plant = Callable[[Host, Lab], Fault]


@dataclass(frozen=True)
class Row:
    """A fault, and the check that finds it.

    `mechanism` is `real` where the host really is that way, and `laid over` where a file over
    /proc, /sys or /dev, or the description of a stand-in, says so. `verdict` pass marks what looks
    like a fault and is none: no node may be blamed. `others` are nodes that the same check blames
    with good reason, `also` checks that are right to speak of these nodes too, with the reason.
    They follow from the one finding that counts, but for those in `apart`: these count too.
    `at` names the host where it matters which; `several` says that the check looks at every node by
    itself, so that more than one may be ill at the same time.
    """

    name: str
    check: str
    plant: Plant
    mechanism: Literal["real", "laid over"] = "real"
    verdict: Literal["fail", "unknown", "pass"] = "fail"
    reason: str | None = None
    at: str | None = None
    others: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    several: bool = False
    slow: bool = False  # takes longer than `make test` should wait


@dataclass(frozen=True)
class Stage:
    """Hosts made into machines of one kind, with the faults to plant on them.

    `inventory` says what they should be.

    Stages with the same `base` share it; `prepare` is a stage's own. `known` holds what `check` may
    say of these machines when nothing is wrong: (check, verdict) and why. `missing` says what is
    needed and not here.
    """

    name: str
    rows: tuple[Row, ...]
    base: Prepare
    prepare: Prepare = lambda lab: ()
    inventory: Callable[[Lab], Mapping[str, Any]] = lambda lab: {}
    known: Mapping[tuple[str, str], str] = field(default_factory=dict)
    missing: Callable[[], str | None] = lambda: None
    width: int = 8  # of the hosts that may be ill at the same time


@dataclass(frozen=True)
class Placed:
    """A fault and the host that gets it."""

    row: Row
    host: str

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes that the check has to name."""
        return (self.host, *self.row.others)


Run = tuple[Placed, ...]
HOSTS = 8
NAMES = tuple(f"n{number}" for number in range(1, HOSTS + 1))


def runs(stage: Stage) -> tuple[Run, ...]:
    """The faults of a stage on as few runs as can be.

    First none at all, then as many as have hosts of their own.
    """
    found: list[list[Placed]] = []
    for row in sorted(stage.rows, key=lambda row: (row.slow, row.at is None and not row.others)):
        for run in found:
            if len(run) < stage.width and (host := _place(row, run)) is not None:
                run.append(Placed(row, host))
                break
        else:
            found.append([Placed(row, _free(row, ()) or "")])
    return ((), *map(tuple, found))


def _place(row: Row, run: list[Placed]) -> str | None:
    if any(row.slow != placed.row.slow for placed in run):
        return None
    spoken = {row.check, *row.also}
    for placed in run:
        common = spoken & {placed.row.check, *placed.row.also}
        if common and not (row.several and placed.row.several):
            return None
    return _free(row, tuple(node for placed in run for node in placed.blamed))


def _free(row: Row, taken: tuple[str, ...]) -> str | None:
    """Return the last free host, so that the first, where ranks meet, is ill last."""
    if set(row.others) & set(taken):
        return None
    if row.at is not None:
        return None if row.at in taken else row.at
    return next(
        (name for name in reversed(NAMES) if name not in taken and name not in row.others), None
    )
