"""Parse what NCCL logs of a rank's connections: interface, network, devices and transports.

The formats are those of NCCL 2.18 to 2.32 (src/bootstrap.cc, init.cc, misc/socket.cc,
transport/net_ib, net.cc, p2p.cc, shm.cc, coll_net.cc and nvls.cc); those before differ in blanks
alone. Other lines are ignored.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

# The network without RDMA; every other name is NCCL's IB or that of a plug-in.
SOCKET = "Socket"
MULTI_NODE_NVLINK = "P2P/MNNVL"  # from 2.21 on; within one of its nodes too
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
_NVLS = re.compile(r"NVLS multicast support is (?P<not>not )?available on dev .*")
_NVLS_CHANNELS = re.compile(r"\d+ coll channels, .*?(?P<count>\d{1,5}) nvls channels, .*")
_READ = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*)")


class TransportDevice(Struct, frozen=True):
    """An RDMA device that NCCL lists; `link` is IB or RoCE.

    From 2.27 on NCCL logs "mlx5_0_dma" if it uses another path to the same port (Data Direct): the
    name here is that of the device, as lists have it.
    """

    name: str
    port: str
    link: str


class Hop(Struct, frozen=True):
    """One rank sends to another.

    `way` is P2P/CUMEM, SHM, NET/IB and so on; `network` is set if it is a NET.
    """

    source: int
    target: int
    way: str
    network: str | None = None
    direct: bool = False  # GPUDirect RDMA


class Wiring(Struct, frozen=True):
    """All that one rank logged; what it did not log is None or empty.

    `devices` are () if NCCL found none; `whole` tells whether their list came to its end. `read`
    has the variables as NCCL read them. `cut` is the number of lines that its agent had no room
    for. `nvls` tells whether GPU and driver have NVLink SHARP, `nvls_channels` on how many channels
    NCCL may use it, and `nvls_refusal` why it goes on without it, in its words.
    """

    interface: str | None = None
    address: str | None = None
    network: str | None = None
    devices: tuple[TransportDevice, ...] | None = None
    whole: bool = True
    hops: tuple[Hop, ...] = ()
    collnet: str | None = None
    nvls: bool | None = None
    nvls_channels: int | None = None
    nvls_refusal: str = ""
    read: Mapping[str, str] = field(default_factory=dict)
    why: str = ""  # why there is no RDMA, in NCCL's words
    cut: int = 0


def parse(rank: int, lines: Iterable[object], cut: int = 0) -> Wiring:
    """Return what the lines of one rank say.

    Hops in which the rank has no part are not its own, and not believed.
    """
    log = _ParsedLog()
    for line in lines:
        if isinstance(line, str):
            words = line[:LONGEST].split()
            _parse_line(log, " ".join(words))
    place = log.bootstrap or log.oob or log.socket
    interface, address = place or (None, None)
    own_hops = [hop for hop in log.hops if rank in (hop.source, hop.target)]
    return Wiring(
        interface=interface,
        address=address,
        network=log.network,
        devices=log.devices,
        whole=log.whole,
        hops=tuple(dict.fromkeys(own_hops)),
        collnet=log.collnet,
        nvls=log.nvls,
        nvls_channels=log.nvls_channels,
        nvls_refusal=log.nvls_refusal,
        read=dict(log.read),
        why=log.why,
        cut=cut,
    )


Place = tuple[str, str]  # interface, address


class _ParsedLog:
    """What was parsed so far, as in `Wiring`.

    `bootstrap`, `oob` and `socket` are the interface as each of three lines names it.
    """

    def __init__(self) -> None:
        self.bootstrap: Place | None = None
        self.oob: Place | None = None
        self.socket: Place | None = None
        self.network: str | None = None
        self.devices: tuple[TransportDevice, ...] | None = None
        self.whole = True
        self.hops: list[Hop] = []
        self.collnet: str | None = None
        self.nvls: bool | None = None
        self.nvls_channels: int | None = None
        self.nvls_refusal = ""
        self.read: dict[str, str] = {}
        self.why = ""


def _parse_line(log: _ParsedLog, line: str) -> None:
    """Add what a line says to `log`; a line of any other kind is ignored."""
    if match := _HOP.fullmatch(line):
        hop = _hop(int(match["source"]), int(match["target"]), match["way"])
        if hop is not None:
            log.hops.append(hop)
    elif match := _COLLNET.fullmatch(line):
        log.collnet = match["net"]
    elif match := _READ.fullmatch(line):
        log.read[match["name"]] = match["value"]
    elif match := _NVLS.fullmatch(line):
        log.nvls = match["not"] is None
    elif match := _NVLS_CHANNELS.fullmatch(line):
        log.nvls_channels = int(match["count"])
    elif line.startswith("Failed to bind NVLink SHARP"):
        log.nvls_refusal = line
    elif line.startswith(("Failed to open libibverbs", "Failed to load libibverbs")):
        log.why = line
    else:
        for prefix, parse_rest in _PREFIXES.items():
            if line.startswith(prefix):
                parse_rest(log, line.removeprefix(prefix))


def _hop(source: int, target: int, way: str) -> Hop | None:
    """Parse "NET/AWS Libfabric/1(3)/GDRDMA/Shared", "P2P/CUMEM/read" or "SHM/direct/CE".

    Returns None if a part is missing.
    """
    net = _NET.fullmatch(way)
    if net is not None:
        further = net["more"] or ""
        return Hop(
            source,
            target,
            f"NET/{net['net']}",
            net["net"],
            "GDRDMA" in further,
        )
    kind, _, rest = way.partition("/")
    means = rest.partition("/")[0]
    if kind == "P2P" and means:
        return Hop(source, target, f"P2P/{means}")
    if kind == "SHM":
        return Hop(source, target, kind)
    return None


def _note_bootstrap(log: _ParsedLog, rest: str) -> None:
    log.bootstrap = _place(rest)


def _note_socket(log: _ParsedLog, rest: str) -> None:
    log.socket = _place(rest)


def _place(rest: str) -> Place | None:
    first = rest.split(" ", maxsplit=1)[0]
    without_number = _SOCKET.sub(r"\1", first)
    return _interface(without_number)


def _interface(text: str) -> Place | None:
    """Return name and address of an interface.

    It reads "eth0:10.0.0.1<0>", "eth0:1:10.0.0.1<0>" or "eth0:fe80::1%eth0<0>"; a device has no
    address.
    """
    place, mark, _ = text.partition("<")
    parts = place.split(":")
    if not mark or not parts[0]:
        return None
    for count in (1, 2):  # the name of an alias such as eth0:1 has a colon
        address = ":".join(parts[count:]).partition("%")[0]
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            continue
        return ":".join(parts[:count]), str(parsed)
    return None


def _note_devices(log: _ParsedLog, rest: str) -> None:
    """Parse "[0]mlx5_0:1/IB [1]={[1] mlx5_1:1/IB, [2] mlx5_2:1/IB} [RO]; OOB eth0:10.0.0.1<0>".

    Behind "OOB" is the interface for out-of-band data. It ends the line: one
    without it was cut, and with it the list.
    """
    listed, separator, oob = rest.partition("; OOB ")
    devices: list[TransportDevice] = []
    for match in _DEVICE.finditer(listed):
        name = match["name"].removesuffix("_dma")
        devices.append(TransportDevice(name, match["port"], match["link"]))
    log.devices = tuple(devices)
    log.whole = bool(separator)
    if separator:
        log.oob = _place(oob)


def _note_no_device(log: _ParsedLog, rest: str) -> None:
    log.devices = ()
    if not log.why:
        log.why = "NET/IB : No device found."


def _note_network(log: _ParsedLog, rest: str) -> None:
    log.network = rest


_PREFIXES: dict[str, Callable[[_ParsedLog, str], None]] = {
    "Bootstrap : Using ": _note_bootstrap,
    "Bootstrap: Using ": _note_bootstrap,
    "NET/Socket : Using ": _note_socket,
    "NET/IB : Using ": _note_devices,
    "NET/IB : No device found": _note_no_device,
    "Using network ": _note_network,
}
