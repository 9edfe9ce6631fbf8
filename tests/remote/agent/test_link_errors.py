"""Error counters of links as the kernel tells them."""

from __future__ import annotations

import pytest

from clusterprep.jobs.load.samples import parse_link_errors
from clusterprep.remote.agent import link_errors


def test_counters_of_links_are_read_here() -> None:
    found = parse_link_errors(link_errors.read_link_errors())
    assert "lo" not in found.net


@pytest.mark.parametrize(
    ("text", "total"),
    [
        # Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
        ("Receiver Error 2\nBad TLP 0\nTOTAL_ERR_COR 2", 2),
        ("Undefined 0\nTOTAL_ERR_FATAL 0", 0),
        ("Receiver Error 2", None),
        ("", None),
        (None, None),
    ],
)
def test_the_total_of_aer(text: str | None, total: int | None) -> None:
    assert link_errors._aer_total(text) == total
