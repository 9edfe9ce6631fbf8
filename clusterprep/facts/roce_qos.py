"""What RoCE interfaces do with priorities: flow control, trust, congestion marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Read
from clusterprep.remote.untrusted import LONGEST_DEVICE, require_device_name

PRIORITIES = range(8)


class RoceQos(Struct, frozen=True):
    """The settings of one interface; a field is None where the driver does not tell it.

    `pfc` has the priorities with flow control, `ecn` those with congestion control. `trust` is
    «dscp» or «pcp»; with «dscp» `mapped` has the priority of each DSCP that is mapped. `tclass` is
    the traffic class that the driver forces on all packets.
    """

    device: str
    pfc: tuple[int, ...] | None = None
    ecn: tuple[int, ...] | None = None
    trust: str | None = None
    mapped: Mapping[int, int] | None = None
    tclass: int | None = None

    @property
    def told(self) -> bool:
        """Return whether the driver tells anything."""
        return (self.pfc, self.ecn, self.trust) != (None, None, None)

    def priority(self, traffic_class: int) -> int | None:
        """Return the priority of packets with a traffic class; None where DSCP is not trusted.

        A DSCP that is not mapped has the priority of its upper three bits, as mlnx_qos shows it.
        """
        if self.trust != "dscp":
            return None
        dscp = traffic_class >> 2
        if self.mapped is not None and dscp in self.mapped:
            return self.mapped[dscp]
        return dscp >> 3


def parse_qos(rows: list[dict[str, Any]]) -> dict[str, RoceQos]:
    """Return the settings by interface. Raises ValueError for a priority above 7."""
    settings = {}
    for row in rows:
        device = require_device_name(row["device"], LONGEST_DEVICE)
        settings[require_device_name(row["name"])] = _settings(row, device)
    return settings


def _settings(row: Mapping[str, Any], device: str) -> RoceQos:
    mapped = None
    if row["dscp"] is not None:
        mapped = {int(dscp): _priority(priority) for dscp, priority in row["dscp"]}
    trust = row["trust"]
    if trust is None and mapped is not None:
        # The kernel has no word for it: a table of DSCPs is what makes the driver trust them.
        trust = "dscp" if mapped else "pcp"
    return RoceQos(
        device=device,
        pfc=_mask(row["pfc"]),
        ecn=_ecn(row["np"], row["rp"]),
        trust=trust,
        mapped=mapped,
        tclass=_tclass(row["tclass"]),
    )


def _mask(mask: int | None) -> tuple[int, ...] | None:
    if mask is None:
        return None
    if not 0 <= mask <= 0xFF:
        raise ValueError(f"{mask} is no mask of priorities")
    return tuple(priority for priority in PRIORITIES if mask >> priority & 1)


def _priority(number: int) -> int:
    if number not in PRIORITIES:
        raise ValueError(f"{number} is no priority")
    return number


def _ecn(reports: Mapping[str, str | None], reacts: Mapping[str, str | None]) -> Any:
    """Return the priorities on which a card reports marks and reacts to reports of others.

    NVIDIA, «How to configure DCQCN»: reporting is one switch for the port, shown for each priority.
    """
    if not reports and not reacts:
        return None
    if "1" not in reports.values():
        return ()
    return tuple(sorted(_priority(int(key)) for key, text in reacts.items() if text == "1"))


def _tclass(text: str | None) -> int | None:
    """Return the number of «Global tclass=106»; None for an empty file."""
    for line in (text or "").splitlines():
        name, sign, value = line.partition("=")
        if sign and name.strip() == "Global tclass":
            return int(value)
    return None


QOS = Fact("roce.qos", lambda node, inventory: (Read("roce_qos"),), parse_qos)
