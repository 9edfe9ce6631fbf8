"""Packet filters as distributions have them, recorded: which drop what NCCL needs.

tests/facts/distributions/README.md says where each listing comes from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checks.test_firewall import verdict
from tests.support.fleet import learned

LISTINGS = Path(__file__).parents[1] / "facts" / "distributions" / "filters"


def recorded(name: str) -> Any:
    """Return what is learned of a listing, by the older iptables unless it is JSON of nft."""
    text = (LISTINGS / name).read_text()
    kind = "nft" if text.startswith("{") else "legacy"
    return learned(
        "net.filter", ["ok", {"nft": None, "iptables": None, "legacy": None, kind: text}]
    )


@pytest.mark.parametrize(
    ("name", "interface", "expected"),
    [
        pytest.param("centos-7-firewalld", "eth0", "fail warning", id="a-zone-with-ssh-alone"),
        pytest.param("centos-7-firewalld", "bond0", "fail warning", id="the-default-zone"),
        pytest.param("centos-7-iptables", "eth0", "pass", id="one-port-is-closed"),
        pytest.param("alma-8-libvirt", "eth0", "pass", id="libvirt"),
        pytest.param("rhel-8-nftables", "eth0", "fail warning", id="nft-rejects-all-but-two-ports"),
        pytest.param("ubuntu-20.04-docker", "eth0", "pass", id="docker"),
        pytest.param("port-knocking", "eth1", "fail warning", id="a-policy-that-drops"),
    ],
)
def test_filters_of_distributions(name: str, interface: str, expected: str) -> None:
    assert verdict(recorded(name), interface=interface) == expected


def test_every_recorded_listing_is_judged() -> None:
    names = {path.name for path in LISTINGS.iterdir()}
    judged = test_filters_of_distributions.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert names == {case.values[0] for case in judged}
