"""Bonds as the bonding driver reports them in /proc/net/bonding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from clusterprep.facts import Fact
from clusterprep.model import Read


@dataclass(frozen=True, slots=True)
class Member:
    """A card of a bond; `mii` is up, down, «going down» or «going back». `aggregator` is that of 802.3ad."""

    name: str
    mii: str
    aggregator: str | None = None


@dataclass(frozen=True, slots=True)
class Bond:
    """One bond. `policy` is the transmit hash; `partner` the switch's MAC, which only root is told."""

    name: str
    mode: str  # 802.3ad, active-backup, balance-xor, …
    mii: str
    members: tuple[Member, ...] = ()
    policy: str | None = None
    partner: str | None = None


# What the driver calls the modes (drivers/net/bonding/bond_main.c, bond_mode_name), and the names of their options.
MODES = {
    "load balancing (round-robin)": "balance-rr",
    "fault-tolerance (active-backup)": "active-backup",
    "load balancing (xor)": "balance-xor",
    "fault-tolerance (broadcast)": "broadcast",
    "IEEE 802.3ad Dynamic link aggregation": "802.3ad",
    "transmit load balancing": "balance-tlb",
    "adaptive load balancing": "balance-alb",
}


@dataclass
class _Part:
    """Lines of the bond itself, or of one member."""

    name: str
    values: dict[str, str] = field(default_factory=dict)


def parse_bonds(files: dict[str, str]) -> dict[str, Bond]:
    """Bonds by name. Raises ValueError or KeyError for a file that ends early or is another thing."""
    return {
        bond.name: bond
        for bond in (_bond(path.rpartition("/")[2], text) for path, text in files.items())
    }


def _bond(name: str, text: str) -> Bond:
    parts = [_Part(name)]
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if line.strip() and key == "Slave Interface" and colon:
            parts.append(_Part(value.strip()))
        elif colon:
            parts[-1].values.setdefault(
                key.strip(), value.strip()
            )  # the first one: PDU details repeat some names
    own, members = parts[0].values, parts[1:]
    mode = re.sub(r" \(fail_over_mac \w+\)$", "", own["Bonding Mode"])
    if mode not in MODES or any(not part.values.get("Permanent HW addr") for part in members):
        raise ValueError("no report of the bonding driver, or one that was cut")
    if MODES[mode] == "802.3ad" and any("Aggregator ID" not in part.values for part in members):
        raise ValueError("a member of a LACP bond without its aggregator")
    return Bond(
        name,
        MODES[mode],
        own["MII Status"],
        tuple(
            Member(part.name, part.values["MII Status"], part.values.get("Aggregator ID"))
            for part in members
        ),
        own["Transmit Hash Policy"].split()[0] if "Transmit Hash Policy" in own else None,
        own.get("Partner Mac Address"),
    )


BONDS = Fact(
    "net.bonds", lambda node, inventory: (Read("files", ("/proc/net/bonding/*",)),), parse_bonds
)
