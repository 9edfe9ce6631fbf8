"""Create the transports that an inventory needs. Each is imported only when a node uses it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.model import Inventory, SshSettings
from clusterprep.remote.transports.protocol import Transport

# Worker processes, by the figures of benchmarks/workers.py (docs/why/performance.md).
LEAST_NODES = 129  # with fewer the start of workers takes longer than they save
NODES_EACH = 64  # a worker's start takes as much of a processor as so many logins
LEAST_WORKERS = 2  # one is hardly faster than none
MOST_WORKERS = 8  # with more the controller's own part takes longer than a worker's


def transports_for(
    inventory: Inventory, ask: Callable[[str], str], cores: int = 1
) -> dict[str, Transport]:
    """Return the transports of an inventory's nodes by name: "ssh", "local" or "slurm".

    `ask(prompt)` is called for the passphrases of keys. Logins to many nodes are spread over
    worker processes if so many `cores` may be used; with one, "ssh" is an SshTransport. Raises
    InputError if an ssh_config file that the inventory names does not exist.
    """
    _require_config_files(inventory)
    transports: dict[str, Transport] = {}
    names = [node.transport for node in inventory.nodes]
    for name in set(names):
        if name == "ssh":
            transports[name] = _ssh(ask, worker_count(names.count(name), cores))
        elif name == "local":
            _require_linux(inventory)
            from clusterprep.remote.transports.local import LocalTransport

            transports[name] = LocalTransport()
        else:
            from clusterprep.remote.transports.slurm import SlurmTransport

            transports[name] = SlurmTransport(inventory)
    return transports


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # another kernel
        return os.cpu_count() or 1


def worker_count(nodes: int, cores: int) -> int:
    """Return how many worker processes help to log in to so many nodes, 0 for none.

    One core is left to the controller itself.
    """
    count = min(cores - 1, nodes // NODES_EACH, MOST_WORKERS)
    if nodes < LEAST_NODES or count < LEAST_WORKERS:
        return 0
    return count


def _ssh(ask: Callable[[str], str], workers: int) -> Transport:
    """Return the transport over SSH: in this process, or in so many worker processes."""
    if workers:
        from clusterprep.remote.transports.workers import WorkerTransport

        return WorkerTransport(workers, ask)
    from clusterprep.remote.transports.ssh import SshTransport

    return SshTransport(ask)


def _require_linux(inventory: Inventory) -> None:
    """Raise InputError if this machine cannot be a node: agents read what only Linux has."""
    if sys.platform == "linux":
        return
    raise InputError.of(
        f"this machine runs {sys.platform}, and nodes run Linux",
        file=inventory.path,
        key="transport: local",
        hint="name nodes that are reached over SSH; this machine can check them",
    )


def _require_config_files(inventory: Inventory) -> None:
    """Raise InputError if a configured ssh_config is missing. As for ssh, the default may be."""
    paths = {node.ssh.config for node in inventory.nodes}
    paths.discard(SshSettings().config)
    for path in sorted(paths):
        if not Path(path).expanduser().exists():
            raise InputError.of(f"there is no file {path}", file=inventory.path, key="ssh.config")
