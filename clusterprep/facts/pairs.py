"""What the nodes found out about each other: who could listen, and what became of every connection between them."""

from __future__ import annotations

from dataclasses import dataclass

from clusterprep.facts import Fact


@dataclass(frozen=True, slots=True)  # a large fleet has 64 for each node
class Dial:
    """One directed attempt: `word` is ok, refused, timed_out, no_route or an error.

    Of a connection that came about: the shortest round trip in seconds, the size in bytes of one full-size packet, the
    largest size that was acknowledged (0: not even that of 1280 bytes), and the path's MTU as the dialler's kernel
    knows it. None where nothing was measured.
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


@dataclass(frozen=True)
class Listen:
    """A node's side: whether its ports could be opened, and who holds the one that could not."""

    host: str
    port: int
    word: str  # ok, in_use, denied
    owner: str = ""


LISTEN = Fact("net.listen", stage="pairs")  # of the rendezvous host; None on all others
DIALS = Fact("net.dials", stage="pairs")  # by the node that dialled
