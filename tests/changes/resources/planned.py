"""Plan what a resource that goes step by step would do on one node, without a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.changes.resources import PlanContext, StepResource
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.model.files import FileState
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.nccl.environment import Environment

EMPTY = Inventory("test", ())


def step_actions(
    resource: StepResource,
    params: Mapping[str, Any],
    facts: Mapping[str, Any],
    files: Mapping[str, bytes | None] | None = None,
    node: Node | None = None,
    **more: Any,
) -> list[StepAction]:
    """Return the actions for valid parameters, given exactly the facts and files it asks for."""
    assert not list(resource.wrong(params))
    assert {fact.name for fact in resource.facts(params, EMPTY)} == set(facts)
    states = {path: FileState(path, content) for path, content in (files or {}).items()}
    assert set(resource.paths(params, EMPTY)) == set(states)
    context = PlanContext(
        Fleet(EMPTY, {}), node or Node("n1", "n1", 0), states, facts, Environment((), {}), **more
    )
    return list(resource.plan(resource.normal(params), context))


def earlier(resource: str) -> dict[str, Any]:
    """Return the action of another resource whose step is planned before this one."""
    return {"earlier": (StepAction("n1", resource, "x", "run", (RunCommand(("x",)),)),)}


def commands(step_action: StepAction) -> list[str]:
    """Return the commands of an action as lines."""
    return [" ".join(each.argv) for each in step_action.operations if isinstance(each, RunCommand)]
