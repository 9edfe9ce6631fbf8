"""Sizes and durations: what is read, what is refused, and how they are shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.model.units import (
    UNLIMITED,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1K", 1 << 10),
        ("1KB", 1 << 10),
        ("1KiB", 1 << 10),
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        ("64M", 64 << 20),
        ("2T", 2 << 40),
        ("2tib", 2 << 40),
        (" 8g ", 8 << 30),
        ("unlimited", UNLIMITED),
        ("Unlimited", UNLIMITED),
        (65536, 65536),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_binary_whatever_their_suffix(text: str | int, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G",
        "8X",
        "8GG",
        "8iB",
        "8B",
        "-1",
        "1.5G",
        "8 G iB",
        "1e3",
        "infinity",
        "0x10",
        "٣",
        "9" * 5000,
    ],
)
def test_what_is_no_size_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 8GiB"):
        parse_size(text)


def test_unlimited_is_more_than_any_size() -> None:
    assert parse_size("unlimited") > parse_size("999999999T")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("1s", 1),
        ("30 s", 30),
        ("2m", 120),
        ("1h", 3600),
        ("0.5s", 0.5),
        ("1.5h", 5400),
        ("0ms", 0),
    ],
)
def test_durations_become_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "50", "ms", "-1s", "1 day", "1S", "1sec", "1h30m", "1e3s", ".5s", "unlimited"]
)
def test_what_is_no_duration_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 50ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (8 << 30, "8 GiB"),
        (5 << 50, "5120 TiB"),
        ((1 << 20) - 1, "1023.999 KiB"),
        (UNLIMITED, "unlimited"),
    ],
)
def test_sizes_are_shown_in_binary_units(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1023), st.sampled_from("KMGT"))
def test_a_size_that_is_shown_reads_back(number: int, suffix: str) -> None:
    size = parse_size(f"{number}{suffix}")
    shown = format_size(size)
    assert size == 0 or parse_size(shown) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.0001, "0.1 ms"),
        (0.0004, "0.4 ms"),
        (0.05, "50 ms"),
        (0.99999999, "1 s"),
        (5.001, "5.001 s"),
        (-5.001, "-5.001 s"),
        (119.9, "119.9 s"),
        (120, "2 min"),
        (125.4, "2 min 5 s"),
        (7500, "2 h 5 min"),
        (86400 * 3, "3 d"),
        (86400 * 3 + 3600, "3 d 1 h"),
        (math.inf, "unlimited"),
        (math.nan, "not known"),
    ],
)
def test_durations_are_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0004, "+0.4 ms"), (-0.0004, "-0.4 ms"), (0, "+0 s")]
)
def test_an_offset_has_a_sign(seconds: float, text: str) -> None:
    assert format_duration(seconds, signed=True) == text
