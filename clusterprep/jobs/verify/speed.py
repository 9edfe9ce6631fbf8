"""Judge the bus bandwidth of the largest all-reduce by the first yardstick that there is. Pure.

What is declared goes before the baseline that a user recorded, that before the hardware model, that
before earlier runs of the same nodes, and those before peers. Without any of them the speed over
NCCL is unknown, as a slow cluster of GPUs must not pass unseen; over gloo it is skipped.

gloo over sockets varies by a factor of three with what else the processors do
(0.21 to 0.65 GB/s on one healthy machine of two cores). So its earlier runs accuse only a run under
a fifth of the slowest of them, the same share by which links are bad; under half nothing is proven,
and the check is skipped. The hardware model does not judge gloo at all. For the same reason a node
that is slower than its peers is an error only if it was `confirmed`: by group tests, or by
measuring its links again.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from clusterprep.jobs.verify.hardware_model import VALID_FROM, Expected
from clusterprep.jobs.verify.peers import scores, slower
from clusterprep.jobs.verify.schedule import SLOWER_THAN_LINKS
from clusterprep.model import CollectiveResult, Finding, Severity, Verdict
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size
from clusterprep.remedies import NO_REMEDY, sentence, shell_line

NAME = "nccl.busbw_multi"
# Shares of what is normal: an error under the first, a warning under the second.
GRAVE, SLOW = 0.5, 0.8
# Shares of the slowest earlier run: an error under the first, not judged under the second.
GLOO_GRAVE, GLOO_SLOW = 0.2, 0.5
THREE = 3  # nodes, too few for a spread
RUNS = 3  # earlier runs from which they say what is normal
SIZE = 1 << 20  # bytes; what is smaller measures latency, by any yardstick
LONG_RUN = 1.0  # seconds of one run from which on latency does not count, whatever the size
UNIT = "GB/s"
_LEAST = re.compile(rf"≥ (\S+) {UNIT}")
YARDSTICK = shell_line(
    "clusterprep verify INVENTORY --baseline"
    "   # if this speed is right for these nodes; or declare min_busbw under verify, in GB/s"
)
REMEDY = sentence("compare links, clocks and the interfaces that NCCL chose (NCCL_DEBUG=INFO)")


class Baseline(Struct, frozen=True):
    """The speed of a run that a user recorded as normal, in GB/s, and the name of that run."""

    gbs: float
    run: str


class Yardsticks(Struct, frozen=True):
    """What a speed can be compared with: declared, expected and earlier GB/s; bytes/s per node."""

    declared: float | None = None
    model: Expected | None = None
    earlier: tuple[float, ...] = ()
    peers: Mapping[str, float] = field(default_factory=dict)
    baseline: Baseline | None = None
    links: float = 0.0  # bytes/s of most links over TCP; 0 if none was measured
    is_cut_short: bool = False  # the largest size was cut, as it is far slower than the links
    is_scaled_down: bool = False  # the largest size did not fit into memory or time limit
    confirmed: frozenset[str] = frozenset()  # nodes that are slow by more than one measurement
    says_nothing: str = ""  # why the speed says nothing about a job
    records: bool = False  # this run becomes the baseline


class Normal(Struct, frozen=True):
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
    if yard.says_nothing:
        return _not_applicable(row, nodes, yard.says_nothing)
    why_not: list[str] = []
    normal = _normal_by_baseline(backend, yard, why_not)
    if normal is None:
        normal = _normal_by_model(row, backend, yard, why_not)
    if normal is None:
        normal = _normal_by_earlier_runs(row, backend, yard, why_not)
    if normal is not None:
        return _by_normal(normal, row, nodes)
    if backend == "nccl" and yard.is_cut_short:
        return _slower_than_links(row, nodes, yard.links)
    slow_nodes = slow_peers(yard.peers) if backend == "gloo" else ()
    if slow_nodes:
        return _by_peers(row, slow_nodes, yard)
    return _without_yardstick(
        row,
        nodes,
        backend,
        yard,
        why_not,
    )


def least_gbs(findings: Iterable[Finding]) -> float | None:
    """Return the GB/s that the finding about the speed wants, None where no yardstick tells."""
    for finding in findings:
        wanted = _LEAST.fullmatch(finding.wanted) if finding.check == NAME else None
        if wanted is not None:
            return float(wanted[1])
    return None


def slow_peers(peers: Mapping[str, float]) -> tuple[str, ...]:
    """Return the nodes that stand out as slow among the bytes/s of all.

    Of three values the spread says nothing, so only less than half of the median counts. Two nodes
    have one link, which accuses neither.
    """
    if len(peers) == THREE:
        median = statistics.median(peers.values())
        return tuple(name for name, speed in peers.items() if speed < GRAVE * median)
    return slower(peers, SLOW)


def measures_bandwidth(row: CollectiveResult, least: int) -> bool:
    """Return whether latency is a small part of the time, as in large messages and in long runs."""
    return row.bytes >= least or row.seconds >= LONG_RUN


def _not_applicable(row: CollectiveResult, nodes: tuple[str, ...], why: str) -> Finding:
    message = f"{_measured_words(row)}, which says nothing about a job: {why}"
    return Finding(
        check=NAME,
        verdict="skip",
        severity="error",
        nodes=nodes,
        message=message,
        reason="not_applicable",
    )


def _normal_by_baseline(backend: str, yard: Yardsticks, why_not: list[str]) -> Normal | None:
    """Return what was recorded as normal, or add to `why_not` that nothing was.

    A run that becomes the baseline itself is not held against the one before.
    """
    baseline = yard.baseline
    if baseline is None or yard.records:
        why_not.append("no run was recorded with --baseline")
        return None
    yardstick = f"the baseline of run {baseline.run}"
    model = yard.model
    if model is not None and model.gbs is not None and baseline.gbs < SLOW * model.gbs:
        yardstick += f", though the hardware model expects {model.gbs:.3g} GB/s ({model.why})"
    if backend == "gloo":
        return Normal(
            baseline.gbs,
            yardstick,
            GLOO_GRAVE,
            GLOO_SLOW,
            noisy=True,
        )
    return Normal(baseline.gbs, yardstick)


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
    wanted = f"≥ {least:g} {UNIT}"
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
    elif not measures_bandwidth(row, VALID_FROM):
        size = format_size(VALID_FROM)
        why_not.append(f"the hardware model holds from {size} on: verify.sizes end before it")
        if yard.is_scaled_down:
            why_not[-1] = f"the hardware model holds from {size} on, which did not fit"
    else:
        return Normal(model.gbs, f"the hardware model ({model.why})")
    return None


def _normal_by_earlier_runs(
    row: CollectiveResult, backend: str, yard: Yardsticks, why_not: list[str]
) -> Normal | None:
    """Return what earlier runs reached, or add to `why_not` why they do not tell."""
    runs = yard.earlier
    if not measures_bandwidth(row, SIZE):
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
    wanted = f"≥ {least * normal.gbs:.3g} {UNIT}"
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


def _slower_than_links(row: CollectiveResult, nodes: tuple[str, ...], links: float) -> Finding:
    usual = links / 1e9
    message = (
        f"{_measured_words(row)}, and it was cut to this size, as it is over {SLOWER_THAN_LINKS} "
        f"times slower than what most links carry over TCP ({usual:.3g} GB/s)"
    )
    return Finding(
        check=NAME,
        verdict="fail",
        severity="error",
        nodes=nodes,
        message=message,
        seen=f"{row.busbw_gbs:.3g} GB/s",
        wanted=f"about {usual:.3g} GB/s at least",
        remedy=REMEDY,
    )


def _by_peers(row: CollectiveResult, slow_nodes: tuple[str, ...], yard: Yardsticks) -> Finding:
    """Return a failure of nodes whose links are slower than those of their peers.

    It is an error about nodes under half of the median that are confirmed, else a warning. Peers
    can accuse a node. They cannot acquit a cluster, whose nodes may all be slow alike.
    """
    peers = yard.peers
    z_scores = scores(peers)
    median = statistics.median(peers.values())
    values: list[str] = []
    grave: list[str] = []
    for name in slow_nodes:
        value = f"{name} {_gbits(peers[name])}"
        if name in z_scores:
            value += f" (z = {z_scores[name]:.1f})"
        values.append(value)
        if peers[name] < GRAVE * median and name in yard.confirmed:
            grave.append(name)
    severity: Severity = "error" if grave else "warning"
    blamed = tuple(grave) or slow_nodes
    folded = fold(blamed)
    message = f"{_measured_words(row)}; the links of {folded} are slower than those of their peers"
    return Finding(
        check=NAME,
        verdict="fail",
        severity=severity,
        nodes=blamed,
        message=message,
        seen=", ".join(values),
        wanted=f"about {_gbits(median)} like its peers",
        remedy=REMEDY,
    )


def _without_yardstick(
    row: CollectiveResult,
    nodes: tuple[str, ...],
    backend: str,
    yard: Yardsticks,
    why_not: Sequence[str],
) -> Finding:
    """Return the finding of a run that nothing can be compared with."""
    if yard.records:
        message = f"{_measured_words(row)}, which is now what is normal for these nodes"
        return Finding(
            check=NAME,
            verdict="pass",
            severity="error",
            nodes=nodes,
            message=message,
            seen=f"{row.busbw_gbs:.3g} GB/s",
        )
    sentences = [f"{_measured_words(row)}, and nothing says what is normal", *why_not]
    if backend == "gloo" and scores(yard.peers):
        sentences.append("no node's links stand out from its peers'")
    message = "; ".join(sentences)
    verdict: Verdict = "skip"
    remedy = NO_REMEDY
    if backend == "nccl":
        verdict = "unknown"
        remedy = YARDSTICK
    return Finding(
        check=NAME,
        verdict=verdict,
        severity="error",
        nodes=nodes,
        message=message,
        remedy=remedy,
        reason="first_sample",
    )


def _gbits(rate: float) -> str:
    return f"{rate * 8 / 1e9:.2g} Gbit/s"
