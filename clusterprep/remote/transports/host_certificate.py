"""Host certificates (PROTOCOL.certkeys of OpenSSH): paramiko takes them as keys and never looks who signed them."""

from __future__ import annotations

import time
from collections.abc import Collection

from paramiko import Message, PKey, SSHException
from paramiko.pkey import UnknownKeyType

from clusterprep.remote.transports.host_patterns import matches
from clusterprep.remote.transports.known_hosts import fingerprint
from clusterprep.runtime.lazy_dataclass import dataclass

_HOST = 2  # SSH2_CERT_TYPE_HOST
_KEY_FIELDS = {
    "ssh-rsa": 2,
    "ssh-ed25519": 1,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}


@dataclass(frozen=True)
class HostCertificate:
    """What a certificate says; nothing of it is true before `objection` has returned None."""

    kind: int
    principals: tuple[str, ...]
    after: int  # seconds since the epoch
    before: int
    options: bytes  # critical ones; none is defined for hosts
    authority: bytes  # public key of who signed
    signed: bytes
    signature: bytes

    @classmethod
    def parse(cls, blob: bytes) -> HostCertificate:
        """Raises ValueError where the blob is no certificate of a kind that OpenSSH issues."""
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
        after, before, options = message.get_int64(), message.get_int64(), message.get_binary()
        message.get_binary()  # extensions
        message.get_binary()  # reserved
        authority = message.get_binary()
        signed = message.get_so_far()
        return cls(
            kind, principals, after, before, options, authority, signed, message.get_binary()
        )

    def objection(self, host: str, authorities: Collection[bytes]) -> str | None:
        """Why the certificate proves nothing about host; None where it does prove that this is the host."""
        now = time.time()
        if self.authority not in authorities:
            return f"its certificate is signed by {fingerprint(self.authority)}, which no @cert-authority line names"
        if not self._is_signed():
            return "the signature on its certificate is wrong"
        if self.kind != _HOST:
            return "its certificate is a user's, not a host's"
        if not self.after <= now < self.before:
            return f"its certificate is valid only from {_day(self.after)} to {_day(self.before)}"
        if self.options:
            return "its certificate has critical options, which are not understood"
        if not matches(host, self.principals):
            return f"its certificate is for {', '.join(self.principals) or 'nobody'}"
        return None

    def _is_signed(self) -> bool:
        try:
            key = PKey.from_type_string(Message(self.authority).get_text(), self.authority)
            by_sha1 = Message(self.signature).get_text() == "ssh-rsa"
            return not by_sha1 and bool(key.verify_ssh_sig(self.signed, Message(self.signature)))
        except (SSHException, UnknownKeyType, ValueError):
            return False


def _strings(data: bytes) -> tuple[str, ...]:
    message, found = Message(data), []
    while len(message.get_so_far()) < len(data):
        found.append(message.get_text())
    return tuple(found)


def _day(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(moment, 1 << 40)))
