"""The interface of transports: how a command is started on a node, and how to talk to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from clusterprep.model import Node


class Channel(Protocol):
    """A started remote command: bytes in, bytes out. A node has one per clusterprep command."""

    peer: str | None
    """IP address at which the controller reached the node. None behind a jump host or srun."""

    near: bool
    """Whether sending compiled code takes less time than the node needs to compile the source."""

    @property
    def alive(self) -> bool:
        """Whether the connection is open. The command itself may have ended."""

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost if the peer is gone or accepts nothing for 20 s."""

    def recv(self, timeout: float) -> bytes:
        """Return up to 64 KiB as soon as there is data, b"" at the end of the stream.

        Raises TimeoutError after `timeout` seconds, and LinkLost if the transport knows why nothing
        more will come.
        """

    def stderr(self) -> bytes:
        """Return the last 8 KiB of stderr so far. Stderr is drained all the time."""

    def kill(self) -> None:
        """End the remote command by SIGKILL, before `close` ends its input. Never raises.

        What the login user may not signal stays.
        """

    def close(self) -> None:
        """End the remote command and the connection within a second. Never raises."""


class Transport(Protocol):
    """Starts commands on nodes. One object serves the whole run, from many threads at once."""

    def open(self, node: Node, command: str) -> Channel:
        """Start `command`, a constant shell line, on the node within node.ssh.connect_timeout.

        Raises Unreached with one of the reasons of the contract.
        """

    def unheard(self) -> Collection[str]:
        """Return the names of the nodes that `open` waits for and that have sent no byte yet."""

    def close(self) -> None:
        """Close what nodes share, such as jump hosts and agents."""
