"""Is the number normal? The bus bandwidth of the largest all-reduce against the first yardstick that there is. Pure.

What is declared goes before the hardware model, that before earlier runs of the same nodes, and those before peers.
gloo over sockets varies by a factor of three with what else the processors do (0.21 to 0.65 GB/s on one healthy machine
of two cores). So its earlier runs accuse only where a run stays under a fifth of the slowest of them, the same share by
which links are bad; under half nothing is proven, and it is skipped. The hardware model does not judge it at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field

from clusterprep.jobs.verify.expected import VALID_FROM, Expected
from clusterprep.jobs.verify.peers import scores, slower
from clusterprep.model import CollectiveResult, Finding, Severity, Verdict
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = "nccl.busbw_multi"
GRAVE, SLOW = (
    0.5,
    0.8,
)  # shares of what is normal: an error under the first, a warning under the second
GLOO_GRAVE, GLOO_SLOW = (
    0.2,
    0.5,
)  # of the slowest earlier run: an error under the first, not judged under the second
RUNS = 3  # earlier runs from which they say what is normal
SIZE = 1 << 20  # bytes; what is smaller measures latency, against whatever it is held
PEERS = (
    1 / 3
)  # of the median: half proves nothing on a busy machine, and a fifth is the links' own error
REMEDY = "compare links, clocks and the interfaces that NCCL chose (NCCL_DEBUG=INFO)"


@dataclass(frozen=True)
class Yardsticks:
    """What a speed can be held against: GB/s that are declared, expected, and of earlier runs; bytes/s per node."""

    declared: float | None = None
    model: Expected | None = None
    earlier: tuple[float, ...] = ()
    peers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Normal:
    """What is normal by a yardstick, in GB/s, and below which shares of it a run is grave or slow."""

    gbs: float
    words: str
    grave: float = GRAVE
    slow: float = SLOW
    noisy: bool = False  # between the two nothing is proven


def largest(rows: Sequence[CollectiveResult]) -> CollectiveResult | None:
    """The all-reduce that is judged, in float32."""
    wanted = [row for row in rows if (row.op, row.dtype) == ("all_reduce", "float32")]
    return max(wanted, key=lambda row: row.bytes, default=None)


def speed(row: CollectiveResult, nodes: tuple[str, ...], backend: str, yard: Yardsticks) -> Finding:
    """The finding about a trial whose collectives all finished."""
    if yard.declared is not None:
        return _by_declared(row, nodes, yard.declared)
    normal, why_not = _normal(row, backend, yard)
    if normal is not None:
        return _by(normal, row, nodes)
    return _by_peers(row, nodes, backend, yard, why_not)


def _said(row: CollectiveResult) -> str:
    return f"bus bandwidth of {row.op} at {format_size(row.bytes)} is {row.busbw_gbs:.3g} GB/s"


def _by_declared(row: CollectiveResult, nodes: tuple[str, ...], least: float) -> Finding:
    good = row.busbw_gbs >= least
    seen, remedy = f"{row.busbw_gbs:.3g} GB/s", "" if good else REMEDY
    return Finding(
        NAME,
        "pass" if good else "fail",
        "error",
        nodes,
        _said(row),
        seen,
        f"≥ {least:g} GB/s",
        remedy,
    )


def _normal(
    row: CollectiveResult, backend: str, yard: Yardsticks
) -> tuple[Normal | None, tuple[str, ...]]:
    """The first yardstick that there is, or why there is none of them."""
    model, why_not = yard.model, []
    if backend != "nccl":
        why_not.append(f"the hardware model does not judge {backend}")
    elif model is None or model.gbs is None:
        why_not.append(model.why if model else "the hardware was not looked at")
    elif row.bytes < VALID_FROM:
        why_not.append(
            f"the hardware model holds from {format_size(VALID_FROM)} on: set verify.sizes"
        )
    else:
        return Normal(model.gbs, f"the hardware model ({model.why})"), ()
    if row.bytes < SIZE:
        why_not.append(f"less than {format_size(SIZE)} measures latency")
    elif len(yard.earlier) < RUNS:
        why_not.append(f"{len(yard.earlier)} of {RUNS} earlier runs of these nodes are known")
    elif backend == "gloo":
        words = f"the slowest of {len(yard.earlier)} earlier runs of these nodes"
        return Normal(min(yard.earlier), words, GLOO_GRAVE, GLOO_SLOW, noisy=True), ()
    else:
        words = f"the median of {len(yard.earlier)} earlier runs of these nodes"
        return Normal(statistics.median(yard.earlier), words), ()
    return None, tuple(why_not)


def _by(normal: Normal, row: CollectiveResult, nodes: tuple[str, ...]) -> Finding:
    share = row.busbw_gbs / normal.gbs
    if normal.noisy and normal.grave <= share < normal.slow:
        message = f"{_said(row)}, {share:.0%} of {normal.gbs:.3g} GB/s by {normal.words}: busy processors do that too"
        return Finding(NAME, "skip", "error", nodes, message, "", "", "", "busy")
    severity: Severity = "error" if share < normal.grave or share >= normal.slow else "warning"
    verdict: Verdict = "pass" if share >= normal.slow else "fail"
    message = f"{_said(row)}, {share:.0%} of {normal.gbs:.3g} GB/s by {normal.words}"
    least = normal.grave if normal.noisy else normal.slow
    seen, wanted = f"{row.busbw_gbs:.3g} GB/s", f"≥ {least * normal.gbs:.3g} GB/s"
    return Finding(
        NAME, verdict, severity, nodes, message, seen, wanted, "" if verdict == "pass" else REMEDY
    )


def _by_peers(
    row: CollectiveResult,
    nodes: tuple[str, ...],
    backend: str,
    yard: Yardsticks,
    why_not: tuple[str, ...],
) -> Finding:
    """Peers can accuse a node. They cannot acquit a cluster, whose nodes may all be slow alike."""
    peers = yard.peers if backend == "gloo" else {}  # measured over TCP, which RDMA does not use
    odd = slower(peers, PEERS)
    if odd:
        middle, z = statistics.median(peers.values()), scores(peers)
        told = ", ".join(f"{name} {_gbits(peers[name])} (z = {z[name]:.1f})" for name in odd)
        message = f"{_said(row)}; the links of {fold(odd)} are slower than those of their peers"
        return Finding(
            NAME,
            "fail",
            "warning",
            odd,
            message,
            told,
            f"about {_gbits(middle)} like its peers",
            REMEDY,
        )
    alike = ("no node's links stand out from its peers'",) if scores(peers) else ()
    message = "; ".join((f"{_said(row)}, and nothing says what is normal", *why_not, *alike))
    return Finding(NAME, "skip", "error", nodes, message, "", "", "", "first_sample")


def _gbits(rate: float) -> str:
    return f"{rate * 8 / 1e9:.2g} Gbit/s"
