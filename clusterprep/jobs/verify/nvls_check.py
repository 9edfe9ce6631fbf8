"""nccl.nvls: NVLink SHARP is available and used where GPUs and switches have it. Pure.

With it the switches of a node add up, and an all-reduce moves half of the data: 480 instead of 365
GB/s on eight H100. NCCL goes on without it, and only its log says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.gpu import Model
from clusterprep.facts.nvlink import NvLinks
from clusterprep.jobs.verify.evidence import quote
from clusterprep.jobs.verify.nccl_log import Wiring
from clusterprep.jobs.verify.node_outcomes import (
    NodeOutcome,
    local_rank_words,
    node_findings,
    not_applicable,
)
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.transport_check import wirings_of
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.nccl.lint.values import nccl_integer

NAME = "nccl.nvls"
WANTED = "NVLS available, with channels"
REMEDY = PAGES[NAME].remedy
FEWEST = 3  # GPUs of a node from which on all releases use it: until 2.29 two were too few
HOPPER = (9, 0)  # compute capability from which on GPUs have it
# Variables that leave NVLS out when they are set.
ALGORITHMS = "NCCL_ALGO"
SWITCH = "NCCL_NVLS_ENABLE"


def nvls_findings(timeline: Timeline, fleet: Fleet) -> Iterable[Finding]:
    """Judge every node of a trial over NCCL by what its ranks logged."""
    if timeline.plan.backend != "nccl":
        return ()
    wirings = wirings_of(timeline)
    outcomes: dict[str, NodeOutcome] = {}
    for node in timeline.plan.nodes:
        outcome = _why_not_expected(timeline, fleet, node)
        if outcome is None:
            is_virtual = _is_virtual(fleet.fact(node.name, "nvlink.links"))
            outcome = _outcome(timeline, node, wirings, is_virtual)
        outcomes[node.name] = outcome
    return node_findings(NAME, timeline, outcomes)


def _why_not_expected(timeline: Timeline, fleet: Fleet, node: Node) -> NodeOutcome | None:
    """Return the outcome of a node where NCCL is not expected to use NVLS, else None."""
    ranks = timeline.plan.ranks_by_node[node.name]
    if len(ranks) < FEWEST:
        return not_applicable(f"NCCL uses NVLS from {FEWEST} GPUs of a node on")
    for rank in ranks:
        setting = _forbidding(rank.env)
        if setting:
            return not_applicable(f"{setting} leaves NVLS out")
    models = fleet.fact(node.name, "gpu.model")
    links = fleet.fact(node.name, "nvlink.links")
    for readings in (models, links):
        if isinstance(readings, Absent):
            return _not_known(readings)
    return _why_without_switches(models, links)


def _forbidding(env: Mapping[str, str]) -> str:
    """Return the variable that keeps NCCL from NVLS; empty if none does."""
    enable = nccl_integer(env.get(SWITCH, ""))
    if enable is not None and not enable.value:
        return f"{SWITCH}={env[SWITCH]}"
    algorithms = env.get(ALGORITHMS, "")
    if algorithms and "nvls" not in algorithms.lower():
        return f"{ALGORITHMS}={algorithms}"
    return ""


def _not_known(absent: Absent) -> NodeOutcome:
    if absent.reason == "not_applicable":
        return not_applicable(absent.detail or "there is no NVLink")
    message = f"whether these GPUs have NVLS is not known: {absent.reason}"
    return NodeOutcome("unknown", message, wanted=WANTED, reason=absent.reason)


def _why_without_switches(
    models: Mapping[int, Model | Absent], links: Mapping[int, NvLinks | Absent]
) -> NodeOutcome | None:
    """Return the outcome of GPUs that have no NVLS, else None."""
    for model in models.values():
        if isinstance(model, Absent):
            return _not_known(model)
        if _capability(model.capability) < HOPPER:
            return not_applicable(f"{model.name} has no NVLS")
    for link in links.values():
        if isinstance(link, Absent):
            return _not_known(link)
        if not link.switched:
            return not_applicable("NVLS needs NVSwitches, and none joins these GPUs")
    return None


def _is_virtual(links: Mapping[int, NvLinks]) -> bool:
    """Return whether a hypervisor decides what the machine has of its GPUs' links."""
    return any(link.virtual for link in links.values())


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return 0, 0


def _outcome(
    timeline: Timeline, node: Node, wirings: Mapping[int, Wiring], is_virtual: bool
) -> NodeOutcome:
    ranks = timeline.plan.ranks_by_node[node.name]
    known = [wirings[rank.rank] for rank in ranks if rank.rank in wirings]
    if is_virtual and any(wiring.nvls is False for wiring in known):
        return not_applicable("the virtual machine was given no NVLS multicast")
    locals_by_flaw: dict[str, list[int]] = {}
    silent: list[int] = []
    for rank in ranks:
        wiring = wirings.get(rank.rank)
        flaw = _flaw(wiring) if wiring else ""
        if flaw:
            locals_by_flaw.setdefault(flaw, []).append(rank.local_rank)
        elif not _says_all(wiring):
            silent.append(rank.local_rank)
    for flaw, local_ranks in locals_by_flaw.items():
        message = f"{local_rank_words(local_ranks)}: {flaw}"
        return NodeOutcome("fail", message, flaw, WANTED, remedy=REMEDY)
    if silent:
        reason = "NCCL did not say whether it uses NVLS"
        message = f"{local_rank_words(silent)}: {reason}"
        return NodeOutcome("unknown", message, wanted=WANTED, reason=reason)
    channels = sorted({str(wiring.nvls_channels) for wiring in known})
    seen = f"{' and '.join(channels)} NVLS channels"
    return NodeOutcome("pass", f"NVLS is available, with {seen}", seen, WANTED)


def _flaw(wiring: Wiring) -> str:
    """Return what is wrong with the NVLS of a rank, in NCCL's words where it has any."""
    if wiring.nvls_refusal:
        return f"NCCL goes on without NVLS and says {quote(wiring.nvls_refusal)}"
    if wiring.nvls is False:
        return "NCCL says that NVLS multicast is not available, which GPUs and switches have"
    if wiring.nvls_channels == 0:
        return "GPUs and switches have NVLS, and NCCL uses it on no channel"
    return ""


def _says_all(wiring: Wiring | None) -> bool:
    return wiring is not None and bool(wiring.nvls) and wiring.nvls_channels is not None
