"""The SQLite file of the history: its tables, its versions, and its locking.

One process writes at a time, and the others wait. A write is whole or not at all, even if the
process is killed. SQLite's rollback journal is used and not its write-ahead log, because home
directories are on network file systems, where that log does not work.

The price of the rollback journal: readers wait for a writer for some milliseconds. All that takes
time is done before the file is locked.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterprep.remedies import shell_line
from clusterprep.runtime import files

NAME = "history.sqlite"
PATIENCE = 10.0  # seconds to wait for others that write, and of a server that has no locks
PAUSE = 0.005  # seconds between two attempts to be the one that writes
OURS = 0x636C7072  # the file's application id; the oldest files have 0
# The tables that the oldest files may have.
FIRST = frozenset({"given", "outcome", "environment", "speed"})

_GIVEN = (
    """create table if not exists given (
    cluster text not null, node text not null, run text not null,
    name text not null, value text not null,
    primary key (cluster, node, run, name))""",
    """create table if not exists outcome (
    cluster text not null, run text not null, node text not null,
    outcome text not null, failed text not null,
    primary key (cluster, run, node))""",
    """create table if not exists environment (
    cluster text not null, run text not null, place integer not null,
    name text not null, value text not null, nodes text not null,
    why text not null, declared integer not null,
    primary key (cluster, run, place))""",
    """create table if not exists speed (
    cluster text not null, trial text not null, run text not null, busbw text not null,
    primary key (cluster, trial, run))""",
)
_RUNS = (
    """create table if not exists run (
    run text not null primary key, command text not null, cluster text not null,
    inventory text not null, started text not null, seconds real not null,
    verdict text not null, code integer not null,
    nodes integer not null, reached integer not null,
    errors integer not null, warnings integer not null, unknown integer not null,
    tool text not null, size integer not null, checks text not null, report blob not null)""",
    """create table if not exists fact (
    run text not null, name text not null, body blob not null, primary key (run, name))""",
    "create index if not exists run_of_cluster on run (cluster, run)",
)
# The statements that make a file of version 0, 1, … one of the next version. Version 0 is a new
# file, or one of before versions were noted.
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
        """Return rows; none if there is no file, or it is older than the table. Raises Unusable."""
        with self._unusable_on_error("read"):
            if not self.path.exists():  # the folder may be another user's
                return []
            with self._open() as database:
                try:
                    return database.execute(query, values).fetchall()
                except sqlite3.OperationalError as error:
                    if "no such table" in str(error) and _version(database) < VERSION:
                        return []
                    raise

    def write(self, *statements: Statement) -> None:
        """Execute all statements or none. Raises Unusable."""
        with self._unusable_on_error("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # For its owner alone: facts may say more of the nodes than every user should know.
            os.close(files.open_regular(self.path))
            with self._open() as database:
                # Waits for another writer here, before anything is half done.
                _begin(database, self._patience)
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
        """Yield a connection and close it. Raises Unusable for a file that is not ours."""
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)
        with contextlib.closing(connection) as database:
            has_other_tables = _has_other_tables(database)
            # Asked last: another process may commit tables and owner, together, between two
            # queries.
            (owner,) = database.execute("pragma application_id").fetchone()
            if owner not in (0, OURS) or (owner == 0 and has_other_tables):
                raise Unusable(f"{self.path} is a database of another program; move it away")
            version = _version(database)
            if version > VERSION:
                message = f"{self.path} is of version {version}, from a newer clusterprep"
                raise Unusable(f"{message}; this one knows {VERSION}")
            yield database

    @contextlib.contextmanager
    def _unusable_on_error(self, action: str) -> Iterator[None]:
        """Raise Unusable for errors of the file system and of SQLite.

        `action` is "read" or "written".
        """
        problem = f"{self.path} could not be {action}"
        try:
            yield
        except sqlite3.OperationalError as error:
            # Locked, or the disk is full: the file itself is well.
            raise Unusable(f"{problem}: {error}") from None
        except sqlite3.DatabaseError as error:
            # Pasted twice it keeps the first copy.
            remedy = shell_line(
                "mv -n {path} {kept}", path=str(self.path), kept=f"{self.path}.broken"
            )
            raise Unusable(f"{problem}: {error}; begin a new one with: {remedy}") from None
        except (OSError, sqlite3.Error) as error:
            raise Unusable(f"{problem}: {error}") from None


def _begin(database: sqlite3.Connection, patience: float) -> None:
    """Begin a write. Raises sqlite3.OperationalError if others write for `patience` seconds.

    SQLite's own waiting asks ever less often, up to every 100 ms. Who waits longest would lose
    against those who have just come, for as long as they keep coming.
    """
    deadline = time.monotonic() + patience
    database.execute("pragma busy_timeout = 0")
    while True:
        try:
            database.execute("begin immediate")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE)
    # The commit waits for readers.
    database.execute(f"pragma busy_timeout = {round(patience * 1000)}")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])


def _has_other_tables(database: sqlite3.Connection) -> bool:
    """Return whether there is a table that is not one of FIRST.

    A file of before there was an application id holds some of these and nothing else.
    """
    query = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
    names = {name for (name,) in database.execute(query)}
    return bool(names - FIRST)


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    """Bring the tables to VERSION, within the transaction of a write."""
    version = _version(database)
    if version == VERSION:
        return
    for step in STEPS[version:]:
        for statement in step:
            database.execute(statement)
    database.execute(f"pragma application_id = {OURS}")
    database.execute(f"pragma user_version = {VERSION}")
