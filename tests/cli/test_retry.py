"""--retry-failed takes the nodes that failed in an earlier run of any command about nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands.record import line_of
from clusterprep.cli.retry import History, failed_nodes, limited_to_failed
from clusterprep.errors import InputError
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs, packed
from clusterprep.model import (
    ChangeRow,
    Culprit,
    Finding,
    Inventory,
    LaunchResult,
    Node,
    NodeSnapshot,
    Report,
    VerifyResult,
)

NAMES = ("n1", "n2", "n3", "n4")
CULPRIT = Culprit("node", ("n3",), 0.9, "its rank ended first")
VERIFIED = VerifyResult("fail", "gloo", 4, 1, "n1:1", culprits=(CULPRIT,))
LAUNCHED = LaunchResult("fail", "direct", 4, 1, "n1:1", culprits=(CULPRIT,))
ERROR = Finding("time.offset", "fail", "error", ("n3",), "off")
WARNING = Finding("eth.duplex", "fail", "warning", ("n1",), "half")


def history(tmp_path: Path, report: Report) -> History:
    runs = Runs(tmp_path)
    runs.record(packed(report, line_of(report, "inventory.yaml")))
    return History(AppliedEnvironments(tmp_path), runs, "c")


def report(command: str, lost: str = "", **sections: object) -> Report:
    nodes = tuple(NodeSnapshot(name, name, name != lost) for name in NAMES)
    return Report(
        command,
        "20261121-093000-4f2a",
        "c",
        "2026-11-21T09:30:00Z",
        1.0,
        "fail",
        1,
        nodes=nodes,
        **sections,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("earlier", "failed"),
    [
        pytest.param(report("check", findings=(ERROR, WARNING)), ("n3",), id="check"),
        pytest.param(report("check", lost="n2", findings=()), ("n2",), id="not-reached"),
        pytest.param(report("verify", verify=VERIFIED, findings=()), ("n3",), id="verify"),
        pytest.param(report("launch", launch=LAUNCHED, findings=()), ("n3",), id="launch"),
        pytest.param(
            report(
                "apply",
                changes=(
                    ChangeRow(("n1",), "env", "/etc/nccl.conf", "update", "done"),
                    ChangeRow(("n2", "n4"), "env", "/etc/nccl.conf", "update", "not-started"),
                ),
            ),
            ("n2", "n4"),
            id="apply",
        ),
    ],
)
@pytest.mark.parametrize("name", ["20261121-093000-4f2a", "last", "20261121"])
def test_the_nodes_that_failed(
    tmp_path: Path, earlier: Report, failed: tuple[str, ...], name: str
) -> None:
    kept = history(tmp_path, earlier)
    assert failed_nodes(kept, name) == failed
    inventory = Inventory("c", tuple(Node(each, each, at) for at, each in enumerate(NAMES)))
    limited = limited_to_failed(inventory, kept, name)
    assert tuple(node.name for node in limited.nodes) == failed


def test_a_run_without_a_failure_is_an_error(tmp_path: Path) -> None:
    kept = history(tmp_path, report("check", findings=()))
    inventory = Inventory("c", (Node("n1", "n1", 0),))
    with pytest.raises(InputError) as raised:
        limited_to_failed(inventory, kept, "last")
    assert raised.value.problems[0].key == "--retry-failed"


def test_a_mistake_on_the_command_line_is_not_the_last_run(tmp_path: Path) -> None:
    kept = history(tmp_path, report("check", findings=(ERROR,)))
    mistake = replace(report("check"), run="20261121-100000-0000", nodes=())
    kept.runs.record(packed(mistake, line_of(mistake, "inventory.yaml")))
    assert failed_nodes(kept, "last") == ("n3",)


def test_a_sentence_about_the_last_run_has_its_name(tmp_path: Path) -> None:
    kept = history(tmp_path, report("check", findings=()))
    inventory = Inventory("c", (Node("n1", "n1", 0),))
    with pytest.raises(InputError, match="no node failed in run 20261121-093000-4f2a"):
        limited_to_failed(inventory, kept, "last")


def test_a_run_that_is_not_recorded_is_an_error(tmp_path: Path) -> None:
    kept = history(tmp_path, report("check", findings=()))
    with pytest.raises(InputError):
        failed_nodes(kept, "2025")
