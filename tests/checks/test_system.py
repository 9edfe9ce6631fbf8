"""Kernel and distribution, majority by majority."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet import findings, fleet, same, silent, told

NEW, OTHER, OLD = "6.8.0-45-generic", "6.5.0-27-generic", "5.4.0-150-generic"


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        pytest.param([NEW] * 3, ["pass"] * 3, id="equal"),
        pytest.param([NEW, OTHER, NEW], ["pass", "fail warning", "pass"], id="one-odd-of-three"),
        pytest.param([NEW, OTHER], ["fail warning"] * 2, id="two-nodes-have-no-majority"),
        pytest.param([NEW, NEW, OTHER, OTHER], ["fail warning"] * 4, id="two-against-two"),
        pytest.param([NEW, NEW, OTHER, "6.1.0"], ["fail warning"] * 4, id="half-is-no-majority"),
        pytest.param([NEW], ["skip not_applicable"], id="one-node"),
    ],
)
@pytest.mark.parametrize(("check", "fact"), [("kernel.version", "kernel.release"), ("os.release", "os.release")])
def test_only_the_odd_ones_are_blamed(check: str, fact: str, releases: list[str], expected: list[str]) -> None:
    assert list(told(fleet(**same(fact, *releases)), check).values()) == expected


def test_every_value_is_listed_with_its_nodes() -> None:
    seen = fleet(**same("kernel.release", NEW, NEW, NEW, OTHER))
    (bad,) = [finding for finding in findings(seen, "kernel.version") if finding.verdict == "fail"]
    assert bad.nodes == ("n4",)
    assert bad.seen == f"{NEW} on n[1-3]; {OTHER} on n4"
    assert bad.wanted == NEW
    assert bad.remedy


def test_what_is_equal_is_shown() -> None:
    (good,) = findings(fleet(**same("os.release", "debian 12", "debian 12")), "os.release")
    assert (good.seen, good.wanted, good.remedy) == ("debian 12", "equal on all nodes", "")


def test_one_value_of_two_nodes_is_not_known_to_be_equal() -> None:
    seen = fleet(n1={"kernel.release": NEW}, n2=silent("n2"))
    assert told(seen, "kernel.version") == {"n1": "unknown warning fewer than two nodes have a value to compare"}


@pytest.mark.parametrize(
    ("release", "old"),
    [
        pytest.param("5.4.0-150-generic", True, id="ubuntu-5.4"),
        pytest.param("5.4.999", True, id="just-below"),
        pytest.param("4.18.0-553.el8_10.x86_64", True, id="rhel-8"),
        pytest.param("5.5.0", False, id="exactly"),
        pytest.param("5.5", False, id="without-patch-level"),
        pytest.param("5.14.0-427.13.1.el9_4.x86_64", False, id="rhel-9"),
        pytest.param("5.15.0-1062-nvidia", False, id="fifteen-is-more-than-five"),
        pytest.param("6.1.0-rc3+", False, id="release-candidate"),
    ],
)
def test_the_floor_is_5_5_by_numbers(release: str, old: bool) -> None:
    seen = fleet(**same("kernel.release", release, release))
    assert set(told(seen, "kernel.version").values()) == {"fail warning" if old else "pass"}


def test_an_old_kernel_on_all_nodes_is_a_failure_and_no_pass() -> None:
    found = findings(fleet(**same("kernel.release", OLD, OLD, OLD)), "kernel.version")
    assert [(finding.verdict, finding.nodes, finding.wanted) for finding in found] == [
        ("fail", ("n1", "n2", "n3"), ">=5.5")
    ]


@pytest.mark.parametrize(
    ("check", "fact", "wanted", "good", "bad"),
    [
        pytest.param("kernel.version", "kernel.release", ">=6.5", OTHER, OLD, id="kernel"),
        pytest.param("kernel.version", "kernel.release", "5.4.0", OLD, OTHER, id="kernel-below-the-floor-on-purpose"),
        pytest.param("os.release", "os.release", "debian 12", "debian 12", "debian 11", id="distribution"),
    ],
)
def test_what_is_required_is_compared_node_by_node_and_is_an_error(
    check: str, fact: str, wanted: str, good: str, bad: str
) -> None:
    seen = fleet(each={"require": {check: wanted}}, **same(fact, bad, bad, good))
    assert told(seen, check) == {"n1": "fail error", "n2": "fail error", "n3": "pass"}
    alone = fleet(each={"require": {check: wanted}}, **same(fact, good))
    assert told(alone, check) == {"n1": "pass"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([NEW, NEW, NEW], "pass", id="as-the-others"),
        pytest.param([NEW, NEW, OTHER], "fail warning", id="unlike-those-that-declare"),
    ],
)
def test_a_node_that_declares_nothing_is_compared_with_those_that_do(values: list[str], expected: str) -> None:
    declares: dict[str, Any] = {"require": {"kernel.version": "6.8.0"}}
    seen = fleet(some={"n1": declares, "n2": declares}, **same("kernel.release", *values))
    assert told(seen, "kernel.version") == {"n1": "pass", "n2": "pass", "n3": expected}
