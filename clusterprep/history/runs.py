"""The runs themselves: recorded whole, listed, found by name, read again, and forgotten when there are too many."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from clusterprep.errors import InputError
from clusterprep.history.database import PATIENCE, Database, Statement, Unusable
from clusterprep.history.packing import (
    Unreadable,
    column_of,
    knowing,
    pack,
    pack_facts,
    unpack,
    unpack_facts,
)
from clusterprep.model import Absent, Report
from clusterprep.model.history import RecordedRun
from clusterprep.runtime.lazy_dataclass import dataclass

KEPT = 200  # runs of one command in one cluster
BYTES = 512 << 20  # of all runs together
LARGEST = 64 << 20  # bytes of one run; beyond that its longest facts are left out
SHAPES = ""  # under this name it is kept which nodes know which facts
LEFT_OUT = Absent("left out", "too long for the history")

_RUN = tuple(field.name for field in fields(RecordedRun))
_COLUMNS = ", ".join(_RUN)
_LAST = re.compile(r"last(?:~(\d{1,6}))?", re.ASCII)
_SHOWN = 5  # names in an error


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Packed:
    """A run as it will be written: its line, the names of its checks, its report and its facts by name."""

    run: RecordedRun
    checks: tuple[str, ...]
    report: bytes
    facts: Mapping[str, bytes]


def packed(report: Report, run: RecordedRun, largest: int = LARGEST) -> Packed:
    """What is to be written of a report. Pure, and all the work, so that nobody waits for it with the file locked."""
    body = pack(report)
    columns = dict(pack_facts(report.nodes or ()))
    size = len(body) + sum(map(len, columns.values()))
    for name in sorted(
        (name for name in columns if name != SHAPES), key=lambda name: -len(columns[name])
    ):
        if size <= largest:
            break
        size -= len(columns[name])
        columns[name] = b""
    checks = tuple(dict.fromkeys(finding.check for finding in report.findings or ()))
    return Packed(replace(run, size=size), checks, body, columns)


class Runs:
    """The runs of one state folder. Everything raises Unusable where the file cannot be used."""

    def __init__(
        self, folder: Path, patience: float = PATIENCE, kept: int = KEPT, most: int = BYTES
    ) -> None:
        self._database = Database(folder, patience)
        self._kept, self._most = kept, most

    @property
    def path(self) -> Path:
        return self._database.path

    def record(self, packed: Packed) -> None:
        """Write a run, and forget those that are too many."""
        run = packed.run
        row = (*astuple(run), " ".join(packed.checks), packed.report)
        marks = ", ".join("?" * len(row))
        facts: list[Statement] = [
            ("insert or replace into fact values (?, ?, ?)", (run.run, name, body))
            for name, body in packed.facts.items()
        ]
        write = (f"insert or replace into run ({_COLUMNS}, checks, report) values ({marks})", row)
        self._database.write(write, *facts, *_forgetting(run, self._kept, self._most))

    def all(self, cluster: str | None = None, most: int = -1) -> list[RecordedRun]:
        """Newest first; of one cluster, or of all."""
        where = "" if cluster is None else "where cluster = ? "
        query = f"select {_COLUMNS} from run {where}order by run desc limit ?"
        return [
            RecordedRun(*row)
            for row in self._database.read(query, (*(() if cluster is None else (cluster,)), most))
        ]

    def checks(self, cluster: str, most: int) -> list[tuple[RecordedRun, frozenset[str]]]:
        """The newest runs of a cluster, each with the names of the checks that it judged."""
        query = f"select {_COLUMNS}, checks from run where cluster = ? order by run desc limit ?"
        return [
            (RecordedRun(*row[:-1]), frozenset(row[-1].split()))
            for row in self._database.read(query, (cluster, most))
        ]

    def holding(self, fact: str, cluster: str, since: str, until: str) -> list[str]:
        """The runs of a cluster that began between two moments and know a fact, newest first."""
        query = """select run.run from run join fact on fact.run = run.run and fact.name = ?
                   where cluster = ? and started between ? and ? order by run.run desc"""
        return [run for (run,) in self._database.read(query, (fact, cluster, since, until))]

    def named(self, text: str, cluster: str | None = None, key: str = "RUN") -> RecordedRun:
        """The run of a name, the only one that begins so, `last`, or `last~2`, two before it. InputError otherwise."""
        runs = self.all(cluster)
        if not runs:
            raise InputError.of(
                "no run is recorded yet", file=str(self.path), hint="every check, plan and apply is"
            )
        if ago := _LAST.fullmatch(text):
            if int(ago[1] or 0) < len(runs):
                return runs[int(ago[1] or 0)]
            raise InputError.of(f"only {len(runs)} runs are recorded; seen '{text}'", key=key)
        found = [run for run in runs if run.run == text] or [
            run for run in runs if text and run.run.startswith(text)
        ]
        if len(found) == 1:
            return found[0]
        names = [run.run for run in found or runs]
        if found:
            raise InputError.of(
                f"{len(found)} runs begin with '{text}'", key=key, hint=_some(names)
            )
        near = difflib.get_close_matches(text, names, 3, 0.7)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the newest are {_some(names)}"
        raise InputError.of(f"no run is recorded as '{text}'", key=key, hint=hint)

    def report(self, run: str, only: Sequence[str] | None = None) -> Report:
        """A report without the facts of its nodes; `only` names sections that are wanted. Raises Unusable."""
        rows = self._database.read("select report from run where run = ?", (run,))
        if not rows:
            raise Unusable(f"run {run} is not in {self.path} any more")
        return self._readable(run, lambda: unpack(rows[0][0], only))

    def whole(self, run: str) -> Report:
        """The report with all that was kept of it."""
        report = self.report(run)
        rows = self._database.read("select name, body from fact where run = ?", (run,))
        if report.nodes is None or not rows:
            return report
        count = len(report.nodes)
        facts = self._readable(run, lambda: unpack_facts(dict(rows), count, LEFT_OUT))
        return replace(
            report,
            nodes=tuple(replace(n, facts=f) for n, f in zip(report.nodes, facts, strict=True)),
        )

    def facts(self, run: str) -> list[str]:
        """The names of the facts that are kept of a run."""
        rows = self._database.read(
            "select name from fact where run = ? and name != ? and length(body) > 0", (run, SHAPES)
        )
        return sorted(name for (name,) in rows)

    def column(self, run: str, fact: str, nodes: Sequence[str]) -> dict[str, Any]:
        """One fact of the nodes that have it; `nodes` are those of the report. Empty where it is not kept."""
        query = "select name, body from fact where run = ? and name in (?, ?)"
        rows = dict(self._database.read(query, (run, SHAPES, fact)))
        if not rows.get(fact):
            return {}

        def read() -> dict[str, Any]:
            having = knowing(rows[SHAPES], fact, nodes)
            return dict(zip(having, column_of(rows[fact], len(having)), strict=True))

        return self._readable(run, read)

    def _readable(self, run: str, read: Callable[[], Answer]) -> Answer:
        try:
            return read()
        except (Unreadable, KeyError, ValueError) as error:
            raise Unusable(f"run {run} in {self.path} cannot be read: {error}") from None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def _forgetting(run: RecordedRun, kept: int, most: int) -> tuple[Statement, ...]:
    """What takes away the oldest runs: of this command in this cluster, then of all; the newest always stays."""
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
