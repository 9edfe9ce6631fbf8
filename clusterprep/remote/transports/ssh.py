"""Nodes reached over SSH: one connection per node, jump hosts shared."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remote.transports import Channel
from clusterprep.remote.transports.proxy_command import run_proxy
from clusterprep.remote.transports.ssh_route import Route, RouteMap
from clusterprep.remote.transports.tcp import dial, is_near
from clusterprep.remote.transports.wire import STALL, Wire
from clusterprep.runtime.clock import running_seconds

M_ARENA_MAX = -8  # mallopt(3)
LOOK = 0.5  # seconds between two looks at the deadline while another thread reaches a jump host

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterprep.remote.transports.ssh_connection import SshConnection


class SshTransport:
    """See clusterprep.transports.Transport.

    `ask` is called with a prompt when a key needs its passphrase; `stall` is how many seconds a node may take nothing.
    """

    def __init__(self, ask: Callable[[str], str] | None = None, stall: float = STALL) -> None:
        # paramiko takes a tenth of a second to import: not before there is a node to reach
        _import_paramiko()
        _keep_one_heap()
        from clusterprep.remote.transports.host_key_policy import HostKeys
        from clusterprep.remote.transports.ssh_keys import KeyRing

        self._stall = stall
        self._routes = RouteMap()
        self._host_keys = HostKeys()
        self._key_ring = KeyRing(ask)
        self._jumps: dict[Route, Future[SshConnection]] = {}
        self._opening: dict[str, Wire | None] = {}  # by node, None until there is a stream
        self._lock = threading.Lock()

    def open(self, node: Node, command: str) -> Channel:
        """Start command on the node within node.ssh.connect_timeout. Raises Unreached."""
        deadline = running_seconds() + node.ssh.connect_timeout
        self._opening[node.name] = None
        try:
            return self._connect(self._routes.to(node), deadline, node.name).start(command)
        finally:
            del self._opening[node.name]

    def unheard(self) -> list[str]:
        """Names of the nodes that are being opened and have sent no byte yet."""
        return [
            name for name, wire in list(self._opening.items()) if wire is None or not wire.heard
        ]

    def close(self) -> None:
        """Close jump hosts and agents; never raises."""
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
        for jump in jumps:
            if jump.done() and not jump.exception():
                jump.result().close()
        self._key_ring.close()

    def _connect(self, route: Route, deadline: float, node: str | None = None) -> SshConnection:
        """A verified connection, logged in, its wire still under the deadline. A jump host has no `node`."""
        from clusterprep.remote.transports.ssh_connection import SshConnection

        if route.via:
            connection = SshConnection(route, self._through(route.via, route, deadline))
        elif route.command:
            connection = SshConnection(route, Wire(run_proxy(route.command), deadline, self._stall))
        else:
            tcp, peer = dial(route.host, route.port, deadline)
            connection = SshConnection(route, Wire(tcp, deadline, self._stall), peer, is_near(tcp))
        if node is not None:
            self._opening[node] = connection.wire
        connection.open(self._host_keys, self._key_ring)
        return connection

    def _through(self, jump: Route, route: Route, deadline: float) -> Wire:
        from clusterprep.remote.transports.ssh_failures import tunnel_refused

        while True:
            connection = self._jump(jump, deadline)
            try:
                stream = connection.tunnel(
                    route.host, route.port, max(deadline - running_seconds(), 0.05)
                )
            except Exception as error:
                if connection.alive or running_seconds() > deadline:
                    raise tunnel_refused(error, jump, route) from error
            else:
                return Wire(stream, deadline, self._stall)

    def _jump(self, route: Route, deadline: float) -> SshConnection:
        """The connection to a jump host: the first to need it opens it, the others wait for the same outcome."""
        with self._lock:
            future = self._jumps.get(route)
            if future is None or (
                future.done() and not future.exception() and not future.result().alive
            ):
                future = self._jumps[route] = Future()
                mine = True
            else:
                mine = False
        if mine:
            self._fulfil(future, route, deadline)
        try:
            while not future.done() and running_seconds() < deadline:
                with contextlib.suppress(NotYet):
                    future.exception(LOOK)
            return future.result(0.05)
        except NotYet as error:
            raise Unreached(
                "timed_out", f"jump host {route.host} is not reached in time"
            ) from error
        except Unreached as error:
            raise Unreached(
                error.reason, f"jump host {route.name}: {error}", error.remedy
            ) from error

    def _fulfil(self, future: Future[SshConnection], route: Route, deadline: float) -> None:
        try:
            connection = self._connect(route, deadline)
            connection.wire.limit(None)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
        else:
            future.set_result(connection)


def _import_paramiko() -> None:
    """Without invoke, which its reader of ssh_config imports if it is there and we do not use: half of the time."""
    kept_out = sys.modules.setdefault("invoke", None) is None  # type: ignore[arg-type]
    import paramiko  # noqa: F401 - who uses it imports it again

    if kept_out:
        del sys.modules["invoke"]


def _keep_one_heap() -> None:
    """glibc gives threads heaps of their own; what is freed in one helps no other, and that is 80 KB for each node."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
