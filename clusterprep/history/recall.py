"""The environment of an earlier apply, from this machine's history: no node is asked."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.errors import InputError
from clusterprep.history.applied import AppliedEnvironments, outcomes
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs
from clusterprep.model import EnvValue, Inventory
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment


def environment_of(applied: AppliedEnvironments, inventory: Inventory, run: str) -> Environment:
    """Return the values that a run had for the nodes of the inventory.

    Raises InputError if that apply is not recorded, or had none of these nodes.
    """
    values = applied.environment(inventory.cluster, run)
    if not values:
        hint = f"none of {inventory.cluster!r} is, on this machine"
        newest = applied.runs(inventory.cluster)
        if newest:
            hint = f"the newest are {', '.join(newest)}"
        raise InputError.of(f"no apply is remembered as {run!r}", key="--from-run", hint=hint)
    names = {node.name for node in inventory.nodes}
    chosen = []
    for value in values:
        nodes = tuple(node for node in value.nodes if node in names)
        if nodes:
            chosen.append(replace(value, nodes=nodes))
    if not chosen:
        message = f"{fold(names)} had no part in run {run}"
        hint = f"it was of {fold(_all_nodes(values))}"
        raise InputError.of(message, key="--from-run", hint=hint)
    return Environment(tuple(chosen), {})


def recalled_environment(
    applied: AppliedEnvironments, inventory: Inventory, run: str
) -> tuple[Environment, tuple[str, ...]]:
    """Return a run's environment, and notices about it.

    Notices name the nodes that had no part in the run, and those on which it failed.
    """
    environment = environment_of(applied, inventory, run)
    present = _all_nodes(environment.values)
    notices = [f"as run {run} had it; no node was asked"]
    absent = [node.name for node in inventory.nodes if node.name not in present]
    if absent:
        notices.append(f"{fold(absent)} had no part in that run")
    failed = present.intersection(applied.failed(inventory.cluster, run))
    if failed:
        notices.append(f"on {fold(failed)} that run did not go well")
    return environment, tuple(notices)


def run_of(applied: AppliedEnvironments, runs: Runs, cluster: str, text: str) -> str:
    """Return the name of the run that a text names. Raises InputError.

    `last` is the last run that was about nodes: a mistake on the command line is none.
    """
    if text in applied.applies(cluster):
        return text
    try:
        if text == "last":
            for recorded in runs.all(cluster):
                if recorded.nodes:
                    return recorded.run
        return runs.named(text, cluster, "--retry-failed").run
    except Unusable as error:
        raise InputError.of(str(error), key="--retry-failed") from None


def failed_in(applied: AppliedEnvironments, runs: Runs, cluster: str, run: str) -> tuple[str, ...]:
    """Return the nodes that failed in a recorded run of a cluster. Raises InputError for others."""
    name = run_of(applied, runs, cluster, run)
    if name in applied.applies(cluster):
        return applied.failed(cluster, name)
    try:
        outcome_by_node = outcomes(runs.report(name))
    except Unusable as error:
        raise InputError.of(str(error), key="--retry-failed") from None
    nodes = []
    for node, (_, has_failed) in outcome_by_node.items():
        if has_failed:
            nodes.append(node)
    return tuple(nodes)


def _all_nodes(values: Iterable[EnvValue]) -> set[str]:
    names: set[str] = set()
    for value in values:
        names.update(value.nodes)
    return names
