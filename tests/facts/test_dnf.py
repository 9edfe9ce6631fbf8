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


# ---------------------------------------------------------------- modules


def refused_in_distribution(name: str, modules: str = "") -> Simulation:
    table = (DISTRIBUTIONS / name).read_text()
    provided = (DISTRIBUTIONS / modules).read_text() if modules else ""
    parts = f"== table 1\n{table}\n== modules\n{provided}\n== changed\n\n== offered\n\n"
    _, outlook = parse_answer(0, f"\n== states\n\n== locks\n\n{parts}== end\n")
    return outlook


def test_a_package_of_a_stream_that_is_not_enabled() -> None:
    _, outlook = parsed("hidden")
    assert outlook.failed == ("Unable to find a match: lab-off",)
    assert (outlook.hidden, outlook.streams) == (("lab-off",), ("extras:el8",))


def test_a_package_that_a_module_hides_although_it_is_of_none() -> None:
    """The default stream has a package of the name that this one provides."""
    _, outlook = parsed("hidden-by-another")
    assert (outlook.hidden, outlook.streams) == (("lab-vendor",), ())


def test_a_package_that_needs_hidden_ones() -> None:
    _, outlook = parsed("hidden-needs")
    need, rest = outlook.failed
    assert need.startswith("package lab-client-1.0-1.noarch requires lab-server >= 2.0")
    assert rest == "conflicting requests"
    hidden = ("lab-server-2.0-1.noarch", "lab-server-3.0-1.noarch", "lab-vendor-1.0-1.noarch")
    assert (outlook.hidden, outlook.streams) == (hidden, ("lab:2",))


def test_the_default_stream_is_enabled_with_a_package_of_it() -> None:
    _, outlook = parsed("enables-stream")
    assert outlook.enabled == ("lab:1",)
    assert outlook.moves == (change("lab-server", None, "1.0-1"),)


def test_a_dnf_that_does_not_tell_of_modules_finds_no_match() -> None:
    """As dnf before 4.2.18; a package of no module is unknown there too."""
    text = answer("hidden").replace("All matches were filtered out", "Nothing was filtered out")
    _, outlook = parse_answer(0, text)
    assert (outlook.hidden, outlook.streams) == (("lab-off",), ("extras:el8",))
    assert parsed("unknown")[1].hidden == ()


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        pytest.param("el-8-hidden", ("mysql-community-server",), id="an-argument"),
        pytest.param(
            "rocky-8-hidden-driver",
            (
                "kmod-nvidia-latest-dkms-3:515.48.07-1.el8.x86_64",
                "kmod-nvidia-open-dkms-3:515.48.07-1.el8.x86_64",
            ),
            id="a-driver",
        ),
        pytest.param(
            "centos-8-hidden-from", ("golang-1.21.3-4.el8.x86_64",), id="its-repository-is-named"
        ),
    ],
)
def test_what_distributions_say_of_hidden_packages(name: str, hidden: tuple[str, ...]) -> None:
    outlook = refused_in_distribution(name)
    assert outlook.hidden == hidden
    assert outlook.failed
    assert not any("modular" in reason for reason in outlook.failed)


def test_the_stream_of_a_distribution_s_module() -> None:
    outlook = refused_in_distribution("centos-8-hidden-need", "centos-8-module-provides")
    assert outlook.streams == ("javapackages-tools:201801",)
    assert outlook.failed == ("conflicting requests",)


def test_the_streams_that_a_distribution_enables() -> None:
    table = (DISTRIBUTIONS / "rhel-8").read_text()
    text = f"\n== states\n\n== locks\n\n== table 1\n{table}\n== changed\n\n== offered\n\n== end\n"
    _, outlook = parse_answer(0, text)
    assert outlook.enabled == ("perl:5.26", "perl-IO-Socket-SSL:2.066", "perl-libwww-perl:6.34")
