"""Recorded runs: write, list, find by name, read again, and delete when there are too many."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from clusterprep.errors import InputError
from clusterprep.history.database import PATIENCE, Database, Statement, Unusable
from clusterprep.history.encoding import LEFT_OUT
from clusterprep.history.packing import (
    FACT_NAMES,
    LONGEST_VALUE,
    Unreadable,
    column_of,
    nodes_knowing,
    pack,
    pack_facts,
    unpack,
    unpack_facts,
)
from clusterprep.model import Report
from clusterprep.model.history import RecordedRun
from clusterprep.model.units import pluralize

KEPT = 200  # runs of one command in one cluster
BYTES = 512 << 20  # of all runs together
LARGEST = 64 << 20  # bytes of one run; the longest facts of a larger one are left out
# Characters of one fact of one node, in a run that would be too large otherwise: so a node that
# sends without end loses its own facts, before those of others are left out.
SHORT_VALUE = 64 << 10

_RUN = RecordedRun.__struct_fields__
_COLUMNS = ", ".join(_RUN)
_LAST = re.compile(r"last(?:~(\d{1,6}))?", re.ASCII)
_SHOWN = 5  # names in an error


Answer = TypeVar("Answer")


class PackedRun(Struct, frozen=True):
    """A run as it will be written: its row, its checks, its report and its facts by name."""

    run: RecordedRun
    checks: tuple[str, ...]
    report: bytes
    facts: Mapping[str, bytes]


def packed(report: Report, run: RecordedRun, largest: int = LARGEST) -> PackedRun:
    """Return what is to be written of a report. Pure.

    Above `largest` bytes the longest facts are left out: first those of single nodes, then those of
    all, whose bytes are empty then. All of this work is done before the file is locked. Raises
    Unusable for a report that is larger without any fact.
    """
    body = pack(report)
    if len(body) > largest:
        message = f"the report has {len(body) >> 20} MiB, and at most {largest >> 20} are kept"
        raise Unusable(message)
    for longest in (LONGEST_VALUE, SHORT_VALUE):
        columns = dict(pack_facts(report.nodes or (), longest))
        size = len(body) + sum(map(len, columns.values()))
        if size <= largest:
            break
    longest_first = sorted(columns, key=lambda name: -len(columns[name]))
    for name in longest_first:
        if size <= largest:
            break
        if name != FACT_NAMES:
            size -= len(columns[name])
            columns[name] = b""
    checks = dict.fromkeys(finding.check for finding in report.findings or ())
    sized_run = replace(run, size=size)
    return PackedRun(sized_run, tuple(checks), body, columns)


class Runs:
    """The runs of one state folder. Every method raises Unusable if the file cannot be used."""

    def __init__(
        self, folder: Path, patience: float = PATIENCE, kept: int = KEPT, most: int = BYTES
    ) -> None:
        self._database = Database(folder, patience)
        self._kept, self._most = kept, most

    @property
    def path(self) -> Path:
        return self._database.path

    def record(self, packed: PackedRun) -> None:
        """Write a run, and delete the oldest if there are too many."""
        run = packed.run
        checks = " ".join(packed.checks)
        row = (*astuple(run), checks, packed.report)
        marks = ", ".join("?" * len(row))
        query = f"insert or replace into run ({_COLUMNS}, checks, report) values ({marks})"
        statements: list[Statement] = [(query, row)]
        query = "insert or replace into fact values (?, ?, ?)"
        for name, body in packed.facts.items():
            statements.append((query, (run.run, name, body)))
        statements.extend(_deletions(run, self._kept, self._most))
        self._database.write(*statements)

    def all(self, cluster: str | None = None, most: int = -1) -> list[RecordedRun]:
        """Return the runs of one cluster, or of all, the newest first."""
        where = ""
        values: list[str | int] = [most]
        if cluster is not None:
            where = "where cluster = ? "
            values = [cluster, most]
        query = f"select {_COLUMNS} from run {where}order by run desc limit ?"
        rows = self._database.read(query, values)
        return [RecordedRun(*row) for row in rows]

    def checks(self, cluster: str, most: int) -> list[tuple[RecordedRun, frozenset[str]]]:
        """Return the newest runs of a cluster, each with the names of its checks."""
        query = f"select {_COLUMNS}, checks from run where cluster = ? order by run desc limit ?"
        runs = []
        for *columns, checks in self._database.read(query, (cluster, most)):
            run = RecordedRun(*columns)
            runs.append((run, frozenset(checks.split())))
        return runs

    def holding(self, fact: str, cluster: str, since: str, until: str) -> list[str]:
        """Return the runs that began between two moments and know a fact, the newest first."""
        query = """select run.run from run join fact on fact.run = run.run and fact.name = ?
                   where cluster = ? and started between ? and ? order by run.run desc"""
        rows = self._database.read(query, (fact, cluster, since, until))
        return [run for (run,) in rows]

    def named(self, text: str, cluster: str | None = None, key: str = "RUN") -> RecordedRun:
        """Return the run that a text names. Raises InputError.

        A text is a whole name, the beginning of only one, `last`, or `last~2` for two before it.
        An error says that the text was given as `key`.
        """
        runs = self.all(cluster)
        if not runs:
            hint = "every check, plan and apply is"
            raise InputError.of("no run is recorded yet", file=str(self.path), hint=hint)
        last = _LAST.fullmatch(text)
        if last is not None:
            ago = int(last[1] or 0)
            if ago < len(runs):
                return runs[ago]
            verb = "is" if len(runs) == 1 else "are"
            message = f"only {pluralize(len(runs), 'run')} {verb} recorded; seen '{text}'"
            raise InputError.of(message, key=key)
        matching = _matching(runs, text)
        if len(matching) == 1:
            return matching[0]
        if matching:
            message = f"{len(matching)} runs begin with '{text}'"
            raise InputError.of(message, key=key, hint=_some(_names(matching)))
        hint = _similar_runs(runs, text)
        raise InputError.of(f"no run is recorded as '{text}'", key=key, hint=hint)

    def report(self, run: str, only: Sequence[str] | None = None) -> Report:
        """Return a report without facts.

        `only` names the fields of Report that are wanted besides its head, by default all.
        """
        rows = self._database.read("select report from run where run = ?", (run,))
        if not rows:
            raise Unusable(f"run {run} is not in {self.path} any more")
        (body,) = rows[0]
        return self._readable(run, lambda: unpack(body, only))

    def whole(self, run: str) -> Report:
        """Return a report with all that was kept of it."""
        report = self.report(run)
        rows = self._database.read("select name, body from fact where run = ?", (run,))
        if report.nodes is None or not rows:
            return report
        count = len(report.nodes)
        facts = self._readable(run, lambda: unpack_facts(dict(rows), count, LEFT_OUT))
        nodes = []
        for snapshot, facts_of_node in zip(report.nodes, facts, strict=True):
            nodes.append(replace(snapshot, facts=facts_of_node))
        return replace(report, nodes=tuple(nodes))

    def facts(self, run: str) -> list[str]:
        """Return the names of the facts that are kept of a run."""
        query = "select name from fact where run = ? and name != ? and length(body) > 0"
        rows = self._database.read(query, (run, FACT_NAMES))
        return sorted(name for (name,) in rows)

    def column(self, run: str, fact: str, nodes: Sequence[str]) -> dict[str, Any]:
        """Return node → value of a fact; empty if the fact is not kept.

        `nodes` are all nodes of the report, in its order.
        """
        query = "select name, body from fact where run = ? and name in (?, ?)"
        rows = dict(self._database.read(query, (run, FACT_NAMES, fact)))
        if not rows.get(fact):
            return {}

        def read() -> dict[str, Any]:
            nodes_with_fact = nodes_knowing(rows[FACT_NAMES], fact, nodes)
            values = column_of(rows[fact], len(nodes_with_fact))
            return dict(zip(nodes_with_fact, values, strict=True))

        return self._readable(run, read)

    def _readable(self, run: str, read: Callable[[], Answer]) -> Answer:
        try:
            return read()
        except (Unreadable, KeyError, ValueError) as error:
            raise Unusable(f"run {run} in {self.path} cannot be read: {error}") from None


def _names(runs: Sequence[RecordedRun]) -> list[str]:
    return [run.run for run in runs]


def _similar_runs(runs: Sequence[RecordedRun], text: str) -> str:
    """Return a hint with the runs of similar names, or with the newest runs."""
    names = _names(runs)
    similar = difflib.get_close_matches(text, names, 3, 0.7)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return f"the newest are {_some(names)}"


def _matching(runs: Sequence[RecordedRun], text: str) -> list[RecordedRun]:
    """Return the run of this name, else those whose name begins with the text."""
    matching = [run for run in runs if run.run == text]
    if not matching and text:
        matching = [run for run in runs if run.run.startswith(text)]
    return matching


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:_SHOWN])
    if len(names) <= _SHOWN:
        return text
    return f"{text} and {len(names) - _SHOWN} more"


def _deletions(run: RecordedRun, kept: int, most: int) -> tuple[Statement, ...]:
    """Return what deletes the oldest runs: of this command in this cluster, then of all.

    The run itself always stays.
    """
    newest = "select run from run where cluster = ? and command = ? order by run desc limit ?"
    too_many = f"delete from run where cluster = ? and command = ? and run not in ({newest})"
    same = (run.cluster, run.command)
    sums = "select run, sum(size) over (order by run desc) as total from run"
    too_much = (
        f"delete from run where run in (select run from ({sums}) where total > ?) and run != ?"
    )
    return (
        (too_many, (*same, *same, kept)),
        (too_much, (most, run.run)),
        ("delete from fact where run not in (select run from run)", ()),
    )
