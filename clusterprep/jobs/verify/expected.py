"""What bus bandwidth an all-reduce of large messages should reach on this hardware, or why nobody knows. Pure.

The slowest part decides: NVLink inside the nodes, network cards between them, or sockets. Every efficiency below was
published for machines like these; hardware for which there is no such figure stays unknown, for a threshold that is
guessed accuses healthy machines. The figures are GB/s as nccl-tests defines bus bandwidth, and hold from 1 GiB on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.facts.gpu import Model
from clusterprep.facts.nvlink import NvLinks
from clusterprep.facts.pci import PciLink
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.colocation import largest_group
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.rails import RdmaRail, kind_of, training_sets
from clusterprep.runtime.lazy_dataclass import dataclass

FACTS = ("gpu.model", "nvlink.links", "pci.tree", "rdma.devices", "net.interfaces")
"""Names of the facts that the model looks at."""

VALID_FROM = 1 << 30  # bytes; smaller messages measure latency as well

# GB/s of one NVLink in one direction by compute capability: NVLink 2 to 5; the bridges of workstation cards run slower.
NVLINK = {"7.0": 25.0, "8.0": 25.0, "8.6": 14.0625, "9.0": 25.0, "10.0": 50.0}
RING = 0.79  # of the NVLinks of a GPU: 235 of 300 on A100, 367 of 450 on H200, 682 of 900 on B200
# Of the NVLinks of a GPU where the switch adds up, by capability and links, before 2(n-1)/n: 473 to 482 on H200 (0.60),
# 838 on B200 (0.53), eight GPUs each. Other numbers of links have no published figure and count as a ring.
IN_SWITCH = {("9.0", 18): 0.60, ("10.0", 18): 0.53}
NETWORK = 0.92  # of the sum of network cards: 46 to 48 GB/s for each at 400 Gbit/s; EFA and Slingshot do likewise
SOCKETS = 0.7  # of the interface: 2 to 2.5 GB/s at 25 Gbit/s, 6 to 10 at 100
FASTEST_SOCKETS = 100_000  # Mbit/s; beyond that threads and cores decide, and no figure is known
LANES = {
    2.5: 0.25,
    5.0: 0.5,
    8.0: 0.985,
    16.0: 1.969,
    32.0: 3.938,
    64.0: 7.563,
}  # GT/s -> GB/s of one PCIe lane


@dataclass(frozen=True)
class Expected:
    """GB/s and what sets them; None and why not."""

    gbs: float | None
    why: str


def expected(
    fleet: Fleet, ranks: Mapping[str, int], env: Mapping[str, Mapping[str, str]]
) -> Expected:
    """For the ranks per node and the environment that they get.

    Of nodes of one kind the best counts, for one that has lost a card is not what is normal; of kinds the slowest.
    """
    kinds: dict[object, list[Expected]] = {}
    nodes = [node for node in fleet.reached if ranks.get(node.name)]
    if (many := largest_group(nodes, ranks, env)) > 1:
        return Expected(None, f"{many} nodes share one GPU, whose ranks take turns")
    for node in nodes:
        found = _of(fleet, node, ranks[node.name], env.get(node.name, {}), alone=len(nodes) == 1)
        kinds.setdefault((kind_of(fleet, node), ranks[node.name]), []).append(found)
    bests = [_best(found) for found in kinds.values()]
    unknown = next((one for one in bests if one.gbs is None), None)
    if unknown is not None or not bests:
        return unknown or Expected(None, "no node was reached")
    return min(bests, key=lambda one: one.gbs or 0.0)


def _best(found: Sequence[Expected]) -> Expected:
    return max(found, key=lambda one: -1.0 if one.gbs is None else one.gbs)


def _of(fleet: Fleet, node: Node, count: int, env: Mapping[str, str], *, alone: bool) -> Expected:
    if forced := next(
        (name for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE") if env.get(name)), None
    ):
        return Expected(None, f"{forced} is set, which the hardware model does not know")
    parts = [] if count == 1 else [_inside(fleet, node, count, env)]
    parts += [] if alone else [_outside(fleet, node, count, env)]
    if not parts:
        return Expected(None, "one rank alone sends nothing")
    unknown = next((part for part in parts if part.gbs is None), None)
    return unknown or min(parts, key=lambda part: part.gbs or 0.0)


# ---------------------------------------------------------------- inside a node


def _inside(fleet: Fleet, node: Node, count: int, env: Mapping[str, str]) -> Expected:
    models, links = (
        _alike(fleet.fact(node.name, name), node) for name in ("gpu.model", "nvlink.links")
    )
    if isinstance(models, Absent):
        return Expected(None, f"the GPUs of {node.name} are not known: {models.reason}")
    if isinstance(links, Absent):
        if links.reason == "not_applicable":
            return Expected(
                None,
                f"the GPUs of {node.name} are joined by PCIe alone, for which there is no figure",
            )
        return Expected(None, f"the NVLinks of {node.name} are not known: {links.reason}")
    if len({(one.name, one.capability) for one in models}) > 1:
        return Expected(None, f"{node.name} has GPUs of several models")
    return _joined(node, models[0], links, count, env)


def _joined(
    node: Node, model: Model, links: Sequence[NvLinks], count: int, env: Mapping[str, str]
) -> Expected:
    if re.search(r"\bGB\d00\b", model.name):
        return Expected(
            None, f"NVLink may join {model.name} of several nodes, for which there is no figure"
        )
    lanes = max(
        len(one.up) + len(one.down) for one in links
    )  # one that is down is not what is normal
    if model.capability not in NVLINK or not lanes:
        return Expected(None, f"nothing is published about the NVLink of {model.name}")
    if count > 2 and not all(one.switched or len(one.peers) > 1 for one in links):
        return Expected(
            None,
            f"NVLink joins only pairs of GPUs on {node.name}, and PCIe between them has no figure",
        )
    return _nvlink(model.capability, lanes, count, all(one.switched for one in links), env)


def _nvlink(
    capability: str, lanes: int, count: int, switched: bool, env: Mapping[str, str]
) -> Expected:
    wire = lanes * NVLINK[capability]
    words = f"{lanes} NVLinks of {NVLINK[capability]:g} GB/s"
    ring = Expected(RING * wire, f"{words} in a ring")
    share = IN_SWITCH.get((capability, lanes), 0.0)
    if not switched or env.get("NCCL_NVLS_ENABLE") == "0" or not share:
        return ring
    added = Expected(
        share * wire * 2 * (count - 1) / count, f"{words}, added up in the switch (NVLS)"
    )
    return _best([ring, added])


def _alike(readings: Any, node: Node) -> list[Any] | Absent:
    """The readings of the GPUs in use, or why one of them is missing."""
    if isinstance(readings, Absent):
        return readings
    use = node.gpus.use if node.gpus else None
    mine = [value for index, value in readings.items() if use is None or index in use]
    return next(
        (value for value in mine if isinstance(value, Absent)),
        mine or Absent("no GPU in use answers"),
    )


# ---------------------------------------------------------------- between nodes


def _outside(fleet: Fleet, node: Node, count: int, env: Mapping[str, str]) -> Expected:
    net = env.get("NCCL_NET", "").lower()
    if net not in {"", "ib", "socket"}:
        return Expected(
            None, f"NCCL_NET={env['NCCL_NET']} is a plug-in, for which there is no figure"
        )
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        return Expected(None, f"the network cards of {node.name} are not known: {training.reason}")
    if net == "socket" or env.get("NCCL_IB_DISABLE") == "1" or not training.rails:
        return _sockets(fleet, node, env)
    return _cards(fleet, node, training.rails, count)


def _cards(fleet: Fleet, node: Node, rails: Sequence[RdmaRail], count: int) -> Expected:
    tree = fleet.fact(node.name, "pci.tree")
    rates = []
    for rail in rails:
        if rail.port.rate is None:
            return Expected(None, f"{rail.name} of {node.name} does not say its rate")
        place = tree.device(rail.device.pci)
        rates.append(min(rail.port.rate / 8, _pcie(place.link if place else None)))
    best = max(rates)  # a card that came up slow is not what is normal
    bus = count * max((_pcie(gpu.link) for gpu in tree.gpus), default=float("inf"))
    if bus < best * len(rates):
        return Expected(NETWORK * bus, f"PCIe of {count} GPUs per node")
    return Expected(
        NETWORK * best * len(rates), f"{len(rates)} RDMA ports of {best * 8:g} Gbit/s per node"
    )


def _pcie(link: PciLink | None) -> float:
    """GB/s of a slot in one direction as it is built; no limit where nothing is told, as in a virtual machine."""
    if link is None or link.max_width is None or link.max_speed not in LANES:
        return float("inf")
    return link.max_width * LANES[link.max_speed]


def _sockets(fleet: Fleet, node: Node, env: Mapping[str, str]) -> Expected:
    pick = choose(fleet).picks.get(node.name)
    interfaces = fleet.fact(node.name, "net.interfaces")
    known = () if isinstance(interfaces, Absent) else interfaces
    mine = next((one for one in known if pick and one.name == pick.name), None)
    if mine is None or mine.speed is None:
        return Expected(None, f"the speed of the interface of {node.name} is not known")
    if mine.speed > FASTEST_SOCKETS or env.get("NCCL_NET_PLUGIN"):
        return Expected(
            None, f"what sockets reach on {mine.name} ({mine.speed // 1000} Gbit/s) has no figure"
        )
    return Expected(
        SOCKETS * mine.speed / 8000, f"TCP on an interface of {mine.speed / 1000:g} Gbit/s"
    )
