"""The byte stream under an SSH connection: bounded in time, because paramiko waits without end in several places."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from clusterprep.errors import Unreached

STALL = 20.0  # seconds without a byte taken after which a peer counts as gone (Channel.send)
SLICE = 0.2  # seconds between two looks at the deadline until login is done
LONGEST_LINE = 8192  # bytes; paramiko would collect a greeting without an end, in quadratic time
IDLE = 5.0  # seconds between two looks afterwards, when only close() ends a wait, and wakes it


T = TypeVar("T")


class Stream(Protocol):
    """What a wire needs of a socket or of a paramiko channel through a jump host."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Wire:
    """A socket to paramiko. Every way in which it can end looks like an end of file, which paramiko handles best."""

    def __init__(self, stream: Stream, deadline: float, stall: float = STALL) -> None:
        self._stream = stream
        self.stall = stall
        self._buffer = b""
        self._at = 0
        self._closed = False  # paramiko looks at this name, as it would on a socket
        self._deadline: float | None = deadline
        self.overdue = False
        self.heard = b""  # what the peer says first: its greeting, or something else
        self.why = ""  # the operating system's word on the end of the stream
        stream.settimeout(SLICE)

    # what paramiko calls

    def settimeout(self, seconds: float | None) -> None:
        """Ignored: paramiko would wake ten times a second to see whether it has been closed."""

    def recv(self, size: int) -> bytes:
        if self._at == len(self._buffer):
            self._buffer, self._at = self._more(), 0
        data = self._buffer[self._at : self._at + size]
        self._at += len(data)
        return data

    def send(self, data: bytes) -> int:
        since = time.monotonic()
        while True:
            try:
                return self._stream.send(data)
            except TimeoutError:
                self._refuse_delay(since + self.stall)
            except OSError as error:
                raise self._end(error) from error

    def close(self) -> None:
        """Ends reads and writes in other threads at once; waits for nobody."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, EOFError):
            self._stream.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, EOFError):
            self._stream.close()

    # what we call

    def limit(self, deadline: float | None) -> None:
        """Set the moment (time.monotonic) at which everything on this wire ends; None once the login is done."""
        self._deadline = deadline
        with contextlib.suppress(OSError):
            self._stream.settimeout(IDLE if deadline is None else SLICE)

    def untimed(self, items: Iterable[T]) -> Iterator[T]:
        """The items; the time it takes to get one does not count: somebody may be typing a passphrase."""
        rest = iter(items)
        while True:
            deadline, since = self._deadline, time.monotonic()
            self._deadline = None
            try:
                item = next(rest)
            except StopIteration:
                return
            finally:
                self._deadline = deadline and deadline + time.monotonic() - since
            yield item

    def _more(self) -> bytes:
        while True:
            try:
                data = self._stream.recv(1 << 16)
            except TimeoutError as error:
                if error.errno == errno.ETIMEDOUT:  # the kernel gave the peer up
                    raise self._end(error) from error
                self._refuse_delay(None)
                continue
            except OSError as error:
                raise self._end(error) from error
            self._listen(data)
            self._refuse_delay(None)  # a peer that never pauses is no better than one that never speaks
            return data

    def _listen(self, data: bytes) -> None:
        if b"\n" not in self.heard:
            self.heard += data
            if b"\n" not in self.heard and len(self.heard) > LONGEST_LINE:
                raise EOFError

    def _refuse_delay(self, stalled: float | None) -> None:
        now = time.monotonic()
        if self._closed:
            raise EOFError
        if self._deadline is not None and now > self._deadline:
            self.overdue = True
            raise EOFError
        if stalled is not None and now > stalled:
            self.why = f"took nothing for {self.stall:.0f} s"
            raise EOFError

    def _end(self, error: OSError) -> EOFError:
        self.why = error.strerror or str(error)
        return EOFError(self.why)


def dial(host: str, port: int, deadline: float) -> socket.socket:
    """A TCP connection to the first address of host that answers. Raises Unreached."""
    addresses = resolve(host, port, deadline)
    failures: list[Unreached] = []
    for index, (family, address) in enumerate(addresses):
        left = (deadline - time.monotonic()) / (len(addresses) - index)
        try:
            return _connect(family, address, max(left, 0.05))
        except OSError as error:
            failures.append(_unreached(host, port, error, left))
    raise next((failure for failure in failures if failure.reason == "refused"), failures[0])


def resolve(host: str, port: int, deadline: float) -> list[tuple[int, tuple[str, int]]]:
    """Addresses of host with their families. Raises Unreached("name_unknown")."""
    with contextlib.suppress(socket.gaierror):
        return _addresses(host, port, socket.AI_NUMERICHOST)
    found: list[list[tuple[int, tuple[str, int]]] | socket.gaierror] = []

    def ask() -> None:  # the resolver cannot be interrupted, so it is left behind when it takes too long
        try:
            found.append(_addresses(host, port, 0))
        except (socket.gaierror, UnicodeError) as error:
            found.append(error if isinstance(error, socket.gaierror) else socket.gaierror(str(error)))

    thread = threading.Thread(target=ask, daemon=True, name=f"resolve {host}")
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0.05))
    answer = found[0] if found else socket.gaierror(socket.EAI_AGAIN, "no answer from the name service in time")
    if isinstance(answer, list):
        return answer
    raise Unreached(
        "name_unknown",
        f'the name "{host}" cannot be resolved: {answer.strerror or answer}',
        f"check with: getent ahosts {host} — or give the node an `address:` in the inventory",
    ) from answer


def _addresses(host: str, port: int, flags: int) -> list[tuple[int, tuple[str, int]]]:
    answers = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, flags)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in answers))  # type: ignore[misc]


def _connect(family: int, address: tuple[str, int], limit: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit)
        connection.connect(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


def _unreached(host: str, port: int, error: OSError, limit: float) -> Unreached:
    where = f"{host} port {port}"
    if error.errno == errno.ECONNREFUSED:
        return Unreached("refused", f"{where} refuses TCP connections", f"is sshd running and is {port} its port?")
    if isinstance(error, TimeoutError):
        return Unreached(
            "timed_out",
            f"no TCP connection to {where} within {limit:.3g} s",
            "is the node up, and does no firewall drop the port?",
        )
    return Unreached("timed_out", f"no TCP connection to {where}: {error.strerror or error}", "check route and network")
