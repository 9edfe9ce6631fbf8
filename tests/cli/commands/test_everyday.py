"""`exec` on this machine, what `exec`, `copy` and `fetch` refuse, and what they print."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.cli.commands.everyday import copy_request, refuse_folder
from clusterprep.errors import InputError
from clusterprep.model import CommandResult
from clusterprep.reports import render
from tests.reports.situations import report
from tests.support.command import asked, report_schema

CAPSYS = pytest.CaptureFixture[str]


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text("cluster: here\ntransport: local\nnodes: [{name: here, address: 127.0.0.1}]\n")
    return str(path)


def ran(capsys: CAPSYS, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of a command and its report, which the schema describes."""
    code, out, err = asked(capsys, words[0], *words[1:])
    assert out, err
    document = json.loads(out)
    report_schema().validate(document)
    return code, document


@pytest.mark.parametrize(
    ("line", "code", "result"),
    [
        ("echo a; echo b >&2", 0, {"exit": 0, "stdout": "a\n", "stderr": "b\n"}),
        ("exit 7", 1, {"exit": 7, "stdout": "", "stderr": ""}),
        ("kill -9 $$", 1, {"exit": 137, "stdout": "", "stderr": ""}),
        ("printf '\\351'", 0, {"exit": 0, "stdout": "\\xe9", "stderr": ""}),
    ],
)
def test_exec_without_ssh(
    capsys: CAPSYS, inventory: str, line: str, code: int, result: dict[str, Any]
) -> None:
    ended, document = ran(capsys, "exec", inventory, "--format", "json", "--", "sh", "-c", line)
    (row,) = document["results"]
    assert (ended, document["verdict"]) == (code, "fail" if code else "pass")
    assert {key: row[key] for key in result} == result


def test_words_reach_a_command_without_ssh_as_they_are(capsys: CAPSYS, inventory: str) -> None:
    words = ["$HOME", "it's", "a b", "", "--limit", "-n", "\\"]
    argv = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words]
    _, document = ran(capsys, "exec", inventory, "--format", "json", "--", *argv)
    assert document["results"][0]["stdout"] == f"{words!a}\n"


def test_timeout_keeps_what_was_printed(capsys: CAPSYS, inventory: str) -> None:
    line = "echo begun; sleep 60"
    words = ("--timeout", "2", "--format", "json", "--", "sh", "-c", line)
    code, document = ran(capsys, "exec", inventory, *words)
    (row,) = document["results"]
    assert (code, row["exit"], row["reason"], row["stdout"]) == (3, None, "timed_out", "begun\n")


def test_a_script_without_ssh(capsys: CAPSYS, inventory: str, tmp_path: Path) -> None:
    script = tmp_path / "a script"
    script.write_text('echo "$(basename "$0")"; exit 3\n')
    words = ("--script", str(script), "--format", "json")
    code, document = ran(capsys, "exec", inventory, *words)
    (row,) = document["results"]
    assert (code, row["exit"], row["stdout"]) == (1, 3, "a script\n")


def test_compare_changes_no_file(capsys: CAPSYS, tmp_path: Path) -> None:
    """Differences are for people; what programs read has each output whole."""
    nodes = [{"name": f"n{number}", "address": f"127.0.0.{number}"} for number in (1, 2, 3)]
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"cluster": "c", "transport": "local", "nodes": nodes}))
    seen = tmp_path / "seen"
    line = f'mkdir {seen} 2>/dev/null && echo "only here"; echo all'
    words = ("--forks", "1", "--compare", "--output", str(tmp_path / "report.json"))
    code, out, err = asked(capsys, "exec", str(path), *words, "--", "sh", "-c", line)
    assert code == 0, err
    assert "+only here" in out
    rows = json.loads((tmp_path / "report.json").read_text())["results"]
    assert [row["stdout"] for row in rows] == ["all\n", "only here\nall\n"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "{}"], "give one of"),
        (["exec", "{}", "--script", "x", "--", "true"], "give one of"),
        (
            ["exec", "{}", "uname", "-r"],
            "'-r'. (options of the command for the nodes go behind --)",
        ),
        (["exec", "{}", "--", ""], "is not a command"),
        (["exec", "{}", "--script", "/none"], "No such file"),
        (["exec", "{}", "--task", "x.py:y"], "--task needs SSH"),
        (["exec", "{}", "--task", "x.py:y", "--stream"], "--stream is for commands"),
        (["copy", "{}", "/etc/hostname", "/etc/x"], "copy needs SSH"),
        (["fetch", "{}", "/etc/hostname", "x"], "fetch needs SSH"),
        (["copy", "{}", "/none", "/etc/x"], "No such file"),
        (["copy", "{}", "/etc/hostname", "etc/x"], "not the same place"),
        (["copy", "{}", "/etc", "/etc/x"], "not a regular file"),
        (["copy", "{}", "--mode", "9", "/etc/hostname", "/etc/x"], "not a mode"),
    ],
)
def test_what_is_refused_before_a_node_is_reached(
    capsys: CAPSYS, inventory: str, words: list[str], said: str
) -> None:
    code, out, err = asked(capsys, *[word.format(inventory) for word in words])
    assert code == 2
    assert said in out + err


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("", "names no folder"),
        ("logs/{nodes}", "'{nodes}' stands for nothing ({node} does)"),
        ("{}", "stands for nothing"),
        ("/etc/hostname", "is no folder"),
        ("/etc/hostname/{node}", "is no folder"),
    ],
)
def test_what_is_no_folder_for_fetched_files(folder: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        refuse_folder(folder)


@pytest.mark.parametrize("folder", ["/etc", "/none/{node}/x", "{node}", "a{b", "x-{node}-{node}"])
def test_what_is_a_folder_for_fetched_files(folder: str) -> None:
    refuse_folder(folder)


@pytest.mark.parametrize(
    ("destination", "path"),
    [
        ("/etc/x", "/etc/x"),
        ("/etc/", "/etc/site.conf"),
        ("/", "/site.conf"),
        ("/etc//a/../x", "/etc/x"),
    ],
)
def test_where_a_copy_goes(destination: str, path: str, tmp_path: Path) -> None:
    source = tmp_path / "site.conf"
    source.write_text("x")
    assert copy_request(str(source), destination, None, None).path == path


@pytest.mark.parametrize(
    ("given", "mode"), [(None, 0o755), ("644", 0o644), ("0600", 0o600), ("4755", 0o4755)]
)
def test_the_mode_of_a_copy(given: str | None, mode: int, tmp_path: Path) -> None:
    source = tmp_path / "tool"
    source.write_text("x")
    source.chmod(0o6755)
    assert copy_request(str(source), "/usr/bin/", given, None).mode == mode


@pytest.mark.parametrize("given", ["", "rw", "-1", "0o17777", "10000"])
def test_what_is_no_mode(given: str, tmp_path: Path) -> None:
    source = tmp_path / "tool"
    source.write_text("x")
    with pytest.raises(InputError):
        copy_request(str(source), "/usr/bin/", given, None)


@pytest.mark.parametrize(
    ("owner", "user", "group"),
    [(None, None, None), ("a", "a", None), ("a:b", "a", "b"), (":b", None, "b")],
)
def test_the_owner_of_a_copy(
    owner: str | None, user: str | None, group: str | None, tmp_path: Path
) -> None:
    source = tmp_path / "tool"
    source.write_text("x")
    request = copy_request(str(source), "/usr/bin/", None, owner)
    assert (request.user, request.group) == (user, group)


# ---------------------------------------------------------------- what is printed


def shown(*results: CommandResult) -> str:
    return render(report("exec", results=results), "console", width=80)


def test_outputs_stand_below_their_nodes() -> None:
    text = shown(
        CommandResult(("n1", "n2", "n4"), 0, "6.8.0\n", "", 0.1),
        CommandResult(("n3",), 2, "", "no uname\n", 0.1),
        CommandResult(("n5",), None, "half\n", "", 9.0, "timed_out"),
    )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines[lines.index("6.8.0") - 1].split() == ["n[1-2,4]", "3", "nodes"]
    assert "exit code 2" in lines[lines.index("no uname") - 1]
    assert "still running" in lines[lines.index("half") - 1]


def test_what_nodes_print_is_clean_and_bounded() -> None:
    hostile = "\033]52;c;eA==\007\033[2J\u202egol\r\x00\x9b31m" + "x" * 100_000
    text = shown(CommandResult(("n1",), 0, hostile, hostile, 0.1, left_out=1_000_000))
    assert not {"\033", "\007", "\u202e", "\r", "\x00", "\x9b"} & set(text)
    assert len(text) < 20_000
    assert "1,000,000 more bytes were not kept" in text
