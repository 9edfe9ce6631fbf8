"""What a watch of a fleet tells: nodes, findings and lines of the kernel's log, each once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusterprep.facts.kernel_log import KernelLog, KernelRecord
from clusterprep.model import Because, Finding, Fleet, Inventory, Node, NodeSnapshot
from clusterprep.survey import registry
from clusterprep.survey.watch.state import WatchState

NODES = tuple(Node(f"n{number}", f"10.0.0.{number}", number - 1) for number in (1, 2, 3))
INVENTORY = Inventory("test", NODES)
MTU = Finding("eth.mtu", "fail", "warning", ("n2",), "the MTU differs", "1400", "1500")


class Watched:
    """A watch of three nodes, which has looked once and seen nothing wrong."""

    def __init__(self, *, in_part: Iterable[str] = ()) -> None:
        self.state = WatchState(registry.checks().values(), tuple(in_part))
        self.now = 0.0
        assert self.look() == []

    def look(
        self,
        *findings: Finding,
        down: Iterable[str] = (),
        boots: str = "b1",
        lines: Iterable[int] = (),
    ) -> list[str]:
        """Return what a look tells. All nodes have the same boot id; n1 has lines in its log."""
        self.now += 10.0
        lost = set(down)
        snapshots = {}
        for node in NODES:
            numbers = tuple(lines) if node.name == "n1" else ()
            facts = _facts(boots, numbers)
            snapshots[node.name] = NodeSnapshot(
                node.name,
                node.address,
                reached=node.name not in lost,
                answered=False,
                detail="no answer",
                facts={} if node.name in lost else facts,
            )
        changes = self.state.look(self.now, Fleet(INVENTORY, snapshots), findings)
        told = []
        for change in changes:
            words = [change.kind, ",".join(change.nodes), change.check, *change.lines]
            told.append(" ".join(word for word in words if word))
        return told


def _facts(boot: str, numbers: Iterable[int]) -> dict[str, Any]:
    records = tuple(
        KernelRecord(number, float(number), 3, 1, float(number), f"line{number}")
        for number in numbers
    )
    return {"host.boot_id": boot, "log.records": KernelLog(1e6, 0, 0.0, records)}


def test_equal_changes_of_several_nodes_are_one() -> None:
    watched = Watched()
    both = Finding("eth.mtu", "fail", "warning", ("n1", "n3"), "the MTU differs")
    assert watched.look(both) == ["new n1,n3 eth.mtu"]
    assert watched.look() == ["gone n1,n3 eth.mtu"]


def test_a_node_goes_down_and_comes_back_with_what_it_had() -> None:
    watched = Watched()
    watched.look(MTU)
    assert watched.look(down=["n2"]) == ["down n2 ssh.reach"]
    assert watched.look(down=["n2"]) == []
    assert watched.look(MTU) == ["back n2 ssh.reach"]
    assert watched.look() == ["gone n2 eth.mtu"]


def test_a_node_that_is_cured_while_it_is_down_is_told_when_it_is_back() -> None:
    watched = Watched()
    watched.look(MTU)
    watched.look(down=["n2"])
    assert watched.look() == ["back n2 ssh.reach", "gone n2 eth.mtu"]


def test_a_boot_is_told_once() -> None:
    watched = Watched()
    assert watched.look(boots="b2") == ["booted n1,n2,n3"]
    assert watched.look(boots="b2") == []


def test_a_line_of_the_log_is_told_with_the_finding_that_it_caused() -> None:
    watched = Watched()
    xid = Finding("gpu.xid", "fail", "error", ("n1",), "the GPU has fallen off the bus")
    assert watched.look(xid, MTU, lines=[7]) == ["new n1 gpu.xid line7", "new n2 eth.mtu"]


def test_a_further_line_of_an_open_finding_is_told_by_itself() -> None:
    watched = Watched()
    xid = Finding("gpu.xid", "fail", "error", ("n1",), "the GPU has fallen off the bus")
    watched.look(xid, lines=[7])
    assert watched.look(xid, lines=[8]) == ["log n1 line8"]
    assert watched.look(xid, lines=[8]) == []


def test_what_follows_from_another_finding_is_not_told() -> None:
    watched = Watched()
    path = Finding(
        "eth.path_mtu",
        "fail",
        "error",
        ("n2",),
        "large packets are lost",
        because=(Because("eth.mtu", ("n2",)),),
    )
    assert watched.look(MTU, path) == ["new n2 eth.mtu"]
    assert watched.look() == ["gone n2 eth.mtu"]


def test_a_silenced_finding_is_not_told() -> None:
    silenced = Finding("eth.mtu", "fail", "warning", ("n2",), "m", silenced="known")
    assert Watched().look(silenced) == []


def test_a_check_that_sees_a_part_tells_failures_alone() -> None:
    watched = Watched(in_part=["log.kernel"])
    unknown = Finding("log.kernel", "unknown", "warning", ("n1",), "the log is short")
    assert watched.look(unknown) == []
    assert watched.look(unknown) == []
    failed = Finding("log.kernel", "fail", "warning", ("n1",), "a disk is lost")
    assert watched.look(failed) == ["new n1 log.kernel"]
    assert watched.look(unknown) == ["gone n1 log.kernel"]


def test_what_is_remembered_does_not_grow() -> None:
    watched = Watched()
    sizes = []
    for _ in range(100):
        watched.look(MTU, lines=[7], down=["n3"])
        watched.look()
        for _ in range(60):
            watched.look()
        sizes.append(watched.state.size)
    assert sizes[-1] == sizes[0]
