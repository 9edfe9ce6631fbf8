"""Which formats there are, how a file name asks for one, and what a wrong word is told."""

from __future__ import annotations

import pytest

from clusterprep.errors import InputError
from clusterprep.reports import SUFFIXES, check_format, render, select_format

from .situations import report


def test_the_suffix_decides() -> None:
    assert [select_format(name) for name in ("a.json", "dir.x/b.JSON", "c.txt")] == [
        "json",
        "json",
        "console",
    ]


@pytest.mark.parametrize("name", ["a", "a.csv", "a.json.gz", ".json"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="names no report format"):
        select_format(name)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'json'"):
        check_format("jsn")


def test_a_module_beside_the_formats_is_no_format() -> None:
    for name in ("progress", "plain", "json_report", "../model", ""):
        with pytest.raises(InputError, match="is not a report format"):
            check_format(name)


@pytest.mark.parametrize("fmt", SUFFIXES)
def test_every_format_ends_with_one_newline(fmt: str) -> None:
    text = render(report("check", findings=()), fmt)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
