"""`--retry-failed` of check, verify and launch: the nodes that failed in an earlier run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep.history.applied import outcomes
from clusterprep.model import Culprit, LaunchResult, NodeSnapshot, Report
from tests.support.command import asked

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command about six nodes, all of them this machine; `bad` ask for a newer kernel."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(command: str, *words: str, bad: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        rows = []
        for name in ("n1", "n2", "n3", "n4", "n5", "n6"):
            wanted = {"require": {"kernel": ">=999"}} if name in bad else {}
            rows.append({"name": name, "transport": "local", **wanted})
        Path("inventory.yaml").write_text(json.dumps({"nodes": rows}))
        code, out, _ = asked(capsys, command, "inventory.yaml", "--format", "json", *words)
        return code, json.loads(out)

    return run


def nodes(report: dict[str, Any]) -> list[str]:
    return [row["name"] for row in report["nodes"]]


ONLY = ("--only", "kernel.version")


def test_a_check_asks_the_failed_nodes_and_a_majority_beside_them(run: Run) -> None:
    code, before = run("check", *ONLY, bad=("n2", "n5"))
    assert (code, len(nodes(before))) == (1, 6)
    retried = ("--retry-failed", before["run"], *ONLY)
    code, again = run("check", *retried, bad=("n2",))
    assert (code, nodes(again)) == (1, ["n1", "n2", "n3", "n4", "n5"])
    notice = f"n[2,5] failed in run {before['run']}; n[1,3-4]: only to compare with"
    assert notice in again["notices"]
    code, cured = run("check", *retried)
    assert (code, nodes(cured)) == (0, ["n1", "n2", "n3", "n4", "n5"])


def test_the_last_run_may_be_named_so(run: Run) -> None:
    run("check", *ONLY, bad=("n6",))
    code, again = run("check", "--retry-failed", "last", *ONLY)
    assert (code, nodes(again)) == (0, ["n1", "n2", "n6"])


def test_a_run_in_which_none_failed_is_an_error_of_usage(run: Run) -> None:
    run("check", *ONLY)
    code, again = run("check", "--retry-failed", "last", *ONLY)
    assert (code, again["error"]["key"]) == (2, "--retry-failed")


@pytest.mark.parametrize("command", ["check", "verify", "launch"])
@pytest.mark.parametrize("run_name", ["never", ""])
def test_a_run_that_is_not_there_is_an_error_of_usage(
    run: Run, command: str, run_name: str
) -> None:
    run("check", *ONLY)
    words = ("--", "true") if command == "launch" else ()
    code, report = run(command, "--retry-failed", run_name, *words)
    assert (code, report["error"]["key"]) == (2, "--retry-failed")


def test_a_launch_has_the_nodes_that_failed_and_no_others(run: Run) -> None:
    _, before = run("check", *ONLY, bad=("n3", "n4"))
    words = ("--retry-failed", before["run"], "--direct", "--no-preflight", "--", "true")
    code, report = run("launch", *words)
    assert (code, nodes(report)) == (0, ["n3", "n4"])
    assert [row["node"] for row in report["launch"]["ranks"]] == ["n3", "n4"]


def test_a_node_whose_rank_ended_a_launch_has_failed_in_it() -> None:
    culprit = Culprit("rank", ("n2",), 0.95, "rank 1 on n2 ended with exit code 3", rank=1)
    result = LaunchResult("fail", "direct", 2, 1, "n1:29500", culprits=(culprit,))
    seen = tuple(NodeSnapshot(name, name, True) for name in ("n1", "n2"))
    report = Report("launch", "r", "c", "", 1.0, "fail", 1, nodes=seen, launch=result)
    assert outcomes(report) == {"n1": ("unchanged", False), "n2": ("unchanged", True)}
