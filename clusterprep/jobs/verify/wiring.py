"""What NCCL said of its connections against what was written: the finding nccl.transport. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.evidence import last_words, quote
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.transports import SOCKET, Hop, TransportDevice, Wiring, parse
from clusterprep.model import Finding
from clusterprep.model.nodeset import fold
from clusterprep.nccl.interfaces import VARIABLE, admits
from clusterprep.nccl.lint.values import nccl_integer
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = "nccl.transport"
HCA = "NCCL_IB_HCA"
WANTED = "transports as written"
REMEDY = PAGES[NAME].remedy


@dataclass(frozen=True)
class Flaw:
    """What is not as written on one rank; equal ones of several nodes are one finding."""

    cause: str  # follows the ranks and nodes in the message
    seen: str
    wanted: str
    exact: bool = False  # names a pair of ranks


def transport(timeline: Timeline) -> Iterable[Finding]:
    """Failed by nodes whose ranks connect otherwise than was written, passed by those that are known to do as written.

    A trial over gloo says nothing of NCCL, as one without a declared min_busbw says nothing of its speed, but to nodes
    that require this check. What a node requires is an error there.
    """
    requiring = {node.name for node in timeline.plan.nodes if NAME in node.require}
    for finding in (
        _judged(timeline) if timeline.plan.backend == "nccl" else _over_gloo(timeline, requiring)
    ):
        grave = tuple(name for name in finding.nodes if name in requiring)
        if grave:
            yield replace(finding, nodes=grave, severity="error")
        if others := tuple(name for name in finding.nodes if name not in requiring):
            yield replace(finding, nodes=others)


def _over_gloo(timeline: Timeline, requiring: set[str]) -> Iterable[Finding]:
    nodes = tuple(node.name for node in timeline.plan.nodes if node.name in requiring)
    message = f"the ranks met over {timeline.plan.backend}, so NCCL connected nothing"
    yield Finding(NAME, "skip", "warning", nodes, message, reason="not_applicable")


def _judged(timeline: Timeline) -> Iterable[Finding]:
    said = _said(timeline)
    flaws = {rank: _flaws(timeline, rank, wiring) for rank, wiring in said.items()}
    theirs = _victims(flaws, said)
    blamed = {
        rank: tuple(flaw for flaw in found if not (rank in theirs and _socket(flaw)))
        for rank, found in flaws.items()
    }
    yield from _failures(timeline, blamed)
    failed = {timeline.rank(rank).node for rank, found in blamed.items() if found}
    gaps = {
        rank.rank: _gap(timeline, rank.rank, said.get(rank.rank)) for rank in timeline.plan.ranks
    }
    gaps |= dict.fromkeys(theirs, "it uses sockets because of nodes without RDMA")
    silent = {
        rank: gap for rank, gap in gaps.items() if gap and timeline.rank(rank).node not in failed
    }
    yield from _unknown(timeline, silent)
    troubled = failed | {timeline.rank(rank).node for rank in silent}
    good = tuple(node.name for node in timeline.plan.nodes if node.name not in troubled)
    if good:
        yield _passed(timeline, good, said)


def _said(timeline: Timeline) -> dict[int, Wiring]:
    found = {}
    for rank, event in timeline.ranks_with("nccl").items():
        lines, cut = event.data.get("lines"), event.data.get("cut")
        found[rank] = parse(
            rank, lines if isinstance(lines, list) else (), cut if isinstance(cut, int) else 0
        )
    return found


# ---------------------------------------------------------------- what was written


def _rdma_written(env: Mapping[str, str]) -> str:
    """The variable that asks for RDMA between nodes; empty where none does, or another one forbids it."""
    net = env.get("NCCL_NET", "")
    disabled = nccl_integer(env.get("NCCL_IB_DISABLE", ""))
    if (disabled is not None and disabled.value) or net.lower() == SOCKET.lower():
        return ""
    return next((f"{name}={env[name]}" for name in (HCA, "NCCL_NET") if env.get(name)), "")


def _interface_written(env: Mapping[str, str]) -> str:
    """Empty where nothing is, or where NCCL does not look at it: one letter is none, NCCL_COMM_ID goes before."""
    value = env.get(VARIABLE, "")
    return value if len(value) > 1 and not env.get("NCCL_COMM_ID") else ""


# ---------------------------------------------------------------- what differs


def _flaws(timeline: Timeline, rank: int, wiring: Wiring) -> tuple[Flaw, ...]:
    env = timeline.rank(rank).env
    found = (
        _overridden(env, wiring),
        _sockets(timeline, rank, env, wiring),
        _other_interface(env, wiring),
    )
    return tuple(flaw for flaw in (*found, _other_devices(env, wiring)) if flaw is not None)


def _overridden(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """Between the agent and NCCL somebody else sets variables: a wrapper, a start-up file of Python, a plug-in."""
    for name in (VARIABLE, HCA):
        if (
            env.get(name)
            and name in wiring.read
            and wiring.read[name] != " ".join(env[name].split())
        ):
            seen = f"{name}={wiring.read[name]}"
            cause = f"NCCL read {seen}, so something sets it after the rank was started"
            return Flaw(cause, seen, f"{name}={env[name]}")
    return None


def _sockets(timeline: Timeline, rank: int, env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """TCP between nodes where RDMA was written."""
    written, between = _rdma_written(env), _between(timeline, wiring)
    hop = next((hop for hop in between if hop.network == SOCKET), None)
    slow = hop is not None or (not between and wiring.network == SOCKET)
    if not written or not slow or len(timeline.plan.nodes) < 2:
        return None
    where = ""
    if hop:
        ends = [f"rank {end} on {timeline.rank(end).node}" for end in (hop.source, hop.target)]
        where = f" ({ends[0]} to {ends[1]})"
    why = f"; NCCL says {quote(wiring.why)}" if wiring.why else ""
    cause = f"sockets carry the data between nodes{where}, though {written} was written{why}"
    return Flaw(cause, f"NET/{SOCKET} between nodes", "RDMA between nodes", bool(hop))


def _between(timeline: Timeline, wiring: Wiring) -> tuple[Hop, ...]:
    """Hops over a network between different nodes."""
    world = timeline.plan.world_size
    return tuple(
        hop
        for hop in wiring.hops
        if hop.network and max(hop.source, hop.target) < world and not _same_node(timeline, hop)
    )


def _same_node(timeline: Timeline, hop: Hop) -> bool:
    return timeline.rank(hop.source).node == timeline.rank(hop.target).node


def _other_interface(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    written = _interface_written(env)
    if not written or wiring.interface is None or admits(written, wiring.interface):
        return None
    cause = (
        f"NCCL meets the others through {wiring.interface} {wiring.address}, which was not written"
    )
    return Flaw(cause, wiring.interface, f"{VARIABLE}={written}")


def _other_devices(env: Mapping[str, str], wiring: Wiring) -> Flaw | None:
    """Devices that NCCL lists and no list lets in, and items of the list that none of NCCL's devices answers to."""
    written = env.get(HCA, "")
    if not _lists(env, wiring) or not wiring.devices or not wiring.whole:
        return None
    missing = _missing(written, wiring.devices)
    foreign = [f"{d.name}:{d.port}" for d in wiring.devices if not admits(written, d.name, d.port)]
    if not missing and not foreign:
        return None
    words = [f"none for {', '.join(missing)}"] if missing else []
    words += [f"{', '.join(foreign)}, not written"] if foreign else []
    seen = ", ".join(f"{device.name}:{device.port}" for device in wiring.devices)
    return Flaw(
        f"NCCL's RDMA devices are not those written: {'; '.join(words)}", seen, f"{HCA}={written}"
    )


def _missing(written: str, devices: Sequence[TransportDevice]) -> list[str]:
    """The items that none of the devices answers to; a list that leaves devices out asks for none."""
    if written.startswith("^"):
        return []
    exact = "=" if written.startswith("=") else ""
    items = filter(None, written.removeprefix("=").split(","))
    return [
        item for item in items if not any(admits(exact + item, d.name, d.port) for d in devices)
    ]


def _lists(env: Mapping[str, str], wiring: Wiring) -> bool:
    """Whether NCCL's IB, or a plug-in made of it, uses the devices that were written."""
    network = (
        wiring.network or next((hop.network for hop in wiring.hops if hop.network), None) or ""
    )
    return bool(env.get(HCA) and _rdma_written(env)) and network.startswith("IB")


def _victims(flaws: Mapping[int, tuple[Flaw, ...]], said: Mapping[int, Wiring]) -> set[int]:
    """Ranks with devices that use sockets all the same, where others have none: then it is the others' fault."""
    on_sockets = {rank for rank, found in flaws.items() if any(map(_socket, found))}
    having = {rank for rank in on_sockets if said[rank].devices}
    return having if on_sockets - having else set()


def _socket(flaw: Flaw) -> bool:
    return flaw.seen.startswith(f"NET/{SOCKET}")


# ---------------------------------------------------------------- findings


def _failures(timeline: Timeline, flaws: Mapping[int, Sequence[Flaw]]) -> Iterable[Finding]:
    groups: dict[tuple[str, str], list[tuple[int, Flaw]]] = {}
    for rank, found in sorted(flaws.items()):
        for flaw in found:
            groups.setdefault((flaw.seen, flaw.wanted), []).append((rank, flaw))
    for (seen, wanted), same in groups.items():
        ranks = [rank for rank, _ in same]
        flaw = next((flaw for _, flaw in same if flaw.exact), same[0][1])
        message = f"{_who(timeline, ranks)}: {flaw.cause}"
        yield Finding(
            NAME, "fail", "warning", _nodes(timeline, ranks), message, seen, wanted, REMEDY
        )


def _gap(timeline: Timeline, rank: int, wiring: Wiring | None) -> str:
    """Why a rank cannot be passed; empty where all is known that was written."""
    env = timeline.rank(rank).env
    if wiring is None:
        return "NCCL said nothing of its connections"
    if wiring.cut:
        return "NCCL said more of its connections than is kept"
    if wiring.network is None and not _between(timeline, wiring):
        return "NCCL did not come to say how it connects"
    if _interface_written(env) and wiring.interface is None:
        return "NCCL did not say which interface it uses"
    if _lists(env, wiring) and not (wiring.devices and wiring.whole):
        return "NCCL did not list its RDMA devices to the end"
    return ""


def _unknown(timeline: Timeline, gaps: Mapping[int, str]) -> Iterable[Finding]:
    for gap in dict.fromkeys(gaps.values()):
        ranks = [rank for rank, other in gaps.items() if other == gap]
        message = (
            f"{_who(timeline, ranks)}: {gap}; rank {ranks[0]} was {last_words(timeline, ranks[0])}"
        )
        yield Finding(
            NAME, "unknown", "warning", _nodes(timeline, ranks), message, "", WANTED, reason=gap
        )


def _passed(timeline: Timeline, nodes: tuple[str, ...], said: Mapping[int, Wiring]) -> Finding:
    ranks = [rank for rank in timeline.plan.ranks if rank.node in nodes]
    wirings = [said[rank.rank] for rank in ranks]
    inside = _within(timeline, wirings)
    if len(timeline.plan.nodes) < 2:
        return Finding(
            NAME, "pass", "warning", nodes, inside or "one rank has nobody to reach", inside, WANTED
        )
    between = list(dict.fromkeys(hop for wiring in wirings for hop in _between(timeline, wiring)))
    # A rank whose neighbours are all on its own node has no connection between nodes, and names the network.
    seen = _ways([hop.way for hop in between] or [f"NET/{wiring.network}" for wiring in wirings])
    words = [f"{seen} between nodes", _direct(between), inside]
    if not any(_rdma_written(rank.env) for rank in ranks):
        words.append("RDMA was not written")
    return Finding(NAME, "pass", "warning", nodes, "; ".join(filter(None, words)), seen, WANTED)


def _direct(hops: Sequence[Hop]) -> str:
    """How many connections go past the host's memory; what can is a matter of cards and drivers, and fails nobody."""
    able = [hop for hop in hops if hop.network != SOCKET]
    share = sum(hop.direct for hop in able)
    return f"GPUDirect RDMA on {share} of {len(able)} connections" if able else ""


def _within(timeline: Timeline, wirings: Sequence[Wiring]) -> str:
    """How ranks of one node reach each other, and NVLink SHARP where it can be had."""
    world = timeline.plan.world_size
    hops = (hop for wiring in wirings for hop in wiring.hops if max(hop.source, hop.target) < world)
    ways = _ways(hop.way for hop in hops if _same_node(timeline, hop))
    nvls = "NVLS available" if wirings and all(wiring.nvls for wiring in wirings) else ""
    return ", ".join(filter(None, [f"{ways} within nodes" if ways else "", nvls]))


def _ways(ways: Iterable[str]) -> str:
    return " and ".join(sorted(set(ways)))


def _who(timeline: Timeline, ranks: Sequence[int]) -> str:
    return f"rank {fold(map(str, ranks))} on {fold(_nodes(timeline, ranks))}"


def _nodes(timeline: Timeline, ranks: Iterable[int]) -> tuple[str, ...]:
    names = {timeline.rank(rank).node for rank in ranks}
    return tuple(node.name for node in timeline.plan.nodes if node.name in names)
