"""What apply and rollback ask of every node, and what they say, whatever happens in between."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from clusterprep.changes.playbook.steps import Step
from clusterprep.changes.resources import env, file
from clusterprep.cli.commands import rollback
from clusterprep.cli.commands.stages import Trial
from clusterprep.errors import (
    ChangeFailed,
    ClusterprepError,
    Interrupted,
    LinkLost,
    OutOfTime,
    Refused,
)
from clusterprep.facts.account import Rights
from clusterprep.model import ChangeRow, EnvValue, Finding, Report
from clusterprep.model.operations import wire
from clusterprep.nccl.environment import Environment
from tests.support.commands import Command, Quiet, new_command, result
from tests.support.fake_agents import (
    LOST_AFTER,
    LOST_BEFORE,
    ON,
    SWITCHES,
    FakeAgents,
)

OLD, RUN, LATER = "20261121-080000-0000", "20261121-090000-0000", "20261121-100000-0000"
MOTD = "/etc/motd"
NAMES = ("n1", "n2", "n3")
FULL = {"no": "failed", "why": "No space left on device"}
BROKEN = {"no": "failed", "why": "the command ended with 1", "deed": 0}
WRITTEN = ["lock", "stage", "commit", "settle"]
PUT_BACK = "; what had been written was put back on all nodes"

FILE = Step("motd", file.RESOURCE, {"path": MOTD, "content": "new\n"}, line=1)
SWITCH = Step("switch", SWITCHES, {}, line=5)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Command]:
    def make(
        *steps: Step, agents: FakeAgents | None = None, run: str = RUN, **settings: Any
    ) -> Command:
        return new_command(tmp_path, agents or FakeAgents(), steps or (FILE,), run, **settings)

    return make


Make = Callable[..., Command]


def ends(rows: Sequence[ChangeRow] | None) -> dict[str, str]:
    """Node → outcome of its changes, several joined with +."""
    found: dict[str, list[str]] = {}
    for row in rows or ():
        for node in row.nodes:
            found.setdefault(node, []).append(row.outcome)
    return {node: "+".join(outcomes) for node, outcomes in sorted(found.items())}


def details(report: Report) -> dict[str, str]:
    """Node → what is said about its change."""
    return {node: row.detail for row in report.changes or () for node in row.nodes}


def everywhere(outcome: str) -> dict[str, str]:
    return dict.fromkeys(NAMES, outcome)


def motd(agents: FakeAgents) -> dict[str, bytes | None]:
    return {name: node.files.get(MOTD) for name, node in agents.nodes.items()}


def switches(agents: FakeAgents) -> dict[str, str]:
    return {name: node.switch for name, node in agents.nodes.items()}


def states(agents: FakeAgents, run: str = RUN) -> dict[str, str | None]:
    return {
        name: node.runs[run]["state"] if run in node.runs else None
        for name, node in agents.nodes.items()
    }


def journal_verdicts(report: Report) -> dict[str, str]:
    return {
        node: finding.verdict
        for finding in report.findings or ()
        if finding.check == "state.journal"
        for node in finding.nodes
    }


@contextlib.contextmanager
def ending(kind: type[ClusterprepError]) -> Iterator[list[ClusterprepError]]:
    """The error that ends a command; its message and its text agree."""
    caught: list[ClusterprepError] = []
    with pytest.raises(kind) as raised:
        yield caught
    assert type(raised.value) is kind
    assert str(raised.value) == raised.value.message
    caught.append(raised.value)


# ---------------------------------------------------------------- nothing goes wrong


def test_files_are_staged_committed_and_finalized_on_all_nodes(command: Make) -> None:
    done = command()
    report = done.apply()
    assert (report.code, ends(report.changes)) == (0, everywhere("done"))
    assert motd(done.agents) == dict.fromkeys(NAMES, b"new\n")
    assert states(done.agents) == everywhere("done")
    assert all(done.agents.ops(name) == WRITTEN for name in NAMES)
    (sent,) = done.agents.bodies("stage")["n1"]["files"]
    assert (sent["path"], sent["before"], sent["mode"]) == (MOTD, None, 0o644)
    assert cast("Quiet", done.invocation.watch).stages == ["write"]
    assert done.agents.surveys == 2


def test_the_first_node_decides_who_gets_the_locks(command: Make) -> None:
    done = command()
    done.agents.nodes["n1"].holder = "run 7"
    with ending(Refused) as caught:
        done.apply()
    assert "n1: another run holds the lock (run 7); nothing was written" in caught[0].message
    assert {op for op, _, _ in done.agents.sent} == {"lock"}
    assert list(done.agents.bodies("lock")) == ["n1"]


def test_where_nothing_is_to_do_nothing_is_staged(command: Make) -> None:
    done = command()
    for node in done.agents.nodes.values():
        node.files[MOTD] = b"new\n"
    report = done.apply()
    assert (report.code, ends(report.changes)) == (0, everywhere("unchanged"))
    assert all(done.agents.ops(name) == ["lock"] for name in NAMES)
    assert done.agents.surveys == 1


def test_nothing_is_written_if_the_user_does_not_confirm(command: Make) -> None:
    made = command()
    done = dataclasses.replace(
        made, invocation=replace(made.invocation, confirm=lambda rows: False)
    )
    report = done.apply()
    assert (report.code, ends(report.changes)) == (0, everywhere("not-started"))
    assert not done.agents.sent


def test_steps_follow_the_files_and_the_nodes_are_asked_again(command: Make) -> None:
    done = command(FILE, SWITCH)
    report = done.apply()
    assert (report.code, ends(report.changes)) == (0, everywhere("done+done"))
    assert switches(done.agents) == everywhere("on")
    expected = ["lock", "stage", "commit", "perform", "settle"]
    assert all(done.agents.ops(name) == expected for name in NAMES)
    (step_action,) = done.agents.bodies("perform")["n2"]["deeds"]
    assert (step_action["step"], step_action["target"], step_action["operations"]) == (
        "switch",
        "main",
        [wire(ON)],
    )
    looks = [node for op, node, _ in done.agents.sent if op == "look"]
    assert looks == [*NAMES, *NAMES]  # before the step, as files were written, and after it


def test_a_node_that_reboots_is_waited_for_and_locked_again(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    step = replace(SWITCH, params={"how": "reboot"}, nodes=frozenset({"n2"}))
    done = command(step)
    report = done.apply()
    assert (report.code, ends(report.changes)) == (0, {"n2": "done"})
    assert done.agents.ops("n2") == ["lock", "stage", "commit", "perform", "lock", "settle"]
    assert done.agents.ops("n1") == ["lock"]


# ---------------------------------------------------------------- before anything is written

ALONE = "n2 was not reached (`--partial` goes on without it)"


def test_a_node_that_is_missing_stops_it(command: Make) -> None:
    done = command()
    done.agents.unreachable.add("n2")
    report = done.apply()
    assert (report.code, ends(report.changes)) == (3, {"n1": "not-started", "n3": "not-started"})
    assert not done.agents.sent
    assert report.notices[0] == f"nothing was started: {ALONE}"
    assert report.held_by == ("n2",)
    planned = done.plan()
    assert planned.notices[0] == f"apply would start nothing: {ALONE}"


def test_several_nodes_that_are_missing_are_named_together(command: Make) -> None:
    done = command()
    done.agents.unreachable.update(("n2", "n3"))
    why = "n[2-3] were not reached (`--partial` goes on without them)"
    assert done.apply().notices[0] == f"nothing was started: {why}"
    done.agents.unreachable.add("n1")
    report = done.apply()
    assert report.notices[0] == "nothing was started: no node was reached"
    assert report.held_by == ()


def test_a_rollback_says_without_which_node_it_does_nothing(command: Make) -> None:
    agents = applied(command)
    agents.unreachable.add("n2")
    report = command(agents=agents).rollback()
    assert report.notices[0] == f"nothing was rolled back: {ALONE}"
    assert report.held_by == ("n2",)
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")


def test_partial_goes_on_without_it_and_says_so(command: Make) -> None:
    done = command(partial=True)
    done.agents.unreachable.add("n2")
    report = done.apply()
    assert ends(report.changes) == {"n1": "done", "n3": "done"}
    assert done.agents.ops("n2") == []
    assert any("n2 was not reached and keeps what it has" in text for text in report.notices)


def test_what_cannot_be_planned_on_one_node_stops_it_on_all(command: Make) -> None:
    step = replace(FILE, params={"path": MOTD, "content": "{{ os.version }}"})
    done = command(step)
    base = done.agents._base
    fleet = base.with_facts({"n3": {"os.release": "debian"}})
    done.agents._base = fleet
    report = done.apply()
    assert report.code == 3
    assert ends(report.changes)["n3"] == "not-started"
    assert not done.agents.sent


def test_nodes_left_out_with_another_environment_are_a_refusal(command: Make) -> None:
    step = Step("env", env.RESOURCE, {"targets": ["nccl.conf"]}, line=1)
    done = command(step, left_out=("n9",))
    other = Environment((EnvValue("NCCL_ALGO", "Tree", ("n9",), "declared"),), {})
    done.invocation.applied.record_written("test", OLD, other, ("n9",))
    with ending(Refused) as caught:
        done.apply()
    assert caught[0].message.endswith("apply to all nodes; this run wrote nothing")
    assert not done.agents.sent


def test_nodes_left_out_of_which_nothing_is_known_are_a_refusal(command: Make) -> None:
    step = Step("env", env.RESOURCE, {"targets": ["nccl.conf"]}, line=1)
    done = command(step, left_out=("n9",))
    with ending(Refused) as caught:
        done.apply()
    assert caught[0].message.startswith("which values n9 have is not known here")
    assert not done.agents.sent


def test_partial_goes_on_beside_nodes_of_which_nothing_is_known_and_names_them(
    command: Make,
) -> None:
    step = Step("env", env.RESOURCE, {"targets": ["nccl.conf"]}, line=1)
    done = command(step, left_out=("n9",), partial=True)
    report = done.apply()
    assert set(ends(report.changes).values()) == {"done+done"}
    assert any("which values n9 have is not known here" in text for text in report.notices)


def test_what_is_no_environment_needs_no_other_node(command: Make) -> None:
    report = command(FILE, left_out=("n9",)).apply()
    assert ends(report.changes) == everywhere("done")


# ---------------------------------------------------------------- while files are written


def test_one_node_that_is_full_while_staging(command: Make) -> None:
    done = command()
    done.agents.faults["stage", "n2"] = FULL
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "not-started", "n2": "failed", "n3": "not-started"}
    (row,) = [row for row in report.changes or () if row.outcome == "failed"]
    assert row.detail == "failed: No space left on device"
    assert motd(done.agents) == dict.fromkeys(NAMES)
    assert done.agents.ops("n1") == ["lock", "stage", "undo"]
    assert done.agents.ops("n2") == ["lock", "stage"]
    assert done.agents.surveys == 1


def test_no_node_can_stage(command: Make) -> None:
    done = command()
    for name in NAMES:
        done.agents.faults["stage", name] = FULL
    report = done.apply()
    assert (report.code, ends(report.changes)) == (1, everywhere("failed"))
    assert all(done.agents.ops(name) == ["lock", "stage"] for name in NAMES)


def test_one_node_that_is_full_while_committing(command: Make) -> None:
    done = command()
    done.agents.faults["commit", "n2"] = FULL
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "rolled-back", "n2": "failed", "n3": "rolled-back"}
    assert motd(done.agents) == dict.fromkeys(NAMES)
    assert states(done.agents) == everywhere("undone")
    assert all(done.agents.ops(name) == ["lock", "stage", "commit", "undo"] for name in NAMES)


def test_a_lock_that_one_node_cannot_make(command: Make) -> None:
    done = command()
    done.agents.faults["lock", "n2"] = FULL
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "not-started", "n2": "failed", "n3": "not-started"}
    assert all(done.agents.ops(name) == ["lock"] for name in NAMES)


@pytest.mark.parametrize("op", ["stage", "commit"])
def test_a_file_that_changed_since_it_was_planned(command: Make, op: str) -> None:
    done = command()
    edit = {"no": "changed", "why": f"{MOTD} changed since it was planned", "path": MOTD}
    done.agents.faults[op, "n3"] = {**edit, "current": "bWluZQo="}
    with ending(Refused) as caught:
        done.apply()
    more = PUT_BACK if op == "commit" else "; this run wrote nothing"
    assert caught[0].message == f"n3: {MOTD} changed since it was planned{more}"
    assert "+mine" in cast("Refused", caught[0]).diff
    assert caught[0].code == 4
    assert motd(done.agents) == dict.fromkeys(NAMES)


def test_a_node_lost_while_its_lock_is_taken(command: Make) -> None:
    done = command()
    done.agents.faults["lock", "n2"] = LOST_BEFORE
    with ending(LinkLost) as caught:
        done.apply()
    assert caught[0].message.startswith("n2 was lost before anything was written: ")
    assert all("stage" not in done.agents.ops(name) for name in NAMES)


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_a_node_lost_while_staging(command: Make, fault: str) -> None:
    done = command()
    done.agents.faults["stage", "n2"] = fault
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "not-started", "n2": "failed", "n3": "not-started"}
    assert done.agents.ops("n3") == ["lock", "stage", "undo"]
    assert motd(done.agents) == dict.fromkeys(NAMES)
    # What became of it is not known, so the journal of that node is judged as not finished.
    assert journal_verdicts(report)["n2"] in ("fail", "unknown")


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_a_node_lost_between_stage_and_commit_or_after_its_commit(
    command: Make, fault: str
) -> None:
    done = command()
    done.agents.faults["commit", "n2"] = fault
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "rolled-back", "n2": "unanswered", "n3": "rolled-back"}
    assert done.agents.ops("n1") == ["lock", "stage", "commit", "undo"]
    assert done.agents.ops("n2") == ["lock", "stage", "commit"]
    kept = b"new\n" if fault == LOST_AFTER else None
    assert motd(done.agents) == {"n1": None, "n2": kept, "n3": None}
    assert journal_verdicts(report)["n2"] in ("fail", "unknown")
    (row,) = [row for row in report.changes or () if row.outcome == "unanswered"]
    assert "the node was lost" in row.detail


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_a_node_lost_while_all_are_told_that_it_stays(command: Make, fault: str) -> None:
    done = command()
    done.agents.faults["settle", "n2"] = fault
    report = done.apply()
    assert ends(report.changes) == everywhere("done")
    assert motd(done.agents) == dict.fromkeys(NAMES, b"new\n")
    assert states(done.agents)["n1"] == "done"
    assert journal_verdicts(report)["n2"] in ("fail", "unknown")
    assert report.code in (1, 3)


def test_a_rollback_that_fails_on_one_node(command: Make) -> None:
    done = command()
    done.agents.faults["commit", "n2"] = FULL
    done.agents.faults["undo", "n3"] = FULL
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "rolled-back", "n2": "failed", "n3": "failed"}
    assert details(report)["n3"] == "failed: No space left on device"
    assert motd(done.agents) == {"n1": None, "n2": None, "n3": b"new\n"}
    assert journal_verdicts(report)["n3"] in ("fail", "unknown")


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("moment", "more", "content", "ops"),
    [
        pytest.param("survey", "", None, [], id="while-looking"),
        pytest.param("lock", "", None, ["lock"], id="while-locking"),
        # The answers are lost with the signal: what nodes staged goes when their agents end.
        pytest.param("stage", "", None, ["lock", "stage"], id="while-staging"),
        pytest.param(
            "commit", PUT_BACK, None, ["lock", "stage", "commit", "undo"], id="while-committing"
        ),
        pytest.param(
            "second survey",
            PUT_BACK,
            None,
            ["lock", "stage", "commit", "undo"],
            id="while-looking-again",
        ),
        pytest.param(
            "settle", "; what was written stays on n[1-3]", b"new\n", WRITTEN, id="at-the-end"
        ),
    ],
)
def test_a_signal_at_every_moment(
    command: Make, moment: str, more: str, content: bytes | None, ops: list[str]
) -> None:
    done = command()
    done.agents.interrupt_during = moment
    with ending(Interrupted) as caught:
        done.apply()
    assert caught[0].message == f"interrupted by SIGTERM{more}"
    assert caught[0].code == 130
    assert motd(done.agents) == dict.fromkeys(NAMES, content)
    assert done.agents.ops("n1") == ops


@pytest.mark.parametrize("moment", ["perform", "second survey"])
def test_a_signal_once_steps_have_begun_rolls_them_back_around_the_files(
    command: Make, moment: str
) -> None:
    done = command(FILE, SWITCH)
    done.agents.interrupt_during = moment
    with ending(Interrupted) as caught:
        done.apply()
    assert caught[0].message == f"interrupted by SIGTERM{PUT_BACK}"
    assert motd(done.agents) == dict.fromkeys(NAMES)
    assert switches(done.agents) == everywhere("off")
    expected = ["lock", "stage", "commit", "perform", "halt", "take_back", "undo", "take_back"]
    assert done.agents.ops("n2") == expected
    bodies = [body for op, node, body in done.agents.sent if (op, node) == ("take_back", "n2")]
    assert [body.get("again") for body in bodies] == [None, True]
    assert all(body["go_on"] for body in bodies)


def test_what_nothing_takes_back_is_said_in_the_error(command: Make) -> None:
    done = command(FILE, replace(SWITCH, params={"how": "for-ever"}))
    done.agents.interrupt_during = "second survey"
    with ending(Interrupted) as caught:
        done.apply()
    lines = [f"{name}: nothing takes it back: main" for name in NAMES]
    assert caught[0].message == "\n".join([f"interrupted by SIGTERM{PUT_BACK}", *lines])
    assert switches(done.agents) == everywhere("on")


def test_steps_that_one_node_cannot_roll_back_are_said_in_the_error(command: Make) -> None:
    done = command(FILE, SWITCH)
    done.agents.interrupt_during = "second survey"
    done.agents.faults["take_back", "n2"] = {"no": "failed", "why": "exit code 1"}
    with ending(ChangeFailed) as caught:
        done.apply()
    assert caught[0].message == f"interrupted by SIGTERM{PUT_BACK}\nn2: exit code 1"
    assert switches(done.agents) == {"n1": "off", "n2": "on", "n3": "off"}
    assert motd(done.agents) == dict.fromkeys(NAMES)


# ---------------------------------------------------------------- steps that fail


def test_a_step_that_fails_on_one_node_is_rolled_back_there_and_ends_the_run(
    command: Make,
) -> None:
    later = replace(SWITCH, name="later", params={"target": "other"})
    done = command(FILE, SWITCH, later)
    done.agents.faults["perform", "n2"] = BROKEN
    report = done.apply()
    assert report.code == 1
    outcomes = {
        (row.target, node): row.outcome for row in report.changes or () for node in row.nodes
    }
    assert outcomes[MOTD, "n2"] == "done"  # files are the same on all nodes, and stay
    assert (outcomes["main", "n1"], outcomes["main", "n2"]) == ("done", "failed")
    assert outcomes["other", "n1"] == "not-started"
    (row,) = [row for row in report.changes or () if row.outcome == "failed"]
    assert row.detail == "n2: step «switch» (line 5): the command ended with 1"
    assert done.agents.ops("n2") == ["lock", "stage", "commit", "perform", "take_back", "settle"]
    assert done.agents.ops("n1") == ["lock", "stage", "commit", "perform", "settle"]
    assert states(done.agents) == everywhere("done")


def test_a_step_without_effect_has_failed(command: Make) -> None:
    done = command(SWITCH)
    done.agents.nodes["n3"].broken_switch = True
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "done", "n2": "done", "n3": "failed"}
    (row,) = [row for row in report.changes or () if row.outcome == "failed"]
    assert row.detail.endswith("it was done, and the node is not as wanted: switch on")
    assert done.agents.ops("n3")[-2:] == ["take_back", "settle"]


def test_one_batch_that_fails_keeps_the_next_from_beginning(command: Make) -> None:
    done = command(replace(SWITCH, serial=1))
    done.agents.faults["perform", "n2"] = BROKEN
    report = done.apply()
    assert ends(report.changes) == {"n1": "done", "n2": "failed", "n3": "not-started"}
    assert "perform" not in done.agents.ops("n3")
    assert switches(done.agents) == {"n1": "on", "n2": "off", "n3": "off"}


def test_a_rollback_of_a_step_that_fails_as_well(command: Make) -> None:
    done = command(SWITCH)
    done.agents.faults["perform", "n2"] = BROKEN
    done.agents.faults["take_back", "n2"] = {"no": "failed", "why": "exit code 2"}
    report = done.apply()
    (row,) = [row for row in report.changes or () if row.outcome == "failed"]
    assert row.detail.endswith("the command ended with 1\nundoing failed, too: exit code 2")


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_a_node_lost_in_a_step(command: Make, fault: str) -> None:
    done = command(FILE, SWITCH)
    done.agents.faults["perform", "n2"] = fault
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "done+done", "n2": "done+unanswered", "n3": "done+done"}
    assert done.agents.ops("n2") == ["lock", "stage", "commit", "perform"]
    assert journal_verdicts(report)["n2"] in ("fail", "unknown")
    assert done.agents.surveys == 1  # the others are not asked again without it


# ---------------------------------------------------------------- verify


def test_verify_follows_where_all_went_well(command: Make) -> None:
    done = command(verify=True)
    report = done.apply()
    assert done.trials == [NAMES]
    assert (report.verify and report.verify.verdict, report.code) == ("pass", 0)
    assert all(done.agents.ops(name) == WRITTEN for name in NAMES)


def test_verify_that_fails_leaves_what_was_written(command: Make) -> None:
    done = command(verify=True)
    report = done.apply(lambda *values: Trial(result("fail")))
    assert (report.code, ends(report.changes)) == (1, everywhere("done"))
    assert states(done.agents) == everywhere("done")


def test_a_speed_that_is_not_known_leaves_what_was_written_and_exits_3(command: Make) -> None:
    """As over NCCL, where neither the inventory nor an earlier run says what is normal."""
    unknown = Finding(
        "nccl.busbw_multi", "unknown", "error", NAMES, "", "", "", reason="first_sample"
    )
    done = command(verify=True)
    report = done.apply(lambda *values: Trial(result("unknown"), (unknown,)))
    assert (report.code, ends(report.changes)) == (3, everywhere("done"))
    assert states(done.agents) == everywhere("done")


def test_no_verify_where_a_step_failed(command: Make) -> None:
    done = command(SWITCH, verify=True)
    done.agents.faults["perform", "n2"] = BROKEN
    report = done.apply()
    assert (done.trials, report.verify) == ([], None)


def test_no_verify_where_a_finding_blocks_it(command: Make) -> None:
    done = command(verify=True)
    done.agents.faults["dial", "n2"] = {"dials": [["refused"]] * 9}
    report = done.apply()
    assert (done.trials, report.verify) == ([], None)
    assert states(done.agents) == everywhere("done")


def test_a_signal_during_verify_rolls_all_back(command: Make) -> None:
    def interrupted(*values: Any) -> Trial:
        raise Interrupted("interrupted by SIGTERM")

    done = command(verify=True)
    with ending(Interrupted) as caught:
        done.apply(interrupted)
    assert caught[0].message == f"interrupted by SIGTERM{PUT_BACK}"
    assert motd(done.agents) == dict.fromkeys(NAMES)
    assert states(done.agents) == everywhere("undone")


# ---------------------------------------------------------------- without root

NO_ROOT = (
    "cannot: writing needs root on the node, and bob is not: add -b (--become, sudo on the "
    "nodes), or log in as root"
)


@pytest.mark.parametrize("what", ["plan", "apply", "rollback"])
def test_without_root_one_sentence_says_so_before_anything_is_asked(
    command: Make, what: str
) -> None:
    done = command()
    done.agents.rights = Rights(1000, "bob")
    report = getattr(done, what)()
    assert report.code == 1
    said = [(row.nodes, row.detail) for row in report.changes or () if row.detail]
    assert said == [(NAMES, NO_ROOT)]
    assert {row.outcome for row in report.changes or ()} <= {"planned", "not-started"}
    assert len([row for row in report.changes or () if row.diff]) == (what != "rollback")
    assert all(done.agents.ops(name) == [] for name in NAMES)


def test_a_tree_of_the_users_own_needs_no_root(command: Make) -> None:
    done = command()
    done.agents.rights = Rights(1000, "bob")
    nodes = tuple(replace(node, root="/home/bob") for node in done.agents.inventory.nodes)
    done.agents._base = replace(
        done.agents._base, inventory=replace(done.agents.inventory, nodes=nodes)
    )
    done = dataclasses.replace(
        done, invocation=replace(done.invocation, inventory=done.agents.inventory)
    )
    assert ends(done.apply().changes) == everywhere("done")


def test_where_nothing_is_to_be_written_no_root_is_needed_to_plan(command: Make) -> None:
    done = command()
    for node in done.agents.nodes.values():
        node.files[MOTD] = b"new\n"
    done.agents.rights = Rights(1000, "bob")
    assert done.plan().code == 0


# ---------------------------------------------------------------- what an earlier run left


def interrupted_run(command: Make, moment: str) -> FakeAgents:
    """A run that was cut off after this, whose controller could do nothing more."""
    agents = FakeAgents()
    done = command(agents=agents, run=OLD)
    for name in NAMES:
        agents.faults["undo", name] = LOST_BEFORE
    if moment == "settle":
        agents.faults["settle", "n2"] = LOST_BEFORE
    agents.interrupt_during = moment
    with pytest.raises(Interrupted if moment == "settle" else ChangeFailed):
        done.apply()
    fresh = FakeAgents()
    for name in NAMES:
        fresh.nodes[name].runs = agents.nodes[name].runs
        fresh.nodes[name].files = agents.nodes[name].files
    return fresh


def test_a_run_that_was_cut_off_is_rolled_back_first(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    assert states(agents, OLD) == everywhere("committed")
    done = command(agents=agents)
    report = done.apply()
    assert states(agents, OLD) == everywhere("undone")
    assert states(agents) == everywhere("done")
    assert f"run {OLD} was cut off; it was undone on n[1-3]" in report.notices
    expected = ["lock", "take_back", "undo", "take_back", "stage", "commit", "settle"]
    assert agents.ops("n1") == expected
    assert agents.bodies("undo")["n1"]["undo"] == OLD


def test_a_run_that_one_node_knows_as_done_is_finalized_on_the_others(command: Make) -> None:
    agents = interrupted_run(command, "settle")
    assert states(agents, OLD) == {"n1": "done", "n2": "committed", "n3": "done"}
    done = command(agents=agents)
    report = done.apply()
    assert states(agents, OLD) == everywhere("done")
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")
    assert f"run {OLD} was cut off; it is done now on n2, as on n[1,3]" in report.notices
    assert agents.ops("n2") == ["lock", "take_back", "settle"]
    assert agents.bodies("take_back")["n2"]["half"] is True


def test_a_file_edited_since_the_cut_is_a_refusal(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    agents.nodes["n2"].files[MOTD] = b"mine\n"
    with ending(Refused) as caught:
        command(agents=agents).apply()
    assert caught[0].message.startswith(f"n2: run {OLD} was cut off, and {MOTD} changed after")
    assert "+mine" in cast("Refused", caught[0]).diff


def test_a_node_that_cannot_finish_an_earlier_run_stops_this_one(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    agents.faults["take_back", "n2"] = FULL
    report = command(agents=agents).apply()
    assert report.code == 3
    # What the earlier run wrote is still there on n2.
    assert ends(report.changes) == {**everywhere("not-started"), "n2": "unchanged"}
    assert "stage" not in agents.ops("n1")
    assert details(report)["n2"] == "failed: No space left on device"


# ---------------------------------------------------------------- the command rollback


def applied(command: Make, *steps: Step) -> FakeAgents:
    agents = FakeAgents()
    for node in agents.nodes.values():
        node.files[MOTD] = b"old\n"
    assert command(*steps, agents=agents, run=OLD).apply().code == 0
    agents.sent.clear()
    agents.surveys = 0
    return agents


def test_rollback_puts_the_old_bytes_back_on_all_nodes(command: Make) -> None:
    agents = applied(command)
    report = command(agents=agents).rollback()
    assert (report.code, ends(report.changes)) == (0, everywhere("undone"))
    assert f"run {OLD} is undone" in report.notices
    assert motd(agents) == dict.fromkeys(NAMES, b"old\n")
    assert all(agents.ops(name) == ["lock", "runs", "deeds", *WRITTEN[1:]] for name in NAMES)
    assert agents.bodies("stage")["n1"]["undoes"] == OLD
    assert states(agents, OLD) == everywhere("undone")


def test_rollback_of_steps_goes_around_the_files(command: Make) -> None:
    agents = applied(command, FILE, SWITCH)
    report = command(agents=agents).rollback()
    assert (report.code, ends(report.changes)) == (0, everywhere("undone+undone"))
    assert switches(agents) == everywhere("off")
    middle = ["deeds", "take_back", "stage", "commit", "take_back", "settle"]
    assert agents.ops("n2") == ["lock", "runs", *middle]


def test_steps_that_one_node_cannot_roll_back_leave_its_files(command: Make) -> None:
    agents = applied(command, FILE, SWITCH)
    agents.faults["take_back", "n2"] = {"no": "failed", "why": "exit code 1", "deed": 0}
    report = command(agents=agents).rollback()
    assert report.code == 1
    assert ends(report.changes)["n2"] == "failed+not-started"
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")
    assert f"run {OLD} is not undone; rollback goes on where it stopped" in report.notices
    assert "stage" not in agents.ops("n1")


def test_there_is_nothing_to_roll_back(command: Make) -> None:
    report = command().rollback()
    assert (report.code, report.changes, report.notices) == (0, (), (rollback.NOTHING,))


def test_rollback_of_a_run_that_was_cut_off(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    report = command(agents=agents).rollback()
    assert report.code == 0
    assert rollback.NOTHING_MORE in report.notices
    assert motd(agents) == dict.fromkeys(NAMES)
    assert agents.bodies("undo")["n1"]["by"] == RUN


def test_rollback_over_an_edit_is_a_refusal(command: Make) -> None:
    agents = applied(command)
    agents.nodes["n3"].files[MOTD] = b"mine\n"
    with ending(Refused) as caught:
        command(agents=agents).rollback()
    assert caught[0].message.startswith(f"n3: {MOTD} was edited after run {OLD}")
    assert "stage" not in agents.ops("n1")
    report = command(agents=agents, force=True).rollback()
    assert (report.code, motd(agents)) == (0, dict.fromkeys(NAMES, b"old\n"))


def test_rollback_with_a_node_missing_writes_nothing(command: Make) -> None:
    agents = applied(command)
    agents.unreachable.add("n2")
    report = command(agents=agents).rollback()
    assert (report.code, report.changes) == (3, None)
    assert not agents.sent


# ---------------------------------------------------------------- what each node answered


def test_a_node_that_cannot_put_back_is_named_and_the_command_has_failed(command: Make) -> None:
    done = command()
    done.agents.interrupt_during = "second survey"
    done.agents.faults["undo", "n2"] = FULL
    done.agents.faults["undo", "n3"] = LOST_BEFORE
    with ending(ChangeFailed) as caught:
        done.apply()
    assert caught[0].code == 1
    assert caught[0].message == (
        "interrupted by SIGTERM; what had been written was put back on n1 only; n2 may have it "
        "still (failed: No space left on device); of n3 it is not known (the node was lost: no "
        "sign of life for 5 s); `clusterprep rollback` goes on where it stopped"
    )
    assert motd(done.agents) == {"n1": None, "n2": b"new\n", "n3": b"new\n"}


def test_a_node_that_says_that_the_run_is_done_has_not_put_it_back(command: Make) -> None:
    done = command()
    done.agents.interrupt_during = "second survey"
    done.agents.faults["undo", "n2"] = {"nothing": "done"}
    with ending(ChangeFailed) as caught:
        done.apply()
    assert "put back on n[1,3] only; n2 may have it still (it says that" in caught[0].message


def test_a_time_limit_after_a_commit_that_was_undone_is_a_failure(command: Make) -> None:
    def too_long(*values: Any) -> Trial:
        raise OutOfTime("--timeout of 60 s reached")

    done = command(verify=True)
    with ending(ChangeFailed) as caught:
        done.apply(too_long)
    assert (caught[0].code, caught[0].message) == (1, f"--timeout of 60 s reached{PUT_BACK}")
    assert motd(done.agents) == dict.fromkeys(NAMES)


LIMIT = OutOfTime("--timeout of 9 s reached")


def test_a_time_limit_while_nodes_are_asked_keeps_what_they_said(command: Make) -> None:
    done = command()
    done.agents.interrupt_during = "survey"
    done.agents.interruption = LIMIT
    report = done.apply()
    assert (report.code, report.verdict) == (3, "unknown")
    assert report.error is not None
    assert report.error["message"] == LIMIT.message
    assert {finding.verdict for finding in report.findings or ()} == {"pass"}
    assert len(report.nodes or ()) == 3
    assert not done.agents.sent


@pytest.mark.parametrize("moment", ["lock", "stage"])
def test_a_time_limit_before_the_commit_says_what_was_not_started(
    command: Make, moment: str
) -> None:
    done = command()
    done.agents.interrupt_during = moment
    done.agents.interruption = LIMIT
    report = done.apply()
    assert (report.code, ends(report.changes)) == (3, everywhere("not-started"))
    assert motd(done.agents) == dict.fromkeys(NAMES)


def test_a_time_limit_after_the_commit_says_what_was_put_back_where(command: Make) -> None:
    done = command()
    done.agents.interrupt_during = "second survey"
    done.agents.interruption = LIMIT
    done.agents.faults["undo", "n2"] = LOST_BEFORE
    report = done.apply()
    assert report.code == 1
    assert ends(report.changes) == {"n1": "rolled-back", "n2": "unanswered", "n3": "rolled-back"}
    assert report.error is not None
    assert report.error["message"].startswith(
        f"{LIMIT.message}; what had been written was put back"
    )
    assert motd(done.agents) == {"n1": None, "n2": b"new\n", "n3": None}


def test_a_bug_after_the_commit_rolls_back_and_says_so(command: Make) -> None:
    def broken(*values: Any) -> Trial:
        raise RecursionError("too deep")

    done = command(verify=True)
    with pytest.raises(RuntimeError) as raised:
        done.apply(broken)
    assert str(raised.value) == f"RecursionError: too deep{PUT_BACK}"
    assert states(done.agents) == everywhere("undone")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(LinkLost("hung", "no link"), ChangeFailed), (KeyError("a bug"), RuntimeError)],
)
def test_a_rollback_that_ends_in_an_error_itself_is_said(
    command: Make, fault: Exception, kind: type[Exception]
) -> None:
    done = command(FILE, SWITCH)
    done.agents.interrupt_during = "second survey"
    done.agents.faults["take_back", "n1"] = fault
    with pytest.raises(kind, match="could not be put back") as raised:
        done.apply()
    assert "interrupted by SIGTERM" in str(raised.value)
    assert "`clusterprep rollback`" in str(raised.value)
    assert states(done.agents) == everywhere("committed")


def test_what_stays_is_said_of_the_nodes_that_confirmed_it(command: Make) -> None:
    done = command()
    done.agents.interrupt_during = "settle"
    done.agents.faults["settle", "n2"] = LOST_BEFORE
    with ending(Interrupted) as caught:
        done.apply()
    assert caught[0].message == (
        "interrupted by SIGTERM; what was written stays on n[1,3]; n2 did not confirm it (the node "
        "was lost: no sign of life for 5 s); the next apply settles that"
    )


# ---------------------------------------------------------------- a rollback finds all of it


def test_two_applies_that_failed_are_rolled_back(command: Make) -> None:
    """The second one changed nothing, so it is not the run to undo."""
    agents = FakeAgents()
    for name in NAMES:
        agents.nodes[name].broken_switch = True
    for run in (OLD, RUN):
        report = command(FILE, SWITCH, agents=agents, run=run).apply()
        assert report.code == 1
        for node in agents.nodes.values():
            node.locked_by = None
        agents.surveys = 0
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")
    report = command(FILE, SWITCH, agents=agents, run=LATER).rollback()
    assert motd(agents) == dict.fromkeys(NAMES)
    assert f"run {OLD} is undone" in report.notices


def test_a_node_that_has_forgotten_the_run_stops_its_rollback(command: Make) -> None:
    agents = applied(command)
    del agents.nodes["n2"].runs[OLD]
    with ending(Refused) as caught:
        command(agents=agents).rollback()
    assert f"run {OLD} wrote to n2 as well, which remembers nothing of it" in caught[0].message
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")
    report = command(agents=agents, partial=True).rollback()
    said = f"run {OLD} is undone on n[1,3]; n2 remembers nothing of it and keeps what it has"
    assert said in report.notices
    assert motd(agents) == {"n1": b"old\n", "n2": b"new\n", "n3": b"old\n"}


def test_a_rollback_that_cannot_finish_an_earlier_run_says_why(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    agents.faults["undo", "n2"] = FULL
    report = command(agents=agents).rollback()
    assert report.code == 1
    (row,) = [row for row in report.changes or () if row.outcome == "failed"]
    assert (row.nodes, row.detail) == (("n2",), "failed: No space left on device")
    said = "a run that was cut off could not be finished on n2; nothing else was undone"
    assert said in report.notices


def test_a_run_that_was_undone_is_not_called_nothing(command: Make) -> None:
    agents = applied(command)
    assert command(agents=agents).rollback().code == 0
    report = command(agents=agents, run=LATER).rollback()
    why = f"run {OLD} was undone before; no earlier run of this cluster is left to undo"
    assert f"{rollback.NOTHING}: {why}" in report.notices


@pytest.mark.parametrize("others", ["left-out", "forgotten"])
def test_a_part_of_the_nodes_of_a_run_settles_nothing(command: Make, others: str) -> None:
    """Where all that are asked have committed, one that is not may know the run as done."""
    agents = interrupted_run(command, "commit")
    for name, node in agents.nodes.items():
        node.runs[OLD]["nodes"] = "n[1-4]" if others == "left-out" else "n[1-3]"
        if others == "forgotten" and name == "n3":
            del node.runs[OLD]
    why = "n4 was not asked" if others == "left-out" else "n3 remembers nothing of it"
    for act in (command(agents=agents).apply, command(agents=agents).rollback):
        with ending(Refused) as caught:
            act()
        assert why in caught[0].message
        assert "`clusterprep rollback --force`" in caught[0].message
    assert motd(agents)["n1"] == b"new\n"
    report = command(agents=agents, force=True).rollback()
    asked = "n[1-3]" if others == "left-out" else "n[1-2]"
    missing = "n4" if others == "left-out" else "n3"
    said = f"run {OLD} was cut off; it was undone on {asked}; of {missing}, where it was to write"
    assert any(said in notice for notice in report.notices), report.notices


def test_one_done_beside_others_that_never_committed_is_no_proof(command: Make) -> None:
    agents = interrupted_run(command, "commit")
    agents.nodes["n2"].runs[OLD]["state"] = "undone"
    agents.nodes["n2"].files.pop(MOTD)
    agents.nodes["n3"].runs[OLD]["state"] = "done"
    with ending(Refused) as caught:
        command(agents=agents).apply()
    assert f"`clusterprep rollback --run {OLD}`" in caught[0].message
    assert f"run {OLD} was cut off; it was undone on n1, and is done on n3" in caught[0].message
    report = command(agents=agents, run=LATER).rollback()
    assert report.code == 0
    assert motd(agents) == dict.fromkeys(NAMES)


def test_a_run_has_a_number_after_all_that_its_nodes_know_whatever_its_name(command: Make) -> None:
    agents = FakeAgents()
    assert command(agents=agents, run=LATER).apply().code == 0
    newer = replace(FILE, params={"path": MOTD, "content": "newer\n"})
    agents.surveys = 0
    assert command(newer, agents=agents, run=OLD).apply().code == 0
    for node in agents.nodes.values():
        assert node.runs[OLD]["number"] == node.runs[LATER]["number"] + 1
    agents.surveys = 0
    report = command(agents=agents, run=RUN).rollback()
    assert f"run {OLD} is undone" in report.notices
    assert motd(agents) == dict.fromkeys(NAMES, b"new\n")
    assert agents.bodies("stage")["n1"]["nodes"] == "n[1-3]"
