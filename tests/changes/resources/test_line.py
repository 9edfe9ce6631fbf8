"""Marked blocks: every other byte stays, a second time changes nothing, broken marks stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.line import RESOURCE, Marks, with_block
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment

PATH = "/etc/lab.conf"
MARKS = Marks.of("job")
BLOCK = b"# BEGIN job: kept by clusterprep\nx=1\n# END job: kept by clusterprep\n"
CRLF = BLOCK.replace(b"\n", b"\r\n")
LINE = st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))
CONTENT = st.builds(
    lambda lines, ends: b"\n".join(lines) + (b"\n" if ends else b""), st.lists(LINE), st.booleans()
)


def planned(content: bytes | None, **params: Any) -> Any:
    node = Node("n1", "n1", 0)
    step = {"path": PATH, "marker": "job", **params}
    assert not list(RESOURCE.wrong(step))
    seen = PlanContext(
        Fleet(Inventory("test", (node,)), {}),
        node,
        {PATH: FileState(PATH, content)},
        {},
        Environment((), {}),
    )
    return list(RESOURCE.plan(step, seen))


@pytest.mark.parametrize(
    ("before", "top", "after"),
    [
        pytest.param(b"", False, BLOCK, id="empty"),
        pytest.param(b"a\n", False, b"a\n" + BLOCK, id="at-the-end"),
        pytest.param(b"a\n", True, BLOCK + b"a\n", id="on-top"),
        pytest.param(b"a", False, b"a\n" + BLOCK, id="last-line-without-newline"),
        pytest.param(b"a\r\nb\r\n", False, b"a\r\nb\r\n" + CRLF, id="crlf"),
        pytest.param(b"a\rb\n", False, b"a\rb\n" + BLOCK, id="a-lone-carriage-return-is-no-line"),
        pytest.param(
            b"a\n" + BLOCK.replace(b"x=1", b"x=0") + b"b\n",
            False,
            b"a\n" + BLOCK + b"b\n",
            id="replaced",
        ),
        pytest.param(b"a\n" + BLOCK, True, b"a\n" + BLOCK, id="a-block-stays-where-it-is"),
    ],
)
def test_a_block_in_a_file_of_others(before: bytes, top: bool, after: bytes) -> None:
    assert with_block(before, MARKS, b"x=1\n", top) == after
    assert with_block(after, MARKS, b"x=1", top) == after


@given(CONTENT, st.booleans())
def test_other_bytes_stay_and_a_second_time_changes_nothing(content: bytes, top: bool) -> None:
    once = with_block(content, MARKS, b"x=1", top)
    assert with_block(once, MARKS, b"x=1", top) == once
    assert with_block(once, MARKS, None) in (content, content + b"\n")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(BLOCK + BLOCK, id="twice"),
        pytest.param(BLOCK.split(b"# END")[0] + b"b\n", id="without-end"),
        pytest.param(BLOCK.split(b"x=1\n")[1], id="without-beginning"),
        pytest.param(BLOCK.split(b"x=1\n")[1] + BLOCK.split(b"x=1\n")[0], id="the-wrong-way-round"),
    ],
)
def test_broken_marks_are_told_and_nothing_is_planned(content: bytes) -> None:
    with pytest.raises(NoPlan, match="mend it by hand") as raised:
        planned(content, block="x=1")
    assert raised.value.absent.reason == "broken_block"


def test_blocks_of_other_markers_and_of_the_environment_are_other_lines() -> None:
    other = BLOCK.replace(b"job", b"jobs")
    assert with_block(other, MARKS, b"x=1") == other + BLOCK


def test_absent_takes_the_block_out_and_nothing_where_there_is_none() -> None:
    (change,) = planned(b"a\n" + BLOCK, state="absent")
    assert (change.after, change.action) == (b"a\n", "update")
    assert planned(None, state="absent") == []
    assert [change.action for change in planned(b"a\n", state="absent")] == ["none"]


def test_the_comment_sign_is_the_files() -> None:
    (change,) = planned(None, block="x", comment=";")
    assert change.after == b"; BEGIN job: kept by clusterprep\nx\n; END job: kept by clusterprep\n"
    assert (change.action, change.mode) == ("create", 0o644)


def test_only_its_own_block_belongs_to_a_step() -> None:
    assert RESOURCE.owned({"path": PATH, "marker": "job"}, Inventory("test", ())) == (
        (PATH, "job"),
    )
