"""Bonds as the bonding driver reports them in /proc/net/bonding."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from msgspec import Struct, field

from clusterprep.facts import Fact
from clusterprep.facts.parts import LONGEST_PART, MOST_PARTS
from clusterprep.model import Read
from clusterprep.remote.untrusted import require_device_name


class Member(Struct, frozen=True):
    """A card of a bond; `mii` is up, down, «going down» or «going back».

    `aggregator` is that of 802.3ad.
    """

    name: str
    mii: str
    aggregator: str | None = None


class Bond(Struct, frozen=True):
    """One bond.

    `policy` is the transmit hash; `partner` the switch's MAC, which only root can read.
    """

    name: str
    mode: str  # 802.3ad, active-backup, balance-xor, …
    mii: str
    members: tuple[Member, ...] = ()
    policy: str | None = None
    partner: str | None = None


# The driver's names of the modes (drivers/net/bonding/bond_main.c, bond_mode_name), and those of
# its options.
MODES = {
    "load balancing (round-robin)": "balance-rr",
    "fault-tolerance (active-backup)": "active-backup",
    "load balancing (xor)": "balance-xor",
    "fault-tolerance (broadcast)": "broadcast",
    "IEEE 802.3ad Dynamic link aggregation": "802.3ad",
    "transmit load balancing": "balance-tlb",
    "adaptive load balancing": "balance-alb",
}


# Lines with the node's own hardware addresses, none of which is part of the value.
_ADDRESS_LINES = (
    "\nSystem MAC address: ",
    "\nPermanent HW addr: ",
    "\n    system mac address: ",
)
_ADDRESS_LENGTH = len("00:00:00:00:00:00")


class _Section(Struct):
    """The lines of the bond itself, or of one member."""

    name: str
    values: dict[str, str] = field(default_factory=dict)


def parse_bonds(files: dict[str, str]) -> dict[str, Bond]:
    """Return the bonds by name.

    Raises ValueError or KeyError for a file that was cut or is another thing.
    """
    bonds = {}
    for path, text in files.items():
        name = require_device_name(path.rpartition("/")[2])
        bonds[name] = _bond(name, text)
    return bonds


def _bond(name: str, text: str) -> Bond:
    """Return the bond of a file in /proc/net/bonding. Raises ValueError if it was cut."""
    if not isinstance(text, str) or len(text) > LONGEST_PART:
        return _parse_bond(name, text)
    return _known_bond(name, _without_addresses(text))


def _without_addresses(text: str) -> str:
    """Return the text without the hardware addresses of this node, which differ on each.

    What is there instead is no address: it counts that there is one.
    """
    for line in _ADDRESS_LINES:
        first, *others = text.split(line)
        rests = []
        for other in others:
            address, rest = other[:_ADDRESS_LENGTH], other[_ADDRESS_LENGTH:]
            is_address = address.replace(":", "").isalnum() and rest[:1] in ("", "\n")
            rests.append("-" + rest if is_address else other)
        text = line.join((first, *rests))
    return text


def _parse_bond(name: str, text: str) -> Bond:
    own, *members = _sections(name, text)
    mode = _mode(own.values["Bonding Mode"])
    for member in members:
        # The address comes after what we read of a member, so a file that was cut lacks it.
        if not member.values.get("Permanent HW addr"):
            raise ValueError("no report of the bonding driver, or one that was cut")
        if mode == "802.3ad" and "Aggregator ID" not in member.values:
            raise ValueError("a member of a LACP bond without its aggregator")
    policy = own.values.get("Transmit Hash Policy")
    if policy is not None:
        policy = policy.split()[0]  # «layer3+4 (1)»
    return _shared_bond(
        Bond(
            name=name,
            mode=mode,
            mii=own.values["MII Status"],
            members=_members(members),
            policy=policy,
            partner=own.values.get("Partner Mac Address"),
        )
    )


_known_bond = functools.lru_cache(maxsize=MOST_PARTS)(_parse_bond)


@functools.lru_cache(maxsize=1024)
def _shared_bond(bond: Bond) -> Bond:
    """Return the bond, as one object for equal ones: its file has counters that differ."""
    return bond


def _sections(name: str, text: str) -> list[_Section]:
    """Return the section of the bond and one for each member."""
    sections = [_Section(name)]
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key == "Slave Interface":
            sections.append(_Section(require_device_name(value.strip())))
        else:
            # The first value counts: the details of LACP packets repeat some names.
            sections[-1].values.setdefault(key.strip(), value.strip())
    return sections


def _mode(text: str) -> str:
    driver_name = re.sub(r" \(fail_over_mac \w+\)$", "", text)
    if driver_name not in MODES:
        raise ValueError("no report of the bonding driver, or one that was cut")
    return MODES[driver_name]


def _members(sections: Sequence[_Section]) -> tuple[Member, ...]:
    members = []
    for section in sections:
        status = section.values["MII Status"]
        aggregator = section.values.get("Aggregator ID")
        members.append(Member(section.name, status, aggregator))
    return tuple(members)


BONDS = Fact(
    "net.bonds",
    lambda node, inventory: (Read("files", ("/proc/net/bonding/*",)),),
    parse_bonds,
    pieces=(dict[str, str],),
    typed=True,
)
