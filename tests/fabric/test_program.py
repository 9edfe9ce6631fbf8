"""No word of a command is read by a shell, and what it started ends with it. In real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterprep.fabric import program
from clusterprep.fabric.program import ShellProgram, interpreter

SHELLS = [name for name in ("dash", "bash", "busybox", "zsh", "csh", "fish") if shutil.which(name)]
POSIX = [name for name in SHELLS if name in ("dash", "bash", "busybox")]  # as /bin/sh
ODD = [
    "$HOME", "`id`", "$(id)", "a b", "it's", "''", '"', "*", "~", ";", "&", "|", ">x", "#", "!",
    "", "é", "a\nb", "\n", "\\", "\\n", "-n", "A=b", "if", "{", "%s", "x" * 5000,
]  # fmt: skip


def argv_of(shell: str) -> list[str]:
    return ["busybox", "sh"] if shell == "busybox" else [shell]


def run(ran: ShellProgram, folder: Path, shell: str = "sh") -> subprocess.CompletedProcess[bytes]:
    """Run a program as sshd does: a login shell with a line, a group of its own, stdin open."""
    return started([*argv_of(shell), "-c", f"exec {ran.line}"], ran, folder)


def started(argv: list[str], ran: ShellProgram, folder: Path) -> subprocess.CompletedProcess[bytes]:
    popen = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder)},
    )
    with popen as process:
        process.stdin.write(ran.stdin)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        out = process.stdout.read()  # type: ignore[union-attr]
        err = process.stderr.read()  # type: ignore[union-attr]
    return subprocess.CompletedProcess([], popen.returncode, out, err)


@pytest.mark.parametrize("shell", SHELLS)
def test_words_reach_the_command_as_they_are(shell: str, tmp_path: Path) -> None:
    code = "import sys; print(ascii(sys.argv[1:]))"
    done = run(program.of_command([sys.executable, "-c", code, *ODD]), tmp_path, shell)
    assert done.stdout.decode() == f"{ODD!a}\n"
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["there-is-no-such-program"], 127),
        (["exit", "0"], 127),
        (["cd", "/"], 127),
        (["/"], 126),
    ],
)
def test_exit_codes(argv: list[str], code: int, tmp_path: Path) -> None:
    assert run(program.of_command(argv), tmp_path).returncode == code


@pytest.mark.parametrize("shell", POSIX)
@pytest.mark.parametrize(
    ("argv", "code", "err"),
    [
        (["sh", "-c", "kill -9 $$"], 137, b""),
        (["sh", "-c", "echo why >&2; kill -SEGV $$"], 139, b"why\n"),
        (["sh", "-c", "echo why >&2; sleep 60 & exit 3"], 3, b"why\n"),
    ],
)
def test_stderr_is_that_of_the_command(
    shell: str, argv: list[str], code: int, err: bytes, tmp_path: Path
) -> None:
    """A /bin/sh that is bash tells of a killed command with its number, so no two were equal."""
    ran = program.of_command(argv)
    done = started([*argv_of(shell), *ran.argv[1:]], ran, tmp_path)
    assert (done.returncode, done.stderr) == (code, err)


@pytest.mark.parametrize("shell", POSIX)
def test_that_a_command_is_not_there_is_told(shell: str, tmp_path: Path) -> None:
    ran = program.of_command(["there-is-no-such-program"])
    done = started([*argv_of(shell), *ran.argv[1:]], ran, tmp_path)
    assert done.returncode == 127
    assert b"there-is-no-such-program" in done.stderr


def test_the_command_has_an_empty_stdin(tmp_path: Path) -> None:
    assert run(program.of_command(["cat"]), tmp_path).stdout == b""


@pytest.mark.parametrize("name", ["plain.sh", "it's a $script.sh", "-n", "a\nb"])
def test_a_script_of_any_name_runs_and_is_removed(name: str, tmp_path: Path) -> None:
    content = b'#!/bin/sh\necho "ran $(basename "$0")"; cat; exit 5\n' + b"# \x00\xff\n" * 20_000
    done = run(program.of_script(name, content), tmp_path)
    assert done.returncode == 5, done.stderr
    if name == "plain.sh":
        assert done.stdout == b"ran plain.sh\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"echo", ("/bin/sh",)),
        (b"", ("/bin/sh",)),
        (b"#!\n", ("/bin/sh",)),
        (b"#! /usr/bin/env python3\n", ("/usr/bin/env", "python3")),
        (b"#!/usr/bin/env -S python3 -I\n", ("/usr/bin/env", "-S python3 -I")),
        (b"#!/bin/sh\r\n", ("/bin/sh",)),
    ],
)
def test_the_first_line_names_the_interpreter(content: bytes, words: tuple[str, ...]) -> None:
    assert interpreter(content) == words
