"""The verify stage: plans the ranks from what was seen, has the agents run them, and gives the judged result."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.fanout import Fanout
from clusterprep.model import Absent, Finding, Fleet, Inventory, Node, VerifyResult
from clusterprep.network import choose
from clusterprep.render import Environment


def run_trial(fanout: Fanout, fleet: Fleet, environment: Environment) -> VerifyResult:
    """An all-reduce over all ranks of the nodes reached, with the environment that apply writes."""
    from clusterprep.verify import blame, collect, schedule

    nodes = fleet.reached
    pick = choose(fleet).picks[nodes[0].name]
    env = {node.name: {n: v.value for n, v in environment.of(node.name).items()} for node in nodes}
    gpus = {node.name: _gpus(fleet, node) for node in nodes}
    rendezvous = (pick.address, fleet.inventory.master_port)
    plan = schedule.plan_trial(nodes, env, rendezvous, fleet.inventory.verify, gpus)
    timeline = collect.run_verify([fanout.links[node.name] for node in nodes], plan)
    return blame.judge(timeline)


def _gpus(fleet: Fleet, node: Node) -> int:
    """GPUs of this job on a node: as declared, else as many as NVML shows."""
    if node.gpus is not None:
        return node.gpus.used
    nvml = fleet.fact(node.name, "gpu.nvml")
    return 0 if nvml is None or isinstance(nvml, Absent) else len(nvml.gpus)


def findings_of(result: VerifyResult, inventory: Inventory) -> Iterable[Finding]:
    """What a result means as findings of nccl.hang, nccl.correct and their like."""
    from clusterprep.verify import blame

    return blame.findings(result)
