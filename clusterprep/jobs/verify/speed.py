"""Judge the bus bandwidth of the largest all-reduce by the first yardstick that there is. Pure.

What is declared goes before the hardware model, that before earlier runs of the same nodes, and
those before peers. gloo over sockets varies by a factor of three with what else the processors do
(0.21 to 0.65 GB/s on one healthy machine of two cores). So its earlier runs accuse only a run under
a fifth of the slowest of them, the same share by which links are bad; under half nothing is proven,
and the check is skipped. The hardware model does not judge gloo at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field

from clusterprep.jobs.verify.hardware_model import VALID_FROM, Expected
from clusterprep.jobs.verify.peers import scores, slower
from clusterprep.model import CollectiveResult, Finding, Severity, Verdict
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size
from clusterprep.remedies import NO_REMEDY, sentence
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = "nccl.busbw_multi"
# Shares of what is normal: an error under the first, a warning under the second.
GRAVE, SLOW = 0.5, 0.8
# Shares of the slowest earlier run: an error under the first, not judged under the second.
GLOO_GRAVE, GLOO_SLOW = 0.2, 0.5
RUNS = 3  # earlier runs from which they say what is normal
SIZE = 1 << 20  # bytes; what is smaller measures latency, by any yardstick
# Of the median: half proves nothing on a busy machine, and a fifth is the links' own error.
PEERS = 1 / 3
REMEDY = sentence("compare links, clocks and the interfaces that NCCL chose (NCCL_DEBUG=INFO)")


@dataclass(frozen=True)
class Yardsticks:
    """What a speed can be compared with: declared, expected and earlier GB/s; bytes/s per node."""

    declared: float | None = None
    model: Expected | None = None
    earlier: tuple[float, ...] = ()
    peers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Normal:
    """What is normal by a yardstick, in GB/s, and below which shares a run is grave or slow."""

    gbs: float
    yardstick: str
    grave: float = GRAVE
    slow: float = SLOW
    noisy: bool = False  # between the two nothing is proven


def largest(rows: Sequence[CollectiveResult]) -> CollectiveResult | None:
    """Return the all-reduce that is judged: the largest one in float32."""
    judged = [row for row in rows if (row.op, row.dtype) == ("all_reduce", "float32")]
    return max(judged, key=lambda row: row.bytes, default=None)


def speed_finding(
    row: CollectiveResult, nodes: tuple[str, ...], backend: str, yard: Yardsticks
) -> Finding:
    """Return the finding about the speed of a trial whose collectives all finished."""
    if yard.declared is not None:
        return _by_declared(row, nodes, yard.declared)
    why_not: list[str] = []
    normal = _normal_by_model(row, backend, yard, why_not)
    if normal is None:
        normal = _normal_by_earlier_runs(row, backend, yard, why_not)
    if normal is not None:
        return _by_normal(normal, row, nodes)
    return _by_peers(
        row,
        nodes,
        backend,
        yard,
        why_not,
    )


def _measured_words(row: CollectiveResult) -> str:
    size = format_size(row.bytes)
    return f"bus bandwidth of {row.op} at {size} is {row.busbw_gbs:.3g} GB/s"


def _by_declared(row: CollectiveResult, nodes: tuple[str, ...], least: float) -> Finding:
    verdict: Verdict = "pass"
    remedy = NO_REMEDY
    if row.busbw_gbs < least:
        verdict = "fail"
        remedy = REMEDY
    message = _measured_words(row)
    seen = f"{row.busbw_gbs:.3g} GB/s"
    wanted = f"≥ {least:g} GB/s"
    return Finding(
        check=NAME,
        verdict=verdict,
        severity="error",
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=wanted,
        remedy=remedy,
    )


def _normal_by_model(
    row: CollectiveResult, backend: str, yard: Yardsticks, why_not: list[str]
) -> Normal | None:
    """Return what the hardware model expects, or add to `why_not` why it does not apply."""
    model = yard.model
    if backend != "nccl":
        why_not.append(f"the hardware model does not judge {backend}")
    elif model is None:
        why_not.append("the hardware was not looked at")
    elif model.gbs is None:
        why_not.append(model.why)
    elif row.bytes < VALID_FROM:
        size = format_size(VALID_FROM)
        why_not.append(f"the hardware model holds from {size} on: set verify.sizes")
    else:
        return Normal(model.gbs, f"the hardware model ({model.why})")
    return None


def _normal_by_earlier_runs(
    row: CollectiveResult, backend: str, yard: Yardsticks, why_not: list[str]
) -> Normal | None:
    """Return what earlier runs reached, or add to `why_not` why they do not tell."""
    runs = yard.earlier
    if row.bytes < SIZE:
        why_not.append(f"less than {format_size(SIZE)} measures latency")
        return None
    if len(runs) < RUNS:
        why_not.append(f"{len(runs)} of {RUNS} earlier runs of these nodes are known")
        return None
    earlier_runs = f"{len(runs)} earlier runs of these nodes"
    if backend == "gloo":
        slowest = min(runs)
        return Normal(
            slowest,
            f"the slowest of {earlier_runs}",
            GLOO_GRAVE,
            GLOO_SLOW,
            noisy=True,
        )
    return Normal(statistics.median(runs), f"the median of {earlier_runs}")


def _by_normal(normal: Normal, row: CollectiveResult, nodes: tuple[str, ...]) -> Finding:
    share = row.busbw_gbs / normal.gbs
    yardstick = f"{normal.gbs:.3g} GB/s by {normal.yardstick}"
    message = f"{_measured_words(row)}, {share:.0%} of {yardstick}"
    if normal.noisy and normal.grave <= share < normal.slow:
        message += ": busy processors do that too"
        return Finding(
            check=NAME,
            verdict="skip",
            severity="error",
            nodes=nodes,
            message=message,
            reason="busy",
        )
    severity: Severity = "error"
    verdict: Verdict = "pass"
    remedy = NO_REMEDY
    if share < normal.slow:
        verdict = "fail"
        remedy = REMEDY
        if share >= normal.grave:
            severity = "warning"
    least = normal.grave if normal.noisy else normal.slow
    seen = f"{row.busbw_gbs:.3g} GB/s"
    wanted = f"≥ {least * normal.gbs:.3g} GB/s"
    return Finding(
        check=NAME,
        verdict=verdict,
        severity=severity,
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=wanted,
        remedy=remedy,
    )


def _by_peers(
    row: CollectiveResult,
    nodes: tuple[str, ...],
    backend: str,
    yard: Yardsticks,
    why_not: Sequence[str],
) -> Finding:
    """Compare the links of nodes.

    They can accuse a node. They cannot acquit a cluster, whose nodes may all be slow alike.
    """
    # The links were measured over TCP, which RDMA does not use.
    peers = yard.peers if backend == "gloo" else {}
    slow_nodes = slower(peers, PEERS)
    z_scores = scores(peers)
    if slow_nodes:
        values: list[str] = []
        for name in slow_nodes:
            value = f"{name} {_gbits(peers[name])} (z = {z_scores[name]:.1f})"
            values.append(value)
        median = statistics.median(peers.values())
        folded = fold(slow_nodes)
        message = (
            f"{_measured_words(row)}; the links of {folded} are slower than those of their peers"
        )
        wanted = f"about {_gbits(median)} like its peers"
        seen = ", ".join(values)
        return Finding(
            check=NAME,
            verdict="fail",
            severity="warning",
            nodes=slow_nodes,
            message=message,
            seen=seen,
            wanted=wanted,
            remedy=REMEDY,
        )
    sentences = [f"{_measured_words(row)}, and nothing says what is normal", *why_not]
    if z_scores:
        sentences.append("no node's links stand out from its peers'")
    message = "; ".join(sentences)
    return Finding(
        check=NAME,
        verdict="skip",
        severity="error",
        nodes=nodes,
        message=message,
        reason="first_sample",
    )


def _gbits(rate: float) -> str:
    return f"{rate * 8 / 1e9:.2g} Gbit/s"
