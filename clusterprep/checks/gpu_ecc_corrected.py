"""Memory errors that ECC corrects, by how fast they grow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, about_all, skipped
from clusterprep.checks.gpu_health import (
    JudgedGpus,
    Trouble,
    of_job,
    one_by_one,
    trouble_or_none,
)
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import Readings
from clusterprep.facts.gpu_counters import CORRECTED
from clusterprep.facts.gpu_health import CorrectedErrors
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_duration
from clusterprep.remedies import sentence

# 50 million over the board's life is the limit of Google's checks of GPU clusters. NVIDIA names
# none for the rate: a sound GPU corrects some errors in a day, not some in a minute.
MOST = 50_000_000
PER_HOUR = 100
FIRST = "the counters are noted now; a run in ten minutes or later can tell how fast they grow"
RETURN = sentence("watch gpu.remap of this GPU, and plan to return the board")


def corrected(context: CheckContext) -> Iterable[Outcome]:
    """Judge the total, and the growth since an earlier run of this boot."""
    judge = partial(_judged, context)
    for nodes in context.alike_by(judge):
        judged, is_compared = judge(nodes[0])
        yield from about_all(nodes, _outcomes(nodes[0], dict(judged), is_compared))


def _judged(context: CheckContext, node: Node) -> tuple[JudgedGpus, bool]:
    """Return what is wrong with each GPU, and whether all of them have an earlier count."""
    readings: Readings = context.value(node, "gpu.ecc_corrected")
    sample = _earlier(context, node)
    before: dict[int, int | None] = {}
    judged: list[tuple[int, Trouble | Absent | None]] = []
    for index, reading in readings.items():
        trouble = reading
        if isinstance(reading, CorrectedErrors):
            before[index] = _before(reading, sample)
            trouble = _trouble(reading, before[index], sample)
        judged.append((index, trouble))
    is_compared = None not in of_job(node, before).values()
    return tuple(judged), is_compared


def _outcomes(node: Node, judged: Readings, is_compared: bool) -> Iterable[Outcome]:
    outcomes = one_by_one(
        node,
        judged,
        trouble_or_none,
        "corrected memory errors do not grow fast",
        f"at most {PER_HOUR} per hour",
    )
    for outcome in outcomes:
        if outcome.verdict == "pass" and not is_compared:
            yield skipped(node, FIRST, reason="first_sample")
        else:
            yield outcome


def _earlier(context: CheckContext, node: Node) -> Sample | None:
    earlier = context.fleet.fact(node.name, "counters.earlier")
    return earlier.recent if isinstance(earlier, Earlier) else None


def _before(errors: CorrectedErrors, sample: Sample | None) -> int | None:
    """Return the count of an earlier run; None without one, or if the counter began anew."""
    if sample is None or sample.gpu is None:
        return None
    before = sample.gpu.get(errors.uuid, {}).get(CORRECTED)
    return None if before is None or before > errors.since_load else before


def _trouble(errors: CorrectedErrors, before: int | None, sample: Sample | None) -> Trouble | None:
    """Return what is wrong with a GPU whose count was `before` in an earlier run."""
    if errors.ever is not None and errors.ever > MOST:
        message = "more memory errors were corrected than a sound board has in its life"
        return Trouble(message, f"{errors.ever:,}", RETURN)
    if before is None or sample is None:
        return None
    growth = errors.since_load - before
    if growth * 3600 <= PER_HOUR * sample.seconds:
        return None
    seen = f"+{growth:,} in {format_duration(round(sample.seconds))}"
    return Trouble("corrected memory errors grow fast", seen, RETURN)


def _with_growth(readings: Readings) -> Readings:
    """Return the readings with many new errors on GPU 3; for the proof."""
    bad = replace(readings[3], since_load=readings[3].since_load + 100_000)
    return {**readings, 3: bad}


CHECK = Check(
    "gpu.ecc_corr",
    facts=("gpu.ecc_corrected",),
    uses=("counters.earlier", "host.boot_id", "host.uptime", "ib.counters", "gpu.counters"),
    judge=corrected,
    severity="warning",
    title="Corrected memory errors",
    why="Memory that wears out corrects more and more errors before the first one that it cannot "
    "correct ends a job.",
    how="NVML's corrected ECC errors since the driver was loaded, now and in an earlier run at "
    "least ten minutes ago, within one boot: at most 100 per hour; and over the board's life at "
    "most 50 million.",
    remedy=RETURN,
    proof=Proof("gpu.ecc_corrected", _with_growth),
)
