"""What group tests found: when they are worth their time, and their culprits for the report.

Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.fault_location import LocatedFault
from clusterprep.jobs.verify.group_probes import ON_GPUS
from clusterprep.jobs.verify.probes import Kind, Probe
from clusterprep.jobs.verify.screening import Screening
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.speed import Yardsticks
from clusterprep.model import Culprit, Finding, Stage, Verdict, VerifyResult
from clusterprep.model.nodeset import fold

STAGE = "groups"
FEWEST = 4  # nodes; of three, two that are slow together with one more leave none to compare with
# Shares of the speed of others from which a node is not blamed, whatever the odds were.
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


class Screened(Struct, frozen=True):
    """A screening that was run: its result (None: it was given up), its samples and its time."""

    screening: Screening | None
    samples: Samples
    seconds: float
    limit: float
    gave_up: str = ""
    devices: tuple[str, ...] = ()
    believed: float = 1.0  # share of the speed of others from which a node is not blamed


def is_worthwhile(result: VerifyResult, findings: Sequence[Finding], nodes: int) -> bool:
    """Return whether group tests can tell more: the trial failed or is slow, without a culprit."""
    if nodes < FEWEST or result.culprits:
        return False
    if result.verdict == "fail":
        return True
    return any(finding.check == SPEED and finding.verdict == "fail" for finding in findings)


def with_groups(result: VerifyResult, screened: Screened) -> VerifyResult:
    """Return the result with the stage `groups`, its culprits, and a sentence on what it took."""
    found = _culprits(screened)
    verdict: Verdict = "unknown"
    if found:
        verdict = "fail"
    elif finds_all_alike(screened):
        verdict = "pass"
    seconds = round(screened.seconds, 6)
    stage = Stage(STAGE, seconds, verdict, limit=screened.limit)
    sentences = filter(None, [result.message, _summary(screened, found)])
    return replace(
        result,
        stages=(*result.stages, stage),
        culprits=(*result.culprits, *found),
        message="; ".join(sentences),
    )


def finds_all_alike(screened: Screened) -> bool:
    """Return whether the group tests came to their end and no node or pair was slower."""
    screening = screened.screening
    return screening is not None and bool(screening.healthy) and not _culprits(screened)


def culprit_nodes(result: VerifyResult) -> frozenset[str]:
    """Return the nodes of all culprits, also as the end of a link."""
    nodes: set[str] = set()
    for culprit in result.culprits:
        nodes.update(culprit.nodes)
    return frozenset(nodes)


def with_confirmed(
    yardsticks: Yardsticks, result: VerifyResult, screened: Screened | None
) -> Yardsticks:
    """Return the yardsticks with the nodes whose slow links were confirmed.

    Group tests acquit nodes where collectives with them are as fast as with others: a moment's load
    makes links look slow. Where none were run to the end, links that were slow each time that they
    were measured count.
    """
    if screened is None or screened.screening is None:
        return replace(yardsticks, confirmed=frozenset(yardsticks.peers))
    if finds_all_alike(screened):
        return replace(yardsticks, peers={})
    return replace(yardsticks, confirmed=culprit_nodes(result))


def _summary(screened: Screened, found: Sequence[Culprit]) -> str:
    screening = screened.screening
    if screening is None:
        return f"group tests were given up: {screened.gave_up}"
    tests = f"{screening.group_tests} group tests, {screening.pair_rounds} rounds of pairs"
    summary = f"{tests}: {screening.coverage}"
    named: set[str] = set()
    for culprit in found:
        named.update(culprit.nodes)
    dropped: list[str] = []
    for blame in screening.blames:
        if named.isdisjoint(blame.nodes) and not _is_proven(blame, screened):
            nodes = " and ".join(blame.nodes)
            dropped.append(nodes)
    if dropped:
        looked_slow = f"{', '.join(dropped)} looked slow"
        summary += f", where {looked_slow} and turned out to be as fast as a busy cluster lets it"
    if not found:
        summary += ", and no node is slower than others"
    return summary


def _culprits(screened: Screened) -> tuple[Culprit, ...]:
    if screened.screening is None:
        return ()
    blames = _proven_blames(screened.screening.blames, screened)
    return tuple(_culprit(blame, screened) for blame in blames)


def _proven_blames(blames: Iterable[LocatedFault], screened: Screened) -> Iterable[LocatedFault]:
    """Yield proven blames; if not all of a node is slow, the pairs of it that are."""
    for blame in blames:
        if _is_proven(blame, screened):
            yield blame
        elif blame.kind != "pair":
            yield from _proven_pairs(blame, screened)


def _proven_pairs(blame: LocatedFault, screened: Screened) -> Iterable[LocatedFault]:
    for probe in screened.samples:
        if probe.kind != "pair" or not _involves(probe, blame):
            continue
        pair = LocatedFault("pair", probe.nodes)
        if _is_proven(pair, screened):
            yield pair


def _is_proven(blame: LocatedFault, screened: Screened) -> bool:
    """Whether the median is slow too, as odds rest on a model of the noise."""
    kind: Kind = "pair" if blame.rail is None else "rail"
    blamed, others = _speeds(blame, screened.samples, kind)
    if not blamed or not others:
        return True
    limit = screened.believed * statistics.median(others)
    return statistics.median(blamed) < limit


def _culprit(blame: LocatedFault, screened: Screened) -> Culprit:
    evidence = tuple(_evidence(blame, screened.samples))
    nodes = blame.nodes
    if blame.kind == "pair":
        source = target = None
        if len(blame.ways) == 1:
            source, target = blame.ways[0]
        pair = " and ".join(nodes)
        cause = f"collectives between {pair} are slow, and with others they are not"
        return Culprit(
            kind="link",
            nodes=nodes,
            confidence=0.85,
            cause=cause,
            evidence=evidence,
            source=source,
            target=target,
        )
    if blame.kind == "rail":
        device = screened.devices[blame.rail or 0]
        alone = f"collectives over {device} of {nodes[0]} alone are slow"
        cause = f"{alone}, and over its other devices they are not"
        return Culprit(
            kind="interface",
            nodes=nodes,
            confidence=0.85,
            cause=cause,
            evidence=evidence,
        )
    if blame.kind == "boundary":
        speeds = f"{fold(nodes)} are fast among themselves and slow with all others"
        cause = f"{speeds}: the switch or uplink between"
        return Culprit(
            kind="node",
            nodes=nodes,
            confidence=0.8,
            cause=cause,
            evidence=evidence,
        )
    cause = f"collectives with {nodes[0]} are slow, whichever nodes take part"
    return Culprit(
        kind="node",
        nodes=nodes,
        confidence=0.9,
        cause=cause,
        evidence=evidence,
    )


def _evidence(blame: LocatedFault, samples: Samples) -> Iterable[str]:
    """Yield, per kind of probe, the speed with the nodes that are blamed beside that of others."""
    for kind, what in WHAT.items():
        blamed, others = _speeds(blame, samples, kind)
        if not blamed or not others:
            continue
        speed = f"{statistics.median(blamed):.3g} GB/s in the median of {len(blamed)}"
        usual = f"{statistics.median(others):.3g} GB/s of {len(others)}"
        yield f"{what} {_names(blame)}: {speed}, others {usual}"


def _speeds(blame: LocatedFault, samples: Samples, kind: Kind) -> tuple[list[float], list[float]]:
    """Return the speeds with the nodes that are blamed, and the speeds of others."""
    blamed: list[float] = []
    others: list[float] = []
    for probe, values in samples.items():
        if probe.kind != kind:
            continue
        if _involves(probe, blame):
            blamed.extend(values)
        else:
            others.extend(values)
    return blamed, others


def _involves(probe: Probe, blame: LocatedFault) -> bool:
    """Whether a probe measured what is blamed.

    A boundary is crossed by probes with nodes on both sides of it.
    """
    if blame.kind == "pair":
        return set(blame.nodes) <= set(probe.nodes)
    inside = [node in blame.nodes for node in probe.nodes]
    if not any(inside):
        return False
    if blame.kind == "boundary":
        return not all(inside)
    return blame.rail is None or probe.rail in (None, blame.rail)


def _names(blame: LocatedFault) -> str:
    if blame.kind == "boundary":
        return f"{fold(blame.nodes[:SHOWN])} and others"
    return " and ".join(blame.nodes)
