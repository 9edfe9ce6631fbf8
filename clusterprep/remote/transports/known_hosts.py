"""Known host keys read as OpenSSH reads them: paramiko's reader drops the whole file at its first @-marked line."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from clusterprep.remote.transports.host_patterns import is_plain, matches
from clusterprep.runtime.lazy_dataclass import dataclass

Marker = Literal["", "@revoked", "@cert-authority"]


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file, without its names."""

    marker: Marker
    type: str
    blob: bytes
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def fingerprint(blob: bytes) -> str:
    """The SHA256 fingerprint as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def name_for(host: str, port: int) -> str:
    """The name under which OpenSSH keeps the key of a host and port."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def hashed(name: str, salt: bytes) -> str:
    """The name as ssh-keygen -H writes it."""
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


class KnownHosts:
    """One file: plain names in a dict, hashes and patterns in lists, unreadable lines counted in `skipped`."""

    def __init__(self, lines: Iterable[str], file: str) -> None:
        self.file = file
        self.skipped = 0
        self._plain: dict[str, list[KnownKey]] = defaultdict(list)
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []
        self._patterns: list[tuple[list[str], KnownKey]] = []
        self._found: dict[str, tuple[KnownKey, ...]] = {}
        for number, line in enumerate(lines, 1):
            self._read(line, number)

    @classmethod
    def from_path(cls, path: str) -> KnownHosts:
        """The file at path (`~` allowed); a missing or unreadable file knows nobody."""
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                return cls(file, path)
        except OSError:
            return cls((), path)

    def lookup(self, name: str) -> tuple[KnownKey, ...]:
        """Every key of the name, which is a lower-case host or [host]:port, in file order."""
        if name not in self._found:
            self._found[name] = tuple(sorted(self._search(name), key=lambda key: key.line))
        return self._found[name]

    def _search(self, name: str) -> Iterator[KnownKey]:
        yield from self._plain.get(name, ())
        yield from (key for patterns, key in self._patterns if matches(name, patterns))
        raw = name.encode()
        yield from (
            key for salt, digest, key in self._hashed if hmac.digest(salt, raw, "sha1") == digest
        )

    def _read(self, line: str, number: int) -> None:
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            return
        try:
            marker = _marker(fields)
            key = KnownKey(marker, fields[1], _blob(fields[1], fields[2]), self.file, number)
            self._file_under(fields[0], key)
        except (ValueError, IndexError):
            self.skipped += 1

    def _file_under(self, names: str, key: KnownKey) -> None:
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


def _marker(fields: list[str]) -> Marker:
    """Take the marker off the fields."""
    if not fields[0].startswith("@"):
        return ""
    word = fields.pop(0)
    if word == "@revoked":
        return "@revoked"
    if word == "@cert-authority":
        return "@cert-authority"
    raise ValueError(word)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error


def _blob(type_: str, text: str) -> bytes:
    """The key, which names its own type once more."""
    blob, name = _decoded(text), type_.encode()
    if not blob.startswith(len(name).to_bytes(4, "big") + name):
        raise ValueError(text)
    return blob
