"""The SQLite file of the history: its tables, how older files become newer ones, and who may write when.

One writer at a time, for which the others wait; a write is there as a whole or not at all, whenever its process dies.
The journal is SQLite's usual one and not the write-ahead log, since home directories lie on network file systems, where
that one does not work.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAME = "history.sqlite"
PATIENCE = 10.0  # seconds to wait for another run that is writing
OURS = 0x636C7072  # the file's application id; 0 in files of before there was one
FIRST = frozenset(
    {"given", "outcome", "environment", "speed"}
)  # what a file of ours from before versions may hold

_GIVEN = (
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
_RUNS = (
    """create table if not exists run (
    run text not null primary key, command text not null, cluster text not null, inventory text not null,
    started text not null, seconds real not null, verdict text not null, code integer not null,
    nodes integer not null, reached integer not null, errors integer not null, warnings integer not null,
    unknown integer not null, tool text not null, size integer not null, checks text not null, report blob not null)""",
    """create table if not exists fact (
    run text not null, name text not null, body blob not null, primary key (run, name))""",
    "create index if not exists run_of_cluster on run (cluster, run)",
)
# What makes a file of version 0, 1, … one of the next. Version 0 is a new file, or one from before versions were noted.
STEPS: tuple[tuple[str, ...], ...] = ((*_GIVEN, *_RUNS),)
VERSION = len(STEPS)

Statement = tuple[str, Sequence[Any]]


class Unusable(Exception):
    """The file cannot be used; the message says which, why, and what to do."""


class Database:
    """The file of one state folder. It appears with the first write."""

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self.path = folder / NAME
        self._patience = patience

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows; none where there is no file, or where it is from before the table. Raises Unusable."""
        if not self.path.exists():
            return []
        with self._told("read"), self._open() as database:
            try:
                return database.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error) and _version(database) < VERSION:
                    return []
                raise

    def write(self, *statements: Statement) -> None:
        """All statements or none. Raises Unusable."""
        with self._told("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.touch(
                mode=0o600
            )  # facts may say more of the nodes than everybody here should know
            with self._open() as database:
                database.execute(
                    "begin immediate"
                )  # waits for another writer here, where nothing is half done
                try:
                    _bring_up_to_date(database)
                    for query, values in statements:
                        database.execute(query, values)
                    database.execute("commit")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        database.execute("rollback")
                    raise

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)
        with contextlib.closing(connection) as database:
            has_other_tables = _has_other_tables(database)
            # Asked last: tables and owner come with one commit, which another process may make between two questions.
            (owner,) = database.execute("pragma application_id").fetchone()
            if owner not in (0, OURS) or (owner == 0 and has_other_tables):
                raise Unusable(f"{self.path} is a database of another program; move it away")
            if (version := _version(database)) > VERSION:
                raise Unusable(
                    f"{self.path} is of version {version}, from a newer clusterprep; this one knows {VERSION}"
                )
            yield database

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            broken = isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.OperationalError
            )
            cure = f"; begin a new one with: mv {self.path} {self.path}.broken" if broken else ""
            raise Unusable(f"{self.path} could not be {doing}: {error}{cure}") from None


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])


def _has_other_tables(database: sqlite3.Connection) -> bool:
    """Return whether there is a table that is not one of FIRST.

    A file of before there was an application id holds some of these and nothing else.
    """
    rows = database.execute(
        "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
    )
    return bool({name for (name,) in rows} - FIRST)


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    """Within the transaction of a write, so that a file is never between two versions."""
    version = _version(database)
    if version == VERSION:
        return
    for statement in (statement for step in STEPS[version:] for statement in step):
        database.execute(statement)
    database.execute(f"pragma application_id = {OURS}")
    database.execute(f"pragma user_version = {VERSION}")
