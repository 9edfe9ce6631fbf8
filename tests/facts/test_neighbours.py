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


# Of this family Linux 6.18 told on two CPUs; the columns are those of IPv4.
NDISC = (
    HEADER + "00000004 00003c28 00003bb5 00000005   000001b0 00000106 00000010   00000075         "
    "0000006f         00000000         00000000       00000000            00000000\n"
    "00000004 00004342 000043b1 00000000   0000012e 000000b5 0000001a   00000058         "
    "0000004e         00000d91         00000000       00000000            00000000\n"
)


def test_the_table_of_ipv6_neighbours_is_read_alike() -> None:
    texts = ("128\n", "512\n", "1024\n", NDISC)
    found = learned("net.neighbours6", *(["ok", text] for text in texts))
    assert found == NeighbourTable(128, 512, 1024, 4, 0)


def test_a_kernel_without_ipv6_has_no_such_table() -> None:
    assert learned("net.neighbours6", *[["ok", None]] * 4).reason == "not_applicable"


def test_an_old_kernel_does_not_count_what_was_refused() -> None:
    assert told("128\n", "512\n", "1024\n", OLD) == NeighbourTable(128, 512, 1024, 18, 0)


def test_a_container_does_not_see_the_table() -> None:
    assert told(None, None, None, None).reason == "not_applicable"
    assert told(None, None, None, FULL).reason == "not_applicable"


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "zz\n", "no table\nat all\n"])
def test_what_cannot_be_read_is_garbled(text: str) -> None:
    assert told("128\n", "512\n", "1024\n", text).reason == "garbled"
