"""TCP connections to nodes within a limit, which the resolver would not keep, and with a reason when there is none."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import threading

from clusterprep.errors import Unreached
from clusterprep.runtime.clock import running_seconds

Address = tuple[int, tuple[str, int]]  # family, and what connect() takes
LOOK = 0.5  # seconds between two looks at the deadline while the resolver works
NEAR = 5000  # microseconds of a round trip; a node compiles the smallest agent in eight thousand
_RTT = 68  # where tcpi_rtt, microseconds, is in struct tcp_info of linux/tcp.h


def dial(host: str, port: int, deadline: float) -> tuple[socket.socket, str]:
    """A TCP connection to the first address of host that answers, and that address. Raises Unreached."""
    addresses = resolve(host, port, deadline)
    failures: list[Unreached] = []
    for index, (family, address) in enumerate(addresses):
        left = (deadline - running_seconds()) / (len(addresses) - index)
        try:
            return _connect(family, address, max(left, 0.05)), address[0]
        except OSError as error:
            failures.append(_unreached(host, port, error, left))
    raise next((failure for failure in failures if failure.reason == "refused"), failures[0])


def is_near(connection: socket.socket) -> bool:
    """Whether a round trip takes less than NEAR, as the kernel measured it; False where it does not tell."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT + 4)
    except (AttributeError, OSError):  # another kernel
        return False
    return len(info) == _RTT + 4 and int.from_bytes(info[_RTT:], sys.byteorder) < NEAR


def resolve(host: str, port: int, deadline: float) -> list[Address]:
    """Addresses of host with their families. Raises Unreached("name_unknown")."""
    with contextlib.suppress(socket.gaierror):
        return _addresses(host, port, socket.AI_NUMERICHOST)
    found: list[list[Address] | socket.gaierror] = []

    def ask() -> (
        None
    ):  # the resolver cannot be interrupted, so it is left behind when it takes too long
        try:
            found.append(_addresses(host, port, 0))
        except (socket.gaierror, UnicodeError) as error:
            found.append(
                error if isinstance(error, socket.gaierror) else socket.gaierror(str(error))
            )

    thread = threading.Thread(target=ask, daemon=True, name=f"resolve {host}")
    thread.start()
    thread.join(0.05)
    while thread.is_alive() and (left := deadline - running_seconds()) > 0:
        thread.join(min(left, LOOK))
    answer = (
        found[0]
        if found
        else socket.gaierror(socket.EAI_AGAIN, "no answer from the name service in time")
    )
    if isinstance(answer, list):
        return answer
    raise Unreached(
        "name_unknown",
        f'the name "{host}" cannot be resolved: {answer.strerror or answer}',
        f"check with: getent ahosts {host} — or give the node an `address:` in the inventory",
    ) from answer


def _addresses(host: str, port: int, flags: int) -> list[Address]:
    answers = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, flags)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in answers))  # type: ignore[misc]


def _connect(family: int, address: tuple[str, int], limit: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    with contextlib.suppress(
        OSError
    ):  # it may have been closed again already, which is for the next step to say
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _unreached(host: str, port: int, error: OSError, limit: float) -> Unreached:
    where = f"{host} port {port}"
    if error.errno == errno.ECONNREFUSED:
        return Unreached(
            "refused",
            f"{where} refuses TCP connections",
            f"is sshd running and is {port} its port?",
        )
    if error.errno == errno.ECONNRESET:  # it was accepted, and reset before connect() returned
        return Unreached(
            "no_banner",
            f"{where} closes the connection before its banner: {error.strerror}",
            "an overloaded sshd, its MaxStartups, or a firewall? fewer --forks may help",
        )
    if isinstance(error, TimeoutError):
        return Unreached(
            "timed_out",
            f"no TCP connection to {where} within {limit:.3g} s",
            "is the node up, and does no firewall drop the port?",
        )
    return Unreached(
        "timed_out",
        f"no TCP connection to {where}: {error.strerror or error}",
        "check route and network",
    )
