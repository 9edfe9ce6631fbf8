"""The environment that an earlier apply had, as this machine remembers it: no node is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from clusterprep.errors import InputError
from clusterprep.history.database import Unusable
from clusterprep.history.given import AppliedEnvironments, outcomes
from clusterprep.history.runs import Runs
from clusterprep.model import EnvValue, Inventory, Report
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment


def environment_of(given: AppliedEnvironments, inventory: Inventory, run: str) -> Environment:
    """The values that a run had for the nodes of the inventory.

    Raises InputError where no such apply of this cluster is remembered, or none of these nodes was in it.
    """
    values = given.environment(inventory.cluster, run)
    if not values:
        known = given.runs(inventory.cluster)
        hint = (
            f"the newest are {', '.join(known)}"
            if known
            else f"none of {inventory.cluster!r} is, on this machine"
        )
        raise InputError.of(f"no apply is remembered as {run!r}", key="--from-run", hint=hint)
    names = {node.name for node in inventory.nodes}
    mine = tuple(
        replace(value, nodes=tuple(n for n in value.nodes if n in names)) for value in values
    )
    mine = tuple(value for value in mine if value.nodes)
    if not mine:
        raise InputError.of(
            f"{fold(names)} had no part in run {run}",
            key="--from-run",
            hint=f"it was of {_all(values)}",
        )
    return Environment(mine, {})


def report_of(
    given: AppliedEnvironments, inventory: Inventory, run: str, started: datetime
) -> tuple[Report, Environment]:
    """The same as a report; nodes that the run did not have, and those on which it failed, are said."""
    environment = environment_of(given, inventory, run)
    there = {name for value in environment.values for name in value.nodes}
    notices = [f"as run {run} had it; no node was asked"]
    if lacking := [node.name for node in inventory.nodes if node.name not in there]:
        notices.append(f"{fold(lacking)} had no part in that run")
    if failed := [name for name in given.failed(inventory.cluster, run) if name in there]:
        notices.append(f"on {fold(failed)} that run did not go well")
    moment = f"{started:%Y-%m-%dT%H:%M:%SZ}"
    report = Report("env", run, inventory.cluster, moment, 0.0, "pass", 0, notices=tuple(notices))
    return replace(report, env=environment.values), environment


def failed_in(given: AppliedEnvironments, runs: Runs, cluster: str, run: str) -> tuple[str, ...]:
    """The nodes that failed in a run of a cluster: an apply, or any other that is recorded. InputError for others."""
    if run in given.applies(cluster):
        return given.failed(cluster, run)
    try:
        found = runs.named(run, cluster, "--retry-failed")
        ended = outcomes(runs.report(found.run))
    except Unusable as error:
        raise InputError.of(str(error), key="--retry-failed") from None
    return tuple(node for node, (_, failed) in ended.items() if failed == "yes")


def _all(values: Iterable[EnvValue]) -> str:
    return fold(name for value in values for name in value.nodes)
