"""Shared folders on real mounts: FUSE that serves, hangs or is stale, memory, nothing mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.shared import parse_shared
from clusterprep.remote.agent.shared import read_shared
from tests.support.fleet import findings, fleet, told
from tests.support.patience import LONG

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounting needs root and FUSE"
)
Look = Callable[[str], Any]


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Returns what a node with a folder mounted in one of the ways tells; each is asked once."""
    folder = tmp_path_factory.mktemp("shared")
    known: dict[str, Any] = {}

    def ask(way: str) -> Any:
        if way not in known:
            seconds = "1" if way == "hung" else str(LONG)
            command = [sys.executable, "-m", "tests.support.shared_folder", str(folder), way]
            done = subprocess.run(
                [*command, seconds], capture_output=True, text=True, check=True, timeout=LONG
            )
            known[way] = json.loads(done.stdout)
        return known[way]

    return ask


def judged(look: Look, *ways: str) -> Any:
    """The fleet of nodes n1, n2, … that have the folder in these ways."""
    answers = [look(way) for way in ways]
    (path,) = answers[0]
    facts = {}
    for number, answer in enumerate(answers, 1):
        facts[f"n{number}"] = {"fs.shared": parse_shared(answer)}
    return fleet(each={"shared": (path,)}, **facts)


@needs_fuse
@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nothing", "is local: what is written there no other node sees"),
        ("tmpfs", "is local: what is written there no other node sees"),
        ("other", "is another folder than on most nodes"),
        ("stale", "has a stale handle"),
        ("hung", "does not answer"),
        ("read-only", "is mounted read-only"),
    ],
)
def test_the_one_node_that_has_it_otherwise_is_named(look: Look, way: str, message: str) -> None:
    seen = judged(look, "right", "right", way, "right")
    failed = [finding for finding in findings(seen, "fs.shared") if finding.verdict == "fail"]
    assert [finding.nodes for finding in failed] == [("n3",)]
    assert failed[0].message.endswith(message)
    expected = {"n1": "pass", "n2": "pass", "n3": "fail warning", "n4": "pass"}
    assert told(seen, "fs.shared") == expected


@needs_fuse
def test_a_folder_to_which_others_write_meanwhile_is_the_same(look: Look) -> None:
    seen = judged(look, "right", "changed", "right")
    assert set(told(seen, "fs.shared").values()) == {"pass"}


def test_names_do_not_leave_the_node(tmp_path: Path) -> None:
    (tmp_path / "secret-project.tar").write_bytes(b"x" * 5000)
    (tmp_path / "empty").mkdir()
    answer = read_shared(None, LONG, str(tmp_path))
    word, state = answer[str(tmp_path)]
    assert word == "ok"
    assert (state["inode"], state["entries"][0]) == (tmp_path.stat().st_ino, 2)
    assert state["writable"] is True
    assert state["mode"] == "rw"
    assert state["read"] < LONG
    assert "secret" not in json.dumps(answer)


def test_what_is_no_folder_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = read_shared(None, LONG, str(tmp_path / "gone"), str(tmp_path / "file"))
    assert answer[str(tmp_path / "gone")][:2] == ["no", "missing"]
    assert answer[str(tmp_path / "file")][:2] == ["no", "ENOTDIR"]


def test_entries_of_a_large_folder_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterprep.remote.agent.shared.ENTRIES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    assert read_shared(None, LONG, str(tmp_path))[str(tmp_path)][1]["entries"] is None
