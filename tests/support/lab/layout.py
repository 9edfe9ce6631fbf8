"""Where everything of a lab lies: names, addresses and paths, as values that both sides share."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BASE = Path(
    os.environ.get("CLUSTERPREP_LAB_DIR", "/var/tmp")
)  # each lab makes a folder of its own in it
PREFIX = "clusterprep-lab-"
CONTROLLER_ADDRESS = "10.77.0.1"
PREFIX_LENGTH = 16
NETWORK = f"10.77.0.0/{PREFIX_LENGTH}"
CONTROLLER_IPV6 = "fd00:77::ffff"
IPV6_PREFIX_LENGTH = 64
Family = Literal["only", "dual"]  # IPv6 addresses alone, or beside those of IPv4
HOST_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}
# What a supervisor prints once all hosts accept connections.
READY = "ready"
POWER = signal.SIGUSR1  # to the supervisor: start what is down
RESET = signal.SIGUSR2  # to the supervisor: make everything anew
# A block of addresses stays clear of .0, .1 and .255, which some software takes for something else.
BLOCK = 250


def address_of(index: int) -> str:
    """Address of the host with this index, counted from 1: n1 is 10.77.0.2, n251 is 10.77.1.2."""
    block, rest = divmod(index - 1, BLOCK)
    return f"10.77.{block}.{rest + 2}"


def ipv6_address_of(index: int) -> str:
    """IPv6 address of the host with this index: that of n1 is fd00:77::1."""
    return f"fd00:77::{index:x}"


@dataclass(frozen=True)
class Layout:
    """Paths of one lab under its folder."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Locked for as long as the lab's supervisor lives."""
        return self.folder / "lock"

    @property
    def spec(self) -> Path:
        """What was asked for."""
        return self.folder / "spec.json"

    @property
    def state(self) -> Path:
        """What runs."""
        return self.folder / "state.json"

    @property
    def log(self) -> Path:
        """What the supervisor had to say."""
        return self.folder / "supervisor.log"

    @property
    def home(self) -> Path:
        """HOME of the controller."""
        return self.folder / "home"

    @property
    def key(self) -> Path:
        """Private key of the controller."""
        return self.home / ".ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts, by name and by address."""
        return self.home / ".ssh" / "known_hosts"

    def host(self, name: str) -> Path:
        """Folder of one host."""
        return self.folder / "hosts" / name


@dataclass(frozen=True)
class HostSpec:
    """One host as it was asked for: ``address`` is the one that inventories have."""

    name: str
    index: int
    address: str
    ipv4: str | None
    ipv6: str | None
    root: str = "/"  # the file system below its own files: this machine's, or another system's

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of its addresses."""
        return tuple(address for address in (self.ipv4, self.ipv6) if address)


def _host(index: int, ipv6: Family | None, root: str) -> HostSpec:
    """Return a host with IPv4 alone, or with IPv6 "only", or with both ("dual")."""
    own_ipv4 = None if ipv6 == "only" else address_of(index)
    own_ipv6 = ipv6_address_of(index) if ipv6 else None
    address = own_ipv4 or ipv6_address_of(index)
    return HostSpec(f"n{index}", index, address, own_ipv4, own_ipv6, root)


@dataclass(frozen=True)
class Spec:
    """A lab as it was asked for."""

    hosts: tuple[HostSpec, ...]
    keep: tuple[str, ...]
    chrony: bool
    slurm: bool
    ipv6: Family | None
    owner: int | None

    @classmethod
    def of(
        cls,
        count: int,
        keep: tuple[Path, ...],
        *,
        chrony: bool,
        slurm: bool,
        ipv6: Family | None,
        owner: int | None,
        roots: Sequence[Path] = (),
    ) -> Spec:
        """Return the spec of ``count`` hosts n1, n2, ...

        ``owner`` is the process that the lab ends with, ``roots`` are those of the first hosts.
        """
        own = [str(root) for root in roots] + ["/"] * (count - len(roots))
        hosts = tuple(_host(index, ipv6, root) for index, root in enumerate(own, 1))
        return cls(
            hosts,
            tuple(str(path) for path in keep),
            chrony,
            slurm,
            ipv6,
            owner,
        )

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Spec:
        """Read what ``save`` wrote."""
        raw: dict[str, Any] = json.loads(path.read_text())
        hosts = tuple(HostSpec(**host) for host in raw["hosts"])
        return cls(
            hosts,
            tuple(raw["keep"]),
            raw["chrony"],
            raw["slurm"],
            raw["ipv6"],
            raw["owner"],
        )


@dataclass(frozen=True)
class State:
    """A lab as it runs: process ids as the machine counts them."""

    supervisor: int
    controller_net: int
    pids: dict[str, int]
    resets: int = 0

    def save(self, path: Path) -> None:
        """Replace the file in one step, as others read it at any time."""
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(dataclasses.asdict(self)))
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> State:
        """Read what ``save`` wrote."""
        return cls(**json.loads(path.read_text()))
