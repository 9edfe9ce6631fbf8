"""`check --write-lists` and `--pick`: files that other programs read, the report, the exit code.

The nodes are this machine under several names, and a port of it that refuses connections.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import asked, report_schema

Check = Callable[..., tuple[int, dict[str, Any], str]]
GOOD, BAD = {"transport": "local"}, {"transport": "local", "require": {"kernel": ">=999"}}
FILES = ["exclude.txt", "failing.txt", "hostfile", "passing.txt", "unknown.txt"]


@pytest.fixture(scope="module")
def closed() -> Iterator[dict[str, Any]]:
    """A node that refuses connections."""
    with socket.socket() as never_listens:
        never_listens.bind(("127.0.0.1", 0))
        port = never_listens.getsockname()[1]
        yield {"address": "127.0.0.1", "ssh": {"user": "root", "port": port}}


@pytest.fixture
def check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Check:
    """Check the kernel of these nodes; return the exit code, the report and stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(nodes: dict[str, Any], *words: str, **more: Any) -> tuple[int, dict[str, Any], str]:
        rows = [{"name": name, "address": name, **node} for name, node in nodes.items()]
        Path("inventory.yaml").write_text(json.dumps({"nodes": rows, **more}))
        options = ("--format", "json", "--only", "kernel.version", *words)
        code, out, err = asked(capsys, "check", "inventory.yaml", *options)
        report = json.loads(out)
        report_schema().validate(report)
        return code, report, err

    return run


def texts(folder: str = "lists") -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


def test_each_node_is_in_the_list_of_what_is_known_of_it(
    check: Check, closed: dict[str, Any]
) -> None:
    nodes = {"n1": GOOD, "n2": BAD, "n3": closed, "n4": {**GOOD, "nproc_per_node": 8}}
    code, report, _ = check(nodes, "--write-lists", "lists")
    assert code == 1
    assert report["lists"] == {
        "passing": ["n1", "n4"],
        "failing": ["n2"],
        "unknown": ["n3"],
        "folder": "lists",
    }
    assert texts() == {
        "passing.txt": "n1\nn4\n",
        "failing.txt": "n2\n",
        "unknown.txt": "n3\n",
        "exclude.txt": "n[2-3]\n",
        "hostfile": "n1 slots=1\nn4 slots=8\n",
    }


def test_without_trouble_nothing_is_excluded(check: Check) -> None:
    code, report, _ = check({"n1": GOOD}, "--write-lists", "new/lists")
    assert (code, report["verdict"]) == (0, "pass")
    written = texts("new/lists")
    assert (written["exclude.txt"], written["failing.txt"], written["unknown.txt"]) == ("", "", "")


def test_without_a_node_that_passes_the_hostfile_has_none(
    check: Check, closed: dict[str, Any]
) -> None:
    code, _, _ = check({"n1": closed}, "--write-lists", "lists")
    assert (code, texts()["hostfile"], texts()["exclude.txt"]) == (3, "# no node\n", "n1\n")


def test_lists_of_before_are_replaced(check: Check) -> None:
    check({"n1": GOOD, "n2": BAD}, "--write-lists", "lists")
    check({"n1": BAD, "n2": GOOD}, "--write-lists", "lists")
    assert sorted(texts()) == FILES  # and no draft is left
    assert (texts()["passing.txt"], texts()["exclude.txt"]) == ("n2\n", "n1\n")


# ---------------------------------------------------------------- --pick


def test_the_exit_code_is_that_of_the_chosen_nodes(check: Check, closed: dict[str, Any]) -> None:
    nodes = {"n1": BAD, "n2": GOOD, "n3": closed, "n4": GOOD, "n5": GOOD}
    groups = {"a": {"nodes": "n[1-2]"}, "b": {"nodes": "n[3-5]"}}
    code, report, _ = check(nodes, "--write-lists", "lists", "--pick", "2", groups=groups)
    assert (code, report["verdict"]) == (0, "pass")
    assert report["lists"]["picked"] == ["n4", "n5"]
    assert report["lists"]["passing"] == ["n2", "n4", "n5"]
    assert texts()["hostfile"] == "n4 slots=1\nn5 slots=1\n"
    assert texts()["exclude.txt"] == "n[1,3]\n"


def test_too_few_good_nodes_fail_and_the_reason_is_said(
    check: Check, closed: dict[str, Any]
) -> None:
    nodes = {"n1": GOOD, "n2": BAD, "n3": closed}
    code, report, _ = check(nodes, "--pick", "2", "--write-lists", "lists")
    assert (code, report["lists"]["picked"]) == (1, [])
    reason = "--pick 2 chooses none: 1 node passes, n2 failed, of n3 it is not known"
    assert reason in report["notices"]
    assert texts()["hostfile"] == "# no node\n"


def test_a_choice_needs_no_folder(check: Check) -> None:
    code, report, _ = check({"n1": GOOD, "n2": GOOD}, "--pick", "1")
    assert (code, report["lists"]["picked"], "folder" in report["lists"]) == (0, ["n1"], False)
    assert not Path("lists").exists()


def test_the_console_shows_the_choice_and_the_folder(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check({"n1": GOOD, "n2": BAD})
    words = ("--only", "kernel.version", "--pick", "1", "--write-lists", "lists")
    code, out, _ = asked(capsys, "check", "inventory.yaml", *words)
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert {"Nodes 1 node passes; failing n2", "picked n1", "lists lists"} <= set(shown)


def test_the_console_says_how_many_were_wanted_where_fewer_pass(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    check({"n1": GOOD, "n2": GOOD})
    words = ("--only", "kernel.version", "--pick", "9")
    code, out, _ = asked(capsys, "check", "inventory.yaml", *words)
    shown = " ".join(out.split())
    assert code == 1
    assert "picked none: 9 wanted, 2 nodes pass" in shown
    assert "FAIL --pick 9 chose none; 0 errors" in shown
    assert "next: pick at most 2 nodes" in shown


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("", "names no folder"), ("inventory.yaml", "is no folder"), ("file/in/it", "is no folder")],
)
def test_a_folder_that_cannot_be_is_refused_before_a_node_is_asked(
    check: Check, folder: str, reason: str
) -> None:
    Path("file").write_text("")
    code, report, err = check({"n1": GOOD}, "--write-lists", folder)
    assert (code, report["error"]["key"], reason in err) == (2, "--write-lists", True)
    assert "findings" not in report


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(check: Check) -> None:
    Path("closed").mkdir(mode=0o500)
    code, _, err = check({"n1": GOOD}, "--write-lists", "closed/lists")
    assert (code, "permission denied" in err) == (2, True)


def test_a_list_that_cannot_be_written_is_said(check: Check) -> None:
    Path("lists/failing.txt").mkdir(parents=True)
    code, report, _ = check({"n1": GOOD}, "--write-lists", "lists")
    assert (code, report["verdict"]) == (1, "fail")
    assert any("the lists are not complete" in notice for notice in report["notices"])
    assert "hostfile" not in texts_of_files("lists")


def texts_of_files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir() if path.is_file()}


@pytest.mark.parametrize("words", [("--pick", "0"), ("--pick", "two")])
def test_no_number_of_nodes_is_refused(check: Check, words: tuple[str, ...]) -> None:
    assert check({"n1": GOOD}, *words)[0] == 2
