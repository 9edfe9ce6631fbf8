"""The environment of an earlier apply: remembered whole, asked for by name, nothing made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.cli.commands.record import line_of
from clusterprep.errors import InputError
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.recall import environment_of, failed_in, recalled_environment
from clusterprep.history.runs import Runs, packed
from clusterprep.model import ChangeRow, EnvValue, Inventory, Node, NodeSnapshot, Report

VALUES = (
    EnvValue("NCCL_SOCKET_IFNAME", "eth0", ("n1", "n2"), "it reaches all; «why»"),
    EnvValue("NCCL_SOCKET_IFNAME", "ens3 '$(x)'", ("n3",), "it reaches all"),
    EnvValue("NCCL_DEBUG", "", ("n1", "n2", "n3"), "declared under env", declared=True),
)


def inventory(*names: str) -> Inventory:
    return Inventory("c", tuple(Node(name, name, place) for place, name in enumerate(names)))


def remembered(tmp_path: Path, *runs: str, failed: str = "") -> AppliedEnvironments:
    applied = AppliedEnvironments(tmp_path)
    for run in runs:
        nodes = tuple(NodeSnapshot(name, name, True) for name in ("n1", "n2", "n3"))
        outcomes = {name: "failed" if name == failed else "done" for name in ("n1", "n2", "n3")}
        changes = tuple(
            ChangeRow((n,), "env", "/etc/nccl.conf", "update", o) for n, o in outcomes.items()
        )  # type: ignore[arg-type]
        report = Report(
            "apply", run, "c", "now", 0.0, "pass", 0, nodes=nodes, env=VALUES, changes=changes
        )
        applied.record_outcomes("c", report)
        applied.record_environment("c", report)
    assert not applied.troubles
    return applied


def test_the_values_come_back_as_they_were(tmp_path: Path) -> None:
    applied = remembered(tmp_path, "r1")
    environment, notices = recalled_environment(applied, inventory("n1", "n2", "n3"), "r1")
    assert environment.values == VALUES
    assert notices == ("as run r1 had it; no node was asked",)


def test_nodes_of_the_inventory_alone_and_who_is_new_is_said(tmp_path: Path) -> None:
    applied = remembered(tmp_path, "r1")
    environment, notices = recalled_environment(applied, inventory("n2", "n9"), "r1")
    assert [(v.name, v.nodes) for v in environment.values] == [
        ("NCCL_SOCKET_IFNAME", ("n2",)),
        ("NCCL_DEBUG", ("n2",)),
    ]
    assert "n9 had no part in that run" in notices


def test_where_it_did_not_go_well_is_said(tmp_path: Path) -> None:
    applied = remembered(tmp_path, "r1", failed="n2")
    _, notices = recalled_environment(applied, inventory("n1", "n2"), "r1")
    assert "on n2 that run did not go well" in notices


@pytest.mark.parametrize(
    ("runs", "names", "words"),
    [
        ((), ("n1",), "none of 'c' is, on this machine"),
        (("r1", "r2", "r3", "r4"), ("n1",), "the newest are r4, r3, r2"),
        (("x",), ("n7", "n8"), "n[7-8] had no part in run x (it was of n[1-3])"),
    ],
)
def test_what_is_not_remembered_is_an_error(
    tmp_path: Path, runs: tuple[str, ...], names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        environment_of(remembered(tmp_path, *runs), inventory(*names), "x")
    assert words in str(caught.value)


def test_asking_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        environment_of(AppliedEnvironments(tmp_path), inventory("n1"), "x")
    assert not list(tmp_path.iterdir())


def test_nodes_that_failed_in_any_recorded_run(tmp_path: Path) -> None:
    """An apply by its notes, whatever else by its report; a beginning of a name will do."""
    applied, runs = remembered(tmp_path, "20261121-093000-0001", failed="n2"), Runs(tmp_path)
    nodes = tuple(NodeSnapshot(name, name, name != "n3") for name in ("n1", "n2", "n3"))
    report = Report(
        "check", "20261121-094000-0002", "c", "2026-11-21T09:40:00Z", 1.0, "unknown", 3, nodes=nodes
    )
    runs.record(packed(report, line_of(report, "i.yaml")))
    assert failed_in(applied, runs, "c", "20261121-093000-0001") == ("n2",)
    assert (
        failed_in(applied, runs, "c", "20261121-094")
        == failed_in(applied, runs, "c", "last")
        == ("n3",)
    )
    with pytest.raises(InputError, match="--retry-failed: no run is recorded as 'never'"):
        failed_in(applied, runs, "c", "never")
    with pytest.raises(InputError, match="no run is recorded yet"):
        failed_in(applied, runs, "other", "last")
