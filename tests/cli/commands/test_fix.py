"""What fix asks of every node, and what it says, whatever happens in between."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.fixes import FAILED, REFUSED
from clusterprep.changes.resources import target_fact
from clusterprep.checks import Check, CheckContext, Outcome, each, failed, passed
from clusterprep.facts.account import Rights
from clusterprep.model import Node, Report
from clusterprep.model.extensions import Extensions
from clusterprep.model.files import FileState
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.remedies import sentence
from clusterprep.survey.selection import Selection
from tests.support.command import CLI
from tests.support.commands import Command, new_command
from tests.support.fake_agents import SWITCH, SWITCHES, FakeAgents

NAMES = ("n1", "n2", "n3")
MOTD = "/etc/motd"
MOTD_FACT = target_fact(MOTD)
SELECTION = Selection(only=("site.",))
BROKEN = {"no": "failed", "why": "the command ended with 1", "deed": 0}


def is_on(context: CheckContext, node: Node, state: str) -> Outcome:
    return passed(node, "it is on") if state == "on" else failed(node, "it is off", state, "on")


def has_motd(context: CheckContext, node: Node, file: FileState) -> Outcome:
    if file.content == b"new\n":
        return passed(node, "it is new")
    return failed(node, "it is old", str(file.content), "new")


def by_hand(context: CheckContext) -> Iterable[Outcome]:
    yield Outcome("fail", ("n3",), "a cable is loose", "loose", "firm", severity="warning")


def check(name: str, **fields: Any) -> Check:
    words = {"title": name, "why": "why", "how": "how", "remedy": sentence("mend it")}
    return Check(name, **{"facts": (), "severity": "error", **words, **fields})


CHECKS = (
    check(
        "site.switch",
        facts=(SWITCH.name,),
        judge=each(is_on, SWITCH.name),
        fix=fix_of(wanted_state("switch")),
    ),
    check(
        "site.motd",
        facts=(MOTD_FACT.name,),
        judge=each(has_motd, MOTD_FACT.name),
        fix=fix_of(wanted_state("file", path=MOTD, content="new\n")),
    ),
    check("site.cable", judge=by_hand),
)
EXTENSIONS = Extensions(
    checks={one.name: one for one in CHECKS},
    facts={SWITCH.name: SWITCH, MOTD_FACT.name: MOTD_FACT},
    resources={"switch": ("plugins/switch.py", SWITCHES)},
)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Command]:
    """Make a command over three nodes: n1 is well, the switch of n2 is off, n3 has nothing."""

    def make(**fields: Any) -> Command:
        agents = FakeAgents()
        base = agents._base
        agents._base = replace(base, inventory=replace(base.inventory, extensions=EXTENSIONS))
        for name in NAMES:
            agents.nodes[name].switch = "off" if name == "n2" else "on"
            agents.nodes[name].files[MOTD] = b"old\n" if name == "n3" else b"new\n"
        made = new_command(tmp_path, agents, (), "20261121-090000-0000", selection=SELECTION)
        return Command(agents, replace(made.invocation, **fields), [])

    return make


Make = Callable[..., Command]


def told(report: Report) -> dict[tuple[str, str], str]:
    return {(row.check, node): row.outcome for row in report.fixes or () for node in row.nodes}


def state(agents: FakeAgents) -> list[tuple[str, bytes | None]]:
    return [(node.switch, node.files.get(MOTD)) for node in agents.nodes.values()]


def test_what_it_can_is_cured_on_the_nodes_of_the_finding_alone(command: Make) -> None:
    done = command()
    report = done.fix()
    assert state(done.agents) == [("on", b"new\n")] * 3
    assert told(report) == {
        ("site.switch", "n2"): "cured",
        ("site.motd", "n3"): "cured",
        ("site.cable", "n3"): "by hand",
    }
    assert [row.nodes for row in report.changes or () if row.outcome == "done"] == [
        ("n3",),
        ("n2",),
    ]
    assert (report.code, report.verdict) == (0, "pass")
    assert {finding.check for finding in report.findings or () if finding.fixed} == {
        "site.switch",
        "site.motd",
    }
    # The second look is one of new sessions.
    last = [op for op, name, _ in done.agents.sent if name == "n1"][-1]
    assert last == "log out"


def test_a_dry_run_says_it_and_does_nothing(command: Make) -> None:
    done = command(confirm=lambda rows: pytest.fail("nothing is asked"))
    before = state(done.agents)
    report = done.fix(dry=True)
    assert state(done.agents) == before
    assert told(report)["site.motd", "n3"] == "planned"
    assert {row.outcome for row in report.changes or () if row.action != "none"} == {"planned"}
    assert report.code == 1


def test_who_says_no_keeps_what_is_there(command: Make) -> None:
    asked: list[str] = []

    def confirm(rows: Any) -> bool:
        asked.extend(row.target for row in rows if row.action != "none")
        return False

    done = command(confirm=confirm)
    before = state(done.agents)
    report = done.fix()
    assert (state(done.agents), asked) == (before, [MOTD, "main"])
    assert {row.reason for row in report.fixes or () if row.outcome == "not done"} == {REFUSED}
    assert (report.code, report.verdict) == (1, "fail")


def test_a_step_that_fails_is_told_and_the_rest_is_cured(command: Make) -> None:
    done = command()
    done.agents.faults["perform", "n2"] = BROKEN
    report = done.fix()
    assert told(report)["site.motd", "n3"] == "cured"
    (row,) = (row for row in report.fixes or () if row.outcome == "not cured")
    assert (row.check, row.nodes, row.reason) == ("site.switch", ("n2",), FAILED)
    assert report.code == 1


def test_without_root_nothing_is_written_and_the_way_is_told(command: Make) -> None:
    done = command()
    before = state(done.agents)
    done.agents.rights = Rights(1000, "bob")
    report = done.fix()
    assert state(done.agents) == before
    assert set(told(report).values()) == {"not done", "by hand"}
    assert "add -b (--become" in str(report.changes)
    assert report.code == 1


def test_a_node_that_is_not_reached_stops_it(command: Make) -> None:
    done = command()
    done.agents.unreachable.add("n1")
    report = done.fix()
    assert not done.agents.sent
    assert report.code == 1
    assert set(told(report).values()) == {"not done", "by hand"}
    why = "n1 was not reached"
    assert report.notices[0] == f"nothing was started: {why} (`--partial` goes on without it)"
    assert report.held_by == ("n1",)
    reasons = {row.reason for row in report.fixes or () if row.outcome == "not done"}
    assert reasons == {f"nothing was written: {why}"}
    # What it would have done is there to be read.
    assert {row.outcome for row in report.changes or () if row.action != "none"} == {"not-started"}


def test_a_dry_run_without_a_node_says_that_fix_would_do_nothing(command: Make) -> None:
    done = command()
    done.agents.unreachable.add("n1")
    report = done.fix(dry=True)
    assert told(report)["site.motd", "n3"] == "planned"
    why = "fix would start nothing: n1 was not reached (`--partial` goes on without it)"
    assert report.notices[0] == why


def test_healthy_nodes_have_nothing_to_cure(command: Make) -> None:
    done = command()
    done.agents.nodes["n2"].switch = "on"
    done.agents.nodes["n3"].files[MOTD] = b"new\n"
    report = done.fix()
    assert (report.code, told(report)) == (0, {("site.cable", "n3"): "by hand"})
    assert report.changes is None


def test_rollback_puts_it_back(command: Make) -> None:
    done = command()
    before = state(done.agents)
    done.fix()
    assert state(done.agents) != before
    assert done.rollback().code == 0
    assert state(done.agents) == before


def test_without_a_terminal_it_wants_to_be_told(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes: [{name: n1, address: 127.0.0.1}]\n")
    done = subprocess.run(
        [*CLI, "fix", str(inventory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no terminal to ask at; --yes does it without asking" in done.stderr
