"""What earlier runs gave to nodes, how they ended there, how fast their trials were: SQLite in the state folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterprep.env.variables import registry
from clusterprep.errors import InputError, Refused
from clusterprep.model import EnvValue, Report
from clusterprep.noderange import fold
from clusterprep.render import Environment

_SCHEMA = (
    """create table if not exists given (
    cluster text not null, node text not null, run text not null, name text not null, value text not null,
    primary key (cluster, node, run, name))""",
    """create table if not exists outcome (
    cluster text not null, run text not null, node text not null, outcome text not null, failed text not null,
    primary key (cluster, run, node))""",
    """create table if not exists environment (
    cluster text not null, run text not null, place integer not null,
    name text not null, value text not null, nodes text not null, why text not null, declared integer not null,
    primary key (cluster, run, place))""",
    """create table if not exists speed (
    cluster text not null, trial text not null, run text not null, busbw text not null,
    primary key (cluster, trial, run))""",
)
REMEMBERED = 20  # runs whose speed counts
_WELL = ("done", "unchanged")  # what a node that was written to ends with
PATIENCE = 10.0  # seconds to wait for another run that is writing


def state_folder() -> Path:
    """$XDG_STATE_HOME/clusterprep, by default ~/.local/state/clusterprep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "clusterprep"


class Given:
    """The environment that each node was last given. The file appears with the first run that writes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.sqlite"
        self.troubles: list[str] = []  # what could not be noted; a run that wrote goes on without

    def last(self, cluster: str) -> dict[str, dict[str, str]]:
        """Node → name → value, as each node's newest run left it."""
        if not self._path.exists():
            return {}
        query = """select node, name, value from given g where cluster = ? and run =
                   (select max(run) from given where cluster = g.cluster and node = g.node)"""
        found: dict[str, dict[str, str]] = {}
        for node, name, value in self._do([(query, (cluster,))])[0]:
            found.setdefault(node, {})[name] = value
        return found

    def remember(self, cluster: str, run: str, environment: Environment, nodes: Iterable[str]) -> None:
        """Note what a run wrote."""
        rows = [
            ("insert or replace into given values (?, ?, ?, ?, ?)", (cluster, node, run, value.name, value.value))
            for node in nodes
            for value in environment.of(node).values()
        ]
        self._keep(rows)

    def forget(self, cluster: str, run: str) -> None:
        """Note that a run was rolled back."""
        if self._path.exists():
            self._keep([("delete from given where cluster = ? and run = ?", (cluster, run))])

    def note(self, cluster: str, report: Report) -> None:
        """Note what became of every node in an apply, for `--retry-failed`."""
        rows = [
            ("insert or replace into outcome values (?, ?, ?, ?, ?)", (cluster, report.run, node, outcome, failed))
            for node, (outcome, failed) in outcomes(report).items()
        ]
        self._keep(rows)

    def keep(self, cluster: str, report: Report) -> None:
        """Note the environment that an apply had, whatever became of it, for `env --from-run`."""
        rows = [
            (
                "insert or replace into environment values (?, ?, ?, ?, ?, ?, ?, ?)",
                (cluster, report.run, str(n), v.name, v.value, " ".join(v.nodes), v.why, str(int(v.declared))),
            )
            for n, v in enumerate(report.env or ())
        ]
        self._keep(rows)

    def environment(self, cluster: str, run: str) -> tuple[EnvValue, ...]:
        """The values that an apply had, as it had them; none for a run that is not remembered."""
        query = """select name, value, nodes, why, declared from environment
                   where cluster = ? and run = ? order by place"""
        rows = self._do([(query, (cluster, run))])[0] if self._path.exists() else []
        return tuple(EnvValue(n, v, tuple(nodes.split(" ")), why, bool(int(d))) for n, v, nodes, why, d in rows)

    def runs(self, cluster: str, most: int = 3) -> tuple[str, ...]:
        """The newest applies whose environment is remembered, newest first."""
        query = "select distinct run from environment where cluster = ? order by run desc limit ?"
        rows = self._do([(query, (cluster, str(most)))])[0] if self._path.exists() else []
        return tuple(run for (run,) in rows)

    def speeds(self, cluster: str, trial: str) -> tuple[float, ...]:
        """GB/s of the newest runs of a trial, which its nodes, ranks, backend, collective and size make the same."""
        import sqlite3

        query = "select busbw from speed where cluster = ? and trial = ? order by run desc limit ?"
        if not self._path.exists():
            return ()
        try:
            rows = self._do([(query, (cluster, trial, str(REMEMBERED)))])[0]
        except (OSError, sqlite3.Error) as error:
            self.troubles.append(f"{self._path} could not be read: {error}")
            return ()
        return tuple(float(busbw) for (busbw,) in rows)

    def note_speed(self, cluster: str, trial: str, run: str, busbw: float) -> None:
        """Note how fast a trial was. One that was judged too slow is best not noted, or it would become normal."""
        row = (cluster, trial, run, repr(busbw))
        self._keep([("insert or replace into speed values (?, ?, ?, ?)", row)])

    def failed(self, cluster: str, run: str) -> tuple[str, ...]:
        """The nodes that failed in an apply. Raises InputError for a run that is not remembered."""
        query = "select node, failed from outcome where cluster = ? and run = ?"
        rows = self._do([(query, (cluster, run))])[0] if self._path.exists() else []
        if not rows:
            raise InputError.of(f"no apply of cluster {cluster!r} is remembered as {run!r}", key="--retry-failed")
        return tuple(node for node, failed in rows if failed == "yes")

    def _keep(self, statements: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        import sqlite3

        try:
            self._do(statements)
        except (OSError, sqlite3.Error) as error:
            self.troubles.append(f"{self._path} could not be written: {error}")

    def _do(self, statements: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
        import contextlib
        import sqlite3

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.closing(sqlite3.connect(self._path, timeout=PATIENCE)) as database, database:
            for table in _SCHEMA:
                database.execute(table)
            return [database.execute(query, values).fetchall() for query, values in statements]


def outcomes(report: Report) -> dict[str, tuple[str, str]]:
    """Node → what became of it, and whether that is a failure: not reached, not written, or blamed for an error."""
    bad = [f for f in report.findings or () if f.verdict in ("fail", "unknown") and f.severity == "error"]
    blamed = {node for finding in bad if not finding.fixed and not finding.silenced for node in finding.nodes}
    blamed.update(node for culprit in (report.verify.culprits if report.verify else ()) for node in culprit.nodes)
    found: dict[str, tuple[str, str]] = {}
    for sighting in report.nodes or ():
        words = [change.outcome for change in report.changes or () if sighting.node in change.nodes]
        worst = next((word for word in words if word not in _WELL), words[0] if words else "unchanged")
        word = str(worst) if sighting.reached else "not reached"
        failed = word not in _WELL or sighting.node in blamed
        found[sighting.node] = (word, "yes" if failed else "no")
    return found


def refuse_clashes(environment: Environment, nodes: Iterable[str], others: Mapping[str, Mapping[str, str]]) -> None:
    """Under --limit: a value that must be equal on all ranks has to equal what the other nodes were last given."""
    wanted = {value.name: value for node in nodes for value in environment.of(node).values()}
    for name, value in sorted(wanted.items()):
        if registry().get(name, {}).get("uniformity") != "job":
            continue
        odd = [node for node, given in others.items() if given.get(name) != value.value]
        if odd:
            theirs = others[odd[0]].get(name)
            seen = f"{fold(odd)} were last given {name}={theirs}" if theirs is not None else f"{fold(odd)} lack {name}"
            message = f"{name}={value.value} must be equal on all ranks, and {seen}; apply without --limit"
            raise Refused(f"{message}; nothing was written")
