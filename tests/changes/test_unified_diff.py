"""Diffs lead from one text to the other, and equal those of difflib for ordinary files."""

from __future__ import annotations

import difflib
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterprep.changes.unified_diff import shortest_edits, unified_diff

PATH = "/etc/nccl.conf"
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


@pytest.mark.clock
@pytest.mark.parametrize("distinct", [1, 200], ids=["the-same-line", "two-hundred-lines"])
def test_a_block_that_moves_in_a_file_of_equal_lines_takes_no_time(distinct: int) -> None:
    block = b"# BEGIN clusterprep\nNCCL_X=1\n# END clusterprep\n"
    lines = b"".join(b"%d\n" % (number % distinct) for number in range(150_000))
    began = time.process_time()
    diff = unified_diff(PATH, b"# head\n" + lines + block, block + b"# head\n" + lines)
    assert time.process_time() - began < 2.0
    changed = [line for line in diff.splitlines()[2:] if line[0] in "+-"]
    assert len(changed) == 6


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_the_shortest_edits_lead_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    one = [(line,) for line in old]
    other = [(line,) for line in new]
    opcodes = shortest_edits(one, other, len(old) + len(new))
    assert opcodes is not None
    result: list[tuple[str, ...]] = []
    edits = 0
    end = (0, 0)
    for tag, old_start, old_end, new_start, new_end in opcodes:
        assert (old_start, new_start) == end
        end = (old_end, new_end)
        if tag == "equal":
            result += one[old_start:old_end]
        else:
            result += other[new_start:new_end]
            edits += old_end - old_start + new_end - new_start
    assert (result, end) == (other, (len(old), len(new)))
    assert edits == len(old) + len(new) - 2 * _longest_common(old, new)


def _longest_common(old: list[str], new: list[str]) -> int:
    row = [0] * (len(new) + 1)
    for one in old:
        before, row = row, [0]
        for index, other in enumerate(new):
            row.append(before[index] + 1 if one == other else max(row[-1], before[index + 1]))
    return row[-1]


@pytest.mark.clock
def test_a_difference_that_cannot_be_shown_is_counted() -> None:
    old = b"".join(b"line %d\n" % number for number in range(20_000))
    new = old.replace(b"0\n", b"0 now\n")
    began = time.process_time()
    diff = unified_diff(PATH, old, new)
    assert time.process_time() - began < 2.0
    assert diff.splitlines()[:2] == [f"--- {PATH}", f"+++ {PATH}"]
    assert "19,993 lines become 19,993: too many of them differ" in diff
