"""Trials of a few nodes each: what a probe of the screening runs, what it measured, and what was found. Pure.

A probe is a real collective by the ranks of its nodes, over whatever the job itself would use: what spoils it need not
show between two sockets of TCP.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.meaning import Blame
from clusterprep.jobs.verify.probes import Kind, Probe, ProbeSettings
from clusterprep.jobs.verify.schedule import ScheduledTest, TrialPlan, of_some
from clusterprep.jobs.verify.screening import Screening
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.tally import finished, nth
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Culprit, Finding, Stage, Verdict, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.nccl.interfaces import name_list
from clusterprep.runtime.lazy_dataclass import dataclass

STAGE = "groups"
FEWEST = 4  # nodes; of three, two that are slow together with one more leave nobody to compare with
TIMEOUT = 20.0  # seconds for one collective; what takes longer is slow enough
LARGEST = {
    "nccl": 256 << 20
}  # bytes; large enough for bandwidth to count and small enough for dozens of tests
LARGEST_ON_CPUS = 1 << 20
LEAST = 64 << 10  # bytes; less measures latency
# Ranks on processors share them with each other and with everybody else: a factor of two proves nothing there.
ON_GPUS, ON_CPUS = ProbeSettings(), ProbeSettings(slow=0.35, noise=0.2, clip=3.0)
BELIEVED = {"nccl": (1 + ON_GPUS.slow) / 2}  # halfway between slow and normal
BELIEVED_ON_CPUS = 0.5
WHAT: Mapping[Kind, str] = {
    "group": "all-reduce of groups with",
    "pair": "all-reduce of pairs with",
    "rail": "all-reduce over one device with",
    "way": "broadcast between",
}
SHOWN = 8  # names in a line of evidence

Samples = Mapping[Probe, Sequence[float]]


@dataclass(frozen=True)
class Screened:
    """A screening that was run: what it found (None: it was given up), what was measured and how long it took."""

    screening: Screening | None
    samples: Samples
    seconds: float
    limit: float
    gave_up: str = ""
    cards: tuple[str, ...] = ()
    believed: float = (
        1.0  # share of the others' speed from which nobody is blamed, whatever the odds were
    )


def worth(result: VerifyResult, tried: Sequence[Finding], nodes: int) -> bool:
    """Whether group tests can tell more: all together failed or are slow, and nobody is to blame for it yet."""
    slow = any(finding.check == SPEED and finding.verdict == "fail" for finding in tried)
    return nodes >= FEWEST and (slow or result.verdict == "fail") and not result.culprits


def settings(plan: TrialPlan) -> ProbeSettings:
    return replace(ON_GPUS, rails=len(cards(plan))) if plan.backend == "nccl" else ON_CPUS


def cards(plan: TrialPlan) -> tuple[str, ...]:
    """The RDMA devices that the ranks use, where all use the same ones and more than one: each can be tried alone."""
    values = {rank.env.get("NCCL_IB_HCA", "") for rank in plan.ranks}
    lists = name_list(next(iter(values))) if len(values) == 1 else None
    off = any(rank.env.get("NCCL_IB_DISABLE", "0") not in ("", "0") for rank in plan.ranks)
    return () if lists is None or lists.negated or len(lists.items) < 2 or off else lists.items


def probe_plan(plan: TrialPlan, probe: Probe, meet: tuple[str, int]) -> TrialPlan:
    """The trial of one probe. One direction is a broadcast from the first node, one rail a pair on one device alone."""
    largest = max((step.bytes for step in plan.steps if step.op == "all_reduce"), default=LEAST)
    size = max(LEAST, min(largest, LARGEST.get(plan.backend, LARGEST_ON_CPUS)))
    step = ScheduledTest("broadcast" if probe.kind == "way" else "all_reduce", size)
    env = {} if probe.rail is None else {"NCCL_IB_HCA": f"={cards(plan)[probe.rail]}"}
    return of_some(plan, probe.nodes, meet, (step,), min(plan.timeout, TIMEOUT), **env)


def measured(timeline: Timeline) -> float | None:
    """GB/s; 0 where the collective hung or broke, and None where its ranks could not be started.

    The quickest repetition counts: what is broken is slow each time, and what only had to wait for a core is not.
    """
    if timeline.first("refused") or timeline.first("no_torch") or timeline.first("lost"):
        return None
    left = nth(timeline, "left", 0)
    if not finished(timeline) or not left:
        return 0.0
    return min(
        int(event.data["bytes"]) / max(float(event.data["best"]), 1e-9) / 1e9
        for event in left.values()
    )


# ---------------------------------------------------------------- for the report


def with_groups(result: VerifyResult, screened: Screened) -> VerifyResult:
    """A result with the stage `groups`, its culprits, and in words what it took."""
    found = () if screened.screening is None else culprits(screened.screening, screened)
    verdict: Verdict = (
        "fail"
        if found
        else "pass"
        if screened.screening and screened.screening.healthy
        else "unknown"
    )
    return replace(
        result,
        stages=(
            *result.stages,
            Stage(STAGE, round(screened.seconds, 6), verdict, limit=screened.limit),
        ),
        culprits=(*result.culprits, *found),
        message="; ".join(filter(None, [result.message, _summary(screened, found)])),
    )


def _summary(screened: Screened, found: Sequence[Culprit]) -> str:
    if screened.screening is None:
        return f"group tests were given up: {screened.gave_up}"
    took = screened.screening
    words = f"{took.group_tests} group tests, {took.pair_rounds} rounds of pairs: {took.coverage}"
    named = {node for culprit in found for node in culprit.nodes}
    unproven = [
        blame
        for blame in took.blames
        if not _proven(blame, screened) and named.isdisjoint(blame.nodes)
    ]
    if dropped := [" and ".join(blame.nodes) for blame in unproven]:
        words += f", where {', '.join(dropped)} looked slow and turned out to be as fast as a busy cluster lets it"
    return words if found else f"{words}, and nobody is slower than others"


def culprits(screening: Screening, screened: Screened) -> tuple[Culprit, ...]:
    return tuple(_culprit(blame, screened) for blame in _proven_ones(screening.blames, screened))


def _proven_ones(blames: Iterable[Blame], screened: Screened) -> Iterable[Blame]:
    """Where not all of a node is slow, the pairs of it that are."""
    for blame in blames:
        if _proven(blame, screened):
            yield blame
        elif blame.kind != "pair":
            for probe in screened.samples:
                pair = Blame("pair", probe.nodes)
                if probe.kind == "pair" and _involves(probe, blame) and _proven(pair, screened):
                    yield pair


def _proven(blame: Blame, screened: Screened) -> bool:
    """Odds rest on a model of the noise; what is slow has to be slow in the median too."""
    mine, others = _speeds(blame, screened.samples, "pair" if blame.rail is None else "rail")
    return (
        not mine
        or not others
        or statistics.median(mine) < screened.believed * statistics.median(others)
    )


def _culprit(blame: Blame, screened: Screened) -> Culprit:
    evidence = tuple(_evidence(blame, screened.samples))
    if blame.kind == "pair":
        one_way = blame.ways[0] if len(blame.ways) == 1 else (None, None)
        cause = f"collectives between {' and '.join(blame.nodes)} are slow, and with others they are not"
        return Culprit("link", blame.nodes, 0.85, cause, evidence, None, *one_way)
    if blame.kind == "rail":
        card = screened.cards[blame.rail or 0]
        cause = f"collectives over {card} of {blame.nodes[0]} alone are slow, and over its other devices they are not"
        return Culprit("interface", blame.nodes, 0.85, cause, evidence)
    if blame.kind == "boundary":
        cause = f"{fold(blame.nodes)} are fast among themselves and slow with all others: the switch or uplink between"
        return Culprit("node", blame.nodes, 0.8, cause, evidence)
    cause = f"collectives with {blame.nodes[0]} are slow, whoever else takes part"
    return Culprit("node", blame.nodes, 0.9, cause, evidence)


def _evidence(blame: Blame, samples: Samples) -> Iterable[str]:
    """Per kind of probe: its speed with those who are blamed, beside that of the others."""
    for kind in WHAT:
        mine, others = _speeds(blame, samples, kind)
        if mine and others:
            yield (
                f"{WHAT[kind]} {_who(blame)}: {statistics.median(mine):.3g} GB/s in the median of {len(mine)}, "
                f"others {statistics.median(others):.3g} GB/s of {len(others)}"
            )


def _speeds(blame: Blame, samples: Samples, kind: Kind) -> tuple[list[float], list[float]]:
    """Of those who are blamed, and of the others."""
    mine, others = list[float](), list[float]()
    for probe, values in samples.items():
        if probe.kind == kind:
            (mine if _involves(probe, blame) else others).extend(values)
    return mine, others


def _involves(probe: Probe, blame: Blame) -> bool:
    """A boundary is crossed by those who have only some of its nodes in them."""
    inside = [node in blame.nodes for node in probe.nodes]
    if blame.kind == "boundary":
        return any(inside) and not all(inside)
    if blame.kind == "pair":
        return set(blame.nodes) <= set(probe.nodes)
    return any(inside) and (blame.rail is None or probe.rail in (None, blame.rail))


def _who(blame: Blame) -> str:
    names = fold(blame.nodes[:SHOWN])
    return f"{names} and others" if blame.kind == "boundary" else " and ".join(blame.nodes)
