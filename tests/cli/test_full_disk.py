"""The controller's disk is full, at each of its writes.

The message names the file and the cause, the verdict and its exit code stay, and a good file that
was there is as it was. No such disk is a bug of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.history.database import NAME
from tests.support.command import CLI

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts"),
]

SIZE = 2 << 20  # bytes of the disk
NO_ROOM = "No space left on device"
BUG = """\
import clusterprep.cli.commands.check as command
def run(invocation): raise RuntimeError("a bug " + "x" * 100_000)
command.run = run
"""


class Disk:
    """A small file system that can be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, left: int = 0) -> None:
        """Leave so many bytes, in whole pages."""
        with contextlib.suppress(OSError), self._filler.open("wb") as sink:
            while True:
                sink.write(bytes(4096))
                sink.flush()
        if left:
            os.truncate(self._filler, self._filler.stat().st_size - left)

    def empty(self) -> None:
        self._filler.unlink()

    def names(self) -> set[str]:
        """Return the files besides the filler."""
        found = {str(path.relative_to(self.path)) for path in self.path.rglob("*")}
        return found - {"filler"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", path], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text("transport: local\nnodes: [{name: n1, address: 127.0.0.1}]\n")
    return path


def run(*words: str, state: Path, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "XDG_STATE_HOME": str(state), **env}
    done = subprocess.run(
        [*CLI, *words], capture_output=True, text=True, timeout=60, check=False, env=given
    )
    assert "bug in clusterprep" not in done.stderr or "PYTHONPATH" in env, done.stderr
    return done


def check(inventory: Path, state: Path, *words: str, **env: str) -> tuple[int, dict[str, object]]:
    line = ("check", str(inventory), "--only", "os.release", "--format", "json", *words)
    done = run(*line, state=state, **env)
    return done.returncode, json.loads(done.stdout)


def notices(report: dict[str, object]) -> str:
    return " ".join(report.get("notices", ()))  # type: ignore[call-overload]


@pytest.mark.parametrize("left", [0, 4096, 8192])
def test_the_history(disk: Disk, inventory: Path, left: int) -> None:
    state = disk.path / "state"
    file = state / "clusterprep" / NAME
    disk.fill(left)
    code, report = check(inventory, state)
    assert (code, report["verdict"]) == (0, "pass")
    assert f"this run is not in the history: {file} could not be written: " in notices(report)
    assert "full" in notices(report)
    disk.empty()
    code, report = check(inventory, state)
    assert (code, notices(report)) == (0, ""), "the next run makes it good"
    disk.fill(left)
    code, report = check(inventory, state)
    if left < 8192:
        assert "database or disk is full" in notices(report)
    assert (code, report["verdict"]) == (0, "pass")
    with contextlib.closing(sqlite3.connect(file)) as opened:
        assert opened.execute("pragma integrity_check").fetchone() == ("ok",)
        assert opened.execute("select count(*) from run").fetchone()[0] >= 1


def test_a_failure_stays_a_failure(disk: Disk, inventory: Path) -> None:
    inventory.write_text(inventory.read_text() + "require: {os.release: Plan 9}\n")
    disk.fill()
    code, report = check(inventory, disk.path / "state")
    assert (code, report["verdict"]) == (1, "fail")
    assert "not in the history" in notices(report)


@pytest.mark.parametrize("suffix", ["json", "html", "xml", "md", "prom", "txt"])
def test_reports(disk: Disk, inventory: Path, tmp_path: Path, suffix: str) -> None:
    old, new = disk.path / f"old.{suffix}", disk.path / f"new.{suffix}"
    old.write_text("as it was")
    disk.fill()
    words = ("--output", str(old), "--output", str(new))
    line = ("check", str(inventory), "--only", "os.release", "--format", "json", *words)
    done = run(*line, state=tmp_path / "state")
    assert done.returncode == 2
    assert json.loads(done.stdout)["verdict"] == "pass"
    for path in (old, new):
        assert f"clusterprep: {path}: cannot be written: {NO_ROOM}" in done.stderr
    assert old.read_text() == "as it was"
    assert disk.names() == {old.name}


def test_the_log_of_a_bug(disk: Disk, inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BUG)
    disk.fill(4096)
    path = f"{tmp_path}/broken:{Path.cwd()}"
    done = run("check", str(inventory), state=disk.path, PYTHONPATH=path)
    assert done.returncode == 70
    assert "RuntimeError: a bug xxx" in done.stderr, "told in place of the log"
    assert not [name for name in disk.names() if "bug-" in name]


def test_the_inventory_of_init(disk: Disk, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("all: {hosts: {n1: {ansible_connection: local}}}\n")
    target = disk.path / "inventory.yaml"
    target.write_text("the good one")
    disk.fill()
    words = ("init", "--from-ansible", str(hosts), "--output")
    for name, more in ((target, ("--force",)), (disk.path / "new.yaml", ())):
        done = run(*words, str(name), *more, state=tmp_path / "state")
        assert done.returncode == 2, done.stderr
        assert f"{name}: --output: cannot be written: {NO_ROOM}" in done.stderr
    assert target.read_text() == "the good one"
    assert disk.names() == {"inventory.yaml"}


def test_what_ranks_print(disk: Disk, inventory: Path, tmp_path: Path) -> None:
    """A job goes on; which file lacks lines is said."""
    disk.fill(8192)
    program = "print('x' * 50_000, flush=True); print('trained', flush=True)"
    logs = disk.path / "logs"
    words = ("--direct", "--no-preflight", "--nproc-per-node", "1", "--format", "json")
    job = ("--log-dir", str(logs), "--", sys.executable, "-c", program)
    done = run("launch", str(inventory), *words, *job, state=tmp_path / "state")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass"), done.stderr
    assert f"{logs}/rank-0.log lacks lines: {NO_ROOM}" in notices(report)
    assert "trained" in done.stderr


def test_a_state_folder_that_cannot_be_made(inventory: Path, tmp_path: Path) -> None:
    """The job is not begun, as what it prints would be lost; a check goes on."""
    state = tmp_path / "a-file"
    state.write_text("")
    done = run("launch", str(inventory), "--direct", "--no-preflight", "--", "true", state=state)
    assert done.returncode == 2
    assert f"{state}/clusterprep/launch, for what the ranks print, cannot be made" in done.stderr
    code, report = check(inventory, state)
    assert (code, report["verdict"]) == (0, "pass")
    assert f"{state}/clusterprep/{NAME} could not be written: " in notices(report)
