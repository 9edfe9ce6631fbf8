"""The environment that nodes were given, how applies ended, how fast verifies were. In SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterprep.errors import Refused
from clusterprep.history.database import Database, Statement, Unusable
from clusterprep.model import EnvValue, Report
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.variables.variables import registry

REMEMBERED = 20  # runs of a verify whose speed counts
BASELINE = "baseline of "  # before the name of a trial that is recorded as normal
KEPT = 200  # applies of a cluster whose outcomes and environment are kept
# Runs in the order in which they were recorded: their names are made from a clock, which may have
# been set back since.
_NEWEST = "select run from {table} where cluster = ? group by run order by max(rowid) desc limit ?"
_WELL = ("done", "unchanged")  # outcomes of a node on which nothing failed


class AppliedEnvironments:
    """The environments that nodes were given. The file is made by the first run that writes."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._database = Database(folder)
        self._kept = kept
        # What could not be read or noted. A command goes on without it.
        self.troubles: list[str] = []

    def last(self, cluster: str) -> dict[str, dict[str, str]]:
        """Return node → name → value, as the newest run of each node left it."""
        # Beside max(), SQLite takes a bare column from the row that has the maximum.
        query = """with newest as
                   (select node, run, max(rowid) from given where cluster = ? group by node)
                   select g.node, g.name, g.value from given g
                   join newest on g.node = newest.node and g.run = newest.run
                   where g.cluster = ?"""
        values: dict[str, dict[str, str]] = {}
        for node, name, value in self._read(query, cluster, cluster):
            values.setdefault(node, {})[name] = value
        return values

    def record_written(
        self, cluster: str, run: str, environment: Environment, nodes: Iterable[str]
    ) -> None:
        """Record what a run wrote to these nodes."""
        query = "insert or replace into given values (?, ?, ?, ?, ?)"
        statements: list[Statement] = []
        for node in nodes:
            for value in environment.of(node).values():
                row = (cluster, node, run, value.name, value.value)
                statements.append((query, row))
        self._write(statements)

    def forget(self, cluster: str, run: str, nodes: Iterable[str] | None = None) -> None:
        """Delete what a run wrote, after it was rolled back: on all nodes, or on these."""
        if not self._database.path.exists():
            return
        query = "delete from given where cluster = ? and run = ?"
        if nodes is None:
            self._write([(query, (cluster, run))])
            return
        query += " and node = ?"
        self._write([(query, (cluster, run, node)) for node in nodes])

    def record_outcomes(self, cluster: str, report: Report) -> None:
        """Record how an apply ended on every node, for `--retry-failed`."""
        query = "insert or replace into outcome values (?, ?, ?, ?, ?)"
        statements: list[Statement] = []
        for node, (outcome, has_failed) in outcomes(report).items():
            row = (cluster, report.run, node, outcome, "yes" if has_failed else "no")
            statements.append((query, row))
        statements.append(_deletion_of_old("outcome", cluster, self._kept))
        self._write(statements)

    def record_environment(self, cluster: str, report: Report) -> None:
        """Record the environment of an apply, however it ended, for `env --from-run`."""
        query = "insert or replace into environment values (?, ?, ?, ?, ?, ?, ?, ?)"
        statements: list[Statement] = []
        for place, value in enumerate(report.env or ()):
            key = (cluster, report.run, str(place))
            nodes = " ".join(value.nodes)
            declared = str(int(value.declared))
            row = (*key, value.name, value.value, nodes, value.why, declared)
            statements.append((query, row))
        statements.append(_deletion_of_old("environment", cluster, self._kept))
        self._write(statements)

    def environment(self, cluster: str, run: str) -> tuple[EnvValue, ...]:
        """Return the values of an apply, in its order; none for a run that is not recorded."""
        query = """select name, value, nodes, why, declared from environment
                   where cluster = ? and run = ? order by place"""
        rows = self._read(query, cluster, run)
        values = []
        for name, value, nodes, why, declared in rows:
            names = tuple(nodes.split(" "))  # as `record_environment` joined them
            is_declared = bool(int(declared))
            values.append(
                EnvValue(
                    name,
                    value,
                    names,
                    why,
                    is_declared,
                )
            )
        return tuple(values)

    def runs(self, cluster: str, most: int = 3) -> tuple[str, ...]:
        """Return the newest applies whose environment is recorded, the newest first."""
        query = _NEWEST.format(table="environment")
        rows = self._read(query, cluster, most)
        return _first_column(rows)

    def speeds(self, cluster: str, trial: str) -> tuple[float, ...]:
        """Return GB/s of the newest runs of one kind of verify, the newest first.

        `trial` names its nodes, ranks, backend, collective and size.
        """
        query = (
            "select busbw from speed where cluster = ? and trial = ? order by rowid desc limit ?"
        )
        rows = self._read(query, cluster, trial, REMEMBERED)
        return tuple(map(float, _first_column(rows)))

    def record_speed(self, cluster: str, trial: str, run: str, busbw: float) -> None:
        """Record the GB/s of a verify.

        One that was judged too slow should not be recorded, or slow would become normal.
        """
        row = (cluster, trial, run, repr(busbw))
        self._write([("insert or replace into speed values (?, ?, ?, ?)", row)])

    def baseline(self, cluster: str, trial: str) -> tuple[str, float] | None:
        """Return the newest run that was recorded as normal for one kind of verify, and its GB/s.

        None if none was. `trial` is as in `speeds`.
        """
        query = (
            "select run, busbw from speed where cluster = ? and trial = ? "
            "order by rowid desc limit 1"
        )
        for run, busbw in self._read(query, cluster, BASELINE + trial):
            return str(run), float(busbw)
        return None

    def record_baseline(self, cluster: str, trial: str, run: str, busbw: float) -> None:
        """Record the GB/s of a verify as normal. It takes the place of the one before."""
        self.record_speed(cluster, BASELINE + trial, run, busbw)

    def failed(self, cluster: str, run: str) -> tuple[str, ...]:
        """Return the nodes that failed in an apply; none if it is not recorded."""
        query = "select node from outcome where cluster = ? and run = ? and failed = 'yes'"
        rows = self._read(query, cluster, run)
        return _first_column(rows)

    def applies(self, cluster: str) -> tuple[str, ...]:
        """Return the applies whose outcomes are recorded, the newest first."""
        rows = self._read(_NEWEST.format(table="outcome"), cluster, self._kept)
        return _first_column(rows)

    def _read(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        try:
            return self._database.read(query, values)
        except Unusable as error:
            self._complain(error)
            return []

    def _write(self, statements: Iterable[Statement]) -> None:
        try:
            self._database.write(*statements)
        except Unusable as error:
            self._complain(error)

    def _complain(self, error: Unusable) -> None:
        if str(error) not in self.troubles:
            self.troubles.append(str(error))


def _first_column(rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(row[0] for row in rows)


def _deletion_of_old(table: str, cluster: str, kept: int) -> Statement:
    """Return what deletes all but the newest applies of a cluster."""
    newest = _NEWEST.format(table=table)
    old = f"delete from {table} where cluster = ? and run not in ({newest})"
    return old, (cluster, cluster, kept)


def outcomes(report: Report) -> dict[str, tuple[str, bool]]:
    """Return node → (what became of it, whether it failed).

    A node failed if it was not reached, not written, or is named by an error or as a culprit.
    """
    blamed = _blamed(report)
    outcome_by_node: dict[str, tuple[str, bool]] = {}
    for snapshot in report.nodes or ():
        node = snapshot.node
        outcome = _outcome(report, node) if snapshot.reached else "not reached"
        has_failed = outcome not in _WELL or node in blamed
        outcome_by_node[node] = (outcome, has_failed)
    return outcome_by_node


def _blamed(report: Report) -> set[str]:
    """Return the nodes that an error of a check, verify or launch names."""
    nodes: set[str] = set()
    for finding in report.findings or ():
        is_bad = finding.verdict in ("fail", "unknown") and finding.severity == "error"
        if is_bad and not finding.fixed and not finding.silenced:
            nodes.update(finding.nodes)
    for result in (report.verify, report.launch):
        for culprit in result.culprits if result is not None else ():
            nodes.update(culprit.nodes)
    return nodes


def _outcome(report: Report, node: str) -> str:
    """Return the first outcome of a node's changes that is not well, else the first."""
    first = None
    for change in report.changes or ():
        if node not in change.nodes:
            continue
        if change.outcome not in _WELL:
            return change.outcome
        first = first or change.outcome
    return first or "unchanged"


def refuse_clashes(
    environment: Environment,
    nodes: Iterable[str],
    left_out: Iterable[str],
    given: Mapping[str, Mapping[str, str]],
    partial: bool = False,
) -> str:
    """Raise Refused if --limit would make values differ that must be equal on all ranks.

    `nodes` are about to be given the environment, and `given` has what each node was last given:
    node → name → value. What a node of `left_out` has that is not in `given` is not known, which is
    refused too; with `partial` it is returned as a sentence, "" if all is known.
    """
    names = tuple(nodes)
    others = tuple(left_out)
    wanted: dict[str, str] = {}
    for node in names:
        for value in environment.of(node).values():
            if is_job_wide(value.name):
                wanted[value.name] = value.value
    _refuse_differences(names, wanted, {node: given[node] for node in others if node in given})
    unknown = [node for node in others if node not in given]
    if not (wanted and unknown):
        return ""
    doubt = f"which values {fold(unknown)} have is not known here"
    reason = f"{', '.join(sorted(wanted))} must be equal on all ranks"
    if partial:
        return f"{doubt}, and {reason}; an apply to all nodes makes them equal"
    message = f"{doubt}, and {reason}; apply to all nodes, or with --partial to go on"
    raise Refused(f"{message}; this run wrote nothing")


def is_job_wide(name: str) -> bool:
    """Return whether a variable must have one value on all ranks of a job."""
    return registry().get(name, {}).get("uniformity") == "job"


def _refuse_differences(
    nodes: Sequence[str], wanted: Mapping[str, str], others: Mapping[str, Mapping[str, str]]
) -> None:
    """Raise Refused for the first job-wide variable that is not the same here and in `others`."""
    if not nodes:
        return
    names = set(wanted)
    for values in others.values():
        names.update(filter(is_job_wide, values))
    for name in sorted(names):
        value = wanted.get(name)
        differing = [node for node, values in others.items() if values.get(name) != value]
        if not differing:
            continue
        subject = f"{name}={value}"
        if value is None:
            subject = f"{name}, which {fold(nodes)} would not have,"
        other_value = others[differing[0]].get(name)
        if other_value is None:
            seen = f"{fold(differing)} lack {name}"
        else:
            seen = f"{fold(differing)} were last given {name}={other_value}"
        message = f"{subject} must be equal on all ranks, and {seen}"
        raise Refused(f"{message}; apply to all nodes; this run wrote nothing")
