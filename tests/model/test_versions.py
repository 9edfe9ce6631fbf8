"""Version comparison: what meets which condition, for packages and for kernels."""

import pytest

from clusterprep.model.versions import (
    conditions_of,
    kernel_conditions,
    kernel_satisfies,
    leading_numbers,
    satisfies,
)


@pytest.mark.parametrize(
    ("seen", "wanted", "met"),
    [
        ("2.6.0+cu124", "==2.6.0", True),
        ("2.6.0+cu124", "2.6.0", True),
        ("2.6.0+cu124", "==2.6.0+cu126", False),
        ("2.6.0", "2.6", True),
        ("2.6.1", "2.6", False),
        ("2.6.1", "==2.6.*", True),
        ("2.1.0", "2.10", False),
        ("2.10.0", "2.10", True),
        ("2.10.0", ">2.9", True),
        ("2.7.0", ">=2.6,<3", True),
        ("3.0", ">=2.6, <3", False),
        ("2.6.0", "!=2.6.0", False),
        ("2.6.3", "~=2.6.1", True),
        ("2.7.0.dev20250101+cu126", ">=2.6", True),
        ("550.54.14", ">=550.54", True),
        ("550.54.14", ">=550.54.15", False),
        ("535.054.03", "==535.54.3", True),
        ("12.4", ">=12.4", True),
        ("12.4.r12.4", ">=12.3", True),
        ("2.21.5", "2.21.5", True),
        ("unknown", ">=0", False),
        ("", ">=0", False),
    ],
)
def test_versions_are_compared_as_pep_440_says(seen: str, wanted: str, met: bool) -> None:
    assert satisfies(seen, wanted) is met


@pytest.mark.parametrize(
    ("release", "wanted", "met"),
    [
        ("5.4.0-150-generic", ">=5.5", False),
        ("5.15.0-91-generic", ">=5.5", True),
        ("5.15.0-91-generic", "5.15", True),
        ("5.15.133.1-microsoft-standard-WSL2", "5.15", False),
        ("5.15.133.1-microsoft-standard-WSL2", "==5.15.*", True),
        ("6.8.0-1021-aws", ">=5.5,<7", True),
        ("4.18.0-553.el8_10.x86_64", ">=4.18", True),
        ("5.14.0-427.13.1.el9_4.x86_64", "==5.14.0-1", True),
        ("6.10.3", ">=6.9", True),
        ("6.1.0rc1", "<6.2", True),
        ("strange", ">=1", False),
    ],
)
def test_of_a_kernel_only_the_leading_numbers_count(release: str, wanted: str, met: bool) -> None:
    assert kernel_satisfies(release, wanted) is met


@pytest.mark.parametrize(
    "wanted",
    ["", "=2.6", "=>2.6", "====2.6", "2.6.x", "newest", ">=", ">=2.6,", "2.6 3.0", ">=2.6 <3"],
)
def test_what_is_no_condition_says_what_is_expected(wanted: str) -> None:
    with pytest.raises(ValueError, match="expected a version such as"):
        conditions_of(wanted)


@pytest.mark.parametrize("wanted", ["newest", ">=", "=>5.5", "===5.4.0", "v5.4"])
def test_what_is_no_kernel_condition_says_what_is_expected(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"expected a (kernel )?version"):
        kernel_conditions(wanted)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("5.4.0-150-generic", (5, 4, 0)),
        ("550.54.14", (550, 54, 14)),
        ("2.6.0+cu124", (2, 6, 0)),
        ("v1", ()),
        ("", ()),
    ],
)
def test_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert leading_numbers(text) == numbers
