"""The state of one SSH connection, which the modules that set it up and use it share."""

from __future__ import annotations

import enum

from clusterprep.remote.transports.ssh_paramiko import NodeTransport
from clusterprep.remote.transports.ssh_route import Route
from clusterprep.remote.transports.wire import Wire


class ConnectPhase(enum.Enum):
    """How far a connection has come."""

    GREETING = "greeting and key exchange"
    LOGIN = "login"
    COMMAND = "start of the command"


class ConnectionState:
    """What is known of a connection. `SshConnection` opens it and starts commands on it."""

    def __init__(
        self, route: Route, wire: Wire, peer: str | None = None, near: bool = False
    ) -> None:
        self.route = route
        self.wire = wire
        self.peer = peer
        self.near = near
        self.phase = ConnectPhase.GREETING
        self._transport: NodeTransport | None = None

    @property
    def transport(self) -> NodeTransport:
        """The transport of paramiko. Raises EOFError before there is one."""
        if self._transport is None:
            raise EOFError
        return self._transport

    @property
    def alive(self) -> bool:
        if self._transport is None or self.wire.ended:
            return False
        return self._transport.is_active()

    @property
    def greeted(self) -> bool:
        """Whether the peer has sent the greeting of SSH."""
        return self._transport is not None and bool(self._transport.remote_version)

    @property
    def end_reason(self) -> str:
        """What is known about the end of the connection, "" if nothing is."""
        return self.farewell or self.wire.end_reason

    @property
    def farewell(self) -> str:
        """The peer's text when it hung up, "" without one."""
        return self._transport.farewell if self._transport else ""

    def close(self) -> None:
        """End the connection at once, without a farewell, which a dead peer would not accept."""
        self.wire.close()
        if self._transport:
            self._transport.close()
