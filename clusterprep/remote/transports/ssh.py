"""Nodes reached over SSH: one connection per node, jump hosts shared.

paramiko is used here without Fabric, whose `run(in_stream=…)` moves about a hundred bytes a second
and which costs a millisecond for each node; `clusterprep.fabric` puts Fabric on top of `connect`.
paramiko's exceptions become `Unreached` in `transports` and in no other package.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remote.transports.proxy_command import run_proxy
from clusterprep.remote.transports.ssh_route import Route, RouteMap
from clusterprep.remote.transports.tcp import dial, is_near
from clusterprep.remote.transports.wire import STALL, Wire
from clusterprep.runtime.clock import running_seconds

M_ARENA_MAX = -8  # mallopt(3)
FUTURE_SLICE = 0.5  # seconds between two looks at the deadline while another thread connects
# Seconds without an acknowledgement after which a node counts as gone where no agent gives signs of
# life; as long as an agent waits for the controller.
GONE = 30.0
SHORTEST_LIMIT = 0.05  # seconds that a jump host has for a connection even past the deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Imported when used: paramiko takes a tenth of a second to import.
    from clusterprep.remote.transports.ssh_channel import SshChannel
    from clusterprep.remote.transports.ssh_connection import SshConnection


class SshTransport:
    """Starts commands over SSH. See Transport in clusterprep.remote.transports.protocol.

    `ask` is called with a prompt when a key needs its passphrase. `stall` is how many seconds a
    node may accept no byte.
    """

    def __init__(self, ask: Callable[[str], str] | None = None, stall: float = STALL) -> None:
        # Not imported before there is a node to reach.
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

    def open(self, node: Node, command: str) -> SshChannel:
        """Start `command` on the node within node.ssh.connect_timeout. Raises Unreached."""
        with self._opened(node) as connection:
            return connection.start(command)

    def connect(self, node: Node) -> SshConnection:
        """Return a connection to the node without a command, made within node.ssh.connect_timeout.

        Its owner closes it. Raises Unreached.
        """
        with self._opened(node) as connection:
            connection.wire.limit(None)
            connection.wire.notice_silence(GONE)
            return connection

    def route(self, node: Node) -> Route:
        """Return how the node is reached. Raises Unreached if ssh_config makes that impossible."""
        return self._routes.to(node)

    def twin(self) -> SshTransport:
        """Return another transport that may be closed while this one has connections.

        It knows the keys that were unlocked for this one, and asks for no passphrase.
        """
        twin = SshTransport(stall=self._stall)
        twin._key_ring = self._key_ring
        return twin

    @contextlib.contextmanager
    def _opened(self, node: Node) -> Iterator[SshConnection]:
        """Yield a connection that is logged in. Until the end the node counts as being opened."""
        deadline = running_seconds() + node.ssh.connect_timeout
        self._opening[node.name] = None
        try:
            route = self._routes.to(node)
            yield self._connect(route, deadline, node.name)
        finally:
            self._opening.pop(node.name, None)

    def unheard(self) -> list[str]:
        """Return the names of the nodes that are being opened and have sent no byte yet."""
        names = []
        for name, wire in list(self._opening.items()):
            if wire is None or not wire.greeting:
                names.append(name)
        return names

    def close(self) -> None:
        """Close jump hosts and agents. Never raises."""
        with self._lock:
            jumps = list(self._jumps.values())
            self._jumps = {}
        for jump in jumps:
            if jump.done() and not jump.exception():
                jump.result().close()
        self._key_ring.close()

    def _connect(self, route: Route, deadline: float, node: str | None = None) -> SshConnection:
        """Return a verified connection, logged in, its wire still under the deadline.

        `node` is None for a jump host.
        """
        connection = self._unopened(route, deadline)
        if node is not None:
            self._opening[node] = connection.wire
        connection.open(self._host_keys, self._key_ring)
        return connection

    def _unopened(self, route: Route, deadline: float) -> SshConnection:
        """Return a connection whose byte stream exists and has not been used."""
        from clusterprep.remote.transports.ssh_connection import SshConnection

        if route.via:
            wire = self._through(route.via, route, deadline)
            return SshConnection(route, wire)
        if route.command:
            proxy = run_proxy(route.command)
            return SshConnection(route, Wire(proxy, deadline, self._stall))
        tcp, peer = dial(route.host, route.port, deadline)
        wire = Wire(tcp, deadline, self._stall)
        return SshConnection(route, wire, peer, is_near(tcp))

    def _through(self, jump: Route, route: Route, deadline: float) -> Wire:
        """Return a stream through a jump host. If that has died, it is connected anew."""
        from clusterprep.remote.transports.ssh_failures import tunnel_refused

        while True:
            connection = self._jump_connection(jump, deadline)
            limit = max(deadline - running_seconds(), SHORTEST_LIMIT)
            try:
                stream = connection.tunnel(route.host, route.port, limit)
            except Exception as error:
                if connection.alive or running_seconds() > deadline:
                    raise tunnel_refused(error, jump, route) from error
            else:
                return Wire(stream, deadline, self._stall)

    def _jump_connection(self, route: Route, deadline: float) -> SshConnection:
        """Return the connection to a jump host.

        The first thread that needs it opens it; the others wait for the same outcome.
        """
        future, is_new = self._jump_future(route)
        if is_new:
            self._fulfil(future, route, deadline)
        try:
            while not future.done() and running_seconds() < deadline:
                with contextlib.suppress(NotYet):
                    future.exception(FUTURE_SLICE)
            return future.result(SHORTEST_LIMIT)
        except NotYet as error:
            message = f"jump host {route.host} is not reached in time"
            raise Unreached("timed_out", message) from error
        except Unreached as error:
            message = f"jump host {route.name}: {error}"
            raise Unreached(error.reason, message, error.remedy) from error

    def _jump_future(self, route: Route) -> tuple[Future[SshConnection], bool]:
        """Return the future of a jump host's connection, and whether it is new."""
        with self._lock:
            future = self._jumps.get(route)
            if future is not None and not _has_died(future):
                return future, False
            future = Future()
            self._jumps[route] = future
            return future, True

    def _fulfil(self, future: Future[SshConnection], route: Route, deadline: float) -> None:
        try:
            connection = self._connect(route, deadline)
            connection.wire.limit(None)
        except BaseException as error:  # noqa: BLE001 - raised in the threads that wait for it
            future.set_exception(error)
        else:
            future.set_result(connection)


def _has_died(future: Future[SshConnection]) -> bool:
    """Return whether the connection came about and has ended. A failure is not tried again."""
    if not future.done() or future.exception():
        return False
    return not future.result().alive


_IMPORTING = threading.Lock()  # a program may begin several commands at once


def _import_paramiko() -> None:
    """Import paramiko without invoke, which saves half of the time.

    paramiko imports invoke if it is installed, for its reader of ssh_config, which is not used
    here.
    """
    with _IMPORTING:
        is_blocked = sys.modules.setdefault("invoke", None) is None  # type: ignore[arg-type]
        import paramiko  # noqa: F401 - the modules that use it import it again

        if is_blocked:
            del sys.modules["invoke"]


def _keep_one_heap() -> None:
    """Make all threads share glibc's heap.

    By default each has its own, and memory freed in one is not used by others: 80 KB for each node.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
