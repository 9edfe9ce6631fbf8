"""Open TCP connections to nodes within a limit, which the resolver alone would not keep."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import threading

from clusterprep.errors import Unreached
from clusterprep.remedies import sentence, shell_line
from clusterprep.runtime.clock import running_seconds

Address = tuple[int, tuple[str, int]]  # family, and what connect() takes
RESOLVER_SLICE = 0.5  # seconds between two looks at the deadline while the resolver works
NEAR = 5000  # microseconds of a round trip; a node compiles the smallest agent in eight thousand
_RTT = 68  # where tcpi_rtt, microseconds, is in struct tcp_info of linux/tcp.h


def dial(host: str, port: int, deadline: float) -> tuple[socket.socket, str]:
    """Connect to the first address of `host` that answers. Returns the socket and that address.

    Raises Unreached. If any address refuses the connection, that is the reason.
    """
    addresses = resolve(host, port, deadline)
    failures: list[Unreached] = []
    for index, (family, address) in enumerate(addresses):
        # Each address gets an equal part of the remaining time.
        untried = len(addresses) - index
        limit = (deadline - running_seconds()) / untried
        try:
            return _connect(family, address, max(limit, 0.05)), address[0]
        except OSError as error:
            failures.append(_unreached(host, port, error, limit))
    for failure in failures:
        if failure.reason == "refused":
            raise failure
    raise failures[0]


def is_near(connection: socket.socket) -> bool:
    """Return whether the kernel measured a round trip below NEAR. False if it does not tell."""
    size = _RTT + 4
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except (AttributeError, OSError):  # another kernel
        return False
    if len(info) != size:
        return False
    round_trip = int.from_bytes(info[_RTT:], sys.byteorder)
    return round_trip < NEAR


def resolve(host: str, port: int, deadline: float) -> list[Address]:
    """Return the addresses of `host` with their families. Raises Unreached("name_unknown")."""
    with contextlib.suppress(socket.gaierror):
        return _addresses(host, port, socket.AI_NUMERICHOST)
    answer = _ask_resolver(host, port, deadline)
    if isinstance(answer, list):
        return answer
    raise Unreached(
        "name_unknown",
        f'the name "{host}" cannot be resolved: {answer.strerror or answer}',
        shell_line(
            "getent ahosts {host}   # or give the node an `address:` in the inventory",
            host=host,
        ),
    ) from answer


def _ask_resolver(host: str, port: int, deadline: float) -> list[Address] | socket.gaierror:
    """Return the resolver's answer, or its error, before the deadline.

    The resolver cannot be interrupted. It runs in a thread, which is abandoned if it takes too
    long.
    """
    answers: list[list[Address] | socket.gaierror] = []

    def ask() -> None:
        try:
            answers.append(_addresses(host, port, 0))
        except socket.gaierror as error:
            answers.append(error)
        except UnicodeError as error:
            answers.append(socket.gaierror(str(error)))

    thread = threading.Thread(target=ask, daemon=True, name=f"resolve {host}")
    thread.start()
    thread.join(0.05)
    while thread.is_alive():
        remaining = deadline - running_seconds()
        if remaining <= 0:
            break
        thread.join(min(remaining, RESOLVER_SLICE))
    if answers:
        return answers[0]
    return socket.gaierror(socket.EAI_AGAIN, "no answer from the name service in time")


def _addresses(host: str, port: int, flags: int) -> list[Address]:
    """Return the addresses of a host, each once. `flags` are those of getaddrinfo(3)."""
    answers = socket.getaddrinfo(
        host,
        port,
        socket.AF_UNSPEC,
        socket.SOCK_STREAM,
        0,
        flags,
    )
    addresses = ((family, address) for family, _, _, _, address in answers)
    return list(dict.fromkeys(addresses))  # type: ignore[arg-type]


def _connect(family: int, address: tuple[str, int], limit: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    # The peer may have closed it again already, which the next step reports.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _unreached(host: str, port: int, error: OSError, limit: float) -> Unreached:
    """Return the error for a connection that was not made within `limit` seconds."""
    place = f"{host} port {port}"
    if error.errno == errno.ECONNREFUSED:
        remedy = sentence("is sshd running and is {port} its port?", port=port)
        return Unreached("refused", f"{place} refuses TCP connections", remedy)
    if error.errno == errno.ECONNRESET:  # it was accepted, and reset before connect() returned
        message = f"{place} closes the connection before its banner: {error.strerror}"
        remedy = sentence(
            "an overloaded sshd, its MaxStartups, or a firewall? fewer --forks may help"
        )
        return Unreached("no_banner", message, remedy)
    if isinstance(error, TimeoutError):
        message = f"no TCP connection to {place} within {limit:.3g} s"
        return Unreached(
            "timed_out", message, sentence("is the node up, and does no firewall drop the port?")
        )
    message = f"no TCP connection to {place}: {error.strerror or error}"
    return Unreached("timed_out", message, sentence("check route and network"))
