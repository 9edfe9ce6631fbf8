"""Reboots: only for a newer kernel, for the distribution's word, or where a step asks for one."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.reboot import COMMAND, LIMIT, REQUIRED, RESOURCE
from clusterprep.model import Node
from clusterprep.model.operations import Reboot
from tests.changes.resources.planned import earlier, step_actions

OLD, NEW = "6.8.0-40-generic", "6.8.0-45-generic"


def reason(installed: tuple[str, ...] = (OLD,), required: bool = False, **more: Any) -> str:
    facts = {"kernel.release": OLD, "kernel.installed": installed, "reboot:required": required}
    (step_action,) = step_actions(RESOURCE, more.pop("params", {}), facts, **more)
    assert bool(step_action.operations) == bool(step_action.diff)
    return step_action.diff


def test_the_reasons_for_one() -> None:
    assert reason() == ""
    assert reason((OLD, NEW)) == f"kernel {OLD} runs, {NEW} is installed"
    assert reason(("6.1.0-9-amd64",)) == ""
    assert reason(required=True) == "the distribution asks for it"
    assert reason(notified=True) == "a step asks for it"
    assert reason(**earlier("kernel")) == "the kernel of a step before it"
    assert reason(**earlier("package")) == ""


def test_how_it_is_done_and_how_long_it_may_take() -> None:
    facts = {"kernel.release": OLD, "kernel.installed": (OLD,), "reboot:required": True}
    (step_action,) = step_actions(RESOURCE, {}, facts)
    assert step_action.operations == (Reboot(COMMAND, LIMIT),)
    (step_action,) = step_actions(RESOURCE, {"limit": "20m"}, facts)
    assert step_action.operations == (Reboot(COMMAND, 1200.0),)
    assert [key for key, _ in RESOURCE.wrong({"limit": "20"})] == ["limit"]


@pytest.mark.parametrize("transport", ["local", "slurm"])
def test_a_node_that_carries_the_run_is_not_started_anew(transport: Any) -> None:
    node = Node("n1", "n1", 0, transport=transport)
    assert reason(node=node) == ""
    with pytest.raises(NoPlan, match="n1 has to be started anew"):
        reason(required=True, node=node)


def test_the_word_of_the_distribution() -> None:
    assert REQUIRED.parse(None, None) is False
    assert REQUIRED.parse(None, "") is True
