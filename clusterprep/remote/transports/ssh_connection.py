"""One verified, logged-in SSH connection: paramiko's, with our wire below and our host key rules inside."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.packet import Packetizer

from clusterprep.remote.transports.host_key_policy import CERTIFICATE, HostKeys
from clusterprep.remote.transports.ssh_channel import SshChannel
from clusterprep.remote.transports.ssh_failures import ConnectPhase, explain
from clusterprep.remote.transports.ssh_keys import KeyRing
from clusterprep.remote.transports.ssh_login import SshLogin
from clusterprep.remote.transports.ssh_route import Route
from clusterprep.remote.transports.wire import ByteStream, Wire

WEAK = ("sha1", "md5", "cbc", "arcfour", "none")  # in names of key exchanges, ciphers and MACs
NEVER = 86400.0  # seconds, for paramiko's own limits: the wire has one deadline for everything


class SshConnection:
    """A connection that starts a command, or carries connections to the hosts behind it."""

    def __init__(
        self, route: Route, wire: Wire, peer: str | None = None, near: bool = False
    ) -> None:
        self.route = route
        self.wire = wire
        self.near = near
        self.step = ConnectPhase.GREETING
        self._peer = peer
        self._transport: NodeTransport | None = None

    def open(self, host_keys: HostKeys, key_ring: KeyRing) -> None:
        """Greet, check the host key, log in, all before the wire's deadline. Raises Unreached."""
        try:
            self._connect(host_keys, key_ring)
        except Exception as error:
            self.close()
            raise explain(error, self) from error
        self.step = ConnectPhase.COMMAND

    def start(self, command: str) -> SshChannel:
        """The command on a channel of its own; from here on the wire has no deadline. Raises Unreached."""
        try:
            session = self.transport.open_session()
            session.exec_command(command)
        except Exception as error:
            self.close()
            raise explain(error, self) from error
        self.wire.limit(None)
        return SshChannel(self, session, self._peer, self.near)

    def tunnel(self, host: str, port: int, limit: float) -> ByteStream:
        """A TCP connection that this host makes to another one. Raises SSHException with the host's own words."""
        try:
            return Tunnel(
                self.transport.open_channel(
                    "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=limit
                )
            )
        except (paramiko.SSHException, EOFError) as error:
            words = [str(error), self.transport.refusal, self.why]
            raise paramiko.SSHException(
                ", ".join(filter(None, words)) or "the connection was closed"
            ) from error

    def close(self) -> None:
        """End the connection at once: no farewell, which a dead peer would not take."""
        self.wire.close()
        if self._transport:
            self._transport.close()

    @property
    def transport(self) -> NodeTransport:
        if self._transport is None:
            raise EOFError
        return self._transport

    @property
    def alive(self) -> bool:
        return self._transport is not None and self._transport.is_active() and not self.wire.ended

    @property
    def greeted(self) -> bool:
        return self._transport is not None and bool(self._transport.remote_version)

    @property
    def why(self) -> str:
        """What is known about the end of the connection."""
        return self.farewell or self.wire.why

    @property
    def farewell(self) -> str:
        """What the other side said when it hung up."""
        return self._transport.farewell if self._transport else ""

    def _connect(self, host_keys: HostKeys, key_ring: KeyRing) -> None:
        wire: Any = self.wire
        self._transport = transport = NodeTransport(
            wire, packetizer_class=PatientPacketizer, disabled_algorithms={"pubkeys": ["ssh-rsa"]}
        )
        options = transport.get_security_options()
        known = set(options.key_types)
        wanted = host_keys.algorithms(self.route)
        options.key_types = [name for name in wanted if name.removesuffix(CERTIFICATE) in known]
        options.kex, options.digests = _safe(options.kex), _safe(options.digests)
        options.ciphers = sorted(_safe(options.ciphers), key=_is_slow)
        transport.banner_timeout = transport.auth_timeout = NEVER
        transport.start_client()
        key = transport.get_remote_server_key()
        certificate = key.public_blob.key_blob if key.public_blob else None
        host_keys.verify(self.route, key.get_name(), key.asbytes(), certificate)
        self.step = ConnectPhase.LOGIN
        SshLogin(self, key_ring).authenticate(transport)


class NodeTransport(paramiko.Transport):
    """Keeps the other side's own words; paramiko logs them and raises something general.

    The methods are paramiko's inner ones: should they be renamed, the words are missing, and a test says so.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.farewell = ""  # what came with a disconnect
        self._refusals: dict[int, str] = {}
        self._mine = threading.local()

    @property
    def refusal(self) -> str:
        """Why the channel that this thread asked for last was not opened."""
        return self._refusals.pop(getattr(self._mine, "number", -1), "")

    def send_signal(self, channel: int, name: str) -> None:
        """A signal to the command of a channel (RFC 4254, 6.9), without asking for an answer."""
        request = paramiko.Message()
        request.add_byte(cMSG_CHANNEL_REQUEST)
        request.add_int(channel)
        request.add_string("signal")
        request.add_boolean(False)
        request.add_string(name)
        self._send_user_message(request)  # type: ignore[attr-defined]

    def _next_channel(self) -> int:
        self._mine.number = number = super()._next_channel()  # type: ignore[misc]
        return int(number)

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        number = message.get_int()
        message.get_int()
        self._refusals[number] = message.get_text()
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()


class PatientPacketizer(Packetizer):
    """Without paramiko's handshake timer: a thread per connection, and one that keeps the process from ending."""

    def start_handshake(self, timeout: float) -> None:
        """The wire has a deadline."""


class Tunnel:
    """A channel through a jump host, closed without waiting for a jump host that may be dead."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv = channel.recv
        self.send = channel.send
        self.settimeout = channel.settimeout

    def shutdown(self, how: int) -> None:
        """Nothing that close does not do."""

    def close(self) -> None:
        threading.Thread(target=self._say_goodbye, daemon=True).start()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


def _safe(names: Iterable[str]) -> list[str]:
    """Without what OpenSSH has given up itself; CBC with a MAC behind it is also what Terrapin needs."""
    return [name for name in names if not any(weak in name for weak in WEAK)]


def _is_slow(cipher: str) -> bool:
    """AES-GCM needs no MAC, which paramiko compares byte by byte: 5 % of a login's CPU, 40 % of a transfer's."""
    return "gcm" not in cipher


_log = logging.getLogger("paramiko")
if (
    _log.level == logging.NOTSET
):  # what goes wrong is reported as an Unreached; paramiko's log would go to stderr
    _log.setLevel(logging.CRITICAL + 1)
