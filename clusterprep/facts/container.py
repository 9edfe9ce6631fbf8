"""What a job sees in its container, and what the same look shows on the host.

One start of the container brings this and what `torch` asks of the job's interpreter. That it does
not start is an answer, with the engine's reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact
from clusterprep.facts.torch import interpreter_read
from clusterprep.model import Absent, Inventory, Node, Read


class SharedMemory(Struct, frozen=True):
    """Shared memory: `size` and `free` in bytes, and the number of the device it is on."""

    size: int
    free: int
    device: int


class Surroundings(Struct, frozen=True):
    """What a process sees around it, as clusterprep.remote.agent.surroundings tells it.

    `devices` says of each device of GPUs and RDMA whether the process may use it; `limits` are soft
    limits, math.inf for none; `interfaces` are IPv4 addresses by name, `ipv6` the global ones of
    IPv6 on all interfaces; `conf` is /etc/nccl.conf, None where it is not there, empty where it
    cannot be read; `libraries` are real files by the name that programs ask for, None for one that
    is not there.
    """

    devices: Mapping[str, bool]
    limits: Mapping[str, float]
    shm: SharedMemory | None
    namespaces: Mapping[str, str | None]
    interfaces: Mapping[str, str | None]
    rdma: tuple[str, ...]
    cpus: int
    uid: int
    gid: int
    variables: Mapping[str, str]
    conf: str | None
    libraries: Mapping[str, str | None]
    ipv6: tuple[str, ...] = ()


class Inside(Struct, frozen=True):
    """A look into the container and at its host. With a `reason` no container could be started."""

    host: Surroundings
    inside: Surroundings | None
    reason: str = ""
    why: str = ""


def parse_inside(
    host: Mapping[str, Any] | Absent | None = None, answer: Mapping[str, Any] | Absent | None = None
) -> Inside | Absent | None:
    """Return what both looks show; None for a node whose jobs run in no container."""
    if host is None or answer is None:
        return None
    if isinstance(host, Absent):
        return host
    around = parse_surroundings(host)
    if isinstance(answer, Absent):
        return Inside(around, None, answer.reason, answer.detail)
    return Inside(around, parse_surroundings(answer["surroundings"]))


def parse_surroundings(row: Mapping[str, Any]) -> Surroundings:
    """Return one look. Raises ValueError and the like for what `look` does not return."""
    limits = {}
    for name, (soft, _) in row["limits"].items():
        limits[name] = math.inf if soft == -1 else float(soft)
    shm = row["shm"]
    user = row["user"]
    return Surroundings(
        devices={path: bool(usable) for path, usable in row["devices"].items()},
        limits=limits,
        shm=None if shm is None else SharedMemory(shm["size"], shm["free"], shm["device"]),
        namespaces=dict(row["namespaces"]),
        interfaces={name: address for name, (_, address) in row["interfaces"].items()},
        ipv6=tuple(str(IPv6Address(int(digits, 16))) for digits in row["ipv6"]),
        rdma=tuple(row["rdma"]),
        cpus=row["cpus"],
        uid=user["uid"],
        gid=user["gid"],
        variables=dict(row["variables"]),
        conf=row["conf"],
        libraries=dict(row["libraries"]),
    )


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    if node.runtime is None or node.runtime.container is None:
        return ()
    return (Read("surroundings"), interpreter_read(node))


INSIDE = Fact("rt.inside", _reads, parse_inside, lenient=True, deep=True, needs=JOB_USER)
