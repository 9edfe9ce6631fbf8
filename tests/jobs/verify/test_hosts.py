"""Verify on four real hosts over real OpenSSH, with each fault of the list in the middle of it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from clusterprep.remote.agent.children import LEASH
from tests.support.command import Answer, finished, started
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
pytest.importorskip("torch")
TIMEOUT = 10  # seconds; the time limit of verify in these tests
SIZES = ["8", *["16M"] * 200]  # far more than can be done before the fault


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """The module's lab, without a process of ours before and after each test."""
    yield lab4
    for host in lab4.hosts:
        assert ranks(host) == []


def ranks(host: Host) -> list[int]:
    return host.processes("clusterprep-rank")


def verify_with(
    lab: Lab, fault: Callable[[], None], sizes: Sequence[str] = SIZES
) -> tuple[Answer, float]:
    """A verify during which a fault happens, and the seconds from the fault to the report."""
    inventory = lab.inventory(verify={"sizes": list(sizes), "timeout": TIMEOUT}, nproc_per_node=1)
    process = started(lab, "verify", inventory=inventory)
    wait_for(lambda: all(connected(host) for host in lab.hosts), 60)
    fault()
    begin = time.monotonic()
    found = finished(process)
    return found, time.monotonic() - begin


def connected(host: Host) -> bool:
    """Whether the host's rank has reached the others.

    It holds connections to all three, and one to the store.
    """
    own = ranks(host)
    if not own:
        return False
    sockets = host.run(["ss", "-tnpH", "state", "established"]).stdout
    return sum(f"pid={own[0]}," in line for line in sockets.splitlines()) >= 4


def wait_for(condition: Callable[[], bool], limit: float) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


def culprits(found: Answer) -> list[tuple[str, list[str], int | None]]:
    return [(row["kind"], row["nodes"], row["rank"]) for row in found.report["verify"]["culprits"]]


def complete_but_for(found: Answer, node: str | None) -> bool:
    """Every node was reached.

    And every rank elsewhere is told to have come as far as the collective.
    """
    rows = [row for row in found.report["verify"]["ranks"] if row["node"] != node]
    told = all("all_reduce" in row["last_event"] for row in rows)
    return told and len(rows) >= 3 and all(row["reached"] for row in found.report["nodes"])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=lambda signum: signum.name)
def test_a_rank_that_dies_or_hangs_is_named(lab: Lab, signum: signal.Signals) -> None:
    host = lab.host("n3")
    found, seconds = verify_with(
        lab, lambda: host.run(["kill", f"-{signum.name[3:]}", str(ranks(host)[0])]) and None
    )
    assert found.code == 1
    assert culprits(found) == [("rank", ["n3"], 2)]
    assert found.blamed("nccl.hang") == ["n3"]
    assert complete_but_for(found, "n3")
    assert seconds < TIMEOUT + 5
    assert all(ranks(each) == [] for each in lab.hosts)


def test_a_frozen_sshd_is_its_node(lab: Lab) -> None:
    host = lab.host("n2")
    with contextlib.ExitStack() as stack:
        found, seconds = verify_with(
            lab, lambda: stack.enter_context(faults.stop_sshd(host)) and None
        )
        assert seconds < TIMEOUT + 5
        wait_for(
            lambda: not ranks(host), LEASH
        )  # its agent did not let the ranks be held for longer
    assert culprits(found) == [("node", ["n2"], None)]
    assert complete_but_for(found, "n2")


def test_a_dropped_interface_is_its_node(lab: Lab) -> None:
    host = lab.host("n4")
    with contextlib.ExitStack() as stack:
        found, seconds = verify_with(
            lab, lambda: stack.enter_context(faults.link_down(host)) and None
        )
        assert seconds < TIMEOUT + 5
        wait_for(lambda: not ranks(host), LEASH)
    assert culprits(found) == [("node", ["n4"], None)]
    assert complete_but_for(found, "n4")


def test_a_node_whose_python_has_no_torch_is_named(lab: Lab) -> None:
    """The check of torch.version finds it first, without importing anything.

    The trial is not begun.
    """
    nodes = [{"name": host.name, "address": host.address} for host in lab.hosts]
    nodes[2]["python"] = "/usr/bin/python3"
    found = finished(started(lab, "verify", inventory=lab.inventory(nodes=nodes)))
    assert found.code == 1
    assert found.blamed("torch.version") == ["n3"]


def test_a_sound_cluster_of_four_hosts_passes(lab: Lab) -> None:
    inventory = lab.inventory(verify={"sizes": ["8", "1000", "1M"], "timeout": TIMEOUT})
    found = finished(started(lab, "verify", "--nproc-per-node", "2", inventory=inventory))
    verify = found.report["verify"]
    assert (found.code, verify["verdict"], verify["world_size"]) == (0, "pass", 8)
    rows = [(row["bytes"], row["wrong"]) for row in verify["collectives"]]
    assert rows[:3] == [(8, 0), (1000, 0), (1 << 20, 0)]
    assert all(wrong == 0 for _, wrong in rows)


def test_a_pair_that_the_ring_does_not_use_is_named_although_every_all_reduce_passed(
    lab: Lab,
) -> None:
    undo: list[Callable[[], None]] = []
    try:
        few = ["8", *["1M"] * 60]
        found, _ = verify_with(
            lab, lambda: undo.append(faults.drop_pair(*lab.hosts[1::2]).undo), few
        )
    finally:
        for one in undo:
            one()
    stages = {stage["name"]: stage["verdict"] for stage in found.report["verify"]["stages"]}
    assert (stages["bandwidth"], stages["correctness"], stages["links"]) == ("pass", "fail", "fail")
    stopped, _, _ = found.report["verify"]["message"].partition(" did not finish")
    assert stopped in ("correctness: broadcast 1 MiB", "correctness: all_to_all 1 MiB")
    assert (found.code, culprits(found)) == (1, [("link", ["n2", "n4"], None)])
    (culprit,) = found.report["verify"]["culprits"]
    assert (
        "gets no answer" in culprit["cause"]
    )  # sockets of the hung ranks; the links stage confirms it
    assert any("timed out, connecting" in words for words in culprit["evidence"])
