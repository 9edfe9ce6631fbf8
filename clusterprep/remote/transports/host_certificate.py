"""Read and verify host certificates (PROTOCOL.certkeys of OpenSSH).

paramiko takes them as keys and never checks which authority signed them.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from msgspec import Struct
from paramiko import Message, PKey, SSHException
from paramiko.pkey import UnknownKeyType

from clusterprep.remote.transports.host_patterns import matches_exactly
from clusterprep.remote.transports.known_hosts import fingerprint

_HOST = 2  # SSH2_CERT_TYPE_HOST
# Number of fields of a public key of each type.
_KEY_FIELDS = {
    "ssh-rsa": 2,
    "ssh-ed25519": 1,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}


class HostCertificate(Struct, frozen=True):
    """The fields of a certificate. None can be trusted before `objection` has returned None."""

    kind: int
    principals: tuple[str, ...]
    after: int  # seconds since the epoch
    before: int
    options: bytes  # critical ones; none is defined for hosts
    authority: bytes  # public key that signed
    signed: bytes  # the bytes that the signature is for
    signature: bytes

    @classmethod
    def parse(cls, blob: bytes) -> HostCertificate:
        """Parse a certificate. Raises ValueError if it is of no type that OpenSSH issues."""
        message = Message(blob)
        type_ = message.get_text().removesuffix("-cert-v01@openssh.com")
        if type_ not in _KEY_FIELDS:
            raise ValueError(f"unknown kind of certificate: {type_}")
        for _ in range(1 + _KEY_FIELDS[type_]):  # nonce, then the host's own key
            message.get_binary()
        message.get_int64()  # serial number
        kind = message.get_int()
        message.get_binary()  # key id, for people
        principals = _strings(message.get_binary())
        after = message.get_int64()
        before = message.get_int64()
        options = message.get_binary()
        message.get_binary()  # extensions
        message.get_binary()  # reserved
        authority = message.get_binary()
        signed = message.get_so_far()
        signature = message.get_binary()
        return cls(
            kind,
            principals,
            after,
            before,
            options,
            authority,
            signed,
            signature,
        )

    def objection(self, host: str, authorities: Collection[bytes]) -> str | None:
        """Return why the certificate does not prove that this is `host`, None if it does.

        As in OpenSSH since 10.3, principals may have wildcards, and one without principals is for
        no host. Before, OpenSSH wanted the very name, and took an empty list for all hosts.
        """
        now = time.time()
        if self.authority not in authorities:
            signer = fingerprint(self.authority)
            return f"its certificate is signed by {signer}, which no @cert-authority line names"
        if not self._is_signed():
            return "the signature on its certificate is wrong"
        if self.kind != _HOST:
            return "its certificate is a user's, not a host's"
        if not self.after <= now < self.before:
            return f"its certificate is valid only from {_day(self.after)} to {_day(self.before)}"
        if self.options:
            return "its certificate has critical options, which are not understood"
        if not any(matches_exactly(host, principal) for principal in self.principals):
            names = ", ".join(self.principals) or "no host"
            return f"its certificate is for {names}"
        return None

    def _is_signed(self) -> bool:
        """Return whether the authority's signature is right, and not by SHA-1 ("ssh-rsa")."""
        try:
            type_ = Message(self.authority).get_text()
            key = PKey.from_type_string(type_, self.authority)
            algorithm = Message(self.signature).get_text()
            if algorithm == "ssh-rsa":
                return False
            return bool(key.verify_ssh_sig(self.signed, Message(self.signature)))
        except (SSHException, UnknownKeyType, ValueError):
            return False


def _strings(data: bytes) -> tuple[str, ...]:
    message = Message(data)
    texts = []
    while len(message.get_so_far()) < len(data):
        texts.append(message.get_text())
    return tuple(texts)


def _day(moment: int) -> str:
    seconds = min(moment, 1 << 40)  # "for ever" is 2**64 - 1, which gmtime refuses
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
