"""Public key login: every key in turn, with a name for each that the node refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import paramiko

from clusterprep.remote.transports.ssh_failures import login_refused
from clusterprep.remote.transports.ssh_keys import Identity, KeyRing

if TYPE_CHECKING:
    from clusterprep.remote.transports.ssh_connection import SshConnection

EXTENSION_WAIT = (
    0.2  # seconds; a server lists its signature algorithms right after the key exchange, or never
)
_RSA = {"rsa-sha2-512", "rsa-sha2-256"}


class SshLogin:
    """Stands in for paramiko's AuthStrategy, which forgets why a key was not taken."""

    def __init__(self, connection: SshConnection, key_ring: KeyRing) -> None:
        self._connection, self._key_ring = connection, key_ring
        self._refused: list[str] = []
        self._unusable: list[str] = []
        self._wanted: list[str] = []  # what the node asks for besides, or instead of, a key

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Returns when logged in. Raises Unreached("auth_refused")."""
        route = self._connection.route
        for candidate in self._connection.wire.untimed(self._key_ring.candidates(route)):
            if not isinstance(candidate, Identity):
                self._unusable.append(str(candidate))
            elif not _can_agree(transport, candidate):
                self._unusable.append(f"{candidate.label} (the node takes no RSA signatures)")
            elif self._try(transport, candidate):
                return
            if not transport.is_active() or (self._wanted and "publickey" not in self._wanted):
                break
        raise login_refused(self._connection, self._refused, self._unusable, self._wanted)

    def _try(self, transport: paramiko.Transport, identity: Identity) -> bool:
        try:
            self._wanted = transport.auth_publickey(self._connection.route.user, identity.key)
        except paramiko.BadAuthenticationType as error:
            self._wanted = error.allowed_types
        except paramiko.AuthenticationException:
            pass
        except (
            paramiko.SSHException
        ) as error:  # the agent would not sign; paramiko ends the connection over it
            self._unusable.append(f"{identity.label} ({error})")
            return False
        if transport.is_authenticated():
            return True
        self._refused.append(str(identity))
        return False


def _can_agree(transport: paramiko.Transport, identity: Identity) -> bool:
    """False for an RSA key where the node wants no RSA: paramiko would end the connection, with other keys left."""
    if "rsa" not in identity.key.get_name():
        return True
    until = time.monotonic() + EXTENSION_WAIT
    while not transport.server_extensions and time.monotonic() < until:
        time.sleep(0.01)
    algorithms = transport.server_extensions.get("server-sig-algs", b"").decode(errors="replace")
    return not algorithms or not _RSA.isdisjoint(algorithms.split(","))
