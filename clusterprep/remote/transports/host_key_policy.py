"""Decide whether a node's host key is trusted; if not, explain it with both fingerprints."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import io
import os
import threading
from collections.abc import Callable, Iterable, Sequence

from clusterprep.errors import Unreached
from clusterprep.remedies import Remedy, chain, noted, shell_line
from clusterprep.remote.transports.known_hosts import (
    KnownHosts,
    KnownKey,
    fingerprint,
    hashed,
    name_for,
)
from clusterprep.remote.transports.revoked_keys import REMEDY as REVOKED_REMEDY
from clusterprep.remote.transports.revoked_keys import refuse_listed
from clusterprep.remote.transports.ssh_route import Route
from clusterprep.runtime import files

SYSTEM_FILE = "/etc/ssh/ssh_known_hosts"
CERTIFICATE = "-cert-v01@openssh.com"
# Not "ssh-rsa", which signs with SHA-1; OpenSSH has given it up, too.
_RSA = ("rsa-sha2-512", "rsa-sha2-256")
_ALL = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", *_RSA)


class HostKeys:
    """The known keys of all known_hosts files in use. Each file is read once a run."""

    def __init__(self, system_file: str = SYSTEM_FILE) -> None:
        self._system_file = system_file
        self._files: dict[str, KnownHosts] = {}
        self._lock = threading.Lock()

    def algorithms(self, route: Route) -> tuple[str, ...]:
        """Return the host key algorithms to offer.

        Those of known keys come first, so that the node shows a key that can be compared.
        """
        keys = self._keys_of(route.key_names, route)
        names: list[str] = []
        if _has_authority(keys):
            names.extend(name + CERTIFICATE for name in _ALL)
        for key in _unmarked(keys):
            algorithms = _RSA if key.type == "ssh-rsa" else (key.type,)
            names.extend(name for name in algorithms if name in _ALL)
        names.extend(_ALL)
        return tuple(dict.fromkeys(names))

    def verify(
        self, route: Route, type_: str, blob: bytes, certificate: bytes | None = None
    ) -> None:
        """Return if the key, or the certificate it came in, is trusted. Raises Unreached if not.

        `type_` is the key's type as in known_hosts, such as "ssh-ed25519", `blob` its public part
        in the format of the protocol.
        """
        under_first = self._keys_of(route.key_names[:1], route)
        under_others = self._keys_of(route.key_names[1:], route)
        all_keys = [*under_first, *under_others]
        _refuse_revoked(route, type_, blob, all_keys)
        if route.revoked is not None:
            shown = [blob]
            if certificate:
                shown.append(certificate)
            refuse_listed(route.revoked, route.host, type_, shown)
        objection = _certificate_objection(route, certificate, all_keys)
        if objection is None:
            return
        objection = self._unreadable(route) or objection
        if _is_known(route, type_, blob, under_first, under_others, objection):
            return
        if self._unreadable(route):
            raise unknown_key_error(route, type_, blob, objection)
        if route.host_keys == "strict":
            raise unknown_key_error(route, type_, blob, objection, may_accept=True)
        self._accept(route, type_, blob)

    def _keys_of(self, names: Iterable[str], route: Route) -> list[KnownKey]:
        """Return the known keys under these names, of the route's file and the system's."""
        keys: list[KnownKey] = []
        for name in names:
            for path in self._files_of(route):
                keys.extend(self._file(path).lookup(name))
        return keys

    def _files_of(self, route: Route) -> tuple[str, ...]:
        """Return the files that may have the key of a route's host."""
        return (route.known_hosts, *route.more_known_hosts, self._system_file)

    def _file(self, path: str) -> KnownHosts:
        with self._lock:
            if path not in self._files:
                self._files[path] = KnownHosts.from_path(path)
            return self._files[path]

    def _accept(self, route: Route, type_: str, blob: bytes) -> None:
        """Append the key to known_hosts.

        If another process was faster, that one's key decides. The file is read again under its
        lock, and decides in every way in which it would have before: it may revoke the key, or
        name an authority, and it may not have been readable then.
        """
        path = os.path.expanduser(route.known_hosts)
        line = known_hosts_line(route, type_, blob)

        def is_known(now: KnownHosts) -> bool:
            under_first = now.lookup(route.key_names[0])
            under_others: list[KnownKey] = []
            for name in route.key_names[1:]:
                under_others.extend(now.lookup(name))
            objection = "and a @cert-authority line has come into known_hosts"
            return _is_known(route, type_, blob, under_first, under_others, objection)

        try:
            _append(path, line, is_known)
        except OSError as error:
            reason = f"and {route.known_hosts} cannot be written: {error.strerror}"
            raise unknown_key_error(route, type_, blob, reason) from error
        with self._lock:
            self._files.pop(route.known_hosts, None)

    def _unreadable(self, route: Route) -> str:
        """Return which file, that may know or revoke the key, cannot be read and why, or ""."""
        for path in self._files_of(route):
            trouble = self._file(path).trouble
            if trouble:
                return f"{path} cannot be read: {trouble}"
        return ""


def _is_known(
    route: Route,
    type_: str,
    blob: bytes,
    under_first: Sequence[KnownKey],
    under_others: Sequence[KnownKey],
    objection: str,
) -> bool:
    """Return whether the key is the known one, False if no other is.

    Raises Unreached for a revoked key, for another one than is known, and for one with `objection`
    where an authority signs the keys of hosts: there none is accepted at first sight.
    """
    all_keys = [*under_first, *under_others]
    _refuse_revoked(route, type_, blob, all_keys)
    known = _unmarked(under_first)
    if _has_blob(known or _unmarked(under_others), blob):
        return True
    if known:
        raise changed_key_error(route, type_, blob, known)
    if _has_authority(all_keys):
        raise unknown_key_error(route, type_, blob, objection)
    return False


def _append(path: str, line: str, is_known: Callable[[KnownHosts], bool]) -> None:
    """Append a line to known_hosts, unless `is_known` says that its content has the key.

    Raises OSError, and nothing of the line is in the file then.
    """
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    descriptor = files.open_regular(path, os.O_RDWR | os.O_APPEND)
    with open(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        text = file.read().decode("utf-8", "replace")
        if is_known(KnownHosts(text.splitlines(), path)):
            return
        separator = "" if not text or text.endswith("\n") else "\n"
        _write_wholly(file, f"{separator}{line}\n".encode())


def _write_wholly(file: io.FileIO, data: bytes) -> None:
    """Append all of the data, or nothing. Raises OSError.

    A disk that is full takes a part of a line, which would stand before the next line for ever.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        written = file.write(data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise


def _unmarked(keys: Iterable[KnownKey]) -> list[KnownKey]:
    """Return the keys that are trusted themselves: neither revoked nor authorities."""
    return [key for key in keys if not key.marker]


def _has_authority(keys: Iterable[KnownKey]) -> bool:
    return any(key.marker == "@cert-authority" for key in keys)


def _has_blob(keys: Iterable[KnownKey], blob: bytes) -> bool:
    return any(key.blob == blob for key in keys)


def _refuse_revoked(route: Route, type_: str, blob: bytes, keys: Sequence[KnownKey]) -> None:
    for key in keys:
        if key.marker == "@revoked" and key.blob == blob:
            seen = f"{type_} {fingerprint(blob)} ({key.place})"
            message = f"{route.host} shows a host key that is revoked: {seen}"
            raise Unreached("host_key_changed", message, REVOKED_REMEDY)


def _certificate_objection(
    route: Route, certificate: bytes | None, keys: Sequence[KnownKey]
) -> str | None:
    """Return why no certificate proves that this is the node, None if one does."""
    authorities = [key for key in keys if key.marker == "@cert-authority"]
    if not authorities:
        files = ", ".join((route.known_hosts, *route.more_known_hosts))
        return f'{files} and {SYSTEM_FILE} have no key for "{route.key_names[0]}"'
    if certificate is None:
        line = f"a @cert-authority line ({authorities[0].place})"
        return f"only {line} matches, and the node shows no certificate"
    # paramiko, which this module imports, is slow to import.
    from clusterprep.remote.transports.host_certificate import HostCertificate

    revoked = {key.blob for key in keys if key.marker == "@revoked"}
    trusted = {key.blob for key in authorities} - revoked
    try:
        parsed = HostCertificate.parse(certificate)
        return parsed.objection(route.key_names[-1], trusted)
    except ValueError as error:
        return str(error)


def known_hosts_line(route: Route, type_: str, blob: bytes) -> str:
    """Return the known_hosts line of a key."""
    name = route.key_names[0]
    if route.hash_known_hosts:
        name = hashed(name, os.urandom(20))
    encoded = base64.b64encode(blob).decode()
    return f"{name} {type_} {encoded}"


def changed_key_error(
    route: Route, type_: str, blob: bytes, known: Sequence[KnownKey]
) -> Unreached:
    """Return the error for another key than the known one.

    The node was reinstalled, or another machine answers in its place.
    """
    expected: list[str] = []
    removals: dict[Remedy, None] = {}  # each once: several keys may be in one file
    for key in known:
        expected.append(f"{key.type} {fingerprint(key.blob)} ({key.place})")
        removal = shell_line(
            "ssh-keygen -R {name} -f {file}", name=route.key_names[0], file=_file(key.file)
        )
        removals[removal] = None
    seen = f"{type_} {fingerprint(blob)}"
    message = f"the host key of {route.host} is not the known one: seen {seen}"
    message += f", expected {', '.join(expected)}"
    commands = chain(*removals, _command_to_add(route, type_, blob))
    remedy = noted(_compared(commands, type_), "only if the node was reinstalled")
    return Unreached("host_key_changed", message, remedy)


def unknown_key_error(
    route: Route, type_: str, blob: bytes, reason: str, *, may_accept: bool = False
) -> Unreached:
    """Return the error for a key that is not known to be the node's.

    With `may_accept` the remedy names the option that takes it.
    """
    seen = f"{type_} {fingerprint(blob)}"
    message = f"the host key of {route.host} is not known: seen {seen}; {reason}"
    remedy = _compared(_command_to_add(route, type_, blob), type_)
    if may_accept:
        remedy = noted(remedy, "or add --host-keys accept-new, which takes what the nodes show")
    return Unreached("host_key_unknown", message, remedy)


def _command_to_add(route: Route, type_: str, blob: bytes) -> Remedy:
    """Return a command that adds the key to known_hosts.

    It is ssh-keyscan where that reaches the node and writes the right name.
    """
    file = _file(route.known_hosts)
    is_direct = not route.via and not route.command
    if not is_direct or route.key_names[0] != name_for(route.host, route.port):
        line = known_hosts_line(route, type_, blob)
        return shell_line("grep -qxF {line} {file} || echo {line} >> {file}", line=line, file=file)
    return shell_line(
        "ssh-keyscan -t {type} -p {port} {host} >> {file}",
        type=_short(type_),
        port=route.port,
        host=route.host,
        file=file,
    )


def _compared(commands: Remedy, type_: str) -> Remedy:
    """Return the commands with a note on how to compare the key first."""
    return noted(
        commands,
        "first compare with ssh-keygen -lf {file} on the node's console",
        file=f"/etc/ssh/ssh_host_{_short(type_)}_key.pub",
    )


def _short(type_: str) -> str:
    """Return the name of a key type in ssh-keyscan and file names: "ecdsa", "ed25519", "rsa"."""
    return type_.removeprefix("ssh-").split("-")[0]


def _file(path: str) -> Remedy:
    """Return a path for a shell. A leading ~ stays, so that the shell expands it."""
    if path.startswith("~/"):
        return shell_line("~/{rest}", rest=path[2:])
    return shell_line("{path}", path=path)
