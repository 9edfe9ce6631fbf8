"""What nodes were last given.

Remembered, forgotten on rollback, and held against a limited apply.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import Refused
from clusterprep.history.applied import AppliedEnvironments, outcomes, refuse_clashes
from clusterprep.model import ChangeRow, EnvValue, Finding, NodeSnapshot, Report
from clusterprep.nccl.environment import Environment


def environment(nodes: tuple[str, ...], **values: str) -> Environment:
    return Environment(
        tuple(EnvValue(name, value, nodes, "why") for name, value in values.items()), {}
    )


def test_the_newest_run_of_each_node_counts_and_a_rollback_is_forgotten(tmp_path: Path) -> None:
    applied = AppliedEnvironments(tmp_path)
    assert applied.last("c") == {}
    assert not list(tmp_path.iterdir())
    applied.record_written("c", "run-1", environment(("a", "b"), NCCL_ALGO="Ring"), ("a", "b"))
    applied.record_written("c", "run-2", environment(("a",), NCCL_ALGO="Tree"), ("a",))
    assert applied.last("c") == {"a": {"NCCL_ALGO": "Tree"}, "b": {"NCCL_ALGO": "Ring"}}
    applied.forget("c", "run-2")
    assert applied.last("c")["a"] == {"NCCL_ALGO": "Ring"}
    assert applied.last("other") == {}


def test_the_newest_run_is_the_one_that_was_recorded_last_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    applied = AppliedEnvironments(tmp_path, kept=2)
    for run in ("20271231", "20261121", "20261120"):
        applied.record_written("c", run, environment(("a",), NCCL_ALGO=run), ("a",))
        applied.record_outcomes("c", report(run, row("done", "a")))
    assert applied.last("c") == {"a": {"NCCL_ALGO": "20261120"}}
    assert applied.applies("c") == ("20261120", "20261121")


def test_a_job_wide_value_that_differs_is_refused_and_a_free_one_is_not() -> None:
    wanted = environment(("a",), NCCL_ALGO="Ring", NCCL_SOCKET_IFNAME="eth1")
    same = {"b": {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth0"}}
    assert refuse_clashes(wanted, ["a"], ["b"], same) == ""
    with pytest.raises(Refused, match="NCCL_ALGO=Tree"):
        refuse_clashes(wanted, ["a"], ["b"], {"b": {"NCCL_ALGO": "Tree"}})
    with pytest.raises(Refused, match="lack"):
        refuse_clashes(wanted, ["a"], ["b"], {"b": {}})
    other_cluster = {"elsewhere": {"NCCL_ALGO": "Tree"}}
    assert refuse_clashes(wanted, ["a"], [], other_cluster) == ""


def test_a_job_wide_value_that_the_others_have_and_these_lose_is_refused() -> None:
    wanted = environment(("a",), NCCL_SOCKET_IFNAME="eth1")
    has_more = {"b": {"NCCL_ALGO": "Tree"}}
    with pytest.raises(Refused, match=r"NCCL_ALGO, which a would not have, .* NCCL_ALGO=Tree"):
        refuse_clashes(wanted, ["a"], ["b"], has_more)
    assert refuse_clashes(wanted, [], ["b"], has_more) == "", "nothing is written"


def test_values_that_are_not_known_are_refused_and_named_with_partial() -> None:
    wanted = environment(("a",), NCCL_ALGO="Ring")
    known = {"b": {"NCCL_ALGO": "Ring"}}
    others = ("b", "c", "d")
    doubt = "which values c,d have is not known here, and NCCL_ALGO must be equal on all ranks"
    with pytest.raises(Refused, match=f"{doubt}; .* --partial .*this run wrote nothing"):
        refuse_clashes(wanted, ["a"], others, known)
    assert doubt in refuse_clashes(wanted, ["a"], others, known, partial=True)
    with pytest.raises(Refused, match="NCCL_ALGO=Tree"):
        refuse_clashes(wanted, ["a"], others, {"b": {"NCCL_ALGO": "Tree"}}, partial=True)
    free = environment(("a",), NCCL_SOCKET_IFNAME="eth1")
    assert refuse_clashes(free, ["a"], others, {}) == ""


def report(
    run: str, *changes: ChangeRow, findings: tuple[Finding, ...] = (), lost: str = ""
) -> Report:
    nodes = tuple(NodeSnapshot(name, "10.0.0.1", name != lost) for name in "abcd")
    return Report(
        "apply", run, "c", "now", 0.0, "fail", 1, nodes=nodes, findings=findings, changes=changes
    )


def row(outcome: str, *nodes: str) -> ChangeRow:
    return ChangeRow(nodes, "env", "/etc/nccl.conf", "update", outcome)  # type: ignore[arg-type]


def finding(verdict: str, severity: str, *nodes: str, **more: object) -> Finding:
    return Finding("time.offset", verdict, severity, nodes, "why", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "failed"),
    [
        pytest.param(
            report("r", row("done", "a", "b"), row("unchanged", "c", "d")), (), id="all-well"
        ),
        pytest.param(report("r"), (), id="nothing-to-do"),
        pytest.param(report("r", row("done", *"abc"), lost="d"), ("d",), id="not-reached"),
        pytest.param(
            report("r", row("failed", "a"), row("rolled-back", *"bcd")),
            tuple("abcd"),
            id="all-or-none",
        ),
        pytest.param(
            report("r", row("not-started", *"abc"), lost="d"), tuple("abcd"), id="not-started"
        ),
        pytest.param(
            report("r", row("unchanged", "a"), row("failed", "a")), ("a",), id="one-file-of-two"
        ),
        pytest.param(report("r", findings=(finding("fail", "error", "b"),)), ("b",), id="blamed"),
        pytest.param(
            report("r", findings=(finding("unknown", "error", "b"),)), ("b",), id="not-known"
        ),
        pytest.param(
            report("r", findings=(finding("fail", "warning", "b"),)), (), id="warned-about"
        ),
        pytest.param(
            report("r", findings=(finding("fail", "error", "b", fixed=True),)), (), id="fixed"
        ),
        pytest.param(
            report("r", findings=(finding("fail", "error", "b", silenced="known"),)),
            (),
            id="silenced",
        ),
    ],
)
def test_what_failed_in_a_run_is_remembered(
    tmp_path: Path, told: Report, failed: tuple[str, ...]
) -> None:
    applied = AppliedEnvironments(tmp_path)
    applied.record_outcomes("c", told)
    applied.record_outcomes("c", report("other", lost="c"))
    assert applied.failed("c", "r") == failed
    assert applied.failed("c", "other") == ("c",)
    assert {word for word, _ in outcomes(told).values()} <= {
        "done",
        "unchanged",
        "failed",
        "rolled-back",
    } | {
        "not-started",
        "not reached",
    }


@pytest.mark.parametrize(("cluster", "run"), [("c", "never"), ("other", "r")])
def test_no_node_failed_in_a_run_that_is_not_remembered(
    tmp_path: Path, cluster: str, run: str
) -> None:
    applied = AppliedEnvironments(tmp_path)
    applied.record_outcomes("c", report("r", lost="d"))
    assert applied.failed(cluster, run) == ()
    assert (applied.applies("c"), applied.applies("other")) == (("r",), ())


def test_old_applies_are_forgotten_and_what_nodes_were_given_is_not(tmp_path: Path) -> None:
    applied = AppliedEnvironments(tmp_path, kept=5)
    applied.record_written("c", "run-000", environment(("a",), NCCL_ALGO="Ring"), ["a"])
    for number in range(8):
        applied.record_outcomes("c", report(f"run-{number:03}", lost="d"))
    assert applied.applies("c") == tuple(f"run-{number:03}" for number in range(7, 2, -1))
    assert applied.last("c") == {"a": {"NCCL_ALGO": "Ring"}}


def test_a_run_that_wrote_goes_on_where_the_history_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "no-folder"
    folder.write_text("")
    applied = AppliedEnvironments(folder / "deep")
    applied.record_outcomes("c", report("r"))
    applied.record_written("c", "r", environment(("a",), NCCL_ALGO="Ring"), ["a"])
    (trouble,) = applied.troubles
    assert "history.sqlite could not be written: " in trouble


def test_speeds_of_the_same_trial_are_remembered_newest_first(tmp_path: Path) -> None:
    applied = AppliedEnvironments(tmp_path / "state")
    assert applied.speeds("c", "n[1-4] gloo") == ()
    assert not list(tmp_path.iterdir())
    for number in range(30):
        applied.record_speed("c", "n[1-4] gloo", f"run-{number:02}", number / 3)
    applied.record_speed("c", "n[1-3] gloo", "run-99", 1.0)
    applied.record_speed("other", "n[1-4] gloo", "run-99", 2.0)
    speeds = applied.speeds("c", "n[1-4] gloo")
    assert speeds[0] == 29 / 3
    assert speeds == tuple(number / 3 for number in range(29, 9, -1))
    assert applied.speeds("other", "n[1-4] gloo") == (2.0,)


def test_a_history_that_cannot_be_read_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_text("no database")
    applied = AppliedEnvironments(tmp_path)
    assert applied.speeds("c", "x") == ()
    applied.record_speed("c", "x", "run-1", 1.0)
    assert applied.last("c") == {}
    assert len(applied.troubles) == 2
    assert all("mv " in trouble for trouble in applied.troubles)
