"""One verified, logged-in SSH connection: paramiko's, on our wire and by our host key rules."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import Any

import paramiko

from clusterprep.remote.transports.host_key_policy import CERTIFICATE, HostKeys
from clusterprep.remote.transports.ssh_channel import WINDOW, SshChannel
from clusterprep.remote.transports.ssh_failures import explain
from clusterprep.remote.transports.ssh_keys import KeyRing
from clusterprep.remote.transports.ssh_login import SshLogin
from clusterprep.remote.transports.ssh_paramiko import NodeTransport, PatientPacketizer
from clusterprep.remote.transports.ssh_state import ConnectionState, ConnectPhase
from clusterprep.remote.transports.wire import ByteStream

WEAK = ("sha1", "md5", "cbc", "arcfour", "none")  # in names of key exchanges, ciphers and MACs
NEVER = 86400.0  # seconds, for paramiko's own limits: the wire has one deadline for everything


class SshConnection(ConnectionState):
    """A connection that starts a command, or carries connections to the hosts behind it."""

    def open(self, host_keys: HostKeys, key_ring: KeyRing) -> None:
        """Greet, check the host key and log in before the wire's deadline. Raises Unreached."""
        try:
            self._connect(host_keys, key_ring)
        except Exception as error:
            self.close()
            raise explain(error, self) from error
        self.phase = ConnectPhase.COMMAND

    def start(self, command: str) -> SshChannel:
        """Start a command and return its channel. The wire then has no deadline any more.

        Raises Unreached.
        """
        try:
            session = self.transport.open_session(window_size=WINDOW)
            channel = SshChannel(self, session)
            session.exec_command(command)
        except Exception as error:
            self.close()
            raise explain(error, self) from error
        self.wire.limit(None)
        return channel

    def tunnel(self, host: str, port: int, limit: float) -> ByteStream:
        """Return a TCP connection that this host makes to another one within `limit` seconds.

        Raises SSHException with the host's own text.
        """
        try:
            channel = self.transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=limit
            )
        except (paramiko.SSHException, EOFError) as error:
            texts = [str(error), self.transport.refusal, self.end_reason]
            reason = ", ".join(filter(None, texts))
            raise paramiko.SSHException(reason or "the connection was closed") from error
        return Tunnel(channel)

    def _connect(self, host_keys: HostKeys, key_ring: KeyRing) -> None:
        """Greet, check the host key and log in. Raises what paramiko raises, too."""
        wire: Any = self.wire  # paramiko calls only some methods of the socket that it asks for
        transport = NodeTransport(
            wire,
            packetizer_class=PatientPacketizer,
            disabled_algorithms={"pubkeys": ["ssh-rsa"]},  # it signs with SHA-1
        )
        self._transport = transport
        self._choose_algorithms(transport, host_keys)
        transport.banner_timeout = NEVER
        transport.auth_timeout = NEVER
        transport.negotiate()
        self._verify_host_key(transport, host_keys)
        self.phase = ConnectPhase.LOGIN
        SshLogin(self, key_ring).authenticate(transport)

    def _choose_algorithms(self, transport: NodeTransport, host_keys: HostKeys) -> None:
        """Offer safe algorithms only: known types of host keys first, and fast ciphers first."""
        options = transport.get_security_options()
        supported = set(options.key_types)
        key_types = []
        for name in host_keys.algorithms(self.route):
            if name.removesuffix(CERTIFICATE) in supported:
                key_types.append(name)
        options.key_types = key_types
        options.kex = _safe(options.kex)
        options.digests = _safe(options.digests)
        options.ciphers = tuple(sorted(_safe(options.ciphers), key=_is_slow))

    def _verify_host_key(self, transport: NodeTransport, host_keys: HostKeys) -> None:
        key = transport.get_remote_server_key()
        certificate = None
        if key.public_blob:
            certificate = key.public_blob.key_blob
        host_keys.verify(self.route, key.get_name(), key.asbytes(), certificate)


class Tunnel:
    """A channel through a jump host.

    It is closed without waiting for the jump host, which may be dead.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv = channel.recv
        self.send = channel.send
        self.settimeout = channel.settimeout

    def shutdown(self, how: int) -> None:
        threading.Thread(target=self._close_channel, daemon=True).start()

    def close(self) -> None:
        """Do nothing: `shutdown` does everything."""

    def _close_channel(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


@functools.cache
def _safe(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the algorithms that OpenSSH has not given up itself.

    paramiko would take CBC, MD5 and SHA-1 from a server that offers nothing else, and such a server
    may stand between this machine and the node. The price: an sshd before OpenSSH 7.2 (2016) that
    has RSA keys alone is not spoken to.

    CBC with a MAC behind it, which is not among them, is also what the Terrapin attack needs.
    """
    safe = []
    for name in names:
        if not any(weak in name for weak in WEAK):
            safe.append(name)
    return tuple(safe)


def _is_slow(cipher: str) -> bool:
    """Return whether a cipher is not AES-GCM, which needs no MAC.

    paramiko compares MACs byte by byte: 5 % of the CPU time of a login, 40 % of a transfer's.
    """
    return "gcm" not in cipher


_log = logging.getLogger("paramiko")
# Failures are reported as Unreached; paramiko's log of them would go to stderr.
if _log.level == logging.NOTSET:
    _log.setLevel(logging.CRITICAL + 1)
