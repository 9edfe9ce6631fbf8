"""A stdout or stderr that is full, closed or without a reader changes no verdict and is no bug."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CLI = f"{shlex.quote(sys.executable)} -m clusterprep"
LOST = "clusterprep: stdout cannot be written: "
FULL = f"{LOST}No space left on device\n"
CLOSED = f"{LOST}Bad file descriptor\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an inventory of a node that refuses connections, a good file and a bad one."""
    (tmp_path / "closed.yaml").write_text(
        "cluster: c\ngpus: 0\nnodes: [{name: n1, address: 127.0.0.1}]\nssh: {port: 1}\n"
    )
    (tmp_path / "good.conf").write_text("NCCL_DEBUG=WARN\n")
    (tmp_path / "bad.conf").write_text("export NCCL_DEBUG=WARN\n")
    return tmp_path


def shell(place: Path, line: str) -> tuple[int, str]:
    """Run a line of bash. Returns the exit code of its first command, and its stderr."""
    script = f"{line}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


# Commands that end well, with 1, with 3 and with 2; the last ones print text that is no report.
ENDS = [
    ("lint good.conf", 0),
    ("lint --strict bad.conf", 1),
    ("validate closed.yaml", 0),
    ("check closed.yaml --only ssh.", 3),
    ("check closed.yaml --only ssh. --format json", 3),
    ("check nosuch.yaml", 2),
    ("check nosuch.yaml --format json", 2),
    ("explain eth.mtu", 0),
    ("history", 0),
    ("--help", 0),
    ("check --help", 0),
    ("--version", 0),
]
RESULTS = [end for end in ENDS if "--" not in end[0] or "--format" in end[0]]


@pytest.mark.parametrize(("words", "code"), ENDS)
def test_a_reader_that_has_left_changes_no_exit_code(place: Path, words: str, code: int) -> None:
    ended, said = shell(place, f"{CLI} {words} | true")
    assert ended == code
    assert "stdout" not in said
    assert "bug" not in said


@pytest.mark.parametrize(("words", "code"), ENDS)
def test_a_full_disk_behind_stdout_is_said_and_loses_no_failure(
    place: Path, words: str, code: int
) -> None:
    ended, said = shell(place, f"{CLI} {words} > /dev/full")
    assert ended == (code or 2)
    prints_nothing = words == "check nosuch.yaml"
    assert said.endswith(FULL) or (FULL in said and code) or prints_nothing
    assert "bug" not in said


@pytest.mark.parametrize(("words", "code"), RESULTS)
def test_a_closed_stdout_is_the_same(place: Path, words: str, code: int) -> None:
    ended, said = shell(place, f"{CLI} {words} >&-")
    assert ended == (code or 2)
    assert CLOSED in said or words == "check nosuch.yaml"
    assert "bug" not in said


@pytest.mark.parametrize("broken", ["2> /dev/full", "2>&-"])
@pytest.mark.parametrize(("words", "code"), ENDS)
def test_a_broken_stderr_changes_no_exit_code(
    place: Path, words: str, code: int, broken: str
) -> None:
    assert shell(place, f"{CLI} {words} > /dev/null {broken}") == (code, "")


def test_nagios_gets_a_code_of_its_own(place: Path) -> None:
    assert shell(place, f"{CLI} validate closed.yaml --format nagios > /dev/full") == (3, FULL)


def test_a_bug_is_told_without_control_characters(place: Path) -> None:
    """What a package whose judge raises with a node's words would print."""
    (place / "sitecustomize.py").write_text(
        "import clusterprep.cli.commands.check as r\n"
        "def run(invocation): raise RuntimeError('a\\x1b]0;b\\x07\\nsecond line')\n"
        "r.run = run\n"
    )
    ended, said = shell(place, f"PYTHONPATH={place}:{Path.cwd()} {CLI} check closed.yaml")
    assert ended == 70
    assert "\x1b" not in said
    assert "\x07" not in said
    assert len(said.splitlines()) == 1
    assert "second line" in said
