"""The addresses of this machine, for `Match localnetwork` of ssh_config."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

IPV4 = Path("/proc/net/fib_trie")
IPV6 = Path("/proc/net/if_inet6")
# An address of the table of local routes: those of interfaces that are up.
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_on_network(networks: Iterable[str]) -> bool | None:
    """Return whether an address of this machine is in one of the networks, such as 10.0.0.0/8.

    None if that cannot be said: without Linux's /proc, or for what is no network.
    """
    try:
        wanted = [ipaddress.ip_network(network) for network in networks]
        addresses = list(_addresses())
    except (OSError, ValueError):
        return None
    return any(address in network for address in addresses for network in wanted)


def _addresses() -> Iterator[Address]:
    """Yield every address of this machine. Raises OSError if they cannot be read."""
    for text in _LOCAL.findall(IPV4.read_text()):
        yield ipaddress.IPv4Address(text)
    if IPV6.exists():  # a kernel may have no IPv6
        for line in IPV6.read_text().splitlines():
            yield ipaddress.IPv6Address(int(line.split()[0], 16))
