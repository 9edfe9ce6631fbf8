"""Keys to log in with. Every key file is read once a run, and its passphrase asked for once."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from msgspec import Struct
from paramiko import ECDSAKey, Ed25519Key, Message, PKey, RSAKey

from clusterprep.remote.transports.known_hosts import fingerprint
from clusterprep.remote.transports.ssh_agent import SshAgent
from clusterprep.remote.transports.ssh_failures import LOCKED
from clusterprep.remote.transports.ssh_route import Route

Ask = Callable[[str], str]
TRIES = 3  # passphrases for one key, as OpenSSH's NumberOfPasswordPrompts
NEEDED = f"{LOCKED}: ssh-add {{}}"
_MAGIC = b"openssh-key-v1\0"
_BEGIN = b"-----BEGIN OPENSSH PRIVATE KEY-----"


class UnusableKeyError(Exception):
    """Why a key file cannot be used. It becomes a note in a message and never ends a run."""


class Identity(Struct, frozen=True):
    """A key that can sign, and its name in messages."""

    label: str
    key: PKey

    def __str__(self) -> str:
        return f"{self.label} ({fingerprint(self.key.asbytes())})"


Candidate = Identity | UnusableKeyError


class KeyRing:
    """The key files and agents of this process."""

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask
        self._files: dict[tuple[str, str], Candidate] = {}
        self._public_parts: dict[str, bytes] = {}  # by path of the key file
        self._agents: dict[str, tuple[SshAgent, dict[bytes, Identity]]] = {}
        # Held while a passphrase is typed: the other threads want the same key.
        self._file_turn = threading.Lock()
        self._agent_turn = threading.Lock()

    def candidates(self, route: Route) -> Iterator[Candidate]:
        """Yield what to try for a route, as OpenSSH orders it.

        Certificates come first, then configured keys, the agent's keys and default keys.
        """
        held = self._held(route.agent)
        yield from self._certified(route)
        if route.named:
            yield from self._configured(route, held)
        else:
            yield from self._defaults(route, held)

    def close(self) -> None:
        with self._agent_turn:
            while self._agents:
                _, (agent, _) = self._agents.popitem()
                agent.close()

    def _configured(self, route: Route, held: dict[bytes, Identity]) -> Iterator[Candidate]:
        """Yield the configured keys, then the agent's other ones unless IdentitiesOnly is set."""
        blobs = {path: self._public_part(path) for path in route.identities}
        for path, blob in blobs.items():
            yield held.get(blob) or self._from_file(path)
        if route.identities_only:
            return
        configured = set(blobs.values())
        for blob, identity in held.items():
            if blob not in configured:
                yield identity

    def _defaults(self, route: Route, held: dict[bytes, Identity]) -> Iterator[Candidate]:
        """Yield the agent's keys, then the default files that it does not hold.

        With IdentitiesOnly only the default keys, by the agent where it holds them.
        """
        files = filter(os.path.exists, route.identities)
        blobs = {path: self._public_part(path) for path in files}
        if not route.identities_only:
            yield from held.values()
        for path, blob in blobs.items():
            if blob not in held:
                yield self._from_file(path)
            elif route.identities_only:
                yield held[blob]

    def _held(self, path: str | None) -> dict[bytes, Identity]:
        """Return the agent's keys by their public part. They need no passphrase."""
        if path is None:
            return {}
        with self._agent_turn:
            if path not in self._agents:
                agent = SshAgent(path)
                identities: dict[bytes, Identity] = {}
                for key in agent.held():
                    label = f"agent key {key.comment}".strip()
                    identities[key.blob] = Identity(label, key)
                self._agents[path] = (agent, identities)
            return self._agents[path][1]

    def _certified(self, route: Route) -> Iterator[Candidate]:
        """Yield the keys that have a certificate: first those beside keys, then configured ones."""
        pairs = [(path, f"{path}-cert.pub") for path in route.identities]
        for certificate in route.certificates:
            for path in route.identities:
                pairs.append((path, certificate))
        for path, certificate in pairs:
            if os.path.exists(certificate) and os.path.exists(path):
                yield self._from_file(path, certificate)

    def _public_part(self, path: str) -> bytes:
        """Return the public half of a key file; read once."""
        if path not in self._public_parts:
            self._public_parts[path] = public_part(path)
        return self._public_parts[path]

    def _from_file(self, path: str, certificate: str = "") -> Candidate:
        """Return the key of a file with its certificate, or why it cannot be used; read once."""
        with self._file_turn:
            candidate = self._files.get((path, certificate))
            if candidate is None:
                candidate = self._load(path, certificate)
                self._files[path, certificate] = candidate
        return candidate

    def _load(self, path: str, certificate: str) -> Candidate:
        try:
            key = self._unlocked(path)
            if certificate:
                key.load_certificate(certificate)
        except UnusableKeyError as error:
            return error
        except Exception as error:  # noqa: BLE001 - three libraries and the disk raise their own
            reason = getattr(error, "strerror", None) or error
            return UnusableKeyError(f"{path} ({reason})")
        return Identity(certificate or path, key)

    def _unlocked(self, path: str) -> PKey:
        """Return the private key of a file. Raises UnusableKeyError."""
        data = _contents(path)
        # cryptography raises TypeError if a passphrase is needed.
        with contextlib.suppress(TypeError):
            return _read(data, None)
        needed = UnusableKeyError(f"{path} ({NEEDED.format(path)})")
        wrong = UnusableKeyError(f"{path} (wrong passphrase)")
        if self._ask is None:
            raise needed
        for number in range(TRIES):
            passphrase = self._ask(f"Passphrase for {path}: ")
            if not passphrase:
                raise wrong if number else needed
            with contextlib.suppress(ValueError):
                return _read(data, passphrase.encode("utf-8", "surrogateescape"))
        raise wrong


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read(data: bytes, passphrase: bytes | None) -> PKey:
    """Return a private key of any format of OpenSSH's. paramiko by itself reads no PKCS#8."""
    is_openssh = _BEGIN in data
    load = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    key = load(data, passphrase)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    source = io.StringIO(text.decode())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return Ed25519Key.from_private_key(source)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return ECDSAKey.from_private_key(source)
    if isinstance(key, rsa.RSAPrivateKey):
        return RSAKey.from_private_key(source)
    raise UnusableKeyError(f"a {type(key).__name__} is not supported")


def public_part(path: str) -> bytes:
    """Return the public half of a key file, without its passphrase. b"" if it cannot be read."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = _contents(f"{path}.pub").split()
        return base64.b64decode(fields[1])
    with contextlib.suppress(OSError, IndexError, ValueError):
        body = _contents(path).split(b"-----")[2]
        data = base64.b64decode(b"".join(body.split()))
        return _public_half(data) if data.startswith(_MAGIC) else b""
    return b""


def _public_half(data: bytes) -> bytes:
    message = Message(data[len(_MAGIC) :])
    for _ in ("cipher", "key derivation", "its options"):
        message.get_binary()
    message.get_int()  # number of keys, always one
    return message.get_binary()
