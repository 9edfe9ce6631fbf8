"""apply in batches: what is asked of which node, what stops it, and what is said of each node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterprep.changes.playbook.steps import Step
from clusterprep.changes.resources import env, file
from clusterprep.cli.commands.roll_out import refuse_wrong_batches
from clusterprep.cli.commands.stages import Trial
from clusterprep.errors import InputError, Interrupted, OutOfTime, Refused
from clusterprep.history.applied import outcomes
from clusterprep.model import Report
from clusterprep.reports import render
from tests.support.commands import Command, new_command, result
from tests.support.fake_agents import LOST_AFTER, LOST_BEFORE, SWITCHES, FakeAgents

RUN, LATER, LAST = "20261121-090000-0000", "20261121-100000-0000", "20261121-110000-0000"
MOTD = "/etc/motd"
FILE = Step("motd", file.RESOURCE, {"path": MOTD, "content": "new\n"}, line=1)
SWITCH = Step("switch", SWITCHES, {}, line=5)
ENV = Step("env", env.RESOURCE, {"targets": ["nccl.conf"]}, line=1)
FULL = {"no": "failed", "why": "No space left on device"}
NAMES = tuple(f"n{number}" for number in range(1, 9))

Make = Callable[..., Command]


class LockingAgents(FakeAgents):
    """Agents whose part that writes forgets the lock if it is loaded again, as a real one does."""

    def load(self, part: str, names: Iterable[str] | None = None) -> None:
        for name in self.nodes if names is None else names:
            if part == "act" and self.nodes[name].locked_by:
                self.faults["lock", name] = {"no": "locked", "why": "this very run"}
        super().load(part, names)


@pytest.fixture
def command(tmp_path: Path) -> Make:
    def make(
        *steps: Step, agents: FakeAgents | None = None, run: str = RUN, **settings: Any
    ) -> Command:
        chosen: dict[str, Any] = {"batches": ("2", "rest"), **settings}
        agents = agents or LockingAgents(8)
        return new_command(tmp_path, agents, steps or (FILE,), run, **chosen)

    return make


def again(command: Make, agents: FakeAgents, **settings: Any) -> Command:
    """A later command on the same nodes, which answer as usual."""
    later = LockingAgents(8)
    later.nodes = agents.nodes
    for node in later.nodes.values():
        node.locked_by = None
        node.parts = {"look"}
    later.links = {node.name: later.redial(node) for node in later.inventory.nodes}
    return command(agents=later, **settings)


def has(agents: FakeAgents) -> dict[str, bool]:
    """Whether each node has the new bytes."""
    return {name: node.files.get(MOTD) == b"new\n" for name, node in agents.nodes.items()}


def only(*names: str) -> dict[str, bool]:
    return {name: name in names for name in NAMES}


def rows(report: Report) -> list[tuple[str, str, str | None]]:
    return [(row.name, row.outcome, row.gate) for row in report.batches or ()]


def ends(report: Report) -> dict[str, str]:
    return {name: row.outcome for row in report.changes or () for name in row.nodes}


def gate_of(folder: Path, *words: str) -> str:
    """A gate that notes what it is asked for, and fails for batches with one of these nodes."""
    lines = [f'echo "$CLUSTERPREP_NODES $CLUSTERPREP_RUN" >> {folder}/asked']
    for word in words:
        lines.append(f'case ",$CLUSTERPREP_NODES," in *,{word},*) echo no {word}; exit 7;; esac')
    return "; ".join(lines)


# ---------------------------------------------------------------- all goes well


def test_a_batch_is_finalized_before_the_next_begins(command: Make, tmp_path: Path) -> None:
    done = command(gate=gate_of(tmp_path), batches=("1", "25%", "rest"))
    report = done.apply()
    assert report.code == 0
    assert rows(report) == [("1", "done", "pass"), ("2", "done", "pass"), ("3", "done", "pass")]
    assert has(done.agents) == only(*NAMES)
    order = [(op, name) for op, name, _ in done.agents.sent if op != "look"]
    assert [op for op, name in order if name == "n1"] == ["lock", "stage", "commit", "settle"]
    assert order.index(("settle", "n1")) < order.index(("stage", "n2"))
    assert order.index(("settle", "n3")) < order.index(("stage", "n4"))
    # The locks of all nodes come before the first batch.
    assert max(place for place, (op, _) in enumerate(order) if op == "lock") == 7
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"n1 {RUN}", f"n2,n3 {RUN}", f"n4,n5,n6,n7,n8 {RUN}"]
    bodies = done.agents.bodies("stage")
    assert (bodies["n2"]["nodes"], bodies["n2"]["batch"]) == ("n[2-3]", 2)
    assert bodies["n8"]["batches"] == ["n1", "n[2-3]", "n[4-8]"]


def test_without_a_gate_a_batch_is_looked_at_again(command: Make) -> None:
    done = command()
    report = done.apply()
    assert (report.code, rows(report)) == (0, [("1", "done", None), ("2", "done", None)])
    assert done.agents.surveys == 4  # before, after each batch, and all of them at the end


def test_what_is_not_there_when_a_batch_is_looked_at_again_fails(command: Make) -> None:
    done = command(canary="1")

    def edit() -> None:
        done.agents.nodes["n1"].files[MOTD] = b"somebody else's\n"

    done.agents.before_second_survey = edit
    report = done.apply()
    assert report.code == 1
    (first, *_) = report.batches or ()
    assert f"not what was written, when it was looked at again: {MOTD} on n1" in first.detail
    # The bytes of others are not overwritten.
    assert done.agents.nodes["n1"].files[MOTD] == b"somebody else's\n"
    assert any("of n1 it is not known" in notice for notice in report.notices)


def test_what_cannot_be_looked_at_again_is_not_taken_for_written(command: Make) -> None:
    """The next batch is not begun on the word of a node that does not say what it has."""
    done = command(canary="1")

    def close() -> None:
        done.agents.nodes["n1"].unseen = "hung"

    done.agents.before_second_survey = close
    report = done.apply()
    assert report.code == 1
    (first, *others) = report.batches or ()
    assert f"it is not known whether it is as written: {MOTD} on n1 (hung)" in first.detail
    assert {row.outcome for row in others} == {"not-started"}
    assert has(done.agents) == only()


def test_verify_tries_each_batch_by_itself_and_all_of_them_at_the_end(command: Make) -> None:
    done = command(gate="verify", verify=True)
    report = done.apply()
    assert report.code == 0
    assert done.trials == [("n1", "n2"), NAMES[2:], NAMES]


def test_batches_that_have_it_already_pass_without_a_gate(command: Make, tmp_path: Path) -> None:
    done = command(gate=gate_of(tmp_path))
    for name in ("n1", "n2"):
        done.agents.nodes[name].files[MOTD] = b"new\n"
    report = done.apply()
    assert rows(report) == [("1", "unchanged", None), ("2", "done", "pass")]
    assert (tmp_path / "asked").read_text().splitlines() == [f"{','.join(NAMES[2:])} {RUN}"]


def test_steps_follow_the_files_of_their_batch(command: Make, tmp_path: Path) -> None:
    done = command(FILE, SWITCH, gate=gate_of(tmp_path, "n3"))
    report = done.apply()
    assert report.code == 1
    assert rows(report) == [("1", "done", "pass"), ("2", "rolled-back", "fail")]
    switched = {name for name, node in done.agents.nodes.items() if node.switch == "on"}
    assert switched == {"n1", "n2"}
    assert has(done.agents) == only("n1", "n2")


# ---------------------------------------------------------------- a gate fails


def test_a_failed_gate_takes_back_its_batch_and_begins_no_other(
    command: Make, tmp_path: Path
) -> None:
    done = command(gate=gate_of(tmp_path, "n3"), batches=("1", "25%", "rest"))
    report = done.apply()
    assert report.code == 1
    assert rows(report) == [
        ("1", "done", "pass"),
        ("2", "rolled-back", "fail"),
        ("3", "not-started", None),
    ]
    assert has(done.agents) == only("n1")
    second = (report.batches or ())[1]
    assert second.detail == "the gate did not pass: the command ended with 7:\nno n3"
    assert report.notices[0] == "n1 has what this apply writes; n[2-8] has what was there before"
    assert report.notices[1].startswith("nodes differ: launch across them is refused where")
    assert report.notices[1].endswith("`clusterprep rollback` puts back what this one wrote")
    assert {"stage", "commit"}.isdisjoint(done.agents.ops("n4"))
    assert {name for name, (_, failed) in outcomes(report).items() if failed} == set(NAMES[1:])


def test_rollback_all_takes_back_the_batches_before_it(command: Make, tmp_path: Path) -> None:
    done = command(gate=gate_of(tmp_path, "n4"), batches=("1", "25%", "rest"), rollback_all=True)
    report = done.apply()
    assert report.code == 1
    assert rows(report) == [
        ("1", "undone", "pass"),
        ("2", "undone", "pass"),
        ("3", "rolled-back", "fail"),
    ]
    assert has(done.agents) == only()
    assert report.notices == ("n[1-8] has what was there before",)
    assert {run["state"] for run in done.agents.nodes["n1"].runs.values()} == {"undone", "done"}


def test_what_an_earlier_apply_wrote_is_not_what_rollback_takes_back(
    command: Make, tmp_path: Path
) -> None:
    """n1 keeps what the first run wrote, and the second one has nothing left to take back."""
    done = command(gate=gate_of(tmp_path, "n2"), canary="1")
    assert done.apply().code == 1
    settings: dict[str, Any] = {"gate": gate_of(tmp_path, "n3"), "rollback_all": True}
    report = again(command, done.agents, run=LATER, **settings).apply()
    assert report.code == 1
    assert has(done.agents) == only("n1")
    assert report.notices[0] == "n1 has what this apply writes; n[2-8] has what was there before"
    assert report.notices[1].endswith("differs; the next apply goes on")


def test_rollback_all_that_one_node_refuses_leaves_all_of_them(
    command: Make, tmp_path: Path
) -> None:
    done = command(gate=gate_of(tmp_path, "n3"), rollback_all=True)
    done.agents.faults["runs", "n2"] = LOST_BEFORE
    report = done.apply()
    assert report.code == 1
    assert has(done.agents) == only("n1", "n2")
    assert rows(report)[0] == ("1", "done", "pass")
    assert any("could not be taken back: n2 was lost" in notice for notice in report.notices)
    assert any(notice.startswith("n[1-2] has what this apply writes") for notice in report.notices)


def test_a_node_that_cannot_take_back_is_named(command: Make, tmp_path: Path) -> None:
    done = command(gate=gate_of(tmp_path, "n3"))
    done.agents.faults["undo", "n5"] = LOST_BEFORE
    report = done.apply()
    assert report.code == 1
    assert rows(report)[1] == ("2", "unanswered", "fail")
    assert ends(report)["n5"] == "unanswered"
    assert report.notices[0] == (
        "n[1-2] has what this apply writes; n[3-4,6-8] has what was there before; "
        "of n5 it is not known which of both"
    )


def test_a_batch_that_cannot_be_written_stops_it(command: Make) -> None:
    done = command()
    done.agents.faults["commit", "n3"] = FULL
    report = done.apply()
    assert report.code == 1
    assert rows(report) == [("1", "done", None), ("2", "failed", None)]
    assert has(done.agents) == only("n1", "n2")
    assert "n3: failed: No space left on device" in (report.batches or ())[1].detail


def test_a_batch_that_could_not_be_staged_does_not_keep_a_rollback_back(command: Make) -> None:
    done = command()
    done.agents.faults["stage", "n3"] = FULL
    assert done.apply().code == 1
    assert has(done.agents) == only("n1", "n2")
    second = again(command, done.agents, run=LATER)
    report = second.rollback()
    words = f"run {RUN} is undone on n[1-2]; n3, of a batch that was taken back"
    assert (report.code, report.notices) == (0, (f"{words}, remembers nothing of it",))
    assert has(second.agents) == only()


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_a_batch_that_a_node_does_not_confirm_is_the_last(command: Make, fault: str) -> None:
    done = command(rollback_all=True)
    done.agents.faults["settle", "n2"] = fault
    report = done.apply()
    assert report.code == 1
    assert has(done.agents) == only("n1", "n2")
    assert rows(report) == [("1", "done", None), ("2", "not-started", None)]
    assert "n2 did not confirm it" in (report.batches or ())[0].detail
    assert any("nothing was taken back, because" in notice for notice in report.notices)


def test_a_failed_verify_takes_back_its_batch(command: Make) -> None:
    def trial(*values: Any) -> Trial:
        fleet = values[2]
        verdict = "fail" if fleet.reached[0].name == "n3" else "pass"
        return Trial(msgspec.structs.replace(result(verdict), message="ranks 0 to 5 hang"))

    done = command(gate="verify")
    report = done.apply(trial)
    assert rows(report) == [("1", "done", "pass"), ("2", "rolled-back", "fail")]
    assert "ranks 0 to 5 hang" in (report.batches or ())[1].detail
    assert has(done.agents) == only("n1", "n2")


def test_a_verify_that_cannot_be_judged_does_not_pass(command: Make) -> None:
    report = command(gate="verify").apply(lambda *values: Trial(result("unknown")))
    assert rows(report) == [("1", "rolled-back", "unknown"), ("2", "not-started", None)]
    assert report.code == 1


# ---------------------------------------------------------------- refusals and errors


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"canary": "99"}, "99 takes every node: none is left to be written after it"),
        ({"canary": "n[1-8]"}, "n[1-8] takes every node"),
        ({"canary": "0"}, "0 is no number of nodes"),
        ({"batches": ("1", "restt")}, "'restt' is no size of a batch"),
    ],
)
def test_wrong_batches_are_refused_before_a_node_is_contacted(
    command: Make, options: dict[str, Any], why: str
) -> None:
    invocation = command(ENV, gate="check", **options).invocation
    with pytest.raises(InputError) as raised:
        refuse_wrong_batches(invocation)
    assert why in str(raised.value)


def test_values_of_all_ranks_need_a_gate(command: Make) -> None:
    done = command(ENV)
    with pytest.raises(InputError) as raised:
        done.apply()
    assert raised.value.problems[0].key == "--gate"
    assert "must be equal on all ranks" in str(raised.value)
    assert not done.agents.sent
    whole = command(ENV, batches=("100%",)).apply()  # one batch is all nodes
    assert rows(whole) == [("1", "done", None)]


def test_values_of_all_ranks_with_a_gate(command: Make, tmp_path: Path) -> None:
    done = command(ENV, gate=gate_of(tmp_path, "n3"))
    assert done.apply().code == 1
    remembered = done.invocation.applied.last("test")
    assert set(remembered) == {"n1", "n2"}


def test_a_file_that_changed_before_its_batch_is_a_refusal_that_says_who_has_what(
    command: Make,
) -> None:
    done = command()
    edit = {"no": "changed", "why": f"{MOTD} changed since it was planned", "path": MOTD}
    done.agents.faults["stage", "n3"] = {**edit, "current": "bWluZQo="}
    with pytest.raises(Refused) as raised:
        done.apply()
    assert raised.value.message.endswith(
        "n[1-2] has what this apply writes; n[3-8] has what was there before"
    )
    assert has(done.agents) == only("n1", "n2")


def test_an_interruption_puts_back_the_batch_under_way(command: Make) -> None:
    done = command(gate="sleep 60")
    began = time.monotonic()

    def stop(*words: Any) -> None:
        done.agents.deadline.stop(Interrupted("interrupted by SIGTERM"))

    watch = done.invocation.watch
    watch.stage = lambda name, *rest: stop() if name == "gate" else None  # type: ignore[method-assign]
    with pytest.raises(Interrupted) as raised:
        done.apply()
    assert time.monotonic() - began < 30
    assert raised.value.code == 130
    assert "what had been written was put back on n[1-2]" in raised.value.message
    assert raised.value.message.endswith("n[1-8] has what was there before")
    assert has(done.agents) == only()


def test_a_time_limit_at_a_gate_keeps_the_batches_before_it(command: Make) -> None:
    def trial(*values: Any) -> Trial:
        if values[2].reached[0].name == "n3":
            done.agents.deadline.stop(OutOfTime("--timeout of 9 s reached"))
            done.agents.deadline.check()
        return Trial(result("pass"))

    done = command(gate="verify")
    report = done.apply(trial)
    assert report.code == 1
    assert [row.outcome for row in report.batches or ()] == ["done", "rolled-back"]
    assert has(done.agents) == only("n1", "n2")
    assert report.error is not None
    assert report.error["message"] == (
        "--timeout of 9 s reached; what had been written was put back on n[3-8]; "
        "n[1-2] has what this apply writes; n[3-8] has what was there before"
    )


# ---------------------------------------------------------------- afterwards


def test_the_next_apply_goes_on_and_one_rollback_puts_back_both_runs_one_by_one(
    command: Make, tmp_path: Path
) -> None:
    first = command(gate=gate_of(tmp_path, "n3"))
    assert first.apply().code == 1
    second = again(command, first.agents, run=LATER)
    report = second.apply()
    assert (report.code, rows(report)) == (0, [("1", "unchanged", None), ("2", "done", None)])
    assert has(second.agents) == only(*NAMES)
    third = again(command, second.agents, run=LAST)
    assert third.rollback().code == 0
    assert has(third.agents) == only("n1", "n2")


@pytest.mark.parametrize("gate", ["true", "case $CLUSTERPREP_NODES in *n3*) exit 1;; esac"])
def test_one_rollback_puts_back_all_batches(command: Make, gate: str) -> None:
    first = command(gate=gate)
    first.apply()
    second = again(command, first.agents, run=LATER)
    report = second.rollback()
    assert report.code == 0
    assert report.notices == (f"run {RUN} is undone",)
    assert has(second.agents) == only()


# ---------------------------------------------------------------- what is shown


def test_a_plan_shows_the_batches(command: Make) -> None:
    done = command(ENV, batches=("1", "rest"))
    report = done.plan()
    assert rows(report) == [("1", "planned", None), ("2", "planned", None)]
    assert any("apply will refuse this: --gate: " in notice for notice in report.notices)
    assert not done.agents.sent


def test_every_format_says_what_became_of_the_batches(command: Make, tmp_path: Path) -> None:
    report = command(gate=gate_of(tmp_path, "n3")).apply()
    document = json.loads(render(report, "json"))
    assert document["batches"] == [
        {
            "name": "1",
            "nodes": ["n1", "n2"],
            "outcome": "done",
            "gate": "pass",
        },
        {
            "name": "2",
            "nodes": list(NAMES[2:]),
            "outcome": "rolled-back",
            "gate": "fail",
            "detail": "the gate did not pass: the command ended with 7:\nno n3",
        },
    ]
    for fmt in ("console", "html", "markdown"):
        text = render(report, fmt)
        assert "Batches" in text
        assert "the command ended with 7" in text
        assert "rolled-back" in text
