"""Compare what NCCL logged of its connections with what was written: nccl.transport. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.evidence import last_words, quote
from clusterprep.jobs.verify.nccl_log import (
    MULTI_NODE_NVLINK,
    SOCKET,
    Hop,
    TransportDevice,
    Wiring,
    parse,
)
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding
from clusterprep.model.nodeset import fold, fold_numbers
from clusterprep.nccl.interfaces import VARIABLE, list_admits
from clusterprep.nccl.lint.values import nccl_integer

NAME = "nccl.transport"
HCA = "NCCL_IB_HCA"
WANTED = "transports as written"
REMEDY = PAGES[NAME].remedy

Wirings = Mapping[int, Wiring]  # by rank


class Flaw(Struct, frozen=True):
    """What is not as written on one rank; equal flaws of several nodes are one finding."""

    cause: str  # follows the ranks and nodes in the message
    seen: str
    wanted: str
    exact: bool = False  # names a pair of ranks

    @property
    def is_about_sockets(self) -> bool:
        return self.seen.startswith(f"NET/{SOCKET}")


def transport_findings(timeline: Timeline) -> Iterable[Finding]:
    """Fail nodes whose ranks connect otherwise than was written, pass those known to do as written.

    A trial over gloo says nothing of NCCL: only nodes that require this check get a finding then.
    For nodes that require it, the finding is an error.
    """
    requiring = {node.name for node in timeline.plan.nodes if NAME in node.require}
    if timeline.plan.backend == "nccl":
        findings = _findings(timeline)
    else:
        findings = _findings_over_gloo(timeline, requiring)
    for finding in findings:
        errors: list[str] = []
        warnings: list[str] = []
        for name in finding.nodes:
            names = errors if name in requiring else warnings
            names.append(name)
        if errors:
            yield replace(finding, nodes=tuple(errors), severity="error")
        if warnings:
            yield replace(finding, nodes=tuple(warnings))


def _findings_over_gloo(timeline: Timeline, requiring: set[str]) -> Iterable[Finding]:
    nodes = timeline.sorted_nodes(requiring)
    message = f"the ranks met over {timeline.plan.backend}, so NCCL connected nothing"
    yield Finding(
        check=NAME,
        verdict="skip",
        severity="warning",
        nodes=nodes,
        message=message,
        reason="not_applicable",
    )


def _findings(timeline: Timeline) -> Iterable[Finding]:
    wirings = wirings_of(timeline)
    flaws = _flaws_by_rank(timeline, wirings)
    victims = _victims(flaws, wirings)
    for rank in victims:
        flaws[rank] = [flaw for flaw in flaws[rank] if not flaw.is_about_sockets]
    yield from _failures(timeline, flaws)
    failed: set[str] = set()
    for rank, found in flaws.items():
        if found:
            failed.add(timeline.rank(rank).node)
    unknown: dict[int, str] = {}
    for planned in timeline.plan.ranks:
        rank = planned.rank
        if planned.node in failed:
            continue
        gap = _gap(timeline, rank, wirings.get(rank))
        if rank in victims:
            gap = "it uses sockets because of nodes without RDMA"
        if gap:
            unknown[rank] = gap
    yield from _unknown(timeline, unknown)
    troubled = failed.union(timeline.nodes_of(unknown))
    good = tuple(name for name in timeline.node_names() if name not in troubled)
    if good:
        yield _passed(timeline, good, wirings)


def _flaws_by_rank(timeline: Timeline, wirings: Wirings) -> dict[int, list[Flaw]]:
    flaws: dict[int, list[Flaw]] = {}
    for rank, wiring in wirings.items():
        of_rank = _flaws(timeline, rank, wiring)
        flaws[rank] = of_rank
    for rank, flaw in _other_networks(timeline, wirings).items():
        if not flaws[rank]:
            flaws[rank].append(flaw)
    return flaws


def _other_networks(timeline: Timeline, wirings: Wirings) -> dict[int, Flaw]:
    """Return the ranks whose network is not that of most ranks; all of them without a majority.

    Such ranks cannot connect: one end speaks TCP and the other RDMA.
    """
    if len(timeline.plan.nodes) < 2:
        return {}
    ranks_by_network: dict[str, list[int]] = {}
    for rank, wiring in wirings.items():
        if wiring.network is not None:
            ranks_by_network.setdefault(wiring.network, []).append(rank)
    if len(ranks_by_network) < 2:
        return {}
    total = sum(map(len, ranks_by_network.values()))
    flaws: dict[int, Flaw] = {}
    for network, ranks in ranks_by_network.items():
        if 2 * len(ranks) > total:
            continue
        others = " and ".join(f"NET/{other}" for other in ranks_by_network if other != network)
        cause = f"they use NET/{network} where others use {others}, and cannot connect to these"
        for rank in ranks:
            flaws[rank] = Flaw(cause, f"NET/{network}", "one network on all ranks")
    return flaws


def wirings_of(timeline: Timeline) -> Wirings:
    """Return what each rank's NCCL logged of its connections; a rank that said nothing has none."""
    wirings: dict[int, Wiring] = {}
    for rank, event in timeline.ranks_with("nccl").items():
        lines = event.data.get("lines")
        cut = event.data.get("cut")
        if not isinstance(lines, list):
            lines = []
        if not isinstance(cut, int):
            cut = 0
        wirings[rank] = parse(rank, lines, cut)
    return wirings


# ---------------------------------------------------------------- what was written


def _rdma_written(env: Mapping[str, str]) -> str:
    """Return the variable that asks for RDMA between nodes; empty if none does or it is off."""
    net = env.get("NCCL_NET", "")
    disabled = nccl_integer(env.get("NCCL_IB_DISABLE", ""))
    if disabled is not None and disabled.value:
        return ""
    if net.lower() == SOCKET.lower():
        return ""
    for name in (HCA, "NCCL_NET"):
        if env.get(name):
            return f"{name}={env[name]}"
    return ""


def _interface_written(env: Mapping[str, str]) -> str:
    """Return the list of interfaces; empty if there is none that NCCL looks at.

    NCCL takes a value of one character for none, and NCCL_COMM_ID goes before.
    """
    value = env.get(VARIABLE, "")
    if len(value) < 2 or env.get("NCCL_COMM_ID"):
        return ""
    return value


# ---------------------------------------------------------------- what differs


def _flaws(timeline: Timeline, rank: int, wiring: Wiring) -> list[Flaw]:
    env = timeline.rank(rank).env
    overridden = _overridden(env, wiring)
    sockets = _sockets(timeline, env, wiring)
    interface = _other_interface(env, wiring)
    devices = _other_devices(env, wiring)
    flaws = (overridden, sockets, interface, devices)
    return [flaw for flaw in flaws if flaw is not None]


def _overridden(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """Find variables that were set after the agent.

    A wrapper, a start-up file of Python or a plug-in may do that.
    """
    for name in (VARIABLE, HCA):
        written = env.get(name)
        read = wiring.read.get(name)
        if not written or read is None:
            continue
        if read != " ".join(written.split()):
            seen = f"{name}={read}"
            cause = f"NCCL read {seen}, so something sets it after the rank was started"
            return Flaw(cause, seen, f"{name}={written}")
    return None


def _sockets(timeline: Timeline, env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """Find TCP between nodes if RDMA was written."""
    written = _rdma_written(env)
    if not written or len(timeline.plan.nodes) < 2:
        return None
    between = hops_between_nodes(timeline, wiring)
    over_sockets = [hop for hop in between if hop.network == SOCKET]
    # NCCL names a network also where NVLink joins all nodes and the network carries nothing.
    uses_nvlink = any(hop.way == MULTI_NODE_NVLINK for hop in _known_hops(timeline, wiring))
    if not over_sockets and (between or uses_nvlink or wiring.network != SOCKET):
        return None
    where = ""
    if over_sockets:
        hop = over_sockets[0]
        source = f"rank {hop.source} on {timeline.rank(hop.source).node}"
        target = f"rank {hop.target} on {timeline.rank(hop.target).node}"
        where = f" ({source} to {target})"
    cause = f"sockets carry the data between nodes{where}, though {written} was written"
    if wiring.why:
        cause += f"; NCCL says {quote(wiring.why)}"
    seen = f"NET/{SOCKET} between nodes"
    return Flaw(cause, seen, "RDMA between nodes", exact=bool(over_sockets))


def hops_between_nodes(timeline: Timeline, wiring: Wiring) -> list[Hop]:
    """Return hops between different nodes: over a network, or over NVLink that joins nodes."""
    hops: list[Hop] = []
    for hop in _known_hops(timeline, wiring):
        crosses = hop.network is not None or hop.way == MULTI_NODE_NVLINK
        if crosses and not _is_within_node(timeline, hop):
            hops.append(hop)
    return hops


def _known_hops(timeline: Timeline, wiring: Wiring) -> Iterable[Hop]:
    """Yield hops between ranks of the trial; others are not believed."""
    for hop in wiring.hops:
        if max(hop.source, hop.target) < timeline.plan.world_size:
            yield hop


def _is_within_node(timeline: Timeline, hop: Hop) -> bool:
    source = timeline.rank(hop.source)
    target = timeline.rank(hop.target)
    return source.node == target.node


def _other_interface(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    written = _interface_written(env)
    interface = wiring.interface
    if not written or interface is None or list_admits(written, interface):
        return None
    place = f"{interface} {wiring.address}"
    cause = f"NCCL meets the others through {place}, which was not written"
    return Flaw(cause, interface, f"{VARIABLE}={written}")


def _other_devices(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """Find devices of NCCL that the written list leaves out, and items of it without a device."""
    if not wiring.devices or not wiring.whole or not _uses_device_list(env, wiring):
        return None
    written = env.get(HCA, "")
    used: list[str] = []
    foreign: list[str] = []
    for device in wiring.devices:
        name = f"{device.name}:{device.port}"
        used.append(name)
        if not list_admits(written, device.name, device.port):
            foreign.append(name)
    differences: list[str] = []
    missing = _items_without_device(written, wiring.devices)
    if missing:
        differences.append(f"none for {', '.join(missing)}")
    if foreign:
        differences.append(f"{', '.join(foreign)}, not written")
    if not differences:
        return None
    cause = f"NCCL's RDMA devices are not those written: {'; '.join(differences)}"
    return Flaw(cause, ", ".join(used), f"{HCA}={written}")


def _items_without_device(written: str, devices: Sequence[TransportDevice]) -> list[str]:
    """Return the items of a list that match none of the devices.

    A list that leaves devices out (`^`) asks for none.
    """
    if written.startswith("^"):
        return []
    prefix = "=" if written.startswith("=") else ""
    missing: list[str] = []
    items = filter(None, written.removeprefix("=").split(","))
    for item in items:
        value = prefix + item
        is_matched = any(list_admits(value, device.name, device.port) for device in devices)
        if not is_matched:
            missing.append(item)
    return missing


def _uses_device_list(env: Mapping[str, str], wiring: Wiring) -> bool:
    """Whether NCCL's IB, or a plug-in made of it, uses the devices that were written."""
    if not env.get(HCA) or not _rdma_written(env):
        return False
    network = wiring.network
    for hop in wiring.hops:
        network = network or hop.network
    return network is not None and network.startswith("IB")


def _victims(flaws: Mapping[int, Sequence[Flaw]], wirings: Wirings) -> set[int]:
    """Return ranks with devices that use sockets only because other ranks have no devices."""
    with_devices: set[int] = set()
    without_devices: set[int] = set()
    for rank, found in flaws.items():
        if not any(flaw.is_about_sockets for flaw in found):
            continue
        if wirings[rank].devices:
            with_devices.add(rank)
        else:
            without_devices.add(rank)
    if without_devices:
        return with_devices
    return set()


# ---------------------------------------------------------------- findings


def _failures(timeline: Timeline, flaws: Mapping[int, Sequence[Flaw]]) -> Iterable[Finding]:
    groups: dict[tuple[str, str], dict[int, Flaw]] = {}
    for rank, found in sorted(flaws.items()):
        for flaw in found:
            same = groups.setdefault((flaw.seen, flaw.wanted), {})
            same[rank] = flaw
    for (seen, wanted), same in groups.items():
        shown = _most_exact(same.values())
        nodes = timeline.nodes_of(same)
        ranks = _ranks_words(timeline, same)
        message = f"{ranks}: {shown.cause}"
        yield Finding(
            check=NAME,
            verdict="fail",
            severity="warning",
            nodes=nodes,
            message=message,
            seen=seen,
            wanted=wanted,
            remedy=REMEDY,
        )


def _most_exact(flaws: Iterable[Flaw]) -> Flaw:
    """Return the first flaw that names a pair of ranks, else the first one."""
    ordered = list(flaws)
    for flaw in ordered:
        if flaw.exact:
            return flaw
    return ordered[0]


def _gap(timeline: Timeline, rank: int, wiring: Wiring | None) -> str:
    """Return why a rank cannot be passed; empty if all is known that was written."""
    env = timeline.rank(rank).env
    if wiring is None:
        return "NCCL said nothing of its connections"
    if wiring.cut:
        return "NCCL said more of its connections than is kept"
    if wiring.network is None and not hops_between_nodes(timeline, wiring):
        return "NCCL did not come to say how it connects"
    if _interface_written(env) and wiring.interface is None:
        return "NCCL did not say which interface it uses"
    has_devices = wiring.devices and wiring.whole
    if not has_devices and _uses_device_list(env, wiring):
        return "NCCL did not list its RDMA devices to the end"
    return ""


def _unknown(timeline: Timeline, gaps: Mapping[int, str]) -> Iterable[Finding]:
    ranks_by_gap: dict[str, list[int]] = {}
    for rank, gap in gaps.items():
        same = ranks_by_gap.setdefault(gap, [])
        same.append(rank)
    for gap, ranks in ranks_by_gap.items():
        first = ranks[0]
        last = last_words(timeline, first)
        who = _ranks_words(timeline, ranks)
        message = f"{who}: {gap}; rank {first} was {last}"
        nodes = timeline.nodes_of(ranks)
        yield Finding(
            check=NAME,
            verdict="unknown",
            severity="warning",
            nodes=nodes,
            message=message,
            wanted=WANTED,
            reason=gap,
        )


def _unsaid_words(timeline: Timeline) -> str:
    """Return why nothing is said of connections within the only node."""
    if len(timeline.plan.ranks) == 1:
        return "one rank has no other rank to reach"
    return "there is one node, and NCCL logged no connection within it"


def _passed(timeline: Timeline, nodes: tuple[str, ...], wirings: Wirings) -> Finding:
    used: list[Wiring] = []
    rdma_written = False
    for rank in timeline.plan.ranks:
        if rank.node not in nodes:
            continue
        used.append(wirings[rank.rank])
        if _rdma_written(rank.env):
            rdma_written = True
    inside = _within_nodes_words(timeline, used)
    if len(timeline.plan.nodes) < 2:
        message = inside or _unsaid_words(timeline)
        return Finding(
            check=NAME,
            verdict="pass",
            severity="warning",
            nodes=nodes,
            message=message,
            seen=inside,
            wanted=WANTED,
        )
    between: dict[Hop, None] = {}  # in order, each once
    for wiring in used:
        hops = hops_between_nodes(timeline, wiring)
        between.update(dict.fromkeys(hops))
    ways = [hop.way for hop in between]
    if not ways:
        # A rank whose neighbours are all on its own node has no connection between nodes, and names
        # the network.
        ways = [f"NET/{wiring.network}" for wiring in used]
    seen = _joined_ways(ways)
    parts = [f"{seen} between nodes", _gpudirect_words(between), inside]
    if not rdma_written:
        parts.append("RDMA was not written")
    message = "; ".join(filter(None, parts))
    return Finding(
        check=NAME,
        verdict="pass",
        severity="warning",
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=WANTED,
    )


def _gpudirect_words(hops: Iterable[Hop]) -> str:
    """Return how many connections bypass the host's memory.

    Whether they can depends on cards and drivers, so it is told and not judged.
    """
    able = [hop for hop in hops if hop.network not in (None, SOCKET)]
    if not able:
        return ""
    direct = sum(hop.direct for hop in able)
    return f"GPUDirect RDMA on {direct} of {len(able)} connections"


def _within_nodes_words(timeline: Timeline, wirings: Sequence[Wiring]) -> str:
    """Return how ranks of one node reach each other, and NVLink SHARP if it is available."""
    ways: set[str] = set()
    for wiring in wirings:
        for hop in _known_hops(timeline, wiring):
            if _is_within_node(timeline, hop):
                ways.add(hop.way)
    parts: list[str] = []
    if ways:
        parts.append(f"{_joined_ways(ways)} within nodes")
    refusals = [wiring.nvls_refusal for wiring in wirings if wiring.nvls_refusal]
    if refusals:
        parts.append(f"without NVLS: NCCL says {quote(refusals[0])}")
    elif wirings and all(wiring.nvls and wiring.nvls_channels != 0 for wiring in wirings):
        parts.append("NVLS available")
    return ", ".join(parts)


def _joined_ways(ways: Iterable[str]) -> str:
    different = sorted(set(ways))
    return " and ".join(different)


def _ranks_words(timeline: Timeline, ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    nodes = timeline.nodes_of(numbers)
    return f"rank {fold_numbers(numbers)} on {fold(nodes)}"
