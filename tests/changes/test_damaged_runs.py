"""A record of a run that one node cannot read: nothing is written, and one command mends it."""

from __future__ import annotations

import pytest

from clusterprep.errors import Refused
from tests.changes.test_apply_orchestration import (
    MOTD,
    NAMES,
    OLD,
    Make,
    applied,
    command,
    ending,
    journal_verdicts,
    motd,
)
from tests.support.fake_agents import FakeAgents

__all__ = ["command"]  # the fixture

EMPTY = f"/var/lib/clusterprep/runs/{OLD}/manifest.json cannot be read: it is empty"
WAY_OUT = "`clusterprep rollback --force` moves this record aside and changes no other file"


@pytest.fixture
def agents(command: Make) -> FakeAgents:
    agents = applied(command)
    del agents.nodes["n2"].runs[OLD]
    agents.nodes["n2"].damaged[OLD] = EMPTY
    return agents


@pytest.mark.parametrize("writes", ["apply", "rollback"])
def test_nothing_is_written_and_the_file_and_the_command_are_named(
    command: Make, agents: FakeAgents, writes: str
) -> None:
    before = motd(agents)
    agents.sent.clear()
    with ending(Refused) as caught:
        getattr(command(agents=agents), writes)()
    message = caught[0].message
    assert message.startswith(f"n2: {EMPTY}; so it is not known how run {OLD} ended there")
    assert message.endswith(f"nothing was written. {WAY_OUT}")
    assert motd(agents) == before
    assert {op for op, _, _ in agents.sent} <= {"lock"}


def test_a_node_that_finds_it_only_when_it_stages_names_the_way_out_too(command: Make) -> None:
    agents = FakeAgents()
    agents.faults[("stage", "n2")] = {"no": "damaged", "why": EMPTY}
    (row,) = (
        row for row in command(agents=agents).apply().changes or () if row.outcome == "failed"
    )
    assert row.detail == f"damaged: {EMPTY}; {WAY_OUT}"


def test_force_moves_the_record_aside_and_rolls_nothing_back(
    command: Make, agents: FakeAgents
) -> None:
    """The run that is pasted away is not the one that the last apply wrote."""
    before = motd(agents)
    report = command(agents=agents, force=True).rollback()
    assert report.code == 0
    assert report.notices[0] == (
        f"n2: {EMPTY}; the record of run {OLD} is now in damaged-{OLD}, and the files that this "
        "run wrote were left as they are"
    )
    assert report.notices[1] == "nothing was rolled back; the next rollback does that"
    assert motd(agents) == before
    assert {op for op, _, _ in agents.sent} & {"stage", "commit", "undo", "settle"} == set()
    assert set(journal_verdicts(report).values()) == {"pass"}
    assert command(agents=agents).apply().code == 0


def test_a_node_that_cannot_move_it_is_named(command: Make, agents: FakeAgents) -> None:
    agents.faults[("set_aside", "n2")] = {"no": "read_only", "why": "Read-only file system"}
    report = command(agents=agents, force=True).rollback()
    assert report.code == 1
    assert report.notices[0].startswith("n2: the record of a damaged run is where it was: read_on")
    assert journal_verdicts(report)["n2"] == "fail"


def test_force_without_damage_rolls_back(command: Make) -> None:
    agents = applied(command)
    report = command(agents=agents, force=True).rollback()
    assert (report.code, motd(agents)) == (0, dict.fromkeys(NAMES, b"old\n"))
    assert MOTD in agents.nodes["n1"].files
