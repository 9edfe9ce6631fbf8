"""rdma.gdr_effective: data go from network card to GPU without the host's memory. Pure.

What a card and a GPU could do is known from the PCI tree, what NCCL does from its lines: «via
NET/IB/2/GDRDMA». Only what a rank receives is judged: GPUs before compute capability 8.0 send from
the host's memory by NCCL's own choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.pci import PciDevice, PciTree
from clusterprep.jobs.verify.nccl_log import SOCKET, Hop, Wiring
from clusterprep.jobs.verify.node_outcomes import (
    NodeOutcome,
    local_rank_words,
    node_findings,
    not_applicable,
)
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.schedule import PlannedRank
from clusterprep.jobs.verify.tally import rank_rows
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.transport_check import hops_between_nodes, wirings_of
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.nccl.rails import training_sets

NAME = "rdma.gdr_effective"
WANTED = "GPUDirect RDMA for GPUs with a card under their switch"
REMEDY = PAGES[NAME].remedy
LEVEL = "NCCL_NET_GDR_LEVEL"
OFF = ("LOC", "0")  # values of it that allow GPUDirect nowhere
CONSUMER = "GeForce"  # in the names of GPUs whose driver refuses it


def gpudirect_findings(timeline: Timeline, fleet: Fleet) -> Iterable[Finding]:
    """Judge every node of a trial over NCCL whose GPUs are near to cards of the training."""
    if timeline.plan.backend != "nccl" or len(timeline.plan.nodes) < 2:
        return ()
    wirings = wirings_of(timeline)
    gpus = {row.rank: row.gpu.pci for row in rank_rows(timeline) if row.gpu is not None}
    outcomes: dict[str, NodeOutcome] = {}
    for node in timeline.plan.nodes:
        why_not = _why_not_expected(timeline, fleet, node)
        outcomes[node.name] = why_not or _outcome(timeline, fleet, node, wirings, gpus)
    return node_findings(NAME, timeline, outcomes)


def _why_not_expected(timeline: Timeline, fleet: Fleet, node: Node) -> NodeOutcome | None:
    """Return the outcome of a node where GPUDirect is switched off or not to be had, else None."""
    for rank in timeline.plan.ranks_by_node[node.name]:
        level = rank.env.get(LEVEL, "")
        if level.upper() in OFF:
            return not_applicable(f"{LEVEL}={level} switches GPUDirect RDMA off")
    models = fleet.fact(node.name, "gpu.model")
    if isinstance(models, Absent):
        return None
    for model in models.values():
        if not isinstance(model, Absent) and CONSUMER in model.name:
            return not_applicable(f"the driver has no GPUDirect RDMA for {model.name}")
    return None


def _outcome(
    timeline: Timeline,
    fleet: Fleet,
    node: Node,
    wirings: Mapping[int, Wiring],
    gpus: Mapping[int, str],
) -> NodeOutcome:
    cards = _cards(fleet, node)
    if isinstance(cards, Absent):
        message = f"which cards are near to GPUs is not known: {cards.reason}"
        return NodeOutcome("unknown", message, wanted=WANTED, reason=cards.reason)
    tree: PciTree = fleet.fact(node.name, "pci.tree")
    near: list[PlannedRank] = []
    unknown: list[int] = []
    for rank in timeline.plan.ranks_by_node[node.name]:
        gpu = tree.device(gpus.get(rank.rank))
        if gpu is None:
            unknown.append(rank.local_rank)
        elif any(gpu.under_one_switch(card) for card in cards):
            near.append(rank)
    if cards and unknown and not near:
        reason = "which GPU a rank uses is not known"
        message = f"{local_rank_words(unknown)}: {reason}"
        return NodeOutcome("unknown", message, wanted=WANTED, reason=reason)
    if not near:
        return not_applicable("no GPU of a rank has a card of the training under its switch")
    return _outcome_of_ranks(timeline, near, wirings)


def _cards(fleet: Fleet, node: Node) -> list[PciDevice] | Absent:
    """Return the PCI cards of the training, or why they are not known."""
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        return training
    tree = fleet.fact(node.name, "pci.tree")
    cards: list[PciDevice] = []
    for rail in training.rails:
        card = tree.device(rail.device.pci)
        if card is not None:
            cards.append(card)
    return cards


def _outcome_of_ranks(
    timeline: Timeline, near: Iterable[PlannedRank], wirings: Mapping[int, Wiring]
) -> NodeOutcome:
    """Return the outcome of ranks whose GPUs have a card under their switch."""
    received: list[Hop] = []
    indirect: list[int] = []
    others: set[str] = set()
    is_cut = False
    for rank in near:
        wiring = wirings.get(rank.rank)
        if wiring is None:
            continue
        is_cut = is_cut or bool(wiring.cut)
        for hop in hops_between_nodes(timeline, wiring):
            if hop.network in (None, SOCKET):
                others.add(hop.way)
            elif hop.target == rank.rank:
                received.append(hop)
                if not hop.direct:
                    indirect.append(rank.local_rank)
    direct = len(received) - len(indirect)
    seen = f"GPUDirect RDMA on {direct} of {len(received)}"
    if indirect:
        message = (
            f"{local_rank_words(indirect)} receives through the host's memory, though a card is "
            "under the switch of its GPU"
        )
        return NodeOutcome("fail", message, f"{seen} connections", WANTED, remedy=REMEDY)
    if received and not is_cut:
        message = f"{seen} connections into GPUs with a card under their switch"
        return NodeOutcome("pass", message, f"{seen} connections", WANTED)
    if others and not received:
        ways = " and ".join(sorted(others))
        return not_applicable(f"{ways} carries the data between nodes")
    reason = "NCCL did not say how its data come from other nodes"
    return NodeOutcome("unknown", reason, wanted=WANTED, reason=reason)
