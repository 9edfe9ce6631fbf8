"""The bus bandwidth that an all-reduce of large messages should reach on this hardware. Pure.

The slowest part decides: NVLink inside the nodes, network cards between them, or sockets. Every
efficiency below was published for machines like these. Hardware without a published figure stays
unknown, as a guessed threshold would accuse healthy machines. The figures are GB/s as nccl-tests
defines bus bandwidth, and hold from 1 GiB on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts.gpu import Model, Nvml
from clusterprep.facts.nvlink import NvLinks
from clusterprep.facts.nvlink_domain import Domain
from clusterprep.facts.pci import PciLink
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.colocation import largest_group
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.rails import RdmaRail, kind_of, training_sets

FACTS = (
    "gpu.nvml",
    "gpu.model",
    "nvlink.links",
    "nvlink.domain",
    "pci.tree",
    "rdma.devices",
    "net.interfaces",
)
"""Names of the facts that the model looks at."""

VALID_FROM = 1 << 30  # bytes; smaller messages measure latency as well

# GB/s of one NVLink in one direction by compute capability: NVLink 2 to 5; the bridges of
# workstation cards run slower.
NVLINK = {"7.0": 25.0, "8.0": 25.0, "8.6": 14.0625, "9.0": 25.0, "10.0": 50.0, "10.3": 50.0}
# GPUs that NVLink may join to those of other nodes. They count as a ring: over 72 of them 681 GB/s
# were measured at 1 GiB and 839 at 4 GiB (coreweave/nccl-tests#43), on one tray 770.
RACK = re.compile(r"\bGB\d00\b")
RING = 0.79  # of the NVLinks of a GPU: 235 of 300 on A100, 367 of 450 on H200, 682 of 900 on B200
# Of the NVLinks of a GPU where the switch adds up, by capability and links, before 2(n-1)/n: 473 to
# 482 on H200 (0.60), 838 on B200 (0.53), eight GPUs each. Other numbers of links have no published
# figure and count as a ring.
IN_SWITCH = {("9.0", 18): 0.60, ("10.0", 18): 0.53}
# Of the sum of network cards: 46 to 48 GB/s for each at 400 Gbit/s; EFA and Slingshot do likewise.
NETWORK = 0.92
FASTEST_PORT = 400.0  # Gbit/s; nothing is published beyond
# A GB10's GPU is part of the processor, and two PCIe functions with as many lanes as they need
# together share each of its network ports: 12 GB/s over one function and 20 to 24 over both of a
# port of 200 Gbit/s (NVIDIA/dgx-spark-playbooks#25 and #103).
SHARED_PORTS = re.compile(r"\bGB10\b")
SOCKETS = 0.7  # of the interface: 2 to 2.5 GB/s at 25 Gbit/s, 6 to 10 at 100
FASTEST_SOCKETS = 100_000  # Mbit/s; beyond that threads and cores decide, and no figure is known
# GB/s of one PCIe lane by its GT/s.
LANES = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
# Variables that change how NCCL sends, which the model does not know.
FORCING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE")
UNLIMITED = float("inf")


class Expected(Struct, frozen=True):
    """The expected GB/s and what sets them; None and why it is not known."""

    gbs: float | None
    why: str


def _unknown(why: str) -> Expected:
    return Expected(None, why)


def _without_figure(what: str) -> Expected:
    return _unknown(f"{what}, for which there is no figure")


def expected(
    fleet: Fleet, ranks: Mapping[str, int], env: Mapping[str, Mapping[str, str]]
) -> Expected:
    """Return the expected bus bandwidth for a number of ranks per node and their environments.

    Of nodes of one kind the best counts, as a node that has lost a card is not what is normal; of
    the kinds the slowest counts.
    """
    nodes = [node for node in fleet.reached if ranks.get(node.name)]
    most_sharing = largest_group(nodes, ranks, env)
    if most_sharing > 1:
        return _unknown(f"{most_sharing} nodes share one GPU, whose ranks take turns")
    if not nodes:
        return _unknown("no node was reached")
    if _is_in_domain(fleet, nodes, env):
        whole = sum(ranks[node.name] for node in nodes)
        return _slowest(_inside(fleet, node, whole, env.get(node.name, {})) for node in nodes)
    alone = len(nodes) == 1
    kinds: dict[object, list[Expected]] = {}
    for node in nodes:
        count = ranks[node.name]
        node_env = env.get(node.name, {})
        of_node = _expected_of_node(
            fleet,
            node,
            count,
            node_env,
            alone=alone,
        )
        kind = (kind_of(fleet, node), count)
        same = kinds.setdefault(kind, [])
        same.append(of_node)
    best_of_kinds = map(_best, kinds.values())
    return _slowest(best_of_kinds)


def _is_in_domain(
    fleet: Fleet, nodes: Sequence[Node], env: Mapping[str, Mapping[str, str]]
) -> bool:
    """Return whether NVLink joins the GPUs of several nodes, and nothing keeps NCCL from it."""
    if len(nodes) < 2:
        return False
    domains: set[object] = set()
    for node in nodes:
        node_env = env.get(node.name, {})
        if any(node_env.get(name) for name in FORCING) or not _may_leave(node_env):
            return False
        readings = _readings_in_use(fleet.fact(node.name, "nvlink.domain"), node)
        if isinstance(readings, Absent):
            return False
        domains.update(readings)
    return len(domains) == 1 and all(isinstance(d, Domain) and d.cluster for d in domains)


def _may_leave(env: Mapping[str, str]) -> bool:
    """Return whether NCCL may use NVLink between nodes: src/mnnvl.cc wants cuMem too."""
    return env.get("NCCL_MNNVL_ENABLE") != "0" and env.get("NCCL_CUMEM_ENABLE") != "0"


def _best(values: Iterable[Expected]) -> Expected:
    """Return the largest known value, else an unknown one."""
    return max(values, key=_speed)


def _slowest(values: Iterable[Expected]) -> Expected:
    """Return the first unknown value, else the smallest one."""
    return min(values, key=_speed)


def _speed(value: Expected) -> float:
    if value.gbs is None:
        return -1.0
    return value.gbs


def _expected_of_node(
    fleet: Fleet, node: Node, count: int, env: Mapping[str, str], *, alone: bool
) -> Expected:
    for name in FORCING:
        if env.get(name):
            return _unknown(f"{name} is set, which the hardware model does not know")
    parts: list[Expected] = []
    if count > 1:
        parts.append(_inside(fleet, node, count, env))
    if not alone:
        parts.append(_between(fleet, node, count, env))
    if not parts:
        return _unknown("one rank alone sends nothing")
    return _slowest(parts)


# ---------------------------------------------------------------- inside a node


def expected_inside(fleet: Fleet, node: Node, count: int, env: Mapping[str, str]) -> Expected:
    """Return the expected bus bandwidth between `count` ranks of one node alone."""
    return _expected_of_node(
        fleet,
        node,
        count,
        env,
        alone=True,
    )


def _inside(fleet: Fleet, node: Node, count: int, env: Mapping[str, str]) -> Expected:
    name = node.name
    models = _readings_in_use(fleet.fact(name, "gpu.model"), node)
    if isinstance(models, Absent):
        return _unknown(f"the GPUs of {name} are not known: {models.reason}")
    links = _readings_in_use(fleet.fact(name, "nvlink.links"), node)
    if isinstance(links, Absent):
        if links.reason == "not_applicable":
            return _without_figure(f"the GPUs of {name} are joined by PCIe alone")
        return _unknown(f"the NVLinks of {name} are not known: {links.reason}")
    first = models[0]
    for model in models:
        if (model.name, model.capability) != (first.name, first.capability):
            return _unknown(f"{name} has GPUs of several models")
    return _nvlink_of_node(
        node,
        first,
        links,
        count,
        env,
    )


def _nvlink_of_node(
    node: Node, model: Model, links: Sequence[NvLinks], count: int, env: Mapping[str, str]
) -> Expected:
    per_gpu = 0
    switched = True
    only_pairs = False
    for gpu in links:
        # A link that is down is not what is normal.
        per_gpu = max(per_gpu, len(gpu.up) + len(gpu.down))
        if not gpu.switched or RACK.search(model.name):
            switched = False
            only_pairs = only_pairs or (not gpu.switched and len(gpu.peers) < 2)
    if not per_gpu or model.capability not in NVLINK:
        return _unknown(f"nothing is published about the NVLink of {model.name}")
    if only_pairs and count > 2:
        joined = f"NVLink joins only pairs of GPUs on {node.name}"
        return _unknown(f"{joined}, and PCIe between them has no figure")
    return _nvlink(
        model.capability,
        per_gpu,
        count,
        switched,
        env,
    )


def _nvlink(
    capability: str, links: int, count: int, switched: bool, env: Mapping[str, str]
) -> Expected:
    """Return what `links` NVLinks per GPU reach between `count` GPUs."""
    one = NVLINK[capability]
    wire = links * one
    what = f"{links} NVLinks of {one:g} GB/s"
    ring = Expected(RING * wire, f"{what} in a ring")
    share = IN_SWITCH.get((capability, links))
    if share is None or not switched:
        return ring
    if env.get("NCCL_NVLS_ENABLE") == "0":
        return ring
    speed = share * wire * 2 * (count - 1) / count
    in_switch = Expected(speed, f"{what}, added up in the switch (NVLS)")
    return _best((ring, in_switch))


def _readings_in_use(readings: Any, node: Node) -> list[Any] | Absent:
    """Return the readings of the GPUs in use, or why one of them is missing."""
    if isinstance(readings, Absent):
        return readings
    use = node.gpus.use if node.gpus else None
    in_use: list[Any] = []
    for index, reading in readings.items():
        if use is not None and index not in use:
            continue
        if isinstance(reading, Absent):
            return reading
        in_use.append(reading)
    return in_use or Absent("no GPU in use answers")


# ---------------------------------------------------------------- between nodes


def _between(fleet: Fleet, node: Node, count: int, env: Mapping[str, str]) -> Expected:
    net = env.get("NCCL_NET", "")
    kind = net.lower()
    if kind not in {"", "ib", "socket"}:
        return _without_figure(f"NCCL_NET={net} is a plug-in")
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        return _unknown(f"the network cards of {node.name} are not known: {training.reason}")
    if kind == "socket" or env.get("NCCL_IB_DISABLE") == "1":
        return _sockets(fleet, node, env)
    if not training.rails:
        return _sockets(fleet, node, env)
    return _rdma(fleet, node, training.rails, count, env)


def _rdma(
    fleet: Fleet, node: Node, rails: Sequence[RdmaRail], count: int, env: Mapping[str, str]
) -> Expected:
    for rail in rails:
        if rail.port.rate is not None and rail.port.rate > FASTEST_PORT:
            return _without_figure(f"RDMA ports of {rail.port.rate:g} Gbit/s")
    nvml = fleet.fact(node.name, "gpu.nvml")
    if isinstance(nvml, Nvml) and any(SHARED_PORTS.search(gpu.name) for gpu in nvml.gpus):
        return _shared_ports(fleet, node, rails)
    domains = _readings_in_use(fleet.fact(node.name, "nvlink.domain"), node)
    if not isinstance(domains, Absent) and domains[0].cluster and _may_leave(env):
        return _without_figure("several NVLink domains")
    return _cards(fleet, node, rails, count)


def _cards(fleet: Fleet, node: Node, rails: Sequence[RdmaRail], count: int) -> Expected:
    tree = fleet.fact(node.name, "pci.tree")
    best = 0.0  # a card that came up slow is not what is normal
    for rail in rails:
        if rail.port.rate is None:
            return _unknown(f"{rail.name} of {node.name} does not say its rate")
        rate = rail.port.rate / 8
        place = tree.device(rail.device.pci)
        if place:
            rate = min(rate, _pcie(place.link))
        best = max(best, rate)
    cards = best * len(rails)
    slots = [_pcie(gpu.link) for gpu in tree.gpus]
    gpus = count * max(slots, default=UNLIMITED)
    if gpus < cards:
        return Expected(NETWORK * gpus, f"PCIe of {count} GPUs per node")
    gbits = best * 8
    return Expected(NETWORK * cards, f"{len(rails)} RDMA ports of {gbits:g} Gbit/s per node")


def _shared_ports(fleet: Fleet, node: Node, rails: Sequence[RdmaRail]) -> Expected:
    """Return what cards reach whose ports have two PCIe functions, told by their last digit."""
    tree = fleet.fact(node.name, "pci.tree")
    slots: dict[str, float] = {}
    port_rate = 0.0
    for rail in rails:
        if rail.port.rate is None:
            return _unknown(f"{rail.name} of {node.name} does not say its rate")
        place = tree.device(rail.device.pci)
        function = (rail.device.pci or rail.name).rpartition(".")[2]
        slots[function] = slots.get(function, 0.0) + (_pcie(place.link) if place else UNLIMITED)
        port_rate = max(port_rate, rail.port.rate / 8)
    reached = sum(min(port_rate, slot) for slot in slots.values())
    gbits = port_rate * 8
    why = f"{len(slots)} ports of {gbits:g} Gbit/s per node over {len(rails)} PCIe functions"
    return Expected(NETWORK * reached, why)


def _pcie(link: PciLink | None) -> float:
    """Return GB/s of a slot in one direction as it is built.

    There is no limit if the slot says nothing, as in a virtual machine.
    """
    if link is None or link.max_width is None or link.max_speed not in LANES:
        return UNLIMITED
    return link.max_width * LANES[link.max_speed]


def _sockets(fleet: Fleet, node: Node, env: Mapping[str, str]) -> Expected:
    speed = None
    name = ""
    pick = choose(fleet).picks.get(node.name)
    interfaces = fleet.fact(node.name, "net.interfaces")
    if pick and not isinstance(interfaces, Absent):
        for interface in interfaces:
            if interface.name == pick.name:
                name, speed = interface.name, interface.speed
                break
    if speed is None:
        return _unknown(f"the speed of the interface of {node.name} is not known")
    if speed > FASTEST_SOCKETS or env.get("NCCL_NET_PLUGIN"):
        reached = f"what sockets reach on {name} ({speed // 1000} Gbit/s)"
        return _unknown(f"{reached} has no figure")
    return Expected(SOCKETS * speed / 8000, f"TCP on an interface of {speed / 1000:g} Gbit/s")
