"""How a command on a node is started: one file per transport, all giving the same Channel."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node, SshSettings


class Channel(Protocol):
    """A started remote command: bytes in, bytes out, one per node and clusterprep command."""

    peer: str | None
    """IP address of the node as the controller reached it, None where a jump host or srun is between."""

    near: bool
    """Whether bytes cost less time on the way than the node would need to compile what they say."""

    @property
    def alive(self) -> bool:
        """Whether the connection stands, be the command at its end or not."""

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost when the other end is gone or takes nothing for 20 s."""

    def recv(self, timeout: float) -> bytes:
        """Up to 64 KiB as soon as there are any; b"" at end of stream. Raises TimeoutError after `timeout` seconds.

        Raises LinkLost where the transport knows why nothing will come any more.
        """

    def stderr(self) -> bytes:
        """The last 8 KiB of what came on stderr so far; stderr is drained all the time."""

    def kill(self) -> None:
        """End the remote command by SIGKILL, as far as the user may, before `close` ends its input; never raises."""

    def close(self) -> None:
        """End the remote command and the connection; never raises, never waits longer than a second."""


class Transport(Protocol):
    """Starts commands on nodes; one object serves the whole run, from many threads at once."""

    def open(self, node: Node, command: str) -> Channel:
        """Start `command` (a constant shell line of ours) on the node within node.ssh.connect_timeout.

        Raises Unreached with one of the reasons of the contract.
        """

    def unheard(self) -> Collection[str]:
        """Names of the nodes that `open` waits for and that have not said a word yet."""

    def close(self) -> None:
        """Give back what is shared between nodes (jump hosts, agents)."""


def transports_for(inventory: Inventory, ask: Callable[[str], str]) -> dict[str, Transport]:
    """The transports that an inventory's nodes need, by name; `ask(prompt)` is for passphrases of keys."""
    _refuse_missing_config(inventory)
    found: dict[str, Transport] = {}
    for name in {node.transport for node in inventory.nodes}:
        if name == "ssh":
            from clusterprep.remote.transports.ssh import SshTransport

            found[name] = SshTransport(ask)
        elif name == "local":
            from clusterprep.remote.transports.local import LocalTransport

            found[name] = LocalTransport()
        else:
            from clusterprep.remote.transports.slurm import SlurmTransport

            found[name] = SlurmTransport(inventory)
    return found


def _refuse_missing_config(inventory: Inventory) -> None:
    """As `ssh -F` does: a file that was named has to be there, the default one need not be."""
    named = {node.ssh.config for node in inventory.nodes} - {SshSettings().config}
    for path in sorted(named):
        if not Path(path).expanduser().exists():
            raise InputError.of(f"there is no file {path}", file=inventory.path, key="ssh.config")
