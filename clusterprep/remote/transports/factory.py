"""Create the transports that an inventory needs. Each is imported only when a node uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.model import Inventory, SshSettings
from clusterprep.remote.transports.protocol import Transport


def transports_for(inventory: Inventory, ask: Callable[[str], str]) -> dict[str, Transport]:
    """Return the transports of an inventory's nodes by name: "ssh", "local" or "slurm".

    `ask(prompt)` is called for the passphrases of keys. Raises InputError if an ssh_config file
    that the inventory names does not exist.
    """
    _require_config_files(inventory)
    transports: dict[str, Transport] = {}
    for name in {node.transport for node in inventory.nodes}:
        if name == "ssh":
            from clusterprep.remote.transports.ssh import SshTransport

            transports[name] = SshTransport(ask)
        elif name == "local":
            from clusterprep.remote.transports.local import LocalTransport

            transports[name] = LocalTransport()
        else:
            from clusterprep.remote.transports.slurm import SlurmTransport

            transports[name] = SlurmTransport(inventory)
    return transports


def _require_config_files(inventory: Inventory) -> None:
    """Raise InputError if a configured ssh_config is missing. As for ssh, the default may be."""
    paths = {node.ssh.config for node in inventory.nodes}
    paths.discard(SshSettings().config)
    for path in sorted(paths):
        if not Path(path).expanduser().exists():
            raise InputError.of(f"there is no file {path}", file=inventory.path, key="ssh.config")
