"""A command that is started without what a session in a terminal has."""

from __future__ import annotations

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
