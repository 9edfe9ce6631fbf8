"""The switch and the switch port at the other end of each RDMA port."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Read

# «Guid:............................0xb8599f0300fc6de4»
_FIELD = re.compile(r"^(\w+):\.+(.+)$", re.MULTILINE)


class Neighbour(Struct, frozen=True):
    """A switch, by its name or its GUID, and the number or name of its port."""

    switch: str
    port: str


def parse_neighbours(answer: Mapping[str, Any]) -> dict[str, Neighbour]:
    """Return the neighbours that are told: by interface over LLDP, «mlx5_0:1» over InfiniBand.

    An interface with several switches in sight, as behind one that passes LLDP on, is left out.
    """
    neighbours = {}
    for port, text in answer["ib"].items():
        if text is not None:
            neighbour = _of_smpquery(text)
            if neighbour is not None:
                neighbours[str(port)] = neighbour
    if answer["lldp"] is not None:
        neighbours.update(_of_lldp(json.loads(answer["lldp"])))
    return neighbours


def _of_smpquery(text: str) -> Neighbour | None:
    """Return the switch of `smpquery nodeinfo`, None for another host at the end of the cable."""
    fields = dict(_FIELD.findall(text))
    if fields["NodeType"] != "Switch":
        return None
    return Neighbour(fields["Guid"], fields["LocalPort"])


def _of_lldp(document: Mapping[str, Any]) -> dict[str, Neighbour]:
    """Return the neighbours in the output of `lldpcli -f json0`, where each value is a list."""
    found: dict[str, set[Neighbour]] = {}
    for lldp in document["lldp"]:
        for row in lldp.get("interface", ()):
            chassis, port = row["chassis"][0], row["port"][0]
            switch = _value(chassis.get("name", ())) or _value(chassis.get("id", ()))
            own = _value(port.get("id", ())) or _value(port.get("descr", ())) or ""
            if switch:
                found.setdefault(str(row["name"]), set()).add(Neighbour(switch, own))
    single = {}
    for name, neighbours in found.items():
        if len({neighbour.switch for neighbour in neighbours}) == 1:
            single[name] = min(neighbours, key=lambda neighbour: neighbour.port)
    return single


def _value(entries: Iterable[Mapping[str, Any]]) -> str | None:
    for entry in entries:
        return str(entry["value"])
    return None


NEIGHBOURS = Fact(
    "net.rail_neighbours",
    lambda node, inventory: (Read("rail_neighbours"),),
    parse_neighbours,
)
