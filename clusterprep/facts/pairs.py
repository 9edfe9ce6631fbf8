"""Connections between the nodes: which of them could listen, and the result of every attempt."""

from __future__ import annotations

from msgspec import Struct

from clusterprep.facts import Fact

CONNECTED = "ok"  # the word of a dial that got through


class Dial(Struct, frozen=True, gc=False):  # texts and numbers alone, of which there are many
    """One directed attempt to connect: `word` is ok, refused, timed_out, no_route or an error.

    The others are measures of a connection that was made, None where it was not: `rtt` is the
    shortest round trip in seconds, `packet` the size in bytes of one full-size packet (None or 0:
    it is not known what became of one), `carried` the largest size that was acknowledged (0: not
    even 1280 bytes), and `path_mtu` the path's MTU as the dialler's kernel knows it.
    """

    dialer: str
    listener: str
    address: str
    port: int
    word: str
    rtt: float | None = None
    packet: int | None = None
    carried: int | None = None
    path_mtu: int | None = None

    @property
    def endpoint(self) -> str:
        """Address and port, with an IPv6 address in brackets."""
        if ":" in self.address:
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"


class Listen(Struct, frozen=True):
    """Whether a node could open a port; `owner` is the process that has it open otherwise."""

    host: str
    port: int
    word: str  # ok, in_use, denied
    owner: str = ""


class TableWhileDialling(Struct, frozen=True):
    """The kernel's table of neighbours of a node that dialled, as it is in any namespace.

    `most` is gc_thresh3 and `entries` are those after the last dial. `refused` counts how often
    there was no place for a neighbour between the first dial and the last. It is the table of the
    family that was dialled: IPv4 (ARP), or with `is_ipv6` IPv6 (NDP).
    """

    most: int
    entries: int
    refused: int
    is_ipv6: bool = False


LISTEN = Fact("net.listen", stage="pairs", moves=True)  # of the rendezvous host; None on all others
DIALS = Fact("net.dials", stage="pairs", moves=True)  # by the node that dialled
TABLE = Fact("net.dialling_table", stage="pairs", moves=True)
