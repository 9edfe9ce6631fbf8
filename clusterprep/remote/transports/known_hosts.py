"""Read known_hosts files as OpenSSH reads them.

paramiko's reader drops the whole file at its first line with a marker such as @revoked.

The price of an own reader, here and in `ssh_config`: a few hundred lines, tested against OpenSSH
itself.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import hmac
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from clusterprep.remote.transports.host_patterns import is_plain, matches

Marker = Literal["", "@revoked", "@cert-authority"]


class KnownKey(Struct, frozen=True):
    """One line of a known_hosts file, without its names."""

    marker: Marker
    type: str  # such as "ssh-ed25519"
    blob: bytes  # the public key in the format of the protocol
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def fingerprint(blob: bytes) -> str:
    """Return the SHA256 fingerprint of a key as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(blob).digest()
    return "SHA256:" + _encoded(digest).rstrip("=")


def name_for(host: str, port: int) -> str:
    """Return the name under which OpenSSH keeps the key of a host and port.

    >>> name_for("N1", 2222)
    '[n1]:2222'
    """
    host = host.lower()
    return host if port == 22 else f"[{host}]:{port}"


def hashed(name: str, salt: bytes) -> str:
    """Return the name as `ssh-keygen -H` writes it."""
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{_encoded(salt)}|{_encoded(digest)}"


class KnownHosts:
    """The keys of one file. `skipped` is the number of lines that could not be read.

    `trouble` says why the file could not be read; it is empty for one that does not exist.
    """

    def __init__(self, lines: Iterable[str], file: str, trouble: str = "") -> None:
        self.file = file
        self.trouble = trouble
        self.skipped = 0
        self._plain: dict[str, list[KnownKey]] = defaultdict(list)  # by name
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []  # salt, digest of the name, key
        self._patterns: list[tuple[list[str], KnownKey]] = []
        self._lookups: dict[str, tuple[KnownKey, ...]] = {}
        for number, line in enumerate(lines, 1):
            self._read(line, number)

    @classmethod
    def from_path(cls, path: str) -> KnownHosts:
        """Read the file at `path`, with `~`. A missing file has no keys, and no trouble."""
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                return cls(file, path)
        except (FileNotFoundError, NotADirectoryError):
            return cls((), path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the file may well have the key
            return cls((), path, error.strerror or str(error))

    def lookup(self, name: str) -> tuple[KnownKey, ...]:
        """Return every key of a name in file order. It is a lower-case host or [host]:port."""
        if name not in self._lookups:
            keys = sorted(self._search(name), key=lambda key: key.line)
            self._lookups[name] = tuple(keys)
        return self._lookups[name]

    def _search(self, name: str) -> Iterator[KnownKey]:
        """Yield every key of a name, in any order."""
        yield from self._plain.get(name, ())
        for patterns, key in self._patterns:
            if matches(name, patterns):
                yield key
        encoded = name.encode()
        for salt, digest, key in self._hashed:
            if hmac.digest(salt, encoded, "sha1") == digest:
                yield key

    def _read(self, line: str, number: int) -> None:
        """Add the key of one line of the file, or count the line as skipped."""
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            return
        try:
            marker = _pop_marker(fields)
            names, type_, text = fields[0], fields[1], fields[2]
            blob = _blob(type_, text)
            self._add(names, KnownKey(marker, type_, blob, self.file, number))
        except (ValueError, IndexError):
            self.skipped += 1

    def _add(self, names: str, key: KnownKey) -> None:
        """Add a key under the names or patterns of its line. Raises ValueError."""
        if names.startswith("|"):
            _, version, salt, digest = names.split("|")
            if version != "1":
                raise ValueError(names)
            self._hashed.append((_decoded(salt), _decoded(digest), key))
            return
        patterns = names.split(",")
        if all(map(is_plain, patterns)):
            for name in patterns:
                self._plain[name.lower()].append(key)
        else:
            self._patterns.append((patterns, key))


def _pop_marker(fields: list[str]) -> Marker:
    """Remove the marker from the fields of a line and return it. Raises ValueError."""
    if not fields[0].startswith("@"):
        return ""
    marker = fields.pop(0)
    if marker == "@revoked":
        return "@revoked"
    if marker == "@cert-authority":
        return "@cert-authority"
    raise ValueError(marker)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error


def _blob(type_: str, text: str) -> bytes:
    """Return the decoded key. Raises ValueError if it is not of the type that its line names."""
    blob = _decoded(text)
    name = type_.encode()
    length = len(name).to_bytes(4, "big")
    if not blob.startswith(length + name):
        raise ValueError(text)
    return blob
