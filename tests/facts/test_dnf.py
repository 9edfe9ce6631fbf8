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
DISTRIBUTIONS = Path(__file__).parent / "distributions" / "dnf"
LONG = "lab-a-package-of-a-very-long-name-indeed-that-no-column-can-hold"


def answer(name: str) -> str:
    return (ANSWERS / f"dnf-{name}.txt").read_text()


def parsed(name: str) -> tuple[dict[str, Package], Simulation]:
    return parse_answer(0, answer(name))


def change(name: str, before: str | None, after: str | None) -> PackageChange:
    return PackageChange(name, before, after, "noarch")


def in_distribution(name: str) -> tuple[PackageChange, ...]:
    """Return the changes of a table that a distribution's dnf printed.

    tests/facts/distributions/README.md says where they come from.
    """
    table = (DISTRIBUTIONS / name).read_text()
    text = f"\n== states\n\n== locks\n\n== table 1\n{table}\n== changed\n\n== offered\n\n== end\n"
    _, outlook = parse_answer(0, text.replace("\n== changed", "Operation aborted.\n\n== changed"))
    assert outlook.failed == ()
    return outlook.moves


def test_a_table_with_modules_and_names_and_versions_that_no_column_holds() -> None:
    moves = in_distribution("rhel-8")
    assert len(moves) == 48
    assert all(move.before is None for move in moves)
    versions = {move.name: (move.after, move.architecture) for move in moves}
    assert versions["git"] == ("2.31.1-2.el8", "x86_64")
    assert versions["perl-Encode"] == ("4:2.97-3.el8", "x86_64")
    assert versions["perl-Scalar-List-Utils"] == ("3:1.49-2.el8", "x86_64")
    assert versions["perl-Net-SSLeay"] == ("1.88-2.module+el8.6.0+13392+f0897f98", "x86_64")
    # The rows below «Enabling module streams:» are no packages.
    assert "perl" not in versions


def test_a_table_of_a_wide_terminal() -> None:
    versions = {move.name: move.after for move in in_distribution("amazon-2023")}
    assert versions == {
        "python3.11": "3.11.6-1.amzn2023.0.3",
        "mpdecimal": "2.5.1-3.amzn2023.0.3",
        "python3.11-libs": "3.11.6-1.amzn2023.0.3",
        "python3.11-pip-wheel": "22.3.1-2.amzn2023.0.2",
        "python3.11-setuptools-wheel": "65.5.1-2.amzn2023.0.5",
        "libxcrypt-compat": "4.4.33-7.amzn2023",
    }


def test_two_architectures_of_a_package_have_each_their_former_version() -> None:
    text = (DISTRIBUTIONS / "rhel-9-upgrade").read_text()
    _, outlook = parse_answer(0, text)
    assert outlook.moves == (
        PackageChange("openssl", "1:3.2.2-6.el9_5.1", "1:3.5.1-4.el9_7", "x86_64"),
        PackageChange("openssl-fips-provider", "3.0.7-6.el9_5", "3.0.7-8.el9", "x86_64"),
        PackageChange("openssl-fips-provider-so", "3.0.7-6.el9_5", "3.0.7-8.el9", "x86_64"),
        PackageChange("openssl-libs", "1:3.2.2-6.el9_5.1", "1:3.5.1-4.el9_7", "i686"),
        PackageChange("openssl-libs", "1:3.2.2-6.el9_5.1", "1:3.5.1-4.el9_7", "x86_64"),
    )


def test_a_package_that_comes_for_another_architecture() -> None:
    _, outlook = parsed("another-architecture")
    assert outlook.moves == (PackageChange("lab-arch", "1.0-1", "2.0-1", "noarch", "x86_64"),)
    assert all(map(outlook.returns, outlook.moves))


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
