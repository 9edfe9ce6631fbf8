"""What dnf answers, and answers that were cut off.

tests/facts/package_managers/ has what dnf 4.14.0 of Debian 12 printed when the script asked it on a
host of the lab.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.facts.dnf import UNSUPPORTED, parse_answer
from clusterprep.model.packages import Package, PackageChange, Simulation

ANSWERS = Path(__file__).parent / "package_managers"
LONG = "lab-a-package-of-a-very-long-name-indeed-that-no-column-can-hold"


def answer(name: str) -> str:
    return (ANSWERS / f"dnf-{name}.txt").read_text()


def parsed(name: str) -> tuple[dict[str, Package], Simulation]:
    return parse_answer(0, answer(name))


def change(name: str, before: str | None, after: str | None) -> PackageChange:
    return PackageChange(name, before, after, "noarch")


def test_an_upgrade_with_a_name_that_no_column_holds() -> None:
    packages, outlook = parsed("latest")
    assert packages["lab-tool"] == Package("installed", "1.0-1")
    assert outlook.moves == (
        change(LONG, None, "1.0-1"),
        change("lab-lib", "1.0-1", "2.0-1"),
        change("lab-tool", "1.0-1", "2.0-1"),
    )
    assert outlook.held == ("lab-lib",)  # its lock was left out
    assert outlook.versions["lab-tool"] == ("1.0-1", "2.0-1")
    assert outlook.failed == ()


def test_a_removal_takes_with_it_what_needs_it() -> None:
    _, outlook = parsed("absent")
    assert outlook.moves == (change("lab-lib", "1.0-1", None), change("lab-tool", "1.0-1", None))
    assert all(map(outlook.returns, outlook.moves))


def test_a_package_in_place_of_another() -> None:
    _, outlook = parsed("in-place-of-another")
    assert outlook.moves == (change("lab-new", None, "3.0-1"), change("lab-old", "1.0-1", None))
    assert outlook.failed == ()


def test_what_is_there_needs_no_simulation() -> None:
    packages, outlook = parsed("there")
    assert packages["lab-tool"].there
    assert outlook == Simulation()


def test_reasons_to_refuse() -> None:
    assert parsed("unknown")[1].failed == ("Unable to find a match: lab-nope",)
    failed = parsed("lock-in-the-way")[1].failed
    assert failed[0].startswith("package lab-tool-2.0-1.noarch requires lab-lib >= 2.0")
    assert failed[-1] == "package lab-lib-2.0-1.noarch is filtered out by exclude filtering"


def test_another_release_of_dnf_is_not_handled() -> None:
    assert parse_answer(127, "") == ({}, Simulation(failed=(UNSUPPORTED,)))


@pytest.mark.parametrize("length", [0, 30, 300, -8])
def test_an_answer_that_was_cut_off_is_not_understood(length: int) -> None:
    with pytest.raises(ValueError, match="come to an end"):
        parse_answer(0, answer("latest")[:length])
