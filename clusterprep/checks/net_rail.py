"""Judges the cabling of rails: a leaf switch serves one rail, so a cable of another is swapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.ib import FACTS, UsedPorts, of_ports
from clusterprep.facts.rail_neighbours import Neighbour
from clusterprep.model import Node
from clusterprep.nccl.rails import RdmaRail, TrainingSet
from clusterprep.remedies import sentence

Neighbours = Mapping[str, Neighbour]
LEAST = 2  # nodes that must have a switch for a rail before others are held against it
WANTED = "each leaf switch serves one rail"


def rails(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Judge each training port by the rail that most ports of its leaf switch belong to."""
    leaves: dict[str, Counter[int]] = {}
    for nodes, training in used:
        known: Neighbours = context.value(nodes[0], "net.rail_neighbours")
        for number, rail in enumerate(training.rails):
            neighbour = _neighbour(rail, known)
            if neighbour is not None:
                leaves.setdefault(neighbour.switch, Counter())[number] += len(nodes)
    rail_of = _usual_rails(leaves)
    for nodes, training in used:
        known = context.value(nodes[0], "net.rail_neighbours")
        yield from about_all(nodes, [_judge(nodes[0], training, known, rail_of)])


def _neighbour(rail: RdmaRail, known: Neighbours) -> Neighbour | None:
    """Return the switch of an active port, by the name of its port or of one of its interfaces."""
    if not rail.port.active:
        return None
    for name in (rail.name_with_port, *rail.device.interfaces):
        if name in known:
            return known[name]
    return None


def _usual_rails(leaves: Mapping[str, Counter[int]]) -> dict[str, int]:
    """Return the rail of each leaf switch that serves one more often than all others together.

    A switch that serves whole nodes has as many ports of each rail, and is left out.
    """
    usual = {}
    for switch, rails_of_switch in leaves.items():
        number, count = rails_of_switch.most_common(1)[0]
        if count >= LEAST and 2 * count > rails_of_switch.total():
            usual[switch] = number
    return usual


def _judge(
    node: Node, training: TrainingSet, known: Neighbours, rail_of: Mapping[str, int]
) -> Outcome:
    silent = []
    swapped = []
    served = 0
    for number, rail in enumerate(training.rails):
        neighbour = _neighbour(rail, known)
        if neighbour is None:
            if rail.port.active:
                silent.append(rail.name)
        elif neighbour.switch in rail_of:
            served += 1
            if rail_of[neighbour.switch] != number:
                usual = training.rails[rail_of[neighbour.switch]].name
                place = f"port {neighbour.port} of {neighbour.switch}"
                swapped.append(f"{rail.name} is at {place}, which serves {usual}")
    if swapped:
        cure = sentence(
            "put the cables into the switches of their rails; if it is meant so, leave "
            "NCCL_CROSS_NIC to NCCL"
        )
        return failed(node, "a cable leads to another rail", "; ".join(swapped), WANTED, cure)
    if len(training.rails) < 2:
        return skipped(node, "there are no several rails")
    if not served:
        message = "no switch is known that serves one rail on several nodes"
        return skipped(node, message)
    if silent:
        message = f"{', '.join(silent)}: the switch does not say who it is"
        return unknown(node, message, "no_banner")
    return passed(node, "every rail is at a switch of its own", f"{served} rails", WANTED)


def _swapped(neighbours: Neighbours) -> dict[str, Neighbour]:
    """Return the neighbours with the first two cables swapped, for the proof."""
    first, second, *_ = neighbours
    return {**neighbours, first: neighbours[second], second: neighbours[first]}


RAIL = Check(
    "net.rail",
    facts=(*FACTS, "net.rail_neighbours"),
    judge=of_ports(rails),
    severity="warning",
    title="The cables of rails lead to the switches of their rails",
    why="With one leaf switch for each rail two cables that were swapped put one rail of a node on "
    "the switch of another: its packets cross the spine, or reach no one if the rails are apart.",
    how="The switch at the other end of each training port: by LLDP where lldpd runs, by a "
    "question to the switch (smpquery, as root) on InfiniBand. A switch belongs to the rail that "
    "more than half of its ports are of, on two nodes or more. Switches that serve whole nodes are "
    "not judged.",
    remedy=sentence("put the cables into the switches of their rails"),
    proof=Proof("net.rail_neighbours", _swapped, fleet="hgx-h100-roce"),
)
