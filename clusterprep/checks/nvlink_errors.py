"""Errors of NVLinks, by how they grow: a marginal link passes every test of its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, skipped
from clusterprep.checks.gpu_health import Trouble, of_job, one_by_one
from clusterprep.checks.nvlink import SHOW_LINKS
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import Readings
from clusterprep.facts.gpu_counters import link_counter
from clusterprep.facts.nvlink import LinkErrors
from clusterprep.model import Node
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
FIRST = "the counters are noted now; a run in ten minutes or later can tell whether they grow"


def errors(context: CheckContext) -> Iterable[Outcome]:
    """Judge the growth of each link's counters since an earlier run of this boot."""
    for node in context.nodes:
        readings: Readings = context.value(node, "nvlink.errors")
        earlier = context.fleet.fact(node.name, "counters.earlier")
        sample = earlier.recent if isinstance(earlier, Earlier) else None
        judged: dict[int, object] = {}
        for index, counted in readings.items():
            judged[index] = counted
            if isinstance(counted, LinkErrors) and sample is not None:
                judged[index] = _trouble(counted, sample) or counted
        outcomes = one_by_one(
            node,
            judged,
            lambda value: value if isinstance(value, Trouble) else None,
            "the error counters of NVLinks do not grow",
            "no growth",
        )
        for outcome in outcomes:
            if outcome.verdict == "pass" and not _is_compared(node, readings, sample):
                yield skipped(node, FIRST, reason="first_sample")
            else:
                yield outcome


def _earlier_counts(counted: LinkErrors, sample: Sample | None) -> Mapping[str, int]:
    """Return the counters of an earlier run by name, none without one."""
    if sample is None or sample.gpu is None:
        return {}
    return sample.gpu.get(counted.uuid, {})


def _is_compared(node: Node, readings: Readings, sample: Sample | None) -> bool:
    """Return whether the links of every GPU of the job can be compared with an earlier run."""
    for counted in of_job(node, readings).values():
        if not isinstance(counted, LinkErrors):
            continue
        before = _earlier_counts(counted, sample)
        for link, kinds in counted.links.items():
            if any(link_counter(link, kind) not in before for kind in kinds):
                return False
            if any(before[link_counter(link, kind)] > count for kind, count in kinds.items()):
                return False  # the GPU was reset meanwhile
    return True


def _trouble(counted: LinkErrors, sample: Sample) -> Trouble | None:
    """Return the counters of a GPU's links that grew too much."""
    before = _earlier_counts(counted, sample)
    parts = []
    for link, kinds in counted.links.items():
        for kind, count in kinds.items():
            growth = count - before.get(link_counter(link, kind), count)
            if growth > NO_MORE_THAN.get(kind, OTHERS):
                parts.append(f"link {link} +{growth} {NAMES.get(kind, kind)}")
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
