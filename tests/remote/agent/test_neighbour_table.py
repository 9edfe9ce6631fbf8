"""The table of neighbours as the kernel tells it over netlink."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from clusterprep.remote.agent.neighbour_table import read_table, table_of

HOST_ALONE = Path("/proc/net/stat/arp_cache")


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


def test_the_kernel_here_tells_what_its_files_say() -> None:
    if not HOST_ALONE.exists():
        pytest.skip("only the host's own network namespace shows these files")
    limit = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    found = read_table()
    assert found is not None
    assert found["most"] == int(limit.read_text())
    assert found["entries"] >= 0 <= found["refused"]
