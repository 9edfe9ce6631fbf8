"""Nodes with less free memory than their peers, or than the inventory requires."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.memory import FreeMemory
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, learned, same, told

GIB = 1 << 30
TOTAL = 2015 * GIB
FEW = "unknown warning fewer than two nodes have a value to compare"


def free(gib: float) -> FreeMemory:
    return FreeMemory(TOTAL, int(gib * GIB))


WELL = free(1976)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([WELL, free(1970), free(1982)], ["pass"] * 3, id="alike"),
        pytest.param(
            [WELL, free(1200), WELL], ["pass", "fail warning", "pass"], id="a-forgotten-process"
        ),
        pytest.param([WELL, free(1780), WELL], ["pass"] * 3, id="less-than-a-tenth-less"),
        pytest.param([WELL, free(3000), WELL], ["pass"] * 3, id="more-is-no-fault"),
        pytest.param([WELL], ["skip not_applicable"], id="one-node"),
        pytest.param([WELL, absent("hung")], [FEW, "unknown warning hung"], id="one-is-silent"),
    ],
)
def test_a_node_with_much_less_than_its_peers_is_named(
    values: list[Any], expected: list[str]
) -> None:
    assert list(told(fleet(**same("mem.free_memory", *values)), "mem.free").values()) == expected


def test_nodes_that_pass_are_one_finding_with_the_least() -> None:
    nodes = {
        "n1": {"mem.free_memory": WELL, "mem.buddies": 0.93},
        "n2": {"mem.free_memory": free(1970), "mem.buddies": 0.354},
        "n3": {"mem.free_memory": free(1980), "mem.buddies": absent("denied")},
    }
    (finding,) = findings(fleet(**nodes), "mem.free")
    assert finding.nodes == ("n1", "n2", "n3")
    assert finding.message == (
        "as much memory is free as on the peers (35% of it in blocks of 512 pages)"
    )
    assert finding.seen == "1.924 TiB available or more"


def test_kinds_are_not_compared() -> None:
    some = {"n3": {"gpus": Gpus(0)}, "n4": {"gpus": Gpus(0)}}
    values = same("mem.free_memory", WELL, WELL, free(200), free(201))
    assert set(told(fleet(some=some, **values), "mem.free").values()) == {"pass"}


@pytest.mark.parametrize(("wanted", "expected"), [("1900G", "pass"), ("2T", "fail error")])
def test_an_amount_can_be_required(wanted: str, expected: str) -> None:
    seen = fleet(each={"require": {"mem.free": wanted}}, **same("mem.free_memory", WELL))
    assert told(seen, "mem.free") == {"n1": expected}


MEMINFO = "MemTotal:       2113419832 kB\nMemFree: 1 kB\nMemAvailable:   2071840164 kB\n"
# A desktop of 16 GiB after weeks, Linux 6.1.
BUDDIES = (
    "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1"
    "      3 \n"
    "Node 0, zone    DMA32     99     74     70     54     43     42     33     35     27     24"
    "    721 \n"
    "Node 0, zone   Normal 174923 151293  83117  41702  21834  10304   3512   2997   2458    204"
    "     53 \n"
)


def test_what_is_free_and_in_which_blocks() -> None:
    found = learned("mem.free_memory", ["ok", MEMINFO])
    assert found == FreeMemory(2113419832 << 10, 2071840164 << 10)
    assert learned("mem.buddies", ["ok", BUDDIES]) == pytest.approx(0.2288, abs=0.001)
    assert learned("mem.buddies", ["ok", None]).reason == "not_applicable"


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("mem.free_memory", "MemTotal: 5 kB\n"),
        ("mem.free_memory", "MemAvailable: 5 MB\n"),
        ("mem.buddies", ""),
        ("mem.buddies", "Node 0, zone DMA\n"),
    ],
)
def test_what_cannot_be_read_is_garbled(fact: str, text: str) -> None:
    assert learned(fact, ["ok", text]).reason == "garbled"
