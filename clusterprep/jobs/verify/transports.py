"""What NCCL says of one rank's connections, as values: interface, network, devices, and who is reached in which way.

The formats are those of 2.18 to 2.32 (src/bootstrap.cc, init.cc, misc/socket.cc, transport/net_ib, net.cc, p2p.cc,
shm.cc, coll_net.cc and nvls.cc); those before differ in blanks alone. What does not look like one of them says nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial

from clusterprep.runtime.lazy_dataclass import dataclass

SOCKET = "Socket"  # the network that is none of RDMA; every other name is NCCL's IB or a plug-in's
LONGEST = 4096  # characters of a line that are looked at

_HOP = re.compile(
    r"(?:Channel|Ring) \d{1,5}(?:/\d+)? : (?P<source>\d{1,7})(?:\[[0-9a-f]+\])? -> "
    r"(?P<target>\d{1,7})(?:\[[0-9a-f]+\])? (?:\[(?:send|receive)\] )?via (?P<way>\S.*)"
)
_NET = re.compile(r"NET/(?P<net>[^/]+)/(?P<device>\d{1,5})(?:\(\d+\))?(?P<more>/.*)?")
_COLLNET = re.compile(
    r"CollNet \d+/\d+ : \d+ \[(?:send|receive)\] via COLLNET/(?P<net>[^/]+)/\d+.*"
)
_DEVICE = re.compile(
    r"\[\d+\] ?(?P<name>[^\s:{}\[\]]+):(?P<port>\d{1,3})(?::\d*){0,2}/(?P<link>\w+)"
)
_SOCKET = re.compile(r"\[\d+\](\S+)")
_READ = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*)")


@dataclass(frozen=True)
class TransportDevice:
    """An RDMA device that NCCL lists; `link` is IB or RoCE.

    From 2.27 on NCCL says «mlx5_0_dma» where it goes another way to the same port (Data Direct): the name here is that
    of the device, as lists have it.
    """

    name: str
    port: str
    link: str


@dataclass(frozen=True)
class Hop:
    """One rank sends to another. `way` is P2P/CUMEM, SHM, NET/IB and so on; `network` is set where it is a NET."""

    source: int
    target: int
    way: str
    network: str | None = None
    direct: bool = False  # GPUDirect RDMA


@dataclass(frozen=True)
class Wiring:
    """All that one rank said; what it did not say is None or empty.

    `devices` are () where NCCL found none; `whole` tells whether their list came to its end. `read` has the variables
    as NCCL read them. `cut` is the number of lines that its agent found no room for.
    """

    interface: str | None = None
    address: str | None = None
    network: str | None = None
    devices: tuple[TransportDevice, ...] | None = None
    whole: bool = True
    hops: tuple[Hop, ...] = ()
    collnet: str | None = None
    nvls: bool = False
    read: Mapping[str, str] = field(default_factory=dict)
    why: str = ""  # why there is no RDMA, in NCCL's words
    cut: int = 0


def parse(rank: int, lines: Iterable[object], cut: int = 0) -> Wiring:
    """The lines of one rank. Hops that it has no part in are not its own, and not believed."""
    said = _Said()
    for line in lines:
        if isinstance(line, str):
            _hear(said, " ".join(line[:LONGEST].split()))
    place = said.bootstrap or said.oob or said.socket or (None, None)
    return Wiring(
        interface=place[0],
        address=place[1],
        network=said.network,
        devices=said.devices,
        whole=said.whole,
        hops=tuple(dict.fromkeys(hop for hop in said.hops if rank in (hop.source, hop.target))),
        collnet=said.collnet,
        nvls=said.nvls,
        read=dict(said.read),
        why=said.why,
        cut=cut,
    )


class _Said:
    """What has been heard so far."""

    def __init__(self) -> None:
        self.bootstrap: tuple[str, str] | None = None
        self.oob: tuple[str, str] | None = None
        self.socket: tuple[str, str] | None = None
        self.network: str | None = None
        self.devices: tuple[TransportDevice, ...] | None = None
        self.whole = True
        self.hops: list[Hop] = []
        self.collnet: str | None = None
        self.nvls = False
        self.read: dict[str, str] = {}
        self.why = ""


def _hear(said: _Said, line: str) -> None:
    if hop := _HOP.fullmatch(line):
        said.hops += filter(None, [_hop(int(hop["source"]), int(hop["target"]), hop["way"])])
    elif collnet := _COLLNET.fullmatch(line):
        said.collnet = collnet["net"]
    elif read := _READ.fullmatch(line):
        said.read[read["name"]] = read["value"]
    elif line.startswith("NVLS multicast support is available"):
        said.nvls = True
    elif line.startswith(("Failed to open libibverbs", "Failed to load libibverbs")):
        said.why = line
    else:
        for head, hear in _HEADS.items():
            if line.startswith(head):
                hear(said, line.removeprefix(head))


def _hop(source: int, target: int, way: str) -> Hop | None:
    """«NET/AWS Libfabric/1(3)/GDRDMA/Shared», «P2P/CUMEM/read», «SHM/direct/CE»; None for half of one."""
    if net := _NET.fullmatch(way):
        return Hop(source, target, f"NET/{net['net']}", net["net"], "GDRDMA" in (net["more"] or ""))
    kind, _, rest = way.partition("/")
    means = rest.partition("/")[0]
    if kind == "P2P" and means:
        return Hop(source, target, f"P2P/{means}")
    return Hop(source, target, kind) if kind == "SHM" else None


def _place(said: _Said, rest: str, name: str = "bootstrap") -> None:
    setattr(said, name, _interface(_SOCKET.sub(r"\1", rest.split(" ", maxsplit=1)[0])))


def _interface(text: str) -> tuple[str, str] | None:
    """Name and address of «eth0:10.0.0.1<0>», «eth0:1:10.0.0.1<0>», «eth0:fe80::1%eth0<0>»; a device has no address."""
    place, mark, _ = text.partition("<")
    words = place.split(":")
    for count in (1, 2) if mark and words[0] else ():
        address = ":".join(words[count:]).partition("%")[0]
        try:
            return ":".join(words[:count]), str(ipaddress.ip_address(address))
        except ValueError:
            continue
    return None


def _devices(said: _Said, rest: str) -> None:
    """«[0]mlx5_0:1/IB [1]={[1] mlx5_1:1/IB, [2] mlx5_2:1/IB} [RO]; OOB eth0:10.0.0.1<0>»."""
    listed, mark, oob = rest.partition("; OOB ")
    said.devices = tuple(
        TransportDevice(found["name"].removesuffix("_dma"), found["port"], found["link"])
        for found in _DEVICE.finditer(listed)
    )
    said.whole = bool(mark)
    if mark:
        _place(said, oob, "oob")


def _without_devices(said: _Said, rest: str) -> None:
    said.devices = ()
    said.why = said.why or "NET/IB : No device found."


def _network(said: _Said, rest: str) -> None:
    said.network = rest


_HEADS: dict[str, Callable[[_Said, str], None]] = {
    "Bootstrap : Using ": _place,
    "Bootstrap: Using ": _place,
    "NET/Socket : Using ": partial(_place, name="socket"),
    "NET/IB : Using ": _devices,
    "NET/IB : No device found": _without_devices,
    "Using network ": _network,
}
