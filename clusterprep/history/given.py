"""What earlier runs gave to nodes, how they ended there, how fast their trials were: SQLite in the state folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clusterprep.errors import Refused
from clusterprep.history.database import Database, Statement, Unusable
from clusterprep.model import EnvValue, Report
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.variables.variables import registry

REMEMBERED = 20  # runs whose speed counts
KEPT = 200  # applies of a cluster whose outcomes and environment are kept
_WELL = ("done", "unchanged")  # what a node that was written to ends with


class AppliedEnvironments:
    """The environment that each node was last given. The file appears with the first run that writes."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._database = Database(folder)
        self._kept = kept
        self.troubles: list[str] = []  # what could not be read or noted; a run goes on without

    def last(self, cluster: str) -> dict[str, dict[str, str]]:
        """Node → name → value, as each node's newest run left it."""
        query = """select node, name, value from given g where cluster = ? and run =
                   (select max(run) from given where cluster = g.cluster and node = g.node)"""
        found: dict[str, dict[str, str]] = {}
        for node, name, value in self._read(query, cluster):
            found.setdefault(node, {})[name] = value
        return found

    def remember(
        self, cluster: str, run: str, environment: Environment, nodes: Iterable[str]
    ) -> None:
        """Note what a run wrote."""
        rows = [
            (
                "insert or replace into given values (?, ?, ?, ?, ?)",
                (cluster, node, run, value.name, value.value),
            )
            for node in nodes
            for value in environment.of(node).values()
        ]
        self._keep(rows)

    def forget(self, cluster: str, run: str) -> None:
        """Note that a run was rolled back."""
        if self._database.path.exists():
            self._keep([("delete from given where cluster = ? and run = ?", (cluster, run))])

    def note(self, cluster: str, report: Report) -> None:
        """Note what became of every node in an apply, for `--retry-failed`."""
        rows = [
            (
                "insert or replace into outcome values (?, ?, ?, ?, ?)",
                (cluster, report.run, node, outcome, failed),
            )
            for node, (outcome, failed) in outcomes(report).items()
        ]
        self._keep([*rows, _without_old("outcome", cluster, self._kept)])

    def keep(self, cluster: str, report: Report) -> None:
        """Note the environment that an apply had, whatever became of it, for `env --from-run`."""
        rows = [
            (
                "insert or replace into environment values (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    cluster,
                    report.run,
                    str(n),
                    v.name,
                    v.value,
                    " ".join(v.nodes),
                    v.why,
                    str(int(v.declared)),
                ),
            )
            for n, v in enumerate(report.env or ())
        ]
        self._keep([*rows, _without_old("environment", cluster, self._kept)])

    def environment(self, cluster: str, run: str) -> tuple[EnvValue, ...]:
        """The values that an apply had, as it had them; none for a run that is not remembered."""
        query = """select name, value, nodes, why, declared from environment
                   where cluster = ? and run = ? order by place"""
        rows = self._read(query, cluster, run)
        return tuple(
            EnvValue(n, v, tuple(nodes.split(" ")), why, bool(int(d)))
            for n, v, nodes, why, d in rows
        )

    def runs(self, cluster: str, most: int = 3) -> tuple[str, ...]:
        """The newest applies whose environment is remembered, newest first."""
        query = "select distinct run from environment where cluster = ? order by run desc limit ?"
        rows = self._read(query, cluster, most)
        return tuple(run for (run,) in rows)

    def speeds(self, cluster: str, trial: str) -> tuple[float, ...]:
        """GB/s of the newest runs of a trial, which its nodes, ranks, backend, collective and size make the same."""
        query = "select busbw from speed where cluster = ? and trial = ? order by run desc limit ?"
        return tuple(float(busbw) for (busbw,) in self._read(query, cluster, trial, REMEMBERED))

    def note_speed(self, cluster: str, trial: str, run: str, busbw: float) -> None:
        """Note how fast a trial was. One that was judged too slow is best not noted, or it would become normal."""
        row = (cluster, trial, run, repr(busbw))
        self._keep([("insert or replace into speed values (?, ?, ?, ?)", row)])

    def failed(self, cluster: str, run: str) -> tuple[str, ...]:
        """The nodes that failed in an apply; none, too, for one that is not remembered."""
        query = "select node from outcome where cluster = ? and run = ? and failed = 'yes'"
        return tuple(node for (node,) in self._read(query, cluster, run))

    def applies(self, cluster: str) -> tuple[str, ...]:
        """The applies of which it is known on which nodes they failed, newest first."""
        rows = self._read(
            "select distinct run from outcome where cluster = ? order by run desc", cluster
        )
        return tuple(run for (run,) in rows)

    def _read(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        try:
            return self._database.read(query, values)
        except Unusable as error:
            self._complain(error)
            return []

    def _keep(self, statements: Iterable[Statement]) -> None:
        try:
            self._database.write(*statements)
        except Unusable as error:
            self._complain(error)

    def _complain(self, error: Unusable) -> None:
        if str(error) not in self.troubles:
            self.troubles.append(str(error))


def _without_old(table: str, cluster: str, kept: int) -> Statement:
    """What takes away all but the newest applies of a cluster."""
    newest = f"select distinct run from {table} where cluster = ? order by run desc limit {kept}"
    old = f"delete from {table} where cluster = ? and run not in ({newest})"
    return old, (cluster, cluster)


def outcomes(report: Report) -> dict[str, tuple[str, str]]:
    """Node → what became of it, and whether that is a failure: not reached, not written, or blamed for an error."""
    bad = [
        f
        for f in report.findings or ()
        if f.verdict in ("fail", "unknown") and f.severity == "error"
    ]
    blamed = {
        node
        for finding in bad
        if not finding.fixed and not finding.silenced
        for node in finding.nodes
    }
    blamed.update(
        node
        for culprit in (report.verify.culprits if report.verify else ())
        for node in culprit.nodes
    )
    found: dict[str, tuple[str, str]] = {}
    for snapshot in report.nodes or ():
        words = [change.outcome for change in report.changes or () if snapshot.node in change.nodes]
        worst = next(
            (word for word in words if word not in _WELL), words[0] if words else "unchanged"
        )
        word = str(worst) if snapshot.reached else "not reached"
        failed = word not in _WELL or snapshot.node in blamed
        found[snapshot.node] = (word, "yes" if failed else "no")
    return found


def refuse_clashes(
    environment: Environment, nodes: Iterable[str], others: Mapping[str, Mapping[str, str]]
) -> None:
    """Under --limit: a value that must be equal on all ranks has to equal what the other nodes were last given."""
    wanted = {value.name: value for node in nodes for value in environment.of(node).values()}
    for name, value in sorted(wanted.items()):
        if registry().get(name, {}).get("uniformity") != "job":
            continue
        odd = [node for node, given in others.items() if given.get(name) != value.value]
        if odd:
            theirs = others[odd[0]].get(name)
            seen = (
                f"{fold(odd)} were last given {name}={theirs}"
                if theirs is not None
                else f"{fold(odd)} lack {name}"
            )
            message = f"{name}={value.value} must be equal on all ranks, and {seen}; apply without --limit"
            raise Refused(f"{message}; nothing was written")
