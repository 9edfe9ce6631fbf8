"""Identities to log in with: every key file is read once a run, every passphrase asked once."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from paramiko import ECDSAKey, Ed25519Key, Message, PKey, RSAKey

from clusterprep.remote.transports.known_hosts import fingerprint
from clusterprep.remote.transports.ssh_agent import SshAgent
from clusterprep.remote.transports.ssh_route import Route
from clusterprep.runtime.lazy_dataclass import dataclass

Ask = Callable[[str], str]
TRIES = 3  # passphrases for one key, as OpenSSH's NumberOfPasswordPrompts
NEEDED = "needs its passphrase: ssh-add {}"
_MAGIC = b"openssh-key-v1\0"
_BEGIN = b"-----BEGIN OPENSSH PRIVATE KEY-----"


class UnusableKeyError(Exception):
    """Why a key file cannot be used; a note in a message, never the end of a run."""


@dataclass(frozen=True)
class Identity:
    """A key that can sign, and its name in messages."""

    label: str
    key: PKey

    def __str__(self) -> str:
        return f"{self.label} ({fingerprint(self.key.asbytes())})"


Candidate = Identity | UnusableKeyError


class KeyRing:
    """Key files and agents of this process."""

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask
        self._files: dict[tuple[str, str], Candidate] = {}
        self._agents: dict[str, tuple[SshAgent, dict[bytes, Identity]]] = {}
        self._file_turn = (
            threading.Lock()
        )  # held while a passphrase is typed: the other threads want the same key
        self._agent_turn = threading.Lock()

    def candidates(self, route: Route) -> Iterator[Candidate]:
        """What to try for a route, in order: certificates, keys asked for, the agent's keys, default keys."""
        held = self._held(route.agent)
        yield from self._certified(route)
        files = [path for path in route.identities if route.named or os.path.exists(path)]
        own = {path: public_part(path) for path in files}
        named, others = (own, {}) if route.named else ({}, own)
        yield from (held.get(blob) or self._from_file(path) for path, blob in named.items())
        if not route.identities_only:
            yield from (identity for blob, identity in held.items() if blob not in named.values())
        for path, blob in others.items():
            if blob not in held:
                yield self._from_file(path)
            elif route.identities_only:
                yield held[blob]

    def close(self) -> None:
        with self._agent_turn:
            while self._agents:
                self._agents.popitem()[1][0].close()

    def _held(self, path: str | None) -> dict[bytes, Identity]:
        """The agent's keys by their public part; its copy of a key needs no passphrase."""
        if path is None:
            return {}
        with self._agent_turn:
            if path not in self._agents:
                agent = SshAgent(path)
                keys = {
                    key.blob: Identity(f"agent key {key.comment}".strip(), key)
                    for key in agent.held()
                }
                self._agents[path] = agent, keys
            return self._agents[path][1]

    def _certified(self, route: Route) -> Iterator[Candidate]:
        beside = [(path, f"{path}-cert.pub") for path in route.identities]
        given = [
            (path, certificate) for certificate in route.certificates for path in route.identities
        ]
        for path, certificate in [*beside, *given]:
            if os.path.exists(certificate) and os.path.exists(path):
                yield self._from_file(path, certificate)

    def _from_file(self, path: str, certificate: str = "") -> Candidate:
        with self._file_turn:
            found = self._files.get((path, certificate))
            if found is None:
                found = self._files[path, certificate] = self._load(path, certificate)
        return found

    def _load(self, path: str, certificate: str) -> Candidate:
        try:
            key = self._unlocked(path)
            if certificate:
                key.load_certificate(certificate)
        except UnusableKeyError as why:
            return why
        except Exception as error:  # noqa: BLE001 - three libraries and the disk have each their own for a bad file
            return UnusableKeyError(f"{path} ({getattr(error, 'strerror', None) or error})")
        return Identity(certificate or path, key)

    def _unlocked(self, path: str) -> PKey:
        data = _contents(path)
        with contextlib.suppress(TypeError):  # cryptography's word for "there is a passphrase"
            return _read(data, None)
        if self._ask is None:
            raise UnusableKeyError(f"{path} ({NEEDED.format(path)})")
        for tried in range(TRIES):
            words = self._ask(f"Passphrase for {path}: ")
            if not words:
                raise UnusableKeyError(
                    f"{path} ({'wrong passphrase' if tried else NEEDED.format(path)})"
                )
            with contextlib.suppress(ValueError):
                return _read(data, words.encode("utf-8", "surrogateescape"))
        raise UnusableKeyError(f"{path} (wrong passphrase)")


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read(data: bytes, passphrase: bytes | None) -> PKey:
    """A private key in any format of OpenSSH's; paramiko by itself reads no PKCS#8."""
    load = (
        serialization.load_ssh_private_key if _BEGIN in data else serialization.load_pem_private_key
    )
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
    """The public half of a key file, learned without its passphrase; empty where there is no way to."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return base64.b64decode(_contents(f"{path}.pub").split()[1])
    with contextlib.suppress(OSError, IndexError, ValueError):
        data = base64.b64decode(b"".join(_contents(path).split(b"-----")[2].split()))
        return _public_half(data) if data.startswith(_MAGIC) else b""
    return b""


def _public_half(data: bytes) -> bytes:
    message = Message(data[len(_MAGIC) :])
    for _ in ("cipher", "key derivation", "its options"):
        message.get_binary()
    message.get_int()  # number of keys, always one
    return message.get_binary()
