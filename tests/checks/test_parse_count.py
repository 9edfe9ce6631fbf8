"""Counts in `require:`: ASCII digits within bounds; an error says what is expected."""

from __future__ import annotations

import pytest

from clusterprep.checks import parse_count


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8", 8), ("008", 8)])
def test_a_count_is_digits(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize(
    "text", ["", "eight", "-1", "+1", "4.0", "1_000", "²", "\uff18", "1" * 5000]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number, such as 8; seen '"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0", "257"])
def test_a_count_has_bounds(text: str) -> None:
    assert parse_count("1", minimum=1, maximum=256) == 1
    assert parse_count("256", minimum=1, maximum=256) == 256
    with pytest.raises(ValueError, match="expected a number of devices; seen"):
        parse_count(text, "a number of devices", minimum=1, maximum=256)
