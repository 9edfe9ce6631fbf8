"""Public key login: try every key in turn, and report each key that the node refused."""

from __future__ import annotations

import time

import paramiko

from clusterprep.remote.transports.ssh_failures import login_refused
from clusterprep.remote.transports.ssh_keys import Identity, KeyRing
from clusterprep.remote.transports.ssh_paramiko import NodeTransport
from clusterprep.remote.transports.ssh_state import ConnectionState

# Seconds. A server lists its signature algorithms right after the key exchange, or never.
EXTENSION_WAIT = 0.2
_RSA = {"rsa-sha2-512", "rsa-sha2-256"}


class SshLogin:
    """Replaces paramiko's AuthStrategy, which forgets why a key was not accepted."""

    def __init__(self, connection: ConnectionState, key_ring: KeyRing) -> None:
        self._connection = connection
        self._key_ring = key_ring
        self._refused: list[str] = []
        self._unusable: list[str] = []
        # Authentication methods that the node asks for besides, or instead of, a key.
        self._wanted: list[str] = []

    def authenticate(self, transport: NodeTransport) -> None:
        """Return when logged in. Raises Unreached("auth_refused")."""
        candidates = self._key_ring.candidates(self._connection.route)
        for candidate in self._connection.wire.untimed(candidates):
            if not isinstance(candidate, Identity):
                self._unusable.append(str(candidate))
            elif not _can_agree(transport, candidate):
                self._unusable.append(f"{candidate.label} (the node takes no RSA signatures)")
            elif self._try(transport, candidate):
                return
            no_keys = self._wanted and "publickey" not in self._wanted
            if no_keys or not transport.is_active():
                break
        raise login_refused(self._connection, self._refused, self._unusable, self._wanted)

    def _try(self, transport: NodeTransport, identity: Identity) -> bool:
        """Return whether the login with this key succeeded."""
        try:
            self._wanted = transport.log_in(self._connection.route.user, identity.key)
        except paramiko.BadAuthenticationType as error:
            self._wanted = error.allowed_types
        except paramiko.AuthenticationException:
            pass
        except paramiko.SSHException as error:
            # The agent refused to sign; paramiko ends the connection then.
            self._unusable.append(f"{identity.label} ({error})")
            return False
        if transport.is_authenticated():
            return True
        self._refused.append(str(identity))
        return False


def _can_agree(transport: NodeTransport, identity: Identity) -> bool:
    """Return False for an RSA key if the node accepts no RSA signatures.

    paramiko would end the connection, before other keys are tried.
    """
    if "rsa" not in identity.key.get_name():
        return True
    until = time.monotonic() + EXTENSION_WAIT
    while not transport.server_extensions and time.monotonic() < until:
        time.sleep(0.01)
    value = transport.server_extensions.get("server-sig-algs", b"")
    algorithms = value.decode(errors="replace")
    return not algorithms or not _RSA.isdisjoint(algorithms.split(","))
