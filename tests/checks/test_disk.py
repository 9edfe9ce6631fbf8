"""Nodes with fewer disks than their peers, and disks that are worn, ill or silent."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.nvme import Disk, Health
from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, same, told

WELL = Health(0, 3, 0)


def disks(*health: Any, state: str = "live") -> tuple[Disk, ...]:
    return tuple(
        Disk(f"nvme{number}", "KIOXIA KCD8XRUG3T84", f"Y3A0{number}", state, value)
        for number, value in enumerate(health)
    )


TWO = disks(WELL, WELL)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([TWO, TWO, TWO], ["pass"] * 3, id="equal"),
        pytest.param([TWO, disks(WELL), TWO], ["pass", "fail warning", "pass"], id="one-is-gone"),
        pytest.param([(), ()], ["skip not_applicable"] * 2, id="none"),
        pytest.param(
            [TWO, disks(WELL, Health(4, 3, 12)), TWO],
            ["pass", "fail warning", "pass"],
            id="one-warns",
        ),
        pytest.param(
            [TWO, disks(WELL, Health(0, 80, 0)), TWO],
            ["pass", "fail warning", "pass"],
            id="worn",
        ),
        pytest.param([TWO, disks(WELL, Health(0, 79, 0)), TWO], ["pass"] * 3, id="not-yet-worn"),
        pytest.param(
            [TWO, disks(WELL, Health(4, 104, 12)), TWO],
            ["pass", "fail warning + fail warning", "pass"],
            id="both",
        ),
        pytest.param(
            [TWO, disks(WELL, WELL, state="dead"), TWO],
            ["pass", "fail warning + fail warning", "pass"],
            id="dead",
        ),
        pytest.param(
            [TWO, disks(WELL, Absent("denied")), TWO],
            ["pass", "unknown warning denied", "pass"],
            id="may-not-be-asked",
        ),
        pytest.param(
            [disks(Absent("missing_tool"))] * 2,
            ["pass + skip missing_tool"] * 2,
            id="no-tool",
        ),
        pytest.param(
            [TWO, absent("hung"), TWO], ["pass", "unknown warning hung", "pass"], id="hung"
        ),
    ],
)
def test_disks(values: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("disk.nvme", *values)), "disk.nvme").values()) == expected


@pytest.mark.parametrize(("wanted", "expected"), [("2", "pass"), ("8", "fail error")])
def test_a_number_can_be_required(wanted: str, expected: str) -> None:
    seen = fleet(each={"require": {"disk.nvme": wanted}}, **same("disk.nvme", TWO))
    assert told(seen, "disk.nvme") == {"n1": expected}


def test_a_warning_is_told_in_words() -> None:
    seen = fleet(**same("disk.nvme", disks(Health(0x0D, 3, 0)), disks(WELL)))
    texts = [finding.seen for finding in findings(seen, "disk.nvme") if finding.verdict == "fail"]
    disk = "nvme0 KIOXIA KCD8XRUG3T84, serial Y3A00"
    assert texts == [
        f"{disk}: spare capacity is low, unreliable because of media errors, read only"
    ]
