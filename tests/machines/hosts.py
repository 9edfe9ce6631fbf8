"""Processors and memory of a machine, grown from one line into what the kernel shows of them.

    host:   {model: Intel(R) Xeon(R) Platinum 8480C, sockets: 2, cores: 56, threads: 2, nodes: 2,
             memory: 2048, governor: performance, driver: intel_pstate, virtual: false,
             arch: x86_64}

`cores` are those of one socket, `memory` is in GiB, `bare_nodes` are NUMA nodes without CPUs, as
Grace has them for the memory of GPUs. A virtual machine sets no clocks and does not see the errors
of its host's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


def host(described: Mapping[str, Any]) -> dict[str, str]:
    """The files of a host."""
    nodes = _nodes(described)
    files = {**_cpus(described, nodes), **_memory(described, nodes)}
    if not described.get("virtual"):
        files.update(_governors(described, nodes))
        if described.get("edac", True):
            files.update(_controllers(len(nodes)))
    return files


def _nodes(described: Mapping[str, Any]) -> list[list[tuple[int, ...]]]:
    """Of every NUMA node the cores, each with its hardware threads, numbered as Linux does."""
    cores = described["sockets"] * described["cores"]
    each = cores // described["nodes"]
    threads = range(described.get("threads", 1))
    core = [tuple(number + thread * cores for thread in threads) for number in range(cores)]
    return [core[first : first + each] for first in range(0, cores, each)]


def _cpus(described: Mapping[str, Any], nodes: list[list[tuple[int, ...]]]) -> dict[str, str]:
    online = folded(cpu for node in nodes for core in node for cpu in core)
    files = {"/proc/cpuinfo": _cpuinfo(described), f"{CPU}/online": f"{online}\n"}
    files["/proc/self/status"] = f"Name:\tpython3\nCpus_allowed_list:\t{online}\n"
    for number, core in enumerate(core for node in nodes for core in node):
        for cpu in core:
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = (
                f"{number // described['cores']}\n"
            )
            files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{folded(core)}\n"
    return files


def _cpuinfo(described: Mapping[str, Any]) -> str:
    if described.get("arch") == "aarch64":
        lines = [
            "processor\t: 0",
            "BogoMIPS\t: 2000.00",
            "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 sve2",
        ]
        lines += [
            "CPU implementer\t: 0x41",
            "CPU architecture: 8",
            "CPU variant\t: 0x0",
            "CPU part\t: 0xd4f",
        ]
        return "\n".join([*lines, "CPU revision\t: 0"]) + "\n\n"
    flags = "fpu vme de pse tsc msr pae mce cx8 apic sep" + (
        " hypervisor" if described.get("virtual") else ""
    )
    lines = [
        "processor\t: 0",
        f"vendor_id\t: {described.get('vendor', 'GenuineIntel')}",
        "cpu family\t: 6",
    ]
    lines += [
        f"model name\t: {described['model']}",
        "physical id\t: 0",
        f"cpu cores\t: {described['cores']}",
    ]
    return "\n".join([*lines, f"flags\t\t: {flags}"]) + "\n\n"


def _memory(described: Mapping[str, Any], nodes: list[list[tuple[int, ...]]]) -> dict[str, str]:
    total = int(described["memory"] * (1 << 20) * 0.98)  # less what firmware and kernel keep
    rows = {
        "MemTotal": total,
        "MemFree": total * 8 // 10,
        "MemAvailable": total * 9 // 10,
        "Buffers": 2048,
    }
    rows.update(Cached=total // 20, SwapTotal=0, SwapFree=0, Hugepagesize=2048)
    files = {
        "/proc/meminfo": "".join(f"{key + ':':<16}{value:>12} kB\n" for key, value in rows.items())
    }
    for number, node in enumerate(nodes):
        files[f"{NODE}/node{number}/cpulist"] = folded(cpu for core in node for cpu in core) + "\n"
    numbers = range(len(nodes), len(nodes) + described.get("bare_nodes", 0))
    files.update({f"{NODE}/node{number}/cpulist": "\n" for number in numbers})
    online = folded(range(len(nodes) + described.get("bare_nodes", 0)))
    return {
        **files,
        f"{NODE}/online": f"{online}\n",
        f"{NODE}/has_memory": f"{folded(range(len(nodes)))}\n",
    }


def _governors(described: Mapping[str, Any], nodes: list[list[tuple[int, ...]]]) -> dict[str, str]:
    files = {}
    for cpu in (cpu for node in nodes for core in node for cpu in core):
        folder = f"{CPU}/cpufreq/policy{cpu}"
        files[f"{folder}/scaling_governor"] = f"{described.get('governor', 'performance')}\n"
        files[f"{folder}/scaling_driver"] = f"{described.get('driver', 'intel_pstate')}\n"
    return files


def _controllers(count: int) -> dict[str, str]:
    folders = [f"/sys/devices/system/edac/mc/mc{number}" for number in range(count)]
    return {f"{folder}/{kind}_count": "0\n" for folder in folders for kind in ("ue", "ce")}


def bonding(name: str, interface: Mapping[str, Any]) -> str:
    """Return /proc/net/bonding/NAME of an 802.3ad bond whose `members` are all up.

    The format is that of Documentation/networking/bonding.rst.
    """
    member = """
Slave Interface: {one}
MII Status: up
Speed: {speed} Mbps
Duplex: full
Link Failure Count: 0
Permanent HW addr: 02:00:00:0b:0d:{number:02x}
Slave queue ID: 0
Aggregator ID: 1
"""
    text = f"""Ethernet Channel Bonding Driver: v5.15.0-113-generic

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: {interface.get("policy", "layer3+4 (1)")}
MII Status: up
MII Polling Interval (ms): 100
Up Delay (ms): 0
Down Delay (ms): 0

802.3ad info
LACP active: on
LACP rate: fast
Min links: 0
Aggregator selection policy (ad_select): stable
System priority: 65535
Active Aggregator Info:
\tAggregator ID: 1
\tNumber of ports: {len(interface["members"])}
\tActor Key: 21
\tPartner Key: 32768
\tPartner Mac Address: 44:38:39:ff:00:01
"""
    speed = interface["speed"] // len(interface["members"])
    return text + "".join(
        member.format(one=m, speed=speed, number=n) for n, m in enumerate(interface["members"])
    )


def folded(numbers: Iterable[int]) -> str:
    """«0-55,112-167»."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
