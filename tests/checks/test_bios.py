"""Machines with one BIOS, with another, and of several products."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.dmi import Bios
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, same, told

DGX = Bios("NVIDIA DGXH100", "DGXH100", "1.05.03", "05/21/2024", virtual=False)
OLD = replace(DGX, version="1.01.00", date="03/21/2023")
DELL = Bios("Dell Inc. PowerEdge XE9680", "0Y2GRP", "2.1.3", "04/10/2024", virtual=False)
VIRTUAL = Bios("Amazon EC2 p5.48xlarge", "", "1.0", "10/16/2017", virtual=True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([DGX, DGX, DGX], ["pass"] * 3, id="equal"),
        pytest.param([DGX, OLD, DGX], ["pass", "fail warning", "pass"], id="one-is-older"),
        pytest.param(
            [DGX, replace(DGX, date="06/01/2024"), DGX],
            ["pass", "fail warning", "pass"],
            id="another-build-of-one-version",
        ),
        pytest.param([DGX, DELL, DGX, DELL], ["pass"] * 4, id="two-products"),
        pytest.param([DGX, DGX, DELL], ["pass", "pass", "skip not_applicable"], id="a-stranger"),
        pytest.param([VIRTUAL, VIRTUAL], ["skip not_applicable"] * 2, id="virtual"),
        pytest.param(
            [DGX, DGX, absent("denied")], ["pass", "pass", "unknown warning denied"], id="denied"
        ),
        pytest.param([DGX], ["skip not_applicable"], id="one-node"),
    ],
)
def test_machines_of_one_product_have_one_bios(values: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("host.bios", *values)), "fw.bios").values()) == expected


def test_kinds_are_not_compared() -> None:
    some = {"n3": {"gpus": Gpus(0)}}
    seen = fleet(each={"gpus": Gpus(8)}, some=some, **same("host.bios", DGX, DGX, OLD))
    assert told(seen, "fw.bios") == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


@pytest.mark.parametrize(("value", "expected"), [(DGX, "pass"), (OLD, "fail error")])
def test_a_version_can_be_required(value: Bios, expected: str) -> None:
    each = {"require": {"fw.bios": "1.05.03"}}
    assert told(fleet(each=each, **same("host.bios", value)), "fw.bios") == {"n1": expected}


def test_the_finding_has_version_and_date() -> None:
    found = findings(fleet(**same("host.bios", DGX, OLD, DGX)), "fw.bios")
    failed = next(finding for finding in found if finding.verdict == "fail")
    assert failed.seen == "1.05.03 of 05/21/2024 on n[1,3]; 1.01.00 of 03/21/2023 on n2"
