"""The table of neighbours as the kernel tells it over netlink."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from clusterprep.remote.agent.dial import Dialing
from clusterprep.remote.agent.neighbour_table import read_table, table_of

STATISTICS = Path("/proc/net/stat")  # of the host's own network namespace alone
LIMITS = Path("/proc/sys/net")


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


NAME = attribute(1, b"arp_cache\0")
THRESHOLD = attribute(4, struct.pack("=I", 1024))
CONFIG = attribute(5, struct.pack("=HHIIIIIII", 4, 336, 38, 0, 0, 0, 0, 0, 0))
STATS = attribute(7, struct.pack("=11Q", *range(90, 100), 5127))


def test_limit_entries_and_refusals_are_read() -> None:
    found = table_of(NAME + THRESHOLD + CONFIG + STATS)
    assert found == {"most": 1024, "entries": 38, "refused": 5127}


@pytest.mark.parametrize(
    "body",
    [b"", NAME, NAME + THRESHOLD + CONFIG, NAME + STATS, b"\0\0\0\0", (THRESHOLD + CONFIG)[:-9]],
    ids=["empty", "an-interface", "no-counts", "no-limit", "no-length", "cut-off"],
)
def test_a_message_without_counts_is_no_table(body: bytes) -> None:
    assert table_of(body) is None


@pytest.mark.parametrize(
    ("family", "name", "statistics"),
    [(socket.AF_INET, "ipv4", "arp_cache"), (socket.AF_INET6, "ipv6", "ndisc_cache")],
)
def test_the_kernel_here_tells_what_its_files_say(family: int, name: str, statistics: str) -> None:
    counts = STATISTICS / statistics
    if not counts.exists():
        pytest.skip("only the host's own network namespace shows these files")
    limit = LIMITS / name / "neigh/default/gc_thresh3"
    header, *_ = counts.read_text().splitlines()
    place = header.split().index("table_fulls")

    def refused() -> int:
        rows = counts.read_text().splitlines()[1:]
        return sum(int(row.split()[place], 16) for row in rows)

    before = refused()
    found = read_table(family)
    assert found is not None
    assert found["most"] == int(limit.read_text())
    assert found["entries"] >= 0
    assert before <= found["refused"] <= refused()


@pytest.mark.parametrize(
    ("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
)
def test_dials_are_told_with_the_table_of_their_family(address: str, family: int) -> None:
    dialing = Dialing(None, {"targets": [[address, 9]], "limit": 1.0})
    for call in dialing.calls.values():
        call.sock.close()
    assert dialing.family == family
