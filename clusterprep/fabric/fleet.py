"""The nodes of a command, and work on all of them at once, until a signal or --timeout ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from clusterprep.errors import OutOfTime, Unreached
from clusterprep.model import Node
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.worker_pool import WorkerPool

LOOK = 0.1  # seconds between two looks at whether the command is to end
SILENT_LIMIT = 1.0  # seconds until a node that has sent nothing no longer occupies a slot
CLOSING_LIMIT = 2.0  # seconds for what has come by the time that the command is over


class Watch(Protocol):
    """What a progress display must offer."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...
    def note(self, text: str) -> None: ...


class Fleet(Struct, frozen=True):
    """How the nodes of a command are reached."""

    nodes: tuple[Node, ...]
    transports: Mapping[str, Transport]
    password: Password
    forks: int
    watch: Watch
    deadline: Deadline


class NodeWork(Protocol):
    """The work on one node. `close` ends it at once, from another thread."""

    def run(self) -> Any: ...
    def close(self) -> None: ...


def on_every_node(
    fleet: Fleet, stage: str, begin: Callable[[Node], NodeWork]
) -> tuple[dict[str, Any], bool]:
    """Return what `begin(node).run()` returned by node, or the Unreached that it raised.

    The second value is True if --timeout was reached: then what was under way was ended, and its
    outcome is what it returned at that. A signal ends everything and is raised.
    """
    outcomes: dict[str, Any] = {}
    working: dict[str, NodeWork] = {}
    over = threading.Event()

    def work(node: Node) -> None:
        if over.is_set():
            return
        task = begin(node)
        working[node.name] = task
        try:
            outcome = task.run()
        except Unreached as error:
            outcome = error
        finally:
            task.close()
        outcomes[node.name] = outcome
        del working[node.name]
        if over.is_set():  # we have ended it, which says nothing about the node
            return
        word = outcome.reason if isinstance(outcome, Unreached) else "reached"
        fleet.watch.step(node.name, word)

    fleet.watch.stage(stage, len(fleet.nodes), [node.name for node in fleet.nodes])
    pool = WorkerPool(fleet.nodes, work)
    try:
        _wait_for_all(fleet, pool)
    except OutOfTime:
        over.set()
        _end_all(working, pool)
        return _in_order(fleet, outcomes), True
    except BaseException:
        over.set()
        _end_all(working, pool)
        raise
    finally:
        for transport in fleet.transports.values():
            transport.close()
    return _in_order(fleet, outcomes), False


def _wait_for_all(fleet: Fleet, pool: WorkerPool[Node]) -> None:
    """Return when all nodes are done. A node that stays silent does not occupy a slot."""
    pool.start_threads(fleet.forks)
    silent_before: set[str] = set()
    checked = time.monotonic()
    while pool.unfinished:
        fleet.deadline.check()
        pool.wait(LOOK)
        if not pool.has_pending or time.monotonic() - checked < SILENT_LIMIT:
            continue
        checked = time.monotonic()
        silent: set[str] = set()
        for transport in fleet.transports.values():
            silent.update(transport.unheard())
        pool.replace_threads(silent_before & silent)
        silent_before = silent


def _end_all(working: Mapping[str, NodeWork], pool: WorkerPool[Node]) -> None:
    """End all work at once, and wait a moment for what it returns."""
    until = time.monotonic() + CLOSING_LIMIT
    while working and time.monotonic() < until:
        for task in list(working.values()):  # also one that has begun in this very moment
            task.close()
        pool.wait(LOOK)


def _in_order(fleet: Fleet, outcomes: Mapping[str, Any]) -> dict[str, Any]:
    return {node.name: outcomes[node.name] for node in fleet.nodes if node.name in outcomes}
