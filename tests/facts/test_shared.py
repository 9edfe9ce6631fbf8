"""Shared folders as a node tells them, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.shared import SECONDS, Entries, SharedFolder, parse_shared
from clusterprep.model import Absent, Inventory, Node
from clusterprep.survey import registry
from tests.support.fleet import learned

STATE: dict[str, Any] = {
    "type": "nfs4",
    "source": "store:/data",
    "point": "/data",
    "mode": "rw",
    "inode": 128,
    "entries": [2, [[1, 11], [2, 12]]],
    "writable": True,
    "size": 1 << 40,
    "free": 1 << 39,
    "open": 0.001,
    "read": None,
}


def test_a_folder_and_one_that_does_not_answer() -> None:
    assert parse_shared({"/data": ["ok", STATE], "/old": ["no", "ESTALE", "stale"]}) == {
        "/data": SharedFolder(
            "nfs4",
            "store:/data",
            "/data",
            "rw",
            128,
            Entries(2, frozenset({1, 2}), frozenset({11, 12})),
            True,
            1 << 40,
            1 << 39,
            0.001,
        ),
        "/old": Absent("ESTALE", "stale"),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "rx"),
        ("inode", "128"),
        ("free", -1),
        ("writable", 1),
        ("entries", [1, [[1, 11], [2, 12]]]),
        ("type", None),
        ("open", None),
    ],
)
def test_what_cannot_be_read_is_garbled(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_shared({"/data": ["ok", {**STATE, name: value}]})


def test_nothing_is_asked_where_nothing_is_declared() -> None:
    assert learned("fs.shared") is None
    node = Node("n1", "10.0.0.1", 0, job_user="alice", shared=("/data", "/home"))
    (read,) = registry.facts()["fs.shared"].reads(node, Inventory("test", (node,)))
    assert read.args == ("alice", SECONDS, "/data", "/home")
