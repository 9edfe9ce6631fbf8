"""Asks a library that is built here as the agent does.

In a session, in login shells, and when something breaks.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.facts.nccl_address import FINDER, PROBE, BoundAddress, parse_answers
from clusterprep.facts.torch import SCRIPT
from clusterprep.remote.agent import environment, launched, nccl_address, readers, shells
from clusterprep.remote.agent.readers import NoAnswer
from tests.support.lab.faults.software import nccl_source

SSH, LOGIN = PATHS = ("ssh command", "login shell")
BARE = sys._base_executable  # without this environment, whose torch may bring an NCCL
COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler, for a library that answers"),
]
WITHOUT = "int ncclGetVersion(int *v) { *v = 22105; return 0; }\n"
BROKEN = WITHOUT + "int ncclGetUniqueId(char *id) { return *(int *)0; }\n"
CHATTY = "#include <stdio.h>\n" + nccl_source(22105).replace(
    "memset(id, 0, 128);", "memset(id, 0, 128); chat();"
).replace(
    "int ncclGetUniqueId",
    'static void chat(void) { for (int i = 0; i < 700; i++) printf("NCCL INFO line %d\\n", i); '
    'printf("no end"); }\nint ncclGetUniqueId',
)
WHO = (
    "import os, sys\n"
    "uid, home = str(os.getuid()), os.environ['HOME']\n"
    "for key, word in (('uid', uid), ('home', home), ('end', '')):\n"
    "    print(sys.argv[1], key, word.encode().hex())"
)
Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Ask as the user who lives in the test's folder, in a session with these variables."""

    def ask(
        given: dict[str, str] | None = None, script: str = "", first: Any = None, **more: str
    ) -> dict[str, Any]:
        entry = SimpleNamespace(pw_name="alice", pw_dir=str(tmp_path), pw_shell="/bin/bash")
        session = None if given is None else {**given, **more}
        outside = nccl_address.Outside()
        outside.first = first
        found: dict[str, Any] = nccl_address.answers(
            entry, session, outside, BARE, script or FINDER + PROBE
        )
        return found

    monkeypatch.setattr(shells, "SHELL_LIMIT", 5.0)
    monkeypatch.setattr(launched, "SLURM_CONF", (f"{tmp_path}/slurm.conf",))
    return ask


def library(folder: Path, source: str | None = None) -> str:
    """A folder with a libnccl.so.2 that says 2.21.5."""
    argv = [str(COMPILER), "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libnccl.so.2")]
    subprocess.run(
        argv, input=source or nccl_source(22105), text=True, check=True, capture_output=True
    )
    return str(folder)


def test_both_paths_answer(asked: Asked, tmp_path: Path) -> None:
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path), NCCL_SOCKET_IFNAME="eth0")
    for path in PATHS:
        assert found[path]["library"] == f"{tmp_path}/libnccl.so.2"
        assert (found[path]["version"], found[path]["failed"]) == ("22105", "0")
        assert found[path]["value:NCCL_SOCKET_IFNAME"] == "eth0"
        assert found[path]["place:NCCL_SOCKET_IFNAME"] == "environment"


def test_a_profile_changes_the_login_shell_alone(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text(
        "printf 'welcome, no newline'\nexport NCCL_SOCKET_IFNAME='a\nb'\n"
    )
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path))
    assert "value:NCCL_SOCKET_IFNAME" not in found[SSH]
    assert found[LOGIN]["value:NCCL_SOCKET_IFNAME"] == "a\nb"


def test_a_profile_may_bring_another_library(asked: Asked, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    library(other, nccl_source(22705))
    (tmp_path / ".profile").write_text(f"export LD_LIBRARY_PATH={other}\n")
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path))
    assert (found[SSH]["version"], found[LOGIN]["version"]) == ("22105", "22705")


def test_a_profile_that_ends_the_shell_costs_only_its_own_answer(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / ".profile").write_text("echo licence expired; exit 1\n")
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path))
    assert found[SSH]["version"] == "22105"
    assert found[LOGIN]["no"] == "garbled"
    assert (
        found[LOGIN]["why"]
        == f"a start-up file of alice ends the shell: {tmp_path}/.profile line 1"
    )


def test_output_of_nccl_does_not_get_into_the_answer(asked: Asked, tmp_path: Path) -> None:
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path, CHATTY))
    assert found[SSH]["version"] == "22105"
    assert "end" in found[SSH]
    assert found[SSH]["log"].rstrip().endswith("no end")


def test_no_shell_is_started_where_there_is_no_nccl(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text(f"touch {tmp_path}/started\n")
    found = asked({})
    if found[SSH]["library"]:
        pytest.skip("this machine has an NCCL of its own")
    assert list(found) == [SSH]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("source", "why"), [(BROKEN, "signal 11"), (WITHOUT, "code 1")])
def test_a_library_that_breaks_is_no_answer(
    asked: Asked, tmp_path: Path, source: str, why: str
) -> None:
    found = asked({}, LD_LIBRARY_PATH=library(tmp_path, source))
    for path in PATHS:
        assert found[path]["no"] == "garbled"
        assert why in found[path]["why"]


@pytest.mark.parametrize("known", [{}, {"NCCL_SOCKET_IFNAME": "eth0"}])
def test_launch_paths_with_the_same_environment_are_asked_once(
    asked: Asked, tmp_path: Path, known: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nccl_address, "slurm", lambda: None
    )  # whether this machine has a slurmd or not
    (tmp_path / ".profile").write_text("export EDITOR=vi TORCH_HOME=/data\n")
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('.')\n"
    found = asked(known, count + FINDER + PROBE, ["ok", known], LD_LIBRARY_PATH=library(tmp_path))
    assert found[SSH] == found[LOGIN]
    assert list(found) == [SSH, LOGIN, "container"]
    # The container has no LD_LIBRARY_PATH, so that it may find another NCCL or none.
    assert (tmp_path / "count").read_text() == ".."


def test_an_nccl_that_hangs_is_waited_for_once(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nccl_address, "PROBE_LIMIT", 5.0
    )  # a busy machine needs seconds to start Python
    monkeypatch.setattr(nccl_address, "slurm", lambda: None)
    (tmp_path / ".profile").write_text("export NCCL_SOCKET_IFNAME=eth0\n")
    count = tmp_path / "count"
    found = asked({}, f"open({str(count)!r}, 'a').write('.')\nimport time; time.sleep(600)")
    assert [answer["no"] for answer in found.values()] == ["timed_out", "timed_out"]
    assert count.read_text() == "."


def test_a_session_that_is_not_the_users_is_asked_for_with_a_shell(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text(
        f"export LD_LIBRARY_PATH={library(tmp_path)} NCCL_SOCKET_IFNAME=eth0\n"
    )
    found = asked(None)
    if "a bare process" in found:
        assert found["a bare process"]["library"] == ""
    else:
        assert found[SSH]["value:NCCL_SOCKET_IFNAME"] == "eth0"


def unit(folder: Path, name: str, text: str) -> None:
    path = folder / "system" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_units_for_jobs_are_asked_one_by_one(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = tmp_path / "units"
    monkeypatch.setattr(launched, "UNITS", (f"{tmp_path}/lib/", f"{tmp_path}/run/", f"{units}/"))
    monkeypatch.setattr(launched, "BOOTED", str(tmp_path))
    folder = library(tmp_path)
    (tmp_path / "job.env").write_text("NCCL_SOCKET_IFNAME=rail0\nNCCL_DEBUG=WARN\n")
    head = f"[Service]\nEnvironment=LD_LIBRARY_PATH={folder} "
    unit(
        units,
        "train.service",
        f"{head}NCCL_SOCKET_IFNAME=eth1\nEnvironmentFile=-{tmp_path}/job.env\n",
    )
    unit(units, "serve.service", f'{head}"NCCL_SOCKET_IFNAME=lo"\n')
    unit(units, "cron.service", "[Service]\nEnvironment=LANG=C LD_LIBRARY_PATH=/nowhere\n")
    found = asked({}, LD_LIBRARY_PATH=folder)
    values = {
        path: answer.get("value:NCCL_SOCKET_IFNAME")
        for path, answer in found.items()
        if "systemd" in path
    }
    assert values == {"systemd (serve.service)": "lo", "systemd (train.service)": "rail0"}


PROLOG = r"""#!/bin/bash
# echo "export NCCL_SOCKET_IFNAME=comment0"
echo "export NCCL_SOCKET_IFNAME=rail0"
printf '%s\n' 'export NCCL_IB_HCA==mlx5_0,mlx5_1'
echo export NCCL_DEBUG=WARN
echo "export MY_TOKEN=hidden"
echo "export NCCL_NET=$NET"
echo "print NCCL_ALGO=Ring"
"""


def test_what_slurms_tasks_are_given_by_the_prolog(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = tmp_path / "units"
    monkeypatch.setattr(launched, "UNITS", (f"{tmp_path}/lib/", f"{tmp_path}/run/", f"{units}/"))
    unit(
        units,
        "slurmd.service",
        f"[Service]\nEnvironment=NCCL_SOCKET_IFNAME=eth1 LD_LIBRARY_PATH={library(tmp_path)}\n",
    )
    found = asked({}, LD_LIBRARY_PATH=str(tmp_path))
    assert found["slurm"]["value:NCCL_SOCKET_IFNAME"] == "eth1"
    (tmp_path / "slurm.conf").write_text(
        f"# TaskProlog=/nowhere\nTaskProlog={tmp_path}/prolog  # ours\n"
    )
    (tmp_path / "prolog").write_text(PROLOG)
    found = asked({}, LD_LIBRARY_PATH=str(tmp_path))
    assert found["slurm"]["value:NCCL_SOCKET_IFNAME"] == "rail0"
    printed = launched.printed_by(launched.task_prolog())
    rows = [(path, number, text) for path, lines in printed for number, text in lines]
    prolog = {
        name: row for name, row in launched.service(rows).items() if row[1].endswith("/prolog")
    }
    assert prolog == {
        "NCCL_SOCKET_IFNAME": ("rail0", f"{tmp_path}/prolog", 3),
        "NCCL_IB_HCA": ("=mlx5_0,mlx5_1", f"{tmp_path}/prolog", 4),
        "NCCL_DEBUG": ("WARN", f"{tmp_path}/prolog", 5),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told that only root can")
def test_a_user_that_is_not_there_is_said() -> None:
    with pytest.raises(NoAnswer) as caught:
        nccl_address.read_nccl_address(sys.executable, "nobody-of-this-name", True, "")
    assert (caught.value.reason, caught.value.why) == (
        "missing",
        "there is no user nobody-of-this-name",
    )


def test_a_missing_interpreter_is_said() -> None:
    with pytest.raises(NoAnswer) as caught:
        nccl_address.read_nccl_address("/nowhere/python3", None, True, "")
    assert caught.value.reason == "missing_tool"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_jobs_user_is_asked_also_one_who_cannot_log_in() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no interpreter that every user may run")
    found = nccl_address.read_nccl_address(python, "nobody", True, WHO)
    found.pop("slurm", None)  # where this machine has a slurmd
    found.pop("container", None)  # where this machine is one
    entry = pwd.getpwnam("nobody")
    for answer in found.values():
        assert (answer["uid"], answer["home"]) == (str(entry.pw_uid), entry.pw_dir)
    assert list(found) == ["a bare process"] if entry.pw_shell.endswith("nologin") else [LOGIN, SSH]


@pytest.mark.parametrize("line", ["sleep 600", "echo word; sleep 600", "yes"])
def test_what_does_not_end_is_ended(line: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        nccl_address.output(["/bin/sh", "-c", line], {}, 0.3)
    assert caught.value.reason == "timed_out"


def test_shells_that_an_earlier_read_has_asked_are_not_asked_again(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / ".profile").write_text(
        f"echo here >> {tmp_path}/count\nexport NCCL_SOCKET_IFNAME=eth1\n"
    )
    entry = SimpleNamespace(pw_name="alice", pw_dir=str(tmp_path), pw_shell="/bin/bash")
    given = {"LD_LIBRARY_PATH": library(tmp_path)}
    seen = environment.look(entry, given, environment.Outside(entry))["sessions"]
    before = (tmp_path / "count").read_text().count("here")
    outside = nccl_address.Outside()
    outside.first = None  # also where this machine is a container
    found = nccl_address.answers(
        entry,
        given,
        outside,
        sys.executable,
        FINDER + PROBE,
        seen,
    )
    assert (tmp_path / "count").read_text().count("here") == before
    assert found[LOGIN]["value:NCCL_SOCKET_IFNAME"] == "eth1"
    alone = asked(given)
    assert {path: dict(said, log="", id="") for path, said in found.items()} == {
        path: dict(said, log="", id="") for path, said in alone.items()
    }


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the starts of an interpreter, which is `tmp_path / "python"`."""
    monkeypatch.setenv("HOME", pwd.getpwuid(os.geteuid()).pw_dir)
    starts = tmp_path / "starts"
    starts.touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho one >> {starts}\nexec {BARE} "$@"\n')
    python.chmod(0o755)
    return lambda: len(starts.read_text().split())


def address_after(python: Path, change: Callable[[], object] = lambda: None) -> Any:
    """Return what NCCL answers by launch path, asked after the interpreter and then a change."""
    found = nccl_address.read_interpreter(str(python), None, SCRIPT)
    if found["nccl_path"] or found["system_path"]:
        pytest.skip("this machine has an NCCL of its own")
    change()
    return nccl_address.read_nccl_address(str(python), None, True, FINDER + PROBE)


def test_an_interpreter_that_has_found_no_nccl_is_not_started_again(
    counted: Callable[[], int], tmp_path: Path
) -> None:
    found = address_after(tmp_path / "python")
    assert counted() == 1
    alone = nccl_address.read_nccl_address(str(tmp_path / "python"), None, True, FINDER + PROBE)
    assert counted() == 2
    assert parse_answers(found) == parse_answers(alone) == {SSH: BoundAddress(None)}


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "PYTHONUSERBASE", "HOME"])
def test_where_another_nccl_may_be_found_the_interpreter_is_started(
    counted: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = library(tmp_path)
    found = address_after(tmp_path / "python", lambda: monkeypatch.setenv(name, folder))
    assert counted() > 1
    if name == "LD_LIBRARY_PATH":
        assert found[SSH]["version"] == "22105"


def test_what_an_interpreter_has_found_is_for_the_next_read_alone(
    counted: Callable[[], int], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    address_after(python)
    assert not nccl_address._without_nccl


def test_what_a_read_leaves_is_for_the_next_one_of_the_same_user_alone() -> None:
    shells.keep_sessions("alice", True, {"login shell": ["ok", {}]})
    assert shells.take_sessions("bob", True) is None
    assert shells.take_sessions("alice", False) is None
    assert shells.take_sessions("alice", True) == {"login shell": ["ok", {}]}
    assert shells.take_sessions("alice", True) is None


def test_reads_that_hand_on_what_they_found_are_asked_in_one_child() -> None:
    for part in (environment, nccl_address):
        part.install(None)
    asked = ("environment", "job_python", "nccl_address")
    assert {readers.LANES[kind] for kind in asked} == {shells.LANE}
