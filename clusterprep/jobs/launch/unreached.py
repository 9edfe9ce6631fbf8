"""Plan a printed launch whose nodes were not all reached. Pure.

Nothing is started by printing, and a node that is down now may be up when the job starts. So it
keeps its ranks: a job that is smaller than its inventory would be another job.
"""

from __future__ import annotations

from clusterprep.errors import printable
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.verify.stage import given_environment, gpus_in_use, rendezvous_of
from clusterprep.model import Fleet, Node
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment


def plan_all(
    fleet: Fleet, environment: Environment, wanted: LaunchRequest
) -> tuple[LaunchPlan, tuple[str, ...]]:
    """Return the plan for all nodes of the inventory, and remarks on those that were not reached.

    These get what is declared for them, and the values and the number of GPUs that are the same on
    all nodes that were reached.
    """
    nodes = fleet.inventory.nodes
    env = given_environment(fleet, environment)
    gpus = gpus_in_use(fleet)
    reached = [env[node.name] for node in fleet.reached]
    common = _common(reached)
    missing = [node for node in nodes if node.name not in env]
    for node in missing:
        declared = {name: setting.value for name, setting in node.env.items()}
        env[node.name] = {**common, **declared}
        gpus[node.name] = _gpus(fleet, node)
    address, port = rendezvous_of(fleet)
    remarks = _remarks(fleet, missing, _differing(reached))
    if nodes[0] in missing:
        address = nodes[0].address
        remarks.append(f"ranks meet at {address}, which is {nodes[0].name} in the inventory")
    plan = plan_launch(
        nodes,
        env,
        gpus,
        (address, port),
        wanted,
    )
    return plan, tuple(remarks)


def _common(environments: list[dict[str, str]]) -> dict[str, str]:
    """Return the variables that have one value in all environments."""
    differing = _differing(environments)
    first = environments[0]
    return {name: value for name, value in first.items() if name not in differing}


def _differing(environments: list[dict[str, str]]) -> set[str]:
    """Return the names of the variables that are not the same in all environments."""
    names: set[str] = set()
    for env in environments:
        names.update(env)
    return {name for name in names if len({env.get(name) for env in environments}) > 1}


def _gpus(fleet: Fleet, node: Node) -> int:
    """Return the declared number of GPUs, else that of the nodes reached; 0 if these differ."""
    if node.gpus is not None:
        return node.gpus.used
    counts = set(gpus_in_use(fleet).values())
    return counts.pop() if len(counts) == 1 else 0


def _remarks(fleet: Fleet, missing: list[Node], differing: set[str]) -> list[str]:
    """Return what is to be said of the nodes that were not reached, by reason."""
    names_by_reason: dict[str, list[str]] = {}
    for node in missing:
        snapshot = fleet.snapshots.get(node.name)
        reason = (snapshot.reason if snapshot else None) or "no answer"
        names_by_reason.setdefault(reason, []).append(node.name)
    remarks = []
    for reason, names in names_by_reason.items():
        remarks.append(
            f"not reached: {fold(names)} ({printable(reason)}), planned with the values that are "
            "the same on all others"
        )
    for node in missing:
        unset = sorted(differing.difference(node.env))
        if unset:
            remarks.append(f"not known for {node.name}: {', '.join(unset)}")
    return remarks
