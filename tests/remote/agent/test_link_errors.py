"""Error counters of network interfaces as the kernel tells them."""

from __future__ import annotations

from clusterprep.jobs.load.samples import parse_link_errors
from clusterprep.remote.agent import link_errors


def test_counters_of_interfaces_are_read_here() -> None:
    assert "lo" not in parse_link_errors(link_errors.read_link_errors())
