"""The lab's network: a bridge in its own namespace, a veth pair to each host and the controller."""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

BRIDGE = "br0"
# The bridge carries jumbo frames, so that only a host's own MTU decides what it can send.
BRIDGE_MTU = 9216
INTERFACE = "eth0"

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_IFF_UP = 0x1
_IN6_IFREQ = "16sIi"  # linux/ipv6.h: address, length of the prefix, number of the interface
_SIOCSARP, _ATF_COM, _ATF_PERM, _ARPHRD_ETHER = 0x8955, 0x02, 0x04, 1  # linux/if_arp.h


def batch(commands: Iterable[str]) -> None:
    """Give several commands to one ``ip`` process, in the network namespace of this process."""
    text = "".join(f"{command}\n" for command in commands)
    subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True, capture_output=True)


def bridge_commands(name: str = BRIDGE) -> list[str]:
    """Commands that make a bridge."""
    return [f"link add {name} mtu {BRIDGE_MTU} up type bridge mcast_snooping 0"]


def cable_commands(
    port: str,
    namespace: str | int,
    mac_tail: int,
    *,
    bridge: str = BRIDGE,
    interface: str = INTERFACE,
) -> list[str]:
    """Return the commands that lead a cable from the bridge's ``port`` to another namespace.

    The namespace is a pid or a path.
    """
    tail = mac_tail.to_bytes(3, "big").hex(":")
    near = f"link add {port} mtu {BRIDGE_MTU} up master {bridge} type veth"
    return [f"{near} peer name {interface} address 02:4c:42:{tail} mtu 1500 netns {namespace}"]


def raise_interface(name: str, address: str | None = None, prefix_length: int = 16) -> None:
    """Bring up an interface of this process's namespace.

    By ioctl, as a process per host would cost seconds.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if address is not None:
            mask = (0xFFFF_FFFF << (32 - prefix_length)) & 0xFFFF_FFFF
            fcntl.ioctl(sock, _SIOCSIFADDR, _request(name, socket.inet_aton(address)))
            fcntl.ioctl(sock, _SIOCSIFNETMASK, _request(name, struct.pack(">I", mask)))
        seen = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
        flags = struct.unpack("16sH22x", seen)[1] | _IFF_UP
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags))


def add_ipv6(name: str, address: str, prefix_length: int) -> None:
    """Give an interface of this process's namespace an IPv6 address."""
    packed = socket.inet_pton(socket.AF_INET6, address)
    request = struct.pack(_IN6_IFREQ, packed, prefix_length, socket.if_nametoindex(name))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFADDR, request)


def know_neighbours(addresses: Mapping[str, int]) -> None:
    """Note the hardware address of each neighbour for good.

    ``addresses`` is what cables were numbered by.

    The kernel keeps the neighbours of all network namespaces in one table of 1024 entries, which
    pairs of 33 hosts fill; further ones then drop their packets. Entries for good do not count
    (net/core/neighbour.c).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for address, mac_tail in addresses.items():
            there = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            hardware = struct.pack(
                "H6s8x", _ARPHRD_ETHER, bytes.fromhex("024c42") + mac_tail.to_bytes(3, "big")
            )
            tail = struct.pack("i16x16s", _ATF_PERM | _ATF_COM, INTERFACE.encode())
            fcntl.ioctl(sock, _SIOCSARP, there + hardware + tail)


def _request(name: str, address: bytes) -> bytes:
    return struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, address)


def quieten_ipv6() -> None:
    """Keep link-local addresses without their start-up traffic, quadratic in the hosts."""
    for place in ("all", "default"):
        folder = Path("/proc/sys/net/ipv6/conf", place)
        for name, value in (("accept_dad", "0"), ("router_solicitations", "0")):
            if (folder / name).exists():
                (folder / name).write_text(value)
