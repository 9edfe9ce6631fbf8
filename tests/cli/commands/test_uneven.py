"""A job across batches that differ is refused; nodes that are equal by now are not asked twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from clusterprep.changes.batches import uneven_run
from clusterprep.cli.commands.uneven import refuse_uneven
from clusterprep.errors import Refused
from clusterprep.facts.environment import Setting
from clusterprep.model import Fleet
from tests.support.commands import new_command
from tests.support.fake_agents import FakeAgents

RUN = "20261121-090000-0000"
CONF = "/etc/nccl.conf"


def written(agents: FakeAgents, *names: str, state: str = "done", batch: int = 1) -> None:
    """Have these nodes remember a run in batches."""
    for name in names:
        agents.nodes[name].runs[RUN] = {
            "cluster": "test",
            "state": state,
            "number": 1,
            "nodes": "",
            "node": name,
            "batch": batch,
        }


def looked(agents: FakeAgents) -> Fleet:
    facts = {name: {"state.journal": node.journal()} for name, node in agents.nodes.items()}
    return agents._base.with_facts(facts)


def algorithm(agents: FakeAgents, **values: str) -> None:
    """Have the file of NCCL on these nodes say which algorithm is taken."""
    for name, value in values.items():
        paths: dict[str, Any] = {"login shell": ()}
        paths["nccl"] = (Setting("NCCL_ALGO", value, CONF, 1),)
        agents._base = agents._base.with_facts({name: {"env.paths": paths}})


def refuse(folder: Path, agents: FakeAgents) -> None:
    invocation = new_command(folder, agents, (), RUN).invocation
    refuse_uneven(invocation, cast("Any", agents), looked(agents))


def test_batches_that_differ_are_a_refusal(tmp_path: Path) -> None:
    agents = FakeAgents(4)
    written(agents, "n1", "n2")
    written(agents, "n3", state="undone", batch=2)
    algorithm(agents, n1="Ring", n2="Ring", n3="Tree", n4="Tree")
    with pytest.raises(Refused) as raised:
        refuse(tmp_path, agents)
    assert raised.value.code == 4
    assert f"run {RUN} was written in batches, and n[1-2] has it, n[3-4] has not" in str(
        raised.value
    )
    assert "NCCL_ALGO in login shell: " in raised.value.message


def test_nodes_that_a_later_apply_made_equal_are_not(tmp_path: Path) -> None:
    agents = FakeAgents(4)
    written(agents, "n1", "n2")
    algorithm(agents, n1="Ring", n2="Ring", n3="Ring", n4="Ring")
    refuse(tmp_path, agents)
    assert agents.surveys == 1


@pytest.mark.parametrize("state", ["done", "committed"])
def test_nodes_that_all_have_the_run_are_asked_nothing_more(tmp_path: Path, state: str) -> None:
    agents = FakeAgents(4)
    written(agents, "n1", "n2", state=state)
    written(agents, "n3", "n4", state=state, batch=2)
    algorithm(agents, n1="Ring")
    refuse(tmp_path, agents)
    assert agents.surveys == 0


def test_a_run_without_batches_is_none(tmp_path: Path) -> None:
    agents = FakeAgents(4)
    written(agents, "n1", batch=0)
    assert uneven_run(looked(agents)) is None
