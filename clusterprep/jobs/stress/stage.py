"""The stress stage: load the nodes that are not in use, and return what was measured as facts.

DCGM's diagnostics come first, while nothing else uses the GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.facts.gpu import NVML, Nvml
from clusterprep.facts.stress import DIAGNOSTICS, RESULTS, Diagnostics, parse_diagnostics
from clusterprep.jobs.stress.collect import run_stress
from clusterprep.jobs.stress.plan import StressPlan, plan_stress
from clusterprep.model import Absent, Finding, Fleet, Node, Read
from clusterprep.survey.answers import parse_fact
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import BUSY

STAGE = "stress"
DCGM = "gpu.dcgm"
LEVEL = 2  # of DCGM's diagnostics: some two minutes, with memory and PCIe
# Seconds by level. The user guide of DCGM has seconds, 2, 15 and 60 to 120 minutes for 8 GPUs.
LEVEL_LIMITS = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 4 * 3600.0}
ANSWER_MARGIN = 10.0
# Tests that torch runs; only DCGM's need none.
OF_TORCH = ("gpu.gemm", "gpu.h2d", "gpu.hbm", "gpu.liveness", "gpu.p2p", "gpu.sdc", "mem.stream")


def load_nodes(
    fanout: Fanout,
    fleet: Fleet,
    findings: Iterable[Finding],
    checks: Collection[str],
    on_busy: bool,
) -> Fleet:
    """Return the fleet with the facts of the stress tier, as far as `checks` need them.

    Nodes whose GPUs are in use, or may be, are not loaded unless `on_busy`.
    """
    busy = set() if on_busy else busy_nodes(findings)
    free = [node for node in fleet.reached if node.name not in busy]
    facts: dict[str, dict[str, Any]] = {node.name: {} for node in fleet.reached}
    if DCGM in checks:
        for name, diagnostics in _diagnose(fanout, fleet, free).items():
            facts[name][DIAGNOSTICS.name] = diagnostics
    if not set(checks).isdisjoint(OF_TORCH):
        for name, results in _measure(fanout, fleet, free).items():
            facts[name][RESULTS.name] = results
    refused = Absent("busy", "GPUs are in use, or may be: nothing was loaded without --on-busy")
    for name in busy.intersection(facts):
        facts[name] = {RESULTS.name: refused, DIAGNOSTICS.name: refused}
    return fleet.with_facts(facts)


def busy_nodes(findings: Iterable[Finding]) -> set[str]:
    """Return the nodes whose GPUs are in use, or of which that is not known."""
    names: set[str] = set()
    for finding in findings:
        if finding.check == BUSY and finding.verdict in ("fail", "unknown"):
            names.update(finding.nodes)
    return names


def _gpus(fleet: Fleet, node: Node) -> tuple[int, ...] | Absent:
    """Return the indices of the GPUs that the job uses; none where there is no driver."""
    nvml = fleet.fact(node.name, NVML.name)
    if isinstance(nvml, Absent):
        return nvml
    if not isinstance(nvml, Nvml):
        return ()
    indices = tuple(gpu.index for gpu in nvml.gpus)
    if node.gpus is not None and node.gpus.use is not None:
        return tuple(index for index in indices if index in node.gpus.use)
    return indices


def _measure(fanout: Fanout, fleet: Fleet, nodes: Iterable[Node]) -> dict[str, Any]:
    """Return by node what torch measured there, or why nothing was."""
    measured: dict[str, Any] = {}
    plans: list[StressPlan] = []
    for node in nodes:
        gpus = _gpus(fleet, node)
        if isinstance(gpus, Absent):
            measured[node.name] = gpus
        elif node.name not in fanout.links:
            measured[node.name] = Absent("hung", "the node was lost earlier")
        else:
            plans.append(plan_stress(node, gpus))
    fanout.load("ranks", [plan.node.name for plan in plans])

    def run(plan: StressPlan) -> None:
        link = fanout.links[plan.node.name]
        measured[plan.node.name] = run_stress(link, plan, fanout.check)

    fanout.each(plans, run)
    for plan in plans:
        late = Absent("timed_out", "the command ended before it was measured")
        measured.setdefault(plan.node.name, late)
    return measured


def _diagnose(fanout: Fanout, fleet: Fleet, nodes: Iterable[Node]) -> dict[str, Any]:
    """Return by node what DCGM found, or why it found nothing."""
    bodies: dict[str, Mapping[str, Any]] = {}
    levels: dict[str, int] = {}
    found: dict[str, Any] = {}
    for node in nodes:
        if _gpus(fleet, node) == ():
            found[node.name] = Absent("not_applicable", "no GPU here")
            continue
        level = int(node.require.get(DCGM, LEVEL))
        read = Read("alone", ("dcgmi", "diag", "-r", str(level), "-j"), LEVEL_LIMITS[level])
        levels[node.name] = level
        bodies[node.name] = {"reads": [[read.kind, list(read.args), read.limit]]}
    longest = max((LEVEL_LIMITS[level] for level in levels.values()), default=0.0)
    for name, answer in fanout.ask("look", bodies, longest + ANSWER_MARGIN).items():
        found[name] = _diagnostics(levels[name], answer)
    return found


def _diagnostics(level: int, answer: Any) -> Diagnostics | Absent:
    if isinstance(answer, LinkLost):
        return Absent(answer.reason, answer.message)
    fact = Fact(DIAGNOSTICS.name, parse=functools.partial(parse_diagnostics, level))
    diagnostics: Diagnostics | Absent = parse_fact(fact, answer.get("answers") or [None])
    return diagnostics
