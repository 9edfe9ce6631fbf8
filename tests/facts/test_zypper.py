"""What zypper answers, and answers that were cut off.

tests/facts/package_managers/ has what zypper 1.14.42 of Debian 12 printed when the script asked it
on a host of the lab, without the lines of progress.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.facts.zypper import MISSING, parse_answer
from clusterprep.model import Absent
from clusterprep.model.packages import Package, PackageChange, Simulation

ANSWERS = Path(__file__).parent / "package_managers"
DISTRIBUTIONS = Path(__file__).parent / "distributions" / "zypper"
LONG = "lab-a-package-of-a-very-long-name-indeed-that-no-column-can-hold"


def answer(name: str) -> str:
    return (ANSWERS / f"zypper-{name}.txt").read_text()


def parsed(name: str) -> tuple[dict[str, Package], Simulation]:
    found = parse_answer(0, answer(name))
    assert not isinstance(found, Absent)
    return found


def change(name: str, before: str | None, after: str | None) -> PackageChange:
    return PackageChange(name, before, after, "noarch")


def test_a_package_that_comes_for_another_architecture_is_one_change() -> None:
    _, outlook = parsed("another-architecture")
    assert outlook.moves == (PackageChange("lab-arch", "1.0-1", "2.0-1", "noarch", "x86_64"),)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sles-15-install", PackageChange("tree", None, "1.7.0-150000.3.2.1", "x86_64")),
        ("sles-15-remove", PackageChange("git", "2.35.3-150300.10.45.2", None, "x86_64")),
    ],
)
def test_summaries_of_a_distribution(name: str, expected: PackageChange) -> None:
    """tests/facts/distributions/README.md says where they come from."""
    summary = (DISTRIBUTIONS / name).read_text()
    text = (
        f"\n== states\n\n== locks\n\n== summary 0\n{summary}\n== changed\n\n== offered\n\n== end\n"
    )
    found = parse_answer(0, text)
    assert not isinstance(found, Absent)
    _, outlook = found
    assert outlook.moves == (expected,)
    assert outlook.failed == ()


def test_an_upgrade() -> None:
    packages, outlook = parsed("latest")
    assert packages["lab-tool"] == Package("installed", "1.0-1")
    assert outlook.moves == (
        change("lab-lib", "1.0-1", "2.0-1"),
        change("lab-tool", "1.0-1", "2.0-1"),
        change(LONG, None, "1.0-1"),
    )
    assert outlook.versions["lab-tool"] == ("2.0-1", "1.0-1")
    assert outlook.failed == ()


def test_a_removal_takes_with_it_what_needs_it() -> None:
    _, outlook = parsed("absent")
    assert outlook.moves == (change("lab-lib", "1.0-1", None), change("lab-tool", "1.0-1", None))
    assert all(map(outlook.returns, outlook.moves))


def test_reasons_to_refuse() -> None:
    _, outlook = parsed("unknown-version")
    assert outlook.failed == ("No provider of 'lab-tool=3.*' found.",)
    packages, outlook = parsed("lock-in-the-way")
    assert packages["lab-tool"].held
    assert outlook.failed == ("Problem: conflicting requests",)


def test_a_zypper_that_is_missing_or_locked() -> None:
    assert parse_answer(127, "") == ({}, Simulation(failed=(MISSING,)))
    text = (
        "\n== states\n\n== locks\n\n== summary 7\n"
        '<message type="error">System management is locked by the application with pid 466 (sh).\n'
        "Close this application before trying again.</message>\n"
        "\n== changed\n\n== offered\n\n== end\n"
    )
    locked = parse_answer(0, text)
    assert isinstance(locked, Absent)
    assert locked.reason == "timed_out"
    assert "with pid 466 (sh)" in locked.detail


@pytest.mark.parametrize("length", [0, 30, 300, -8])
def test_an_answer_that_was_cut_off_is_not_understood(length: int) -> None:
    with pytest.raises(ValueError, match="come to an end"):
        parse_answer(0, answer("latest")[:length])
