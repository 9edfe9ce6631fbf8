"""The limits and counts of the kernel's table of neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.neighbours import NeighbourTable
from tests.support.fleet import learned

# Linux 6.1, two CPUs; a kernel before 3.19 lacks the last column.
HEADER = (
    "entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast "
    "rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls\n"
)
ROW = (
    "000003f9 00005e2d 00005369 00000006   0001b29e 00008706 00000045   00000000         "
    "00000000         00000fa0         00000000       00000000            {}\n"
)
FULL = HEADER + ROW.format("00001405") + ROW.format("00000002")
OLD = "entries  allocs destroys\n00000012 00005e2d 00005369\n"


def told(*texts: str | None) -> Any:
    return learned("net.neighbours", *(["ok", text] for text in texts))


def test_counts_are_hexadecimal_and_those_of_cpus_are_added() -> None:
    assert told("128\n", "512\n", "1024\n", FULL) == NeighbourTable(128, 512, 1024, 1017, 5127)


def test_an_old_kernel_does_not_count_what_was_refused() -> None:
    assert told("128\n", "512\n", "1024\n", OLD) == NeighbourTable(128, 512, 1024, 18, 0)


def test_a_container_does_not_see_the_table() -> None:
    assert told(None, None, None, None).reason == "not_applicable"
    assert told(None, None, None, FULL).reason == "not_applicable"


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "zz\n", "no table\nat all\n"])
def test_what_cannot_be_read_is_garbled(text: str) -> None:
    assert told("128\n", "512\n", "1024\n", text).reason == "garbled"
