"""The links stage of verify on real hosts: slow and lossy nodes, one bad pair, and healthy hosts that nobody blames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.command import Answer, clusterprep
from tests.lab import Lab, faults

pytestmark = [pytest.mark.lab, pytest.mark.torch]
QUICK = {"sizes": ["8"], "timeout": 40}


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    for host in lab4.hosts:
        assert host.processes("clusterprep") == []
        assert "LISTEN" not in host.run(["sh", "-c", "ss -Htlnp | grep -v sshd || true"]).stdout


def verify(lab: Lab) -> Answer:
    return clusterprep(lab, "verify", inventory=lab.inventory(verify=QUICK))


def culprits(found: Answer) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["nodes"]) for one in found.report["verify"]["culprits"]]


def names(lab: Lab) -> list[str]:
    return [host.name for host in lab.hosts]


def test_healthy_links_blame_nobody(lab: Lab) -> None:
    for _ in range(5):
        found = verify(lab)
        assert (found.code, culprits(found)) == (0, [])
        (row,) = found.findings("net.tcp_bw", "pass")
        assert row["nodes"] == names(lab)
        assert "12 of 12 directed pairs" in row["message"]
        last = found.report["verify"]["stages"][-1]
        assert (last["name"], last["verdict"]) == ("links", "pass")


def test_a_slow_node_is_named_though_every_sum_is_right(lab: Lab) -> None:
    with faults.slow(lab.host("n3"), "20mbit"):
        found = verify(lab)
    assert (found.code, culprits(found)) == (1, [("node", ["n3"])])
    (row,) = found.findings("net.tcp_bw")
    assert "the network of n3 is slow, with 3 of 3 others" in row["message"]
    assert found.blamed("nccl.correct", "pass") == names(lab)


@pytest.mark.parametrize("share", [0.02, pytest.param(0.3, marks=pytest.mark.slow)])
def test_a_node_that_loses_packets_is_named(lab: Lab, share: float) -> None:
    with faults.loss(lab.host("n4"), share, spare_ssh=True):
        found = verify(lab)
    assert ("node", ["n4"]) in culprits(found)
    assert {tuple(nodes) for _, nodes in culprits(found)} == {("n4",)}
    assert found.code == 1
