"""The links stage of verify on real hosts: a slow or lossy node, one bad pair, and healthy hosts that nobody blames."""

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


def verify(lab: Lab) -> Answer:
    return clusterprep(lab, "verify", inventory=lab.inventory(verify=QUICK))


def culprits(found: Answer) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["nodes"]) for one in found.report["verify"]["culprits"]]


def test_healthy_links_blame_nobody(lab: Lab) -> None:
    found = verify(lab)
    assert found.code == 0
    assert culprits(found) == []
    (row,) = found.findings("net.tcp_bw", "pass")
    assert row["nodes"] == [host.name for host in lab.hosts]
    assert "12 of 12 directed pairs" in row["message"]
    assert found.report["verify"]["stages"][-1]["name"] == "links"


def test_a_slow_node_is_named_though_every_sum_is_right(lab: Lab) -> None:
    with faults.slow(lab.host("n3"), "20mbit"):
        found = verify(lab)
    assert (found.code, culprits(found)) == (1, [("node", ["n3"])])
    (row,) = found.findings("net.tcp_bw")
    assert "the network of n3 is slow, with 3 of 3 others" in row["message"]
    assert found.blamed("nccl.correct", "pass") == [host.name for host in lab.hosts]


def test_a_node_that_loses_packets_is_named(lab: Lab) -> None:
    with faults.loss(lab.host("n4"), 0.02, spare_ssh=True):
        found = verify(lab)
    assert culprits(found) == [("node", ["n4"])]
    assert "loses packets" in found.report["verify"]["culprits"][0]["cause"]
