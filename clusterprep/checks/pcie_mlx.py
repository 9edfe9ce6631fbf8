"""Network adapters that say themselves that their slot gives them too little."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed
from clusterprep.checks.log import judge_silence, reach_of
from clusterprep.facts import Fact
from clusterprep.facts.kernel_log import LIMITED, NO_POWER, KernelLog, KernelRecord
from clusterprep.model import Absent, Node, Read
from clusterprep.model.fact_columns import Part
from clusterprep.remedies import shell_line

_POWER = re.compile(rf"mlx5_core ([0-9a-f:.]+\d): .*{NO_POWER}(?: \((\d+) ?W\))?")
# What the kernel prints when a driver asks it for the bandwidth of a card (pcie_print_link_status).
_BANDWIDTH = re.compile(
    rf"mlx5_core ([0-9a-f:.]+\d): ([0-9.]+ Gb/s) {LIMITED} (.*?) link at (\S+) "
    r"\(capable of ([0-9.]+ Gb/s) with (.*?) link\)"
)


def parse_cards(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | Absent:
    """Return the addresses of the functions of NVIDIA's (Mellanox's) network adapters."""
    addresses = tuple(str(row["pci"]) for row in rows)
    return addresses or Absent("not_applicable", "no ConnectX adapter here")


def limited(context: CheckContext, node: Node, log: KernelLog, cards: tuple[str, ...]) -> Outcome:
    """Fail if an mlx5 adapter of this boot has too little power or bandwidth of its slot."""
    power = _by_device(_POWER, log.records)
    bandwidth = _by_device(_BANDWIDTH, log.records)
    wanted = "as much as they can take"
    if not power and not bandwidth:
        # Drivers write these lines when they start, so nothing less than the whole boot will do.
        return judge_silence(node, log, math.inf, (NO_POWER, LIMITED), "", "none")
    parts = []
    for device, found in power.items():
        watts = f"{found[2]} W" if found[2] else "too little"
        parts.append(f"{device} has {watts} of power")
    for device, found in bandwidth.items():
        _, has, speed, limiter, could, best = found.groups()
        parts.append(f"{device} has {has} ({speed} at {limiter}) of {could} ({best})")
    if power and bandwidth:
        message = "network adapters have too little power and bandwidth of their slots"
    elif power:
        message = "network adapters have less power than they ask for"
    else:
        message = "network adapters have less bandwidth than they can use"
    devices = list(dict.fromkeys((*power, *bandwidth)))
    remedy = shell_line(
        "lspci -vv -s {device} | grep -i -e power -e LnkSta"
        "   # the slot's power limit in the BIOS, the card's cable; reseat it, or another slot",
        device=devices[0],
    )
    return failed(
        node,
        message,
        "; ".join(parts),
        wanted,
        remedy,
    )


def _of_slots(log: KernelLog) -> Hashable:
    """Return what is looked at of a log: the lines about slots, and how far it goes back."""
    lines = []
    for record in log.records:
        if NO_POWER in record.text or LIMITED in record.text:
            lines.append(record)
    return (*lines, reach_of(log))


def _by_device(
    pattern: re.Pattern[str], records: Iterable[KernelRecord]
) -> dict[str, re.Match[str]]:
    """Return the newest match of each device; a later line replaces an earlier one."""
    found = {}
    for record in sorted(records, key=lambda record: record.seconds):
        match = pattern.search(record.text)
        if match:
            found[match[1]] = match
    return found


def _with_weak_slot(log: KernelLog) -> KernelLog:
    text = (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): "
        "Detected insufficient power on the PCIe slot (27W)."
    )
    record = KernelRecord(
        1 << 20,
        20.0,
        4,
        1,
        20.0,
        text,
    )
    return replace(log, records=(*log.records, record))


MELLANOX = "0x15b3"  # vendor id; NVIDIA's network adapters have kept it
CARDS = Fact("pcie.mlx_cards", lambda node, inventory: (Read("pci", (MELLANOX,)),), parse_cards)
LIMITED_CARDS = Check(
    "pcie.mlx_limited",
    facts=("log.records", "pcie.mlx_cards"),
    judge=each(limited, "log.records", "pcie.mlx_cards", parts=(Part("log.records", _of_slots),)),
    severity="warning",
    title="Network adapters and what their slots give them",
    why="A ConnectX adapter in a slot with too little power or too few lanes works, and stays "
    "below its rate under load: the slowest adapter sets the pace of all. On DGX Spark (GB10) the "
    "line about 27 W is printed at each boot and is harmless, as NVIDIA says.",
    how="Lines of mlx5_core in the kernel's log since boot, for each adapter: «insufficient power "
    "on the PCIe slot» and «available PCIe bandwidth, limited by». They are written when the "
    "driver starts: where the log no longer goes back to the boot, it is unknown.",
    remedy=shell_line("lspci -vv -s ADAPTER | grep -i -e power -e LnkSta"),
    proof=Proof("log.records", _with_weak_slot),
)
