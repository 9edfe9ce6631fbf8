"""Which nodes are in which batch, and what is said of what they have."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.batches import contents_text, split, unwritten, worst_outcome
from clusterprep.errors import InputError
from clusterprep.model.files import FileChange

EIGHT = [f"n{number}" for number in range(1, 9)]
GROUPS = {"rack2": ("n5", "n6")}


def sizes(names: list[str], canary: str, *texts: str) -> list[int]:
    return [len(batch.nodes) for batch in split(names, canary, texts, GROUPS)]


@pytest.mark.parametrize(
    ("canary", "texts", "expected"),
    [
        pytest.param("1", (), [1, 7], id="one-then-the-rest"),
        pytest.param("", ("1", "25%", "rest"), [1, 2, 5], id="contract"),
        pytest.param("", ("1", "10%", "rest"), [1, 1, 6], id="a-share-is-at-least-one"),
        pytest.param("", ("3",), [3, 3, 2], id="the-last-size-repeats"),
        pytest.param("", ("1", "50%"), [1, 4, 3], id="a-share-repeats"),
        pytest.param("2", ("50%",), [2, 4, 2], id="a-share-is-of-all-nodes"),
        pytest.param("rack2", ("rest",), [2, 6], id="a-group"),
        pytest.param("", ("100%",), [8], id="all"),
        pytest.param("", ("20", "rest"), [8], id="more-than-there-are"),
        pytest.param("9", (), [8], id="a-canary-of-all"),
    ],
)
def test_sizes(canary: str, texts: tuple[str, ...], expected: list[int]) -> None:
    assert sizes(EIGHT, canary, *texts) == expected


def test_every_node_is_in_one_batch_and_the_canary_comes_first() -> None:
    batches = split(EIGHT, "n[6-7]", ("2", "rest"))
    assert [batch.nodes for batch in batches] == [
        ("n6", "n7"),
        ("n1", "n2"),
        ("n3", "n4", "n5", "n8"),
    ]
    assert [(batch.number, batch.name) for batch in batches] == [(1, "canary"), (2, "2"), (3, "3")]


@pytest.mark.parametrize(
    ("canary", "texts", "key"),
    [
        ("0", (), "--canary"),
        ("n9", (), "--canary"),
        ("", ("rest", "1"), "--batches"),
        ("", ("rest", "rest"), "--batches"),
        ("", ("0",), "--batches"),
        ("", ("0%",), "--batches"),
        ("", ("101%",), "--batches"),
        ("", ("-1",), "--batches"),
        ("", ("a",), "--batches"),
    ],
)
def test_what_is_no_batch_is_an_error(canary: str, texts: tuple[str, ...], key: str) -> None:
    with pytest.raises(InputError) as raised:
        split(EIGHT, canary, texts, GROUPS)
    assert raised.value.problems[0].key == key


def test_what_nodes_have_is_said_of_each() -> None:
    contents: dict[str, Any] = {"n1": "new", "n2": "new", "n3": "old", "n4": "unknown"}
    assert contents_text(contents) == (
        "n[1-2] has what this apply writes; n3 has what was there before; "
        "of n4 it is not known which of both"
    )


def test_a_batch_has_the_worst_outcome_of_its_nodes() -> None:
    assert worst_outcome(["done", "unchanged"]) == "done"
    assert worst_outcome(["rolled-back", "unanswered"]) == "unanswered"
    assert worst_outcome(["failed", "not-started"]) == "failed"


def test_a_canary_that_the_command_does_not_have_is_told_as_that() -> None:
    with pytest.raises(InputError, match="'n3' is not among the nodes of this apply, which has"):
        split(["n1", "n2"], canary="n3")


def test_files_that_are_not_as_written() -> None:
    changes = [
        FileChange("n1", "file", "/a", None, b"1\n"),
        FileChange("n1", "line", "/a", b"1\n", b"1\n2\n"),
        FileChange("n2", "file", "/a", b"1\n", None),
    ]
    seen = {("n1", "/a"): b"1\n2\n", ("n2", "/a"): None}
    assert unwritten(changes, seen) == []
    assert unwritten(changes, {**seen, ("n1", "/a"): b"1\n"}) == ["/a on n1"]
    assert unwritten(changes, {("n2", "/a"): b"1\n"}) == ["/a on n2"]
