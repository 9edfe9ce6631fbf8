"""A controller that is far from its nodes, over a link that loses packets.

Every node is judged as it would be near.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

FAR = 40  # milliseconds each way
# How often the controller speaks after an answer, on one connection; docs/why/performance.md says
# what each is for.
TURNS = {"kernel.version": 6, "time.offset": 10, "": 13}


def words(only: str) -> list[str]:
    return ["--only", only] if only else []


@pytest.mark.parametrize("only", TURNS)
def test_the_round_trips_of_a_node_are_as_many_as_is_said_however_many_nodes_there_are(
    lab4: Lab, only: str
) -> None:
    seen = []
    with faults.far_controller(lab4, FAR) as way:
        for limit in ("n1", "n[1-4]"):
            answer = clusterprep(lab4, "check", *words(only), "--limit", limit)
            assert all(node["reached"] for node in answer.report["nodes"])
            seen.append(way.turns())
    assert [len(turns) for turns in seen] == [1, 4]
    counts = [count for turns in seen for connections in turns.values() for count in connections]
    assert len(counts) == 5, "one connection per node"
    # Answers that come together save a turn, and on a busy machine one that comes in two pieces
    # costs one: so most connections have as many as is said, and none has more than one beside.
    assert TURNS[only] - 1 <= statistics.median(counts) <= TURNS[only], counts
    assert TURNS[only] - 1 <= min(counts) <= max(counts) <= TURNS[only] + 1, counts


@pytest.mark.slow
def test_far_and_lossy_nodes_are_judged_rightly(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(16)
    near = clusterprep(lab, "check")
    wrong, ahead = lab.hosts[4], lab.hosts[9]
    with (
        faults.mtu(wrong, 1400),
        faults.clock(ahead, 5.0),
        faults.far_controller(lab, FAR),
        faults.loss_to_controller(lab, 0.05),
    ):
        far = clusterprep(lab, "check", timeout=240)
    assert all(node["reached"] for node in far.report["nodes"]), far.report["nodes"]
    assert far.blamed("time.offset") == [ahead.name]
    assert wrong.name in far.blamed("eth.mtu") + far.blamed("eth.path_mtu")
    planted = {
        "time.offset",
        "eth.mtu",
        "eth.path_mtu",
        "net.latency",
        "net.ports",
        "proc.load",
    }  # the last is ours
    for check in {f["check"] for f in far.report["findings"] if f["verdict"] == "fail"} - planted:
        assert far.blamed(check) == near.blamed(check), check
    unknown = {f["check"] for f in far.report["findings"] if f["verdict"] == "unknown"}
    # A clock read over 80 ms is known to 40 ms at best, and to less where packets are lost: that is
    # said, as a warning.
    assert unknown - {"time.offset"} <= {
        f["check"] for f in near.report["findings"] if f["verdict"] == "unknown"
    }
