"""The key pair with which the nodes of a cluster log in to each other, made and kept here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.runtime import files

FOLDER = "ssh_mesh"  # of the state folder; one file per cluster
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class KeyPair:
    """A private key in OpenSSH's format, which no message shows, and its public line."""

    public: str
    private: bytes = field(repr=False)


def key_pair(cluster: str) -> KeyPair:
    """Return the key pair of a cluster; it is made when it is first asked for.

    The file is this user's alone. Raises InputError if it cannot be read or made.
    """
    path = state_folder() / FOLDER / _UNSAFE.sub("_", cluster)
    try:
        if not path.exists():
            _make(path)
        private = path.read_bytes()
    except OSError as error:
        message = f"the key of the cluster cannot be kept: {error.strerror}"
        raise InputError.of(message, file=str(path)) from None
    return KeyPair(_public(path, private, cluster), private)


def _make(path: Path) -> None:
    """Write a new key. Another process that was faster wins."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = files.open_exclusively(fresh, files.PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
    finally:
        fresh.unlink()


def _public(path: Path, private: bytes, cluster: str) -> str:
    """Return the public line of a private key. Raises InputError if that is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_private_key(private, None)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError.of("this is no private key without a passphrase", file=str(path)) from None
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return f"{line.decode()} clusterprep-{_UNSAFE.sub('_', cluster)}"
