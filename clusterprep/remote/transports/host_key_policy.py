"""Whether a node's host key is trusted, and the sentence with both fingerprints for when it is not."""

from __future__ import annotations

import base64
import fcntl
import os
import shlex
import threading
from collections.abc import Iterable, Sequence

from clusterprep.errors import Unreached
from clusterprep.remote.transports.known_hosts import (
    KnownHosts,
    KnownKey,
    fingerprint,
    hashed,
    name_for,
)
from clusterprep.remote.transports.revoked_keys import refuse_listed
from clusterprep.remote.transports.ssh_route import Route

SYSTEM_FILE = "/etc/ssh/ssh_known_hosts"
CERTIFICATE = "-cert-v01@openssh.com"
_RSA = (
    "rsa-sha2-512",
    "rsa-sha2-256",
)  # not "ssh-rsa", which signs SHA-1; OpenSSH has given it up, too
_ALL = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", *_RSA)


class HostKeys:
    """Known keys of all files asked for, each read once a run."""

    def __init__(self, system_file: str = SYSTEM_FILE) -> None:
        self._system_file = system_file
        self._files: dict[str, KnownHosts] = {}
        self._lock = threading.Lock()

    def algorithms(self, route: Route) -> tuple[str, ...]:
        """Host key algorithms to offer, those of known keys first, so that the node shows one that can be compared."""
        keys = [key for name in route.key_names for key in self._under(name, route)]
        types = [key.type for key in _plain(keys)]
        first = [
            name
            for type_ in types
            for name in (_RSA if type_ == "ssh-rsa" else (type_,))
            if name in _ALL
        ]
        signed = any(key.marker == "@cert-authority" for key in keys)
        return tuple(
            dict.fromkeys([*(name + CERTIFICATE for name in _ALL if signed), *first, *_ALL])
        )

    def verify(
        self, route: Route, type_: str, blob: bytes, certificate: bytes | None = None
    ) -> None:
        """Return where the key, or the certificate it came in, is trusted. Raises Unreached."""
        known = self._under(route.key_names[0], route)
        elsewhere = [key for name in route.key_names[1:] for key in self._under(name, route)]
        everywhere = [*known, *elsewhere]
        _refuse_revoked(route, type_, blob, everywhere)
        if route.revoked is not None:
            refuse_listed(
                route.revoked, route.host, type_, (blob, *([certificate] if certificate else []))
            )
        objection = _objection(route, certificate, everywhere)
        plain = _plain(known)
        if objection is None or any(key.blob == blob for key in plain or _plain(elsewhere)):
            return
        if plain:
            raise changed(route, type_, blob, plain)
        if route.host_keys == "strict" or any(
            key.marker == "@cert-authority" for key in everywhere
        ):
            raise unknown(route, type_, blob, objection)
        self._accept(route, type_, blob)

    def _under(self, name: str, route: Route) -> list[KnownKey]:
        return [
            key
            for path in (route.known_hosts, self._system_file)
            for key in self._file(path).lookup(name)
        ]

    def _file(self, path: str) -> KnownHosts:
        with self._lock:
            if path not in self._files:
                self._files[path] = KnownHosts.from_path(path)
            return self._files[path]

    def _accept(self, route: Route, type_: str, blob: bytes) -> None:
        """Append the key, unless another process was faster; then that one's key decides."""
        path = os.path.expanduser(route.known_hosts)
        try:
            known = _append(path, line_for(route, type_, blob), route.key_names[0])
        except OSError as error:
            why = f"and {route.known_hosts} cannot be written: {error.strerror}"
            raise unknown(route, type_, blob, why) from error
        with self._lock:
            self._files.pop(route.known_hosts, None)
        if known and all(key.blob != blob for key in known):
            raise changed(route, type_, blob, known)


def _append(path: str, line: str, name: str) -> list[KnownKey]:
    """The keys that name has by now; only where there are none, the line is added."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    with os.fdopen(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+", errors="replace"
    ) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        text = file.read()
        known = _plain(KnownHosts(text.splitlines(), path).lookup(name))
        if not known:
            file.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    return known


def _plain(keys: Iterable[KnownKey]) -> list[KnownKey]:
    """Those that are simply trusted."""
    return [key for key in keys if not key.marker]


def _refuse_revoked(route: Route, type_: str, blob: bytes, keys: Sequence[KnownKey]) -> None:
    revoked = next((key for key in keys if key.marker == "@revoked" and key.blob == blob), None)
    if revoked:
        raise Unreached(
            "host_key_changed",
            f"{route.host} shows a host key that is revoked: {type_} {fingerprint(blob)} ({revoked.place})",
            "give the node a new host key (ssh-keygen -A after removing the old one), then add it to known_hosts",
        )


def _objection(route: Route, certificate: bytes | None, known: Sequence[KnownKey]) -> str | None:
    """Why no certificate vouches for the node; None where one does."""
    authorities = [key for key in known if key.marker == "@cert-authority"]
    if not authorities:
        return f'{route.known_hosts} and {SYSTEM_FILE} have no key for "{route.key_names[0]}"'
    if certificate is None:
        return f"only a @cert-authority line ({authorities[0].place}) matches, and the node shows no certificate"
    from clusterprep.remote.transports.host_certificate import (
        HostCertificate,
    )  # paramiko is slow to import

    revoked = {key.blob for key in known if key.marker == "@revoked"}
    trusted = {key.blob for key in authorities} - revoked
    try:
        return HostCertificate.parse(certificate).objection(route.key_names[-1], trusted)
    except ValueError as error:
        return str(error)


def line_for(route: Route, type_: str, blob: bytes) -> str:
    """The known_hosts line of a key."""
    name = route.key_names[0]
    if route.hash_known_hosts:
        name = hashed(name, os.urandom(20))
    return f"{name} {type_} {base64.b64encode(blob).decode()}"


def changed(route: Route, type_: str, blob: bytes, known: Sequence[KnownKey]) -> Unreached:
    """The node shows another key than the one known: reinstalled, or somebody in between."""
    expected = ", ".join(f"{key.type} {fingerprint(key.blob)} ({key.place})" for key in known)
    files = dict.fromkeys(key.file for key in known)
    name = shlex.quote(route.key_names[0])
    removal = " && ".join(f"ssh-keygen -R {name} -f {_quoted(file)}" for file in files)
    return Unreached(
        "host_key_changed",
        f"the host key of {route.host} is not the known one: seen {type_} {fingerprint(blob)}, expected {expected}",
        f"if the node was reinstalled: {removal} && {_adding(route, type_, blob)}; {_compare(type_)}",
    )


def unknown(route: Route, type_: str, blob: bytes, why: str) -> Unreached:
    """Nobody has said yet that this key is the node's."""
    return Unreached(
        "host_key_unknown",
        f"the host key of {route.host} is not known: seen {type_} {fingerprint(blob)}; {why}",
        f"{_adding(route, type_, blob)}; {_compare(type_)}",
    )


def _adding(route: Route, type_: str, blob: bytes) -> str:
    """The command that adds the key: ssh-keyscan where it reaches the node and writes the right name."""
    file = _quoted(route.known_hosts)
    if route.via or route.command or route.key_names[0] != name_for(route.host, route.port):
        return f"echo {shlex.quote(line_for(route, type_, blob))} >> {file}"
    kind = type_.removeprefix("ssh-").split("-")[0]
    return f"ssh-keyscan -t {kind} -p {route.port} {shlex.quote(route.host)} >> {file}"


def _compare(type_: str) -> str:
    kind = type_.removeprefix("ssh-").split("-")[0]
    return f"first compare with `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` on the node's console"


def _quoted(path: str) -> str:
    return (
        path if path.startswith("~/") and shlex.quote(path[2:]) == path[2:] else shlex.quote(path)
    )
