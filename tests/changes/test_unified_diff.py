"""Diffs lead from one text to the other, and equal those of difflib for ordinary files."""

from __future__ import annotations

import difflib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterprep.changes.unified_diff import unified_diff

_HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n")
TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\x0c\r\n", "\n"]), max_size=12).map(
    "".join
)


def patched(before: str, diff: str) -> str:
    """What `patch` makes of a text."""
    rows, at = diff.split("\n")[2:-1], 0
    lines = re.findall(r"[^\n]*\n|[^\n]+", before)
    made: list[str] = []
    for row in rows:
        if head := _HEAD.fullmatch(row + "\n"):
            start = int(head[1]) - (head[2] != "0")
            made += lines[at:start]
            at = start
        elif row[0] == "+":
            made.append(row[1:] + "\n")
        else:
            assert lines[at].rstrip("\n") == row[1:]
            made += [lines[at]] if row[0] == " " else []
            at += 1
    return "".join(made + lines[at:])


@given(TEXTS, TEXTS)
@example("a\nb", "a\nb\n")
@example("", "a")
def test_a_diff_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    diff = unified_diff("/etc/x", before.encode(), after.encode())
    assert bool(diff) is (before != after)
    if diff:
        assert diff.startswith("--- /etc/x\n+++ /etc/x\n@@ -")
        assert patched(before, diff).rstrip("\n") == after.rstrip("\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a\nb\n"),
        ("a\nb\n", ""),
        (
            "".join(f"{n}\n" for n in range(40)),
            "".join(f"{n * (n != 20)}\n" for n in range(40) if n != 3),
        ),
        (
            "local\nn1 wrong\nother\n",
            "# BEGIN\n" + "".join(f"n{n}\n" for n in range(300)) + "# END\nlocal\nother\n",
        ),
        ("a\nb\nc\n", "a\nb\nc"),
    ],
)
def test_a_diff_is_that_of_difflib(before: str, after: str) -> None:
    sides = [text.splitlines(keepends=True) for text in (before, after)]
    said = difflib.unified_diff(*sides, "/etc/x", "/etc/x", n=2)
    assert unified_diff("/etc/x", before.encode(), after.encode()) == "".join(
        line.rstrip("\n") + "\n" for line in said
    )


def test_bytes_that_are_no_text_are_shown_as_they_are_written() -> None:
    assert (
        unified_diff("/x", b"\xff\n", b"\xfe\n") == "--- /x\n+++ /x\n@@ -1 +1 @@\n-\\xff\n+\\xfe\n"
    )
