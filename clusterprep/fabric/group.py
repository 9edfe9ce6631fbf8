"""Fabric's group over the nodes of an inventory, a bounded number of them at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from fabric import GroupResult, ThreadingGroup
from fabric.exceptions import GroupException

from clusterprep.fabric.connection import NodeConnection
from clusterprep.survey.worker_pool import WorkerPool

FORKS = 64  # nodes at once, as everywhere here


class NodeGroup(ThreadingGroup):
    """A group as Fabric's users know it: `run`, `sudo`, `put`, `get`, and results by connection.

    At most `forks` nodes are at work at once, where Fabric starts a thread for each.
    """

    forks = FORKS

    @classmethod
    def of(cls, connections: Iterable[NodeConnection], forks: int = FORKS) -> NodeGroup:
        group = cls()
        group.extend(connections)
        group.forks = forks
        return group

    @property
    def names(self) -> list[str]:
        """The names of the nodes, in the order of the inventory."""
        return [connection.node.name for connection in self]

    def _do(self, method: str, *args: Any, **kwargs: Any) -> GroupResult:
        """Call a method of all connections. Raises GroupException if one of them raises."""
        outcomes: dict[int, Any] = {}
        lock = threading.Lock()

        def call(numbered: tuple[int, NodeConnection]) -> None:
            number, connection = numbered
            try:
                outcome = getattr(connection, method)(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - Fabric gives it in place of the result
                outcome = error
            with lock:
                outcomes[number] = outcome

        pool = WorkerPool(list(enumerate(self)), call)
        pool.start_threads(self.forks)
        while pool.unfinished:
            pool.wait()
        results = GroupResult()
        for number, connection in enumerate(self):
            results[connection] = outcomes[number]
        if results.failed:
            raise GroupException(results)
        return results
