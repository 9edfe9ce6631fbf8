"""What earlier runs gave to which node, in SQLite in the controller's state folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterprep.env.variables import registry
from clusterprep.errors import Refused
from clusterprep.noderange import fold
from clusterprep.render import Environment

_SCHEMA = """
create table if not exists given (
    cluster text not null, node text not null, run text not null, name text not null, value text not null,
    primary key (cluster, node, run, name))
"""
PATIENCE = 10.0  # seconds to wait for another run that is writing


def state_folder() -> Path:
    """$XDG_STATE_HOME/clusterprep, by default ~/.local/state/clusterprep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "clusterprep"


class Given:
    """The environment that each node was last given. The file appears with the first run that writes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.sqlite"

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
        self._do(rows)

    def forget(self, cluster: str, run: str) -> None:
        """Note that a run was rolled back."""
        self._do([("delete from given where cluster = ? and run = ?", (cluster, run))])

    def _do(self, statements: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
        import contextlib
        import sqlite3

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.closing(sqlite3.connect(self._path, timeout=PATIENCE)) as database, database:
            database.execute(_SCHEMA)
            return [database.execute(query, values).fetchall() for query, values in statements]


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
