"""The runs of all contenders on a lab of one size, and which of the wanted figures they hold."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SIZE = 64  # hosts for which a time of every check is wanted
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Run:
    """One measured run; times in seconds, over all hosts."""

    wall: float
    cpu: float  # of the controller
    hosts: float  # CPU time of all hosts
    machine: float  # CPU time of the whole machine, of all processes
    memory: float  # KiB, the most that one process of the controller had

    @property
    def others(self) -> float:
        """Share of the machine that neither controller nor hosts used."""
        return max(0.0, self.machine - self.cpu - self.hosts) / (self.wall * CORES)


@dataclass(frozen=True)
class Want:
    """A line of what is wanted: a ratio or a number, and what it may be."""

    text: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        seen = (
            "not measured"
            if self.value is None
            else f"{self.value:.2f}  {'yes' if self.holds else 'NO'}"
        )
        return f"  {self.text:66} wanted {sign} {self.limit:g}: {seen}"


class Measured:
    """The runs of every contender, and what follows from them."""

    def __init__(self, nodes: int, deadline: float) -> None:
        self.nodes = nodes
        self.deadline = deadline  # seconds that a host has to let us in
        self.runs: dict[str, list[Run]] = defaultdict(list)

    def wall(self, name: str | None) -> float | None:
        """Median wall time, s."""
        return self._median(name, lambda run: run.wall)

    def cpu(self, name: str | None) -> float | None:
        """Median CPU milliseconds of the controller per node."""
        seen = self._median(name, lambda run: run.cpu)
        return None if seen is None else seen * 1000 / self.nodes

    def hosts(self, name: str) -> float | None:
        """Median CPU milliseconds of a host."""
        seen = self._median(name, lambda run: run.hosts)
        return None if seen is None else seen * 1000 / self.nodes

    @property
    def others(self) -> float:
        """Share of the machine that something else used meanwhile, median."""
        return statistics.median(run.others for runs in self.runs.values() for run in runs)

    def best(self, family: str) -> str | None:
        """The contender of a family with the shortest median wall time."""
        times = {
            name: time
            for name in self.runs
            if name.startswith(family) and (time := self.wall(name))
        }
        return min(times, key=lambda name: times[name]) if times else None

    def ratio(self, over: str | None, under: str | None) -> float | None:
        """How many times longer `over` takes than `under`."""
        return _ratio(self.wall(over), self.wall(under))

    def beyond(self, many: str, one: str, what: Callable[[Run], float]) -> float | None:
        """What each further node adds.

        Of a run over all nodes without what a run over one node costs.
        """
        all_of_them, start = self._median(many, what), self._median(one, what)
        return (
            None
            if all_of_them is None or start is None
            else (all_of_them - start) / (self.nodes - 1)
        )

    def wants(self) -> Iterator[Want]:
        """Every figure that was wanted, measured or not."""
        floor, ansible = self.best("floor-"), self.best("ansible")
        yield Want(f"(c) check over (b) the floor, {floor}", self.ratio("check", floor), 1.15)
        yield Want(
            "(c) check of the kernel alone over (a) plain ssh, true",
            self.ratio("check-kernel", "ssh"),
            1.2,
        )
        yield Want("(c) unchanged apply over (c) check", self.ratio("apply-again", "check"), 1.2)
        yield Want(
            f"(d) times faster than {ansible or 'Ansible'}",
            self.ratio(ansible, "apply"),
            25,
            at_least=True,
        )
        yield Want(
            "(d) times faster than pyinfra", self.ratio("pyinfra", "apply"), 1.8, at_least=True
        )
        yield Want(
            "(d) over parallel-ssh, three commands", self.ratio("apply", "parallel-ssh"), 0.9
        )
        for name, limit in (("pyinfra", 2), (ansible, 25)):
            text = f"(d) times less controller CPU than {name or 'Ansible'}"
            yield Want(text, _ratio(self.cpu(name), self.cpu("apply")), limit, at_least=True)
        wall = self.wall("check") if self.nodes == SIZE else None
        yield Want(f"(c) check, everything, s for {SIZE} hosts", wall, 4.5)
        yield from self._costs()
        for name in ("check", "check-kernel"):
            late = self.wall(f"{name}-hung")
            text = f"(h) {name} with hung hosts, s beyond {self.deadline:g} s"
            yield Want(text, None if late is None else late - self.deadline, 2)

    def _costs(self) -> Iterator[Want]:
        transport = self.beyond("floor-agent", "agent-one", lambda run: run.cpu * 1000)
        whole = self.beyond("check", "check-one", lambda run: run.cpu * 1000)
        yield Want("(d) common job, ms of controller CPU per node", self.cpu("apply"), 8)
        yield Want("(c) check, everything, ms of controller CPU per node", self.cpu("check"), 12)
        yield Want("(c) a look, ms of a host's CPU beyond that of (a)", self._look(), 100)
        judging = None if transport is None or whole is None else whole - transport
        yield Want("(b) transport, ms of controller CPU per further node", transport, 10)
        yield Want("(c) what check adds: parsing and judging, ms per further node", judging, 5)
        yield Want(
            "(c) check, KiB of memory per further node",
            self.beyond("check", "check-one", lambda r: r.memory),
            150,
        )

    def _look(self) -> float | None:
        """What a look costs a host in ms of CPU, without the login."""
        whole, login = self.hosts("check"), self.hosts("ssh")
        return None if whole is None or login is None else whole - login

    def _median(self, name: str | None, what: Callable[[Run], float]) -> float | None:
        runs = self.runs.get(name or "")
        return statistics.median(map(what, runs)) if runs else None


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None
