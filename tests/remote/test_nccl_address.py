"""Asks a library that is built here as the agent does: in a session, in login shells, and when something breaks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.nccl_address import FINDER, PATHS, PROBE
from clusterprep.remote import nccl_address
from clusterprep.remote.readers import NoAnswer
from tests.lab.faults.software import nccl_source

SSH, LOGIN = PATHS
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler, for a library that answers")
BROKEN = "int ncclGetVersion(int *v) { *v = 22105; return 0; }\nint ncclGetUniqueId(char *id) { return *(int *)0; }\n"
WITHOUT = "int ncclGetVersion(int *v) { *v = 22105; return 0; }\n"
CHATTY = "#include <stdio.h>\n" + nccl_source(22105).replace(
    "memset(id, 0, 128);", "memset(id, 0, 128); chat();"
).replace(
    "int ncclGetUniqueId",
    'static void chat(void) { for (int i = 0; i < 700; i++) printf("NCCL INFO line %d\\n", i); '
    'printf("no end"); }\nint ncclGetUniqueId',
)
WHO = (
    "import os, sys\nfor key, word in (('uid', str(os.getuid())), ('home', os.environ['HOME']), ('end', '')):\n"
    "    print(sys.argv[1], key, word.encode().hex())"
)
ASK = """
import json, sys
from clusterprep.remote import look, nccl_address
nccl_address.install(None)
print(json.dumps(look.answer("nccl_address", json.load(sys.stdin))))
"""


def asked(home: Path, python: str = sys.executable, user: str | None = None, script: str = "", **more: str) -> Any:
    """The reader's answer in a session with this home."""
    args = [python, user, script or FINDER + PROBE]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **more}
    argv = [sys.executable, "-c", ASK]
    done = subprocess.run(argv, input=json.dumps(args), env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def library(folder: Path, source: str | None = None) -> str:
    """A folder with a libnccl.so.2 that says 2.21.5."""
    argv = [str(COMPILER), "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libnccl.so.2")]
    subprocess.run(argv, input=source or nccl_source(22105), text=True, check=True, capture_output=True)
    return str(folder)


def test_both_paths_answer(tmp_path: Path) -> None:
    word, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path), NCCL_SOCKET_IFNAME="eth0")
    assert word == "ok"
    for path in PATHS:
        assert found[path]["library"] == f"{tmp_path}/libnccl.so.2"
        assert (found[path]["version"], found[path]["failed"]) == ("22105", "0")
        assert found[path]["value:NCCL_SOCKET_IFNAME"] == "eth0"
        assert found[path]["place:NCCL_SOCKET_IFNAME"] == "environment"


def test_a_profile_changes_the_login_shell_alone(tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text("printf 'welcome, no newline'\nexport NCCL_SOCKET_IFNAME='a\nb'\n")
    _, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path))
    assert "value:NCCL_SOCKET_IFNAME" not in found[SSH]
    assert found[LOGIN]["value:NCCL_SOCKET_IFNAME"] == "a\nb"


def test_a_profile_may_bring_another_library(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    library(other, nccl_source(22705))
    (tmp_path / ".profile").write_text(f"export LD_LIBRARY_PATH={other}\n")
    _, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path))
    assert (found[SSH]["version"], found[LOGIN]["version"]) == ("22105", "22705")


def test_a_profile_that_ends_the_shell_costs_only_its_own_answer(tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text("echo licence expired; exit 1\n")
    _, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path))
    assert found[SSH]["version"] == "22105"
    assert found[LOGIN]["no"] == "garbled"
    assert "licence expired" in found[LOGIN]["why"]


def test_output_of_nccl_does_not_get_into_the_answer(tmp_path: Path) -> None:
    _, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path, CHATTY))
    assert found[SSH]["version"] == "22105"
    assert "end" in found[SSH]
    assert found[SSH]["log"].rstrip().endswith("no end")


def test_no_shell_is_started_where_there_is_no_nccl(tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text(f"touch {tmp_path}/started\n")
    _, found = asked(tmp_path)
    if found[SSH]["library"]:
        pytest.skip("this machine has an NCCL of its own")
    assert found[LOGIN] == found[SSH]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("source", "why"), [(BROKEN, "signal 11"), (WITHOUT, "code 1")])
def test_a_library_that_breaks_is_no_answer(tmp_path: Path, source: str, why: str) -> None:
    _, found = asked(tmp_path, LD_LIBRARY_PATH=library(tmp_path, source))
    for path in PATHS:
        assert found[path]["no"] == "garbled"
        assert why in found[path]["why"]


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told that only root can")
def test_a_user_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert asked(tmp_path, user="nobody-of-this-name") == ["no", "denied", "there is no user nobody-of-this-name"]


def test_a_missing_interpreter_is_said(tmp_path: Path) -> None:
    assert asked(tmp_path, python="/nowhere/python3")[:2] == ["no", "missing_tool"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_jobs_user_is_asked_and_one_without_login_has_no_login_shell(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no interpreter that every user may run")
    _, found = asked(tmp_path, python, "nobody", WHO)
    import pwd

    entry = pwd.getpwnam("nobody")
    assert (found[SSH]["uid"], found[SSH]["home"]) == (str(entry.pw_uid), entry.pw_dir)
    if entry.pw_shell.endswith("nologin"):
        assert found[LOGIN]["no"] == "not_applicable"


@pytest.mark.parametrize(
    ("line", "fence", "reason"),
    [
        ("sleep 60", None, "timed_out"),
        ("echo fence; sleep 60", b"never\n", "timed_out"),
        ("yes", b"never\n", "timed_out"),
    ],
)
def test_what_does_not_end_is_ended(line: str, fence: bytes | None, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(NoAnswer) as caught:
        nccl_address.output(["/bin/sh", "-c", line], {}, None, 0.3, fence, 1)
    assert caught.value.reason == reason
    assert time.monotonic() - started < 5


def test_nobody_waits_for_what_a_profile_leaves_running() -> None:
    started = time.monotonic()
    text, _ = nccl_address.output(["/bin/sh", "-c", "sleep 3 & echo fence"], {}, None, 30.0, b"fence\n", 1)
    assert text == b"fence\n"
    assert time.monotonic() - started < 2
