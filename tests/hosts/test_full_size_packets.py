"""Whether full-size packets get through, on a real network that drops them.

Hosts with jumbo frames on switch ports without, and a host that loses packets of every size.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

JUMBO, USUAL = 9000, 1500


def test_jumbo_frames_that_no_port_of_the_switch_carries_are_found(lab4: Lab) -> None:
    """Each host's own interface drops them here: they never count as sent, nor as carried."""
    with contextlib.ExitStack() as mended_later:
        for host in lab4.hosts:
            mended_later.enter_context(faults.mtu(host, JUMBO))
            mended_later.enter_context(faults.switch_mtu(host, USUAL))
        found = clusterprep(lab4, "check", "--only", "eth.,net.ports")
    assert found.code == 1
    (bad,) = found.findings("eth.path_mtu")
    assert bad["nodes"] == ["n1", "n2", "n3", "n4"]
    assert (bad["seen"], bad["wanted"]) == ("1500 bytes", "9000 bytes")
    assert bad["message"].startswith("full-size packets get through between no two nodes")
    assert found.blamed("net.ports", "pass") == ["n1", "n2", "n3", "n4"]


def test_a_host_that_loses_packets_has_open_ports_and_paths_that_are_large_enough(
    lab4: Lab,
) -> None:
    with faults.loss(lab4.host("n4"), 0.3, spare_ssh=True):
        found = clusterprep(lab4, "check", "--only", "eth.path_mtu,net.ports")
    assert (found.blamed("eth.path_mtu"), found.blamed("net.ports")) == ([], [])
