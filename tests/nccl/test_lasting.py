"""What stays with a fleet while facts are added follows from no others than it says."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands.selftest import recorded_fleet
from clusterprep.model import Fleet
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.rails import training_sets
from clusterprep.survey import registry

FLEETS = sorted(
    path.name.removesuffix(".yaml")
    for path in resources.files("clusterprep").joinpath("data/fleets").iterdir()
    if path.name.endswith(".yaml")
)
KEPT: dict[str, Callable[[Fleet], Any]] = {
    "clusterprep.nccl.interfaces.choose": choose,
    "clusterprep.nccl.rails.training_sets": training_sets,
}


def knowing_only(of: Fleet, facts: frozenset[str]) -> Fleet:
    snapshots = {}
    for name, snapshot in of.snapshots.items():
        known = {fact: value for fact, value in snapshot.facts.items() if fact in facts}
        snapshots[name] = replace(snapshot, facts=known)
    return replace(of, snapshots=snapshots)


@pytest.mark.parametrize("name", FLEETS)
def test_the_value_is_the_same_without_all_other_facts(name: str) -> None:
    of = recorded_fleet(name, tuple(registry.checks().values()))
    for key, function in KEPT.items():
        value = function(of)
        assert function(knowing_only(of, of.lasting[key].facts)) == value
