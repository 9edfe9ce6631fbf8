"""What a process sees around it, on machines with more of it than is told."""

from __future__ import annotations

import socket
from pathlib import Path

from clusterprep.remote.agent.readers import _addresses
from clusterprep.remote.agent.surroundings import MOST, ipv6_addresses, names_in


def test_devices_that_matter_are_found_among_many_others(tmp_path: Path) -> None:
    """Names before them in the alphabet, such as of disks and loops, do not displace them."""
    for number in range(MOST + 1):
        (tmp_path / f"loop{number}").touch()
    (tmp_path / "nvidia0").touch()
    assert names_in(str(tmp_path), ("nvidia", "gdrdrv")) == ["nvidia0"]
    assert len(names_in(str(tmp_path))) == MOST
    assert names_in(str(tmp_path / "none")) == []


def test_the_addresses_of_ipv6_are_those_that_netlink_tells() -> None:
    told = set()
    for rows in _addresses().values():
        for row in rows:
            if ":" in row["address"] and row["scope"] == 0:
                told.add(socket.inet_pton(socket.AF_INET6, row["address"]).hex())
    assert set(ipv6_addresses()) == told
