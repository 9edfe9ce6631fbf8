"""A check whose options leave nothing to judge does not pass; one that runs out of time tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep.cli.commands import check as checking
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import OutOfTime
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import Inventory, Node, Report
from clusterprep.remote.transports.local import LocalTransport
from clusterprep.reports import render
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.selection import Selection
from clusterprep.survey.settings import RunSettings
from tests.support.command import asked, report_schema
from tests.support.commands import Quiet
from tests.support.silent import SilentTransport

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run a check of this machine and return its exit code and report."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = asked(capsys, "check", "--local", "--format", "json", *words)
        return code, json.loads(out)

    return run


@pytest.mark.parametrize(
    ("only", "names", "reason"),
    [
        ("container.rt", {"container.rt"}, "not built yet"),
        ("container.", {"container.rt"}, "not built yet"),
        ("nccl.correct", {"nccl.correct"}, "only verify judges it"),
        ("container.rt,nccl.correct", {"container.rt", "nccl.correct"}, None),
    ],
)
def test_a_check_that_is_not_there_is_skipped_and_does_not_pass(
    check: Run, only: str, names: set[str], reason: str | None
) -> None:
    code, report = check("--only", only)
    skips = [row for row in report["findings"] if row["verdict"] == "skip"]
    assert (code, report["verdict"], {row["check"] for row in skips}) == (3, "unknown", names)
    assert reason is None or {row["reason"] for row in skips} == {reason}
    (notice,) = [text for text in report["notices"] if "no check that was asked for" in text]
    assert all(name in notice for name in names)


def test_beside_a_check_that_is_judged_it_is_skipped(check: Run) -> None:
    code, report = check("--only", "container.rt,kernel.version")
    verdicts = {row["check"]: row["verdict"] for row in report["findings"]}
    assert (code, verdicts["container.rt"]) == (0, "skip")
    assert not any("no check that was asked for" in text for text in report.get("notices", ()))


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "kernel.", "--skip", "kernel."),
        ("--only", "kernel.version", "--tags", "gpu"),
        ("--tags", "eth", "--skip-tags", "eth"),
        ("--deep", "--only", "kernel.version"),
        ("--skip", "host.nosuch"),
        ("--tags", "nosuch"),
        ("--skip-tags", "nosuch"),
        ("--limit", "nosuch"),
    ],
)
def test_options_that_leave_nothing_are_wrong(check: Run, words: tuple[str, ...]) -> None:
    code, report = check(*words)
    assert (code, report["verdict"]) == (2, "error")


class EndingWatch(Quiet):
    """Progress that ends the time of the command once a node has answered."""

    def __init__(self, deadline: Deadline, node: str) -> None:
        super().__init__()
        self._deadline = deadline
        self._node = node

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        if node == self._node:
            self._deadline.stop(OutOfTime("--timeout of 9 s reached"))


def check_until_one_answers(folder: Path, command: str = "check") -> Report:
    """Check this machine as n1, and a node that says nothing as n2, until n1 has answered."""
    nodes = (Node("n1", "n1", 0, transport="local"), Node("n2", "n2", 1))
    deadline = Deadline()
    invocation = Invocation(
        settings=RunSettings(command, selection=Selection(only=("kernel.version",))),
        inventory=Inventory("ending", nodes),
        steps=(),
        transports={"local": LocalTransport(), "ssh": SilentTransport()},
        password=lambda node: None,
        watch=EndingWatch(deadline, "n1"),
        deadline=deadline,
        confirm=lambda rows: True,
        applied=AppliedEnvironments(folder),
        runs=Runs(folder),
        run="20261121-090000-0000",
    )
    with deadline:
        return checking.run(invocation)


def test_a_time_limit_keeps_what_was_answered(tmp_path: Path) -> None:
    report = check_until_one_answers(tmp_path)
    assert (report.code, report.verdict) == (3, "unknown")
    reached = {node.node: (node.reached, node.detail) for node in report.nodes or ()}
    assert reached["n1"] == (True, "")
    assert reached["n2"] == (False, "--timeout of 9 s reached before it answered")
    found = {(row.check, row.verdict, row.nodes) for row in report.findings or ()}
    assert ("ssh.reach", "unknown", ("n2",)) in found
    assert any(check == "kernel.version" and "n1" in nodes for check, _, nodes in found)
    assert report.error is not None
    assert report.error["message"] == "--timeout of 9 s reached"
    assert report_schema().is_valid(json.loads(render(report, "json")))


def test_other_commands_end_at_their_time_limit(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        check_until_one_answers(tmp_path, "verify")
