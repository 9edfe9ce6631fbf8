"""What stands in the way of a verify is named, and no rank is started only to hang."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from clusterprep.history.applied import AppliedEnvironments
from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
# Where two nodes say as much as four: from four on, a trial that is slow goes on to groups, which
# takes longer.
TWO = [{"name": "n[1-2]", "address": "10.77.0.[2-3]"}]


def culprits(answer: Answer) -> list[tuple[str, list[str], int | None]]:
    return [(c["kind"], c["nodes"], c["rank"]) for c in answer.report["verify"]["culprits"]]


def test_a_node_without_torch_is_named_and_no_rank_starts(lab4: Lab) -> None:
    bare = {"name": "n4", "address": "10.77.0.5", "python": "/usr/bin/python3"}
    nodes = [{"name": "n[1-3]", "address": "10.77.0.[2-4]"}, bare]
    answer = clusterprep(lab4, "verify", inventory=lab4.inventory(nodes=nodes))
    assert answer.code == 1
    assert answer.blamed("torch.version") == ["n4"]
    assert culprits(answer)[0][:2] == ("node", ["n4"])


def test_no_node_with_torch_is_not_known(lab4: Lab) -> None:
    answer = clusterprep(lab4, "verify", inventory=lab4.inventory(python="/usr/bin/python3"))
    assert answer.code == 3
    assert answer.findings("torch.version", "unknown")[0]["reason"] == "missing_tool"


def test_gpus_in_use_start_no_rank_unless_asked_to(lab4: Lab) -> None:
    with faults.gpus(
        lab4.hosts[2], [{"count": 1, "processes": [{"pid": 1, "mib": 40960}], "used": 40960}]
    ):
        answer = clusterprep(lab4, "verify")
        assert answer.code == 3
        assert answer.blamed("gpu.busy") == ["n3"]
        assert answer.report["verify"]["verdict"] == "unknown"
        assert "gpu.busy" in answer.stderr + str(answer.report)
        assert answer.report["verify"]["culprits"] == []
        assert [stage["name"] for stage in answer.report["verify"]["stages"]] == ["reach"]

        started = clusterprep(lab4, "verify", "--on-busy")
        assert [stage["name"] for stage in started.report["verify"]["stages"]][:2] == [
            "reach",
            "start",
        ]


def test_a_speed_that_the_inventory_accepts_does_not_count(lab4: Lab) -> None:
    wanted = {"min_busbw": 5000, "sizes": ["1K"]}
    slow = clusterprep(lab4, "verify", inventory=lab4.inventory(nodes=TWO, verify=wanted))
    assert (slow.code, slow.report["verify"]["verdict"]) == (1, "fail")
    silence = [{"check": "nccl.busbw_multi", "nodes": "n[1-2]", "reason": "ordered in 2027"}]
    known = clusterprep(
        lab4, "verify", inventory=lab4.inventory(nodes=TWO, verify=wanted, silence=silence)
    )
    assert (known.code, known.report["verify"]["verdict"]) == (0, "fail")
    (row,) = known.findings("nccl.busbw_multi")
    assert row["silenced"] == "ordered in 2027"


def test_earlier_runs_say_what_is_normal(lab4: Lab, tmp_path: Path) -> None:
    """The first run is a sample and is remembered.

    The next one fails against samples that are far faster.
    """
    inventory = lab4.inventory(cluster="remembers", nodes=TWO, verify={"sizes": ["1M"]})
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first = clusterprep(lab4, "verify", inventory=inventory, env=environ)
    (told,) = first.findings("nccl.busbw_multi", "skip")
    assert (first.code, told["reason"]) == (0, "first_sample")
    assert "0 of 3 earlier runs" in told["message"]
    with contextlib.closing(sqlite3.connect(tmp_path / "clusterprep/history.sqlite")) as database:
        ((trial, busbw),) = database.execute(
            "select trial, busbw from speed where cluster = 'remembers'"
        ).fetchall()
    assert trial == "n[1-2] 2 ranks gloo all_reduce 1048576"
    applied = AppliedEnvironments(tmp_path / "fast/clusterprep")
    for number in range(3):
        applied.record_speed("remembers", trial, f"20261121-0000{number}", 100 * float(busbw))
    slow = clusterprep(
        lab4, "verify", inventory=inventory, env={"XDG_STATE_HOME": str(tmp_path / "fast")}
    )
    assert (slow.code, slow.report["verify"]["verdict"]) == (1, "fail")
    (bad,) = slow.findings("nccl.busbw_multi")
    assert bad["severity"] == "error"
    assert len(applied.speeds("remembers", trial)) == 3, "what was too slow is not remembered"


def test_a_baseline_is_recorded_and_each_node_is_measured_by_itself(
    lab4: Lab, tmp_path: Path
) -> None:
    inventory = lab4.inventory(
        cluster="normal",
        nodes=TWO,
        verify={"sizes": ["1M"]},
        require={"nccl.busbw_node": "0.0001"},
    )
    answer = clusterprep(
        lab4,
        "verify",
        "--baseline",
        "--nproc-per-node",
        "2",
        inventory=inventory,
        env={"XDG_STATE_HOME": str(tmp_path)},
    )
    assert (answer.code, answer.report["verify"]["verdict"]) == (0, "pass")
    said = answer.report["verify"]["message"]
    assert "recorded as normal for n[1-2] over gloo: all_reduce of 1 MiB at " in said
    (speed,) = answer.findings("nccl.busbw_multi", "pass")
    assert "is now what is normal" in speed["message"]
    (within,) = answer.findings("nccl.busbw_node", "pass")
    assert (within["nodes"], within["severity"]) == (["n1", "n2"], "error")
    applied = AppliedEnvironments(tmp_path / "clusterprep")
    trial = "n[1-2] 4 ranks gloo all_reduce 1048576"
    assert applied.baseline("normal", trial) is not None
    assert applied.baseline("normal", "n1 alone 2 ranks gloo all_reduce 1048576") is not None
