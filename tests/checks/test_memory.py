"""Memory that shrank, erred, was swapped out or moved, and NUMA nodes that differ."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.memory import parse_memory, parse_node_count, parse_swap, parse_switch
from clusterprep.facts.memory import Errors, NumaNode, Swap
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, same, told

GIB = 1 << 30
FULL = 2_113_419_832 << 10  # what 2 TiB leave to Linux
ONE_GONE = FULL - 64 * GIB  # of 32 modules
FEW = "unknown warning fewer than two nodes have a value to compare"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param(
            [FULL, FULL - (3 << 20), FULL + (1 << 20)], ["pass"] * 3, id="equal-but-for-megabytes"
        ),
        pytest.param(
            [FULL, ONE_GONE, FULL], ["pass", "fail warning", "pass"], id="a-module-of-32-is-gone"
        ),
        pytest.param([FULL, 2 * FULL, FULL], ["pass", "fail warning", "pass"], id="one-has-more"),
        pytest.param([100 * GIB, 97 * GIB, 100 * GIB], ["pass"] * 3, id="three-percent-less"),
        pytest.param(
            [100 * GIB, 97 * GIB - 1, 100 * GIB],
            ["pass", "fail warning", "pass"],
            id="just-over-it",
        ),
        pytest.param([FULL, ONE_GONE], ["fail warning"] * 2, id="two-nodes-without-a-majority"),
        pytest.param([FULL, FULL, ONE_GONE, ONE_GONE], ["fail warning"] * 4, id="two-against-two"),
        pytest.param([FULL], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [FULL, FULL, absent("denied")], ["pass", "pass", "unknown warning denied"], id="denied"
        ),
        pytest.param([FULL, absent("garbled")], [FEW, "unknown warning garbled"], id="garbled"),
        pytest.param([absent("timed_out")], ["unknown warning timed_out"], id="timed-out"),
    ],
)
def test_less_memory_than_the_others_is_blamed(sizes: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("mem.total", *sizes)), "mem.size").values()) == expected


def test_another_kind_of_machine_may_have_another_size() -> None:
    some = {"n3": {"gpus": Gpus(0)}}
    seen = fleet(each={"gpus": Gpus(8)}, some=some, **same("mem.total", FULL, FULL, 256 * GIB))
    assert told(seen, "mem.size") == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"),
    [
        pytest.param("2T", FULL, "pass", id="what-was-bought"),
        pytest.param("2T", ONE_GONE, "fail error", id="a-module-is-gone"),
        pytest.param("100GiB", 97 * GIB, "pass", id="three-percent-less"),
        pytest.param("100GiB", 97 * GIB - 1, "fail error", id="just-over-it"),
        pytest.param("1T", FULL, "pass", id="more-than-required"),
    ],
)
def test_what_is_required_is_a_least_size(wanted: str, seen: int, expected: str) -> None:
    assert told(
        fleet(each={"require": {"mem.size": wanted}}, **same("mem.total", seen)), "mem.size"
    ) == {"n1": expected}


def test_a_node_that_declares_its_size_still_counts_for_the_others() -> None:
    declares = {"n1": {"require": {"mem.size": "1T"}}, "n2": {"require": {"mem.size": "1T"}}}
    seen = fleet(some=declares, **same("mem.total", FULL, FULL, ONE_GONE))
    assert told(seen, "mem.size") == {"n1": "pass", "n2": "pass", "n3": "fail warning"}


def test_less_and_more_are_told_apart_and_equal_machines_read_the_same() -> None:
    found = findings(fleet(**same("mem.total", FULL, ONE_GONE, FULL - (9 << 20))), "mem.size")
    assert {(f.verdict, f.nodes) for f in found} == {("pass", ("n1", "n3")), ("fail", ("n2",))}
    assert [f.message for f in found if f.verdict == "fail"] == [
        "there is less memory than in the others"
    ]


@pytest.mark.parametrize("text", ["unlimited", "0", "much", "97%"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_memory(text)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(Errors(0, 0), "pass", id="none"),
        pytest.param(Errors(0, 4711), "pass", id="corrected-ones-are-no-fault"),
        pytest.param(Errors(1, 0), "fail warning", id="one-uncorrected"),
        pytest.param(absent("not_applicable"), "skip not_applicable", id="virtual-machine"),
        pytest.param(absent("missing_tool"), "unknown warning missing_tool", id="without-edac"),
        pytest.param(absent("garbled"), "unknown warning garbled", id="garbled"),
        pytest.param(absent("hung"), "unknown warning hung", id="hung"),
    ],
)
def test_an_error_that_was_not_mended_fails(seen: Any, expected: str) -> None:
    assert told(fleet(**same("mem.errors", seen)), "mem.errors") == {"n1": expected}


def test_corrected_errors_are_told_and_the_bad_module_is_named() -> None:
    (good,) = findings(fleet(**same("mem.errors", Errors(0, 12))), "mem.errors")
    assert good.seen == "0 uncorrected, 12 corrected"
    (bad,) = findings(
        fleet(**same("mem.errors", Errors(2, 0, ("CPU_SrcID#0_MC#1_Chan#0_DIMM#0",)))), "mem.errors"
    )
    assert "CPU_SrcID#0_MC#1_Chan#0_DIMM#0" in bad.message


# ---------------------------------------------------------------- swap

IDLE, USED = Swap("/swap.img", 8 * GIB, 0), Swap("/dev/dm-1", 8 * GIB, 4096)


@pytest.mark.parametrize(
    ("areas", "wanted", "expected"),
    [
        pytest.param((), None, "pass", id="none"),
        pytest.param((IDLE,), None, "pass", id="unused"),
        pytest.param((IDLE, USED), None, "fail warning", id="one-page-is-out"),
        pytest.param((), "off", "pass", id="none-as-required"),
        pytest.param((IDLE,), "off", "fail error", id="there-and-required-off"),
        pytest.param((USED,), "off", "fail error", id="used-and-required-off"),
        pytest.param((IDLE,), "unused", "pass", id="unused-as-required"),
        pytest.param((USED,), "unused", "fail error", id="used-and-required-unused"),
        pytest.param(absent("denied"), None, "unknown warning denied", id="denied"),
        pytest.param(absent("garbled"), "off", "unknown error garbled", id="garbled-and-required"),
    ],
)
def test_swap_is_not_used_or_not_there(areas: Any, wanted: str | None, expected: str) -> None:
    settings = {"require": {"mem.swap": wanted}} if wanted else {}
    assert told(fleet(each=settings, **same("mem.swaps", areas)), "mem.swap") == {"n1": expected}


def test_what_is_used_is_named() -> None:
    (bad,) = findings(fleet(**same("mem.swaps", (IDLE, USED))), "mem.swap")
    assert bad.seen == "4 KiB in use on /dev/dm-1"


@pytest.mark.parametrize("text", ["on", "8G", "Off", ""])
def test_swap_is_required_off_or_unused(text: str) -> None:
    with pytest.raises(ValueError, match="expected off or unused"):
        parse_swap(text)


# ---------------------------------------------------------------- NUMA

TWO = (NumaNode(0, "0-55,112-167", True), NumaNode(1, "56-111,168-223", True))
HALF = (TWO[0], NumaNode(1, "56-111,168-223", False))
FOUR = tuple(NumaNode(n, f"{28 * n}-{28 * n + 27}", True) for n in range(4))
GRACE = (NumaNode(0, "0-71", True), NumaNode(1, "", True))


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        pytest.param([TWO] * 3, ["pass"] * 3, id="equal"),
        pytest.param([GRACE] * 2, ["pass"] * 2, id="memory-of-gpus"),
        pytest.param([TWO, FOUR, TWO], ["pass", "fail warning", "pass"], id="another-nps"),
        pytest.param(
            [TWO, TWO, HALF], ["pass", "pass", "fail warning"], id="a-socket-without-memory"
        ),
        pytest.param([TWO, FOUR], ["fail warning"] * 2, id="no-majority"),
        pytest.param([TWO], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [TWO, TWO, absent("not_applicable")],
            ["pass", "pass", "skip not_applicable"],
            id="no-numa",
        ),
        pytest.param(
            [TWO, TWO, absent("garbled")], ["pass", "pass", "unknown warning garbled"], id="garbled"
        ),
    ],
)
def test_numa_layouts_are_equal(layouts: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("numa.nodes", *layouts)), "numa.nodes").values()) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"), [("2", ["pass", "fail error"]), ("4", ["fail error", "pass"])]
)
def test_a_number_of_numa_nodes_may_be_required(wanted: str, expected: list[str]) -> None:
    seen = fleet(each={"require": {"numa.nodes": wanted}}, **same("numa.nodes", TWO, FOUR))
    assert list(told(seen, "numa.nodes").values()) == expected


def test_the_layout_is_drawn() -> None:
    found = findings(fleet(**same("numa.nodes", TWO, TWO, HALF)), "numa.nodes")
    (bad,) = [finding for finding in found if finding.verdict == "fail"]
    assert bad.wanted == "2 NUMA nodes: 0-55,112-167 | 56-111,168-223"
    assert "56-111,168-223 without memory on n3" in bad.seen


@pytest.mark.parametrize("text", ["0", "two", "-1", "²"])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        parse_node_count(text)


@pytest.mark.parametrize(
    ("setting", "wanted", "expected"),
    [
        pytest.param(0, None, "pass", id="off"),
        pytest.param(1, None, "fail warning", id="on"),
        pytest.param(2, None, "fail warning", id="tiers"),
        pytest.param(1, "1", "pass", id="on-as-required"),
        pytest.param(0, "1", "fail error", id="off-and-required"),
        pytest.param(1, "0", "fail error", id="on-and-required-off"),
        pytest.param(absent("not_applicable"), None, "skip not_applicable", id="one-numa-node"),
        pytest.param(absent("garbled"), None, "unknown warning garbled", id="garbled"),
    ],
)
def test_the_kernel_leaves_memory_where_it_is(
    setting: Any, wanted: str | None, expected: str
) -> None:
    settings = {"require": {"numa.balancing": wanted}} if wanted else {}
    assert told(fleet(each=settings, **same("numa.balancing", setting)), "numa.balancing") == {
        "n1": expected
    }


@pytest.mark.parametrize("text", ["off", "4", "", "00"])
def test_balancing_is_required_by_its_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected 0 or 1"):
        parse_switch(text)
