"""`Cluster`: the nodes of an inventory as Fabric's connections, for scripts and fabfiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from clusterprep.errors import InputError
from clusterprep.fabric.connection import NodeConnection, new_config, ssh_of
from clusterprep.fabric.group import FORKS, NodeGroup
from clusterprep.inventory.limit import limit_to
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold
from clusterprep.remote.transports.factory import transports_for
from clusterprep.remote.transports.link import Password
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.sudo import SudoPassword

SUDO_PASSWORD = "CLUSTERPREP_BECOME_PASSWORD"  # noqa: S105 - the name of a variable


class Cluster:
    """The nodes of an inventory.

    with Cluster("inventory.yaml") as cluster:
        for connection, result in cluster.group("gpu[1-8]").run("uname -r", hide=True).items():
            print(connection.host, result.stdout)

    Leaving the block closes all connections, and the jump hosts that they share. `sudo_password` is
    for `sudo` of connections and groups; the default is the variable CLUSTERPREP_BECOME_PASSWORD.
    Raises InputError for an inventory that is not valid.
    """

    def __init__(
        self,
        inventory: str | Path | Inventory,
        *,
        forks: int = FORKS,
        sudo_password: str | None = None,
        ask: Callable[[str], str] | None = None,
    ) -> None:
        if not isinstance(inventory, Inventory):
            inventory = load_inventory(inventory)
        self.inventory = inventory
        self.forks = forks
        text = os.environ.get(SUDO_PASSWORD, "") if sudo_password is None else sudo_password
        secret = SudoPassword(text) if text else None
        self._password: Password = lambda node: secret
        self._ask = ask
        self._ssh: SshTransport | None = None
        self._connections: dict[str, NodeConnection] = {}

    def with_password(self, password: Password) -> Cluster:
        """Use this function for the password of a node's sudo. Returns this cluster."""
        self._password = password
        return self

    def group(self, nodes: str | None = None) -> NodeGroup:
        """Return the nodes of a set such as `gpu[1-8],rack2`, or all of them, as a Fabric group.

        The set may have names, ranges and groups of the inventory. Raises InputError for a name
        that is not there, and for nodes that are not reached over SSH.
        """
        chosen = self.inventory if nodes is None else limit_to(self.inventory, nodes)
        _refuse_others(chosen.nodes)
        return NodeGroup.of(map(self._connection_to, chosen.nodes), self.forks)

    def connection(self, name: str) -> NodeConnection:
        """Return the Fabric connection to one node. Raises InputError as `group` does."""
        (connection,) = self.group(name)
        return connection  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close all connections. Never raises."""
        for connection in self._connections.values():
            connection.close()
        if self._ssh is not None:
            self._ssh.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _connection_to(self, node: Node) -> NodeConnection:
        """Return the connection to a node: the same one each time, as its login costs the most."""
        connection = self._connections.get(node.name)
        if connection is None:
            connection = NodeConnection(node, self._transport(), self._password, new_config())
            self._connections[node.name] = connection
        return connection

    def _transport(self) -> SshTransport:
        if self._ssh is None:
            self._ssh = ssh_of(transports_for(self.inventory, self._ask or _no_answer))
        return self._ssh


def _no_answer(prompt: str) -> str:
    """Return no passphrase: a script is not asked for one. ssh-agent has keys ready."""
    return ""


def _refuse_others(nodes: tuple[Node, ...]) -> None:
    """Raise InputError for nodes that are not reached over SSH, which Fabric needs."""
    others = [node.name for node in nodes if node.transport != "ssh"]
    if others:
        raise InputError.of(f"{fold(others)}: Fabric reaches nodes over SSH alone", key="transport")
