"""Reads the addresses that a log says were dialled, and says what kind of address one is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from msgspec import Struct

from clusterprep.jobs.diagnose.model import LogFile, LogLine

THIS_HOST = re.compile(r"localhost|127\.0\.0\.1|::1", re.IGNORECASE)  # the host that dials
NEEDLES = ("connect", "remote=[")
_DIALLED = re.compile(
    r"connect(?:\(\)|ing)?(?: to)?(?: any network address of)? [\[(]?"
    r"(?P<address>(?:::ffff:)?[\w.:%-]+?)(?:\]?[:<]|, ?)(?P<port>\d+)\b"
    r"|connect\(\) to (?P<bare>[\d.]+) failed"
    r"|remote=\[(?P<remote>[\w.:%-]+)\](?::(?P<remote_port>\d+))?",
    re.IGNORECASE,
)
# Networks that container runtimes and libvirt give out: docker's own, those of compose, virbr0.
_BRIDGES = (
    *(ipaddress.ip_network(f"172.{second}.0.0/24") for second in range(17, 32)),
    ipaddress.ip_network("192.168.122.0/24"),
)
_DOCKER0 = ipaddress.ip_address("172.17.0.1")
_THIS_HOST = ipaddress.ip_address("0.0.0.0")  # noqa: S104 - compared with, nothing listens on it
_NUMBERS = ipaddress.ip_network("0.0.0.0/8")
_MAPPED = "::ffff:"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Dialled(Struct, frozen=True):
    """An address that a line says was dialled; `port` is empty where the line has none."""

    line: LogLine
    address: str
    port: str

    @property
    def kind(self) -> str:
        """The kind of the address, see `kind_of`."""
        return kind_of(self.address)


def dialled(log: LogFile) -> Iterator[Dialled]:
    """Yield every address that a line says was dialled, without the prefix of mapped IPv4."""
    for line in log.lines_with(*NEEDLES):
        for match in _DIALLED.finditer(line.message):
            address = match["address"] or match["bare"] or match["remote"]
            port = match["port"] or match["remote_port"] or ""
            yield Dialled(line, _plain(address), port)


def kind_of(text: str) -> str:
    """Return what kind an address is, an empty text for one that a host may well have.

    «number» is an address that begins with 0, which is what a name of digits alone becomes.
    """
    address = _parsed(text)
    if address is None:
        return ""
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    if isinstance(address, ipaddress.IPv6Address):
        return ""
    return _kind_of_ipv4(address)


def _kind_of_ipv4(address: ipaddress.IPv4Address) -> str:
    if address == _DOCKER0:
        return "docker0"
    if any(address in network for network in _BRIDGES):
        return "bridge"
    if address in _NUMBERS and address != _THIS_HOST:
        return "number"
    if str(address) == "255.255.255.255":
        return "broadcast"
    return "netmask" if _is_netmask(int(address)) else ""


def _is_netmask(value: int) -> bool:
    """Return whether the bits of an IPv4 address are ones and then zeros, at least eight ones."""
    inverted = value ^ 0xFFFF_FFFF
    return value >= 0xFF00_0000 and inverted & (inverted + 1) == 0


def _parsed(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(_plain(text))
    except ValueError:
        return None


def _plain(text: str) -> str:
    """Return an address without brackets, scope and the prefix of IPv4 in IPv6."""
    bare = text.strip("[]").partition("%")[0]
    if bare.lower().startswith(_MAPPED) and "." in bare:
        return bare[len(_MAPPED) :]
    return bare


_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)


def private_network_of(text: str) -> str:
    """Return the block of private addresses that an IPv4 address is of, or an empty text.

    The blocks are those of RFC 1918 and RFC 6598.
    """
    address = _parsed(text)
    if address is None:
        return ""
    for network in _PRIVATE:
        if address in network:
            return str(network)
    return ""
