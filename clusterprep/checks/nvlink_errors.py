"""Errors of NVLinks, by how they grow: a marginal link passes every test of its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, about_all, skipped
from clusterprep.checks.gpu_health import (
    JudgedGpus,
    Trouble,
    of_job,
    one_by_one,
    trouble_or_none,
)
from clusterprep.checks.nvlink import SHOW_LINKS
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import Readings
from clusterprep.facts.gpu_counters import link_counter
from clusterprep.facts.nvlink import LinkErrors
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_duration
from clusterprep.remedies import shell_line

# How much a counter of one link may grow between two runs. A link that had to recover stood still;
# of the others fewer than 5 are let pass, as DGX health checks do.
NO_MORE_THAN = {"recovery": 0, "recovered": 0, "not_recovered": 0}
OTHERS = 4
NAMES = {
    "replay": "replays",
    "recovery": "recoveries",
    "crc": "CRC errors",
    "malformed": "malformed packets",
    "overrun": "buffer overruns",
    "received": "packets with errors",
    "integrity": "integrity errors",
    "discarded": "discarded packets",
    "recovered": "recoveries",
    "not_recovered": "failed recoveries",
    "effective": "errors after correction",
    "symbol": "symbol errors",
}
NOT_COUNTED: Mapping[str, int] = {}
FIRST = "the counters are noted now; a run in ten minutes or later can tell whether they grow"


class Growth(Struct, frozen=True):
    """How much the counters of a GPU's links grew since an earlier run: by link and kind.

    `is_known` is False if some were not counted then, or the GPU was reset meanwhile.
    """

    counts: tuple[tuple[int, str, int], ...]
    is_known: bool


def errors(context: CheckContext) -> Iterable[Outcome]:
    """Judge the growth of each link's counters since an earlier run of this boot."""
    judge = partial(_judged, context, {})
    for nodes in context.alike_by(judge):
        judged, is_compared = judge(nodes[0])
        yield from about_all(nodes, _outcomes(nodes[0], dict(judged), is_compared))


def _judged(
    context: CheckContext, compared: dict[tuple[int, int], Growth], node: Node
) -> tuple[JudgedGpus, bool]:
    """Return what is wrong with each GPU, and whether all of them were counted before.

    `compared` remembers growths: GPUs that counted alike share both objects.
    """
    readings: Readings = context.value(node, "nvlink.errors")
    earlier = context.fleet.fact(node.name, "counters.earlier")
    sample = earlier.recent if isinstance(earlier, Earlier) else None
    counted_before = _counters(sample)
    growths: dict[int, Growth] = {}
    judged: list[tuple[int, Trouble | Absent | None]] = []
    for index, counted in readings.items():
        reading = counted
        if isinstance(counted, LinkErrors):
            before = counted_before.get(counted.uuid, NOT_COUNTED)
            pair = (id(counted.links), id(before))
            if pair not in compared:
                compared[pair] = _growth(counted, before)
            growth = growths[index] = compared[pair]
            reading = None
            if sample is not None and growth.counts:
                reading = _trouble(growth, sample)
        judged.append((index, reading))
    is_compared = all(growth.is_known for growth in of_job(node, growths).values())
    return tuple(judged), is_compared


def _outcomes(node: Node, judged: Readings, is_compared: bool) -> Iterable[Outcome]:
    outcomes = one_by_one(
        node,
        judged,
        trouble_or_none,
        "the error counters of NVLinks do not grow",
        "no growth",
    )
    for outcome in outcomes:
        if outcome.verdict == "pass" and not is_compared:
            yield skipped(node, FIRST, reason="first_sample")
        else:
            yield outcome


def _counters(sample: Sample | None) -> Mapping[str, Mapping[str, int]]:
    """Return the counters of an earlier run by GPU, none if they were not noted."""
    if sample is None or sample.gpu is None:
        return {}
    return sample.gpu


def _growth(counted: LinkErrors, before: Mapping[str, int]) -> Growth:
    """Return how much the counters of a GPU's links grew since they were `before`."""
    counts = []
    is_known = True
    for link, kinds in counted.links.items():
        for kind, count in kinds.items():
            earlier = before.get(link_counter(link, kind))
            if earlier is None or earlier > count:
                is_known = False
            elif earlier < count:
                counts.append((link, kind, count - earlier))
    return Growth(tuple(counts), is_known)


def _trouble(growth: Growth, sample: Sample) -> Trouble | None:
    """Return the counters of a GPU's links that grew too much."""
    parts = []
    for link, kind, number in growth.counts:
        if number > NO_MORE_THAN.get(kind, OTHERS):
            parts.append(f"link {link} +{number} {NAMES.get(kind, kind)}")
    if not parts:
        return None
    seen = f"{', '.join(parts)} in {format_duration(round(sample.seconds))}"
    return Trouble("errors of NVLinks grow", seen, SHOW_LINKS)


def _with_growth(readings: Readings) -> Readings:
    """Return the readings with new errors on a link of GPU 3; for the proof."""
    counted = readings[3]
    link = next(iter(counted.links))
    kinds = {kind: count + 50 for kind, count in counted.links[link].items()}
    return {**readings, 3: replace(counted, links={**counted.links, link: kinds})}


CHECK = Check(
    "nvl.errors",
    facts=("nvlink.errors",),
    uses=("counters.earlier", "host.boot_id", "host.uptime", "ib.counters", "gpu.counters"),
    judge=errors,
    severity="warning",
    follows=("gpu.lost",),
    title="Errors of NVLinks do not grow",
    why="A marginal link is up, sends everything twice, and goes down in the middle of a run. The "
    "whole job waits for it meanwhile.",
    how="NVML's error counters of each link, now and in an earlier run at least ten minutes ago, "
    "within one boot. Up to Hopper: replays, recoveries, CRC errors; from Blackwell on: packets "
    "with errors or discarded, integrity errors, recoveries, errors after correction. A recovery "
    "is one too many, of the others five.",
    remedy=shell_line("nvidia-smi nvlink -e   # reset the GPUs, then return the board"),
    proof=Proof("nvlink.errors", _with_growth),
)
