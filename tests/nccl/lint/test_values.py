"""Numbers as their readers make them, compared with the C library's own."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from clusterprep.nccl.lint.values import Range, nccl_integer, range_of, torch_integer
from clusterprep.nccl.variables.variables import registry

# What NCCL does with a value of its parameters: strtoll with base 0, and a look at errno, not at
# the rest.
READER = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  static char text[4096];
  while (fgets(text, sizeof text, stdin)) {
    char *end = text;
    while (*end && *end != '\n') end++;
    *end = 0;
    errno = 0;
    long long value = strtoll(text, NULL, 0);
    if (errno) printf("default\n"); else printf("%lld\n", value);
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def strtoll(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strtoll")
    source, program = folder / "reader.c", folder / "reader"
    source.write_text(READER)
    # C99, for the newest C libraries read 0b101 as well when a program is built for newer
    # standards.
    subprocess.run(["cc", "-std=c99", "-o", str(program), str(source)], check=True, timeout=60)
    return program


def texts() -> list[str]:
    chosen = random.Random(4)
    alphabet = "0123456789abcxXeE+-. \t_MGtrueys#\"'"
    found = ["".join(chosen.choices(alphabet, k=chosen.randint(1, 12))) for _ in range(4000)]
    found += [
        f"{sign}{head}{chosen.getrandbits(66):{kind}}"
        for sign in ("", "-", "+")
        for head, kind in (("", "d"), ("0x", "x"), ("0", "o"))
        for _ in range(100)
    ]
    edges = [
        "true",
        "yes",
        "4M",
        "010",
        "08",
        "0x",
        "0xg",
        "-0x10",
        "+ 1",
        " 7",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "1e3",
        "--1",
        "-",
        "0",
    ]
    return found + edges


@pytest.mark.machine
def test_integers_are_read_as_strtoll_reads_them(strtoll: Path) -> None:
    given = texts()
    done = subprocess.run(
        [str(strtoll)],
        input="\n".join([*given, ""]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = dict(zip(given, done.stdout.splitlines(), strict=True))
    read = {text: nccl_integer(text) for text in given}
    assert {
        text: "default" if number is None else str(number.value) for text, number in read.items()
    } == expected


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("true", 0, "true"),
        ("4M", 4, "M"),
        ("1MB", 1, "MB"),
        ("010", 8, ""),
        ("08", 0, "8"),
        ("0x10", 16, ""),
        (" 5 ", 5, " "),
    ],
)
def test_what_is_behind_the_digits_is_kept_to_be_told(text: str, value: int, rest: str) -> None:
    number = nccl_integer(text)
    assert number is not None
    assert (number.value, number.rest) == (value, rest)


def test_an_empty_value_is_no_value() -> None:
    assert nccl_integer("") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 3", 3),
        ("10s", 10),
        ("true", None),
        ("", None),
        ("99999999999", None),
        ("0x10", 0),
    ],
)
def test_torch_reads_as_stoi_does(text: str, value: int | None) -> None:
    number = torch_integer(text)
    assert (None if number is None else number.value) == value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "1..16 (clamped with a warning above 16); nthreads*nsocks <= 64",
            Range(1, 16, frozenset({-2})),
        ),
        ("0..255, -1 unset", Range(0, 255, frozenset({-1, -2}))),
        (">= 1", Range(1, None, frozenset({-2}))),
        ("> 0", Range(1, None, frozenset({-2}))),
        ("<= 64", Range(None, 64)),
        ("1 or 2", Range(named=frozenset({1, 2, -2}))),
        ("0 off, 1 force (fail if absent), 2 auto", Range(named=frozenset({0, 1, 2, -2}))),
        ("bytes", Range()),
        ("bytes, 0 auto", Range()),
        ("-1 (auto) or GID table index", Range()),
        ("not checked", Range()),
        ("bytes, power of two advised", Range()),
    ],
)
def test_ranges_are_read_from_the_registry(words: str, expected: Range) -> None:
    assert range_of(words) == expected


@pytest.mark.parametrize(
    ("span", "inside", "outside"),
    [
        (Range(1, 16), (1, 16), (0, 17)),
        (Range(1, None), (1, 1 << 40), (0, -1)),
        (Range(0, 3, frozenset({-1})), (-1, 0), (-2, 4)),
        (Range(named=frozenset({1, 2})), (1, 2), (0, 3)),
        (Range(), (-5, 0, 1 << 40), ()),
    ],
)
def test_ends_belong_to_a_range(
    span: Range, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    assert all(span.holds(value) for value in inside)
    assert not any(span.holds(value) for value in outside)


def test_no_default_of_the_registry_is_out_of_its_own_range() -> None:
    """A range that refuses what NCCL itself starts with was read wrongly."""
    numeric = [entry for entry in registry().values() if "strtoll" in (entry["on_invalid"] or "")]
    defaults = {entry["name"]: nccl_integer(entry["default"] or "") for entry in numeric}
    wrong = [
        name
        for name, number in defaults.items()
        if number is not None
        and number.digits
        and not range_of(registry()[name]["allowed_values"]).holds(number.value)
    ]
    assert wrong == []
    assert len(numeric) > 200


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000])
def test_a_number_of_thousands_of_digits_is_too_large(text: str) -> None:
    assert (nccl_integer(text), torch_integer(text)) == (None, None)


def test_noughts_in_front_make_no_number_too_large() -> None:
    small = torch_integer("-" + "0" * 5000 + "7")
    octal = nccl_integer("0" * 5000 + "7")
    assert (small and small.value, octal and octal.value) == (-7, 7)
