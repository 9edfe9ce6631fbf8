"""A command that is started without what a session in a terminal has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import LONG

INVENTORY = "nodes: [{name: n1, address: 127.0.0.1, transport: local}]\n"
PROGRAM = (sys.executable, "-m", "clusterprep")


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return str(path)


def test_a_password_is_read_from_nothing_but_a_terminal(inventory: str) -> None:
    """A prompt would take the first line of whatever is piped into the command."""
    done = subprocess.run(
        (*PROGRAM, "check", inventory, "-b", "-K"),
        check=False,
        input="open sesame\n",
        capture_output=True,
        text=True,
        timeout=LONG,
        start_new_session=True,
    )
    assert done.returncode == 2
    assert "there is no terminal to ask for the password at" in done.stderr
    assert "CLUSTERPREP_BECOME_PASSWORD_FD" in done.stderr
    assert "sesame" not in done.stderr


@pytest.mark.parametrize(
    ("options", "code"), [((), 2), (("--chdir", "/"), 0)], ids=["here", "chdir"]
)
def test_a_job_is_not_launched_in_a_folder_that_is_gone(
    inventory: str, tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    words = ("launch", inventory, "--print", "torchrun", "--no-preflight", "--nproc-per-node", "1")
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    command = (*PROGRAM, *words, *options, "--", "train.py")
    done = subprocess.run(
        ("sh", "-c", script, "sh", str(folder), *command),
        check=False,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == code, done.stderr
    assert ("the folder that this command runs in is no longer there" in done.stderr) is (code == 2)


def test_a_group_of_commands_alone_shows_its_help() -> None:
    done = subprocess.run(
        (*PROGRAM, "certificate"), check=False, capture_output=True, text=True, timeout=LONG
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: clusterprep certificate")
    assert done.stdout.count("\n") > 5


@pytest.mark.parametrize(
    ("term", "is_colored"), [("xterm-256color", True), ("dumb", False)], ids=["xterm", "dumb"]
)
def test_a_terminal_without_colors_gets_none(inventory: str, term: str, is_colored: bool) -> None:
    environment = {**os.environ, "TERM": term}
    environment.pop("NO_COLOR", None)
    ours, theirs = os.openpty()
    command = (*PROGRAM, "check", inventory, "--only", "kernel.version")
    subprocess.run(command, check=False, stdout=theirs, timeout=LONG, env=environment)
    written = os.read(ours, 1 << 16)
    os.close(theirs)
    os.close(ours)
    assert b"0 errors" in written
    assert (b"\x1b[" in written) is is_colored
