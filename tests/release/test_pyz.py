"""The file for machines without pip: what is in it, and how it unpacks itself."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from release import pyz, pyz_start

ROOT = Path(__file__).resolve().parents[2]
OWN = importlib.machinery.EXTENSION_SUFFIXES[0].strip(".").partition(".")[0]
# Stands for the program: says where it is, and waits for the end of its input.
PROGRAM = b"import os, sys\ndef main():\n    print(__file__, flush=True)\n    sys.stdin.read()\n"
FILES = {"clusterprep/__init__.py": b"", "clusterprep/__main__.py": PROGRAM}
LOCKED = """# Written by make lock.
a==1 \\
    --hash=sha256:00 \\
    --hash=sha256:01
    # via b
b==1 ; python_full_version < '3.11' \\
    --hash=sha256:02
b==2 ; python_full_version >= '3.11' \\
    --hash=sha256:03
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an archive of the small program; `more` makes it another."""

    def archive(more: bytes = b"", tree: str = OWN) -> Path:
        path = tmp_path / "clusterprep.pyz"
        path.write_bytes(pyz.pack("0.1.0", {tree: {**FILES, "more": more}}, 1700000000))
        return path

    return archive


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def start(archive: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(archive)],
        env={**os.environ, "CLUSTERPREP_CACHE": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(archive: Path, cache: Path) -> Path:
    """Return the folder that the program ran from."""
    out, err = start(archive, cache).communicate()
    assert err == ""
    return Path(out.strip()).parents[1]


def refused(archive: Path, cache: Path) -> str:
    """Return why the program did not run."""
    process = start(archive, cache)
    out, err = process.communicate()
    assert (out, process.returncode) == ("", 2)
    return err


def test_it_is_unpacked_once(make: Callable[..., Path], cache: Path) -> None:
    folder = run(make(), cache)
    assert folder.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    (folder / "clusterprep" / "kept").touch()
    assert run(make(), cache) == folder
    assert (folder / "clusterprep" / "kept").exists()
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_other_content_is_another_build(make: Callable[..., Path], cache: Path) -> None:
    assert run(make(b"1"), cache) != run(make(b"2"), cache)


def test_processes_that_start_together_use_one_folder(
    make: Callable[..., Path], cache: Path
) -> None:
    archive = make()
    started = [start(archive, cache) for _ in range(4)]
    answers = {process.communicate() for process in started}
    assert len(answers) == 1, answers
    assert len(list(cache.iterdir())) == 1


def test_few_builds_stay(make: Callable[..., Path], cache: Path) -> None:
    """Those started last, and one that runs, however old it is."""
    running = start(make(b"running"), cache)
    try:
        assert running.stdout is not None
        of_running = Path(running.stdout.readline().strip()).parents[1]
        folders = [of_running, run(make(b"0"), cache)]
        for age, folder in enumerate(folders):
            os.utime(folder / ".used", (1e9 + age, 1e9 + age))
        folders += [run(make(b"%d" % number), cache) for number in range(1, pyz_start.KEPT + 1)]
        assert {*cache.iterdir()} == {of_running, *folders[2:]}
    finally:
        running.communicate()


def test_what_an_ended_process_left_is_removed(make: Callable[..., Path], cache: Path) -> None:
    run(make(), cache)
    old, young = cache / ".new-old", cache / ".new-young"
    old.mkdir()
    young.mkdir()
    day_before = time.time() - pyz_start.LEFT - 60
    os.utime(old, (day_before, day_before))
    run(make(b"other"), cache)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_folder_that_others_can_look_into_is_refused(
    make: Callable[..., Path], cache: Path
) -> None:
    cache.mkdir(mode=0o755)
    assert "has to belong to this user alone" in refused(make(), cache)


def test_a_folder_that_others_can_exchange_is_refused(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    said = refused(make(), shared / "cache")
    assert f"others may write to {shared}" in said
    assert "fix: name a folder" in said
    shared.chmod(0o1777)  # as /tmp: what is in it can be removed by its owner alone
    assert run(make(), shared / "cache").is_dir()


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
def test_a_folder_of_another_user_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12345)
    assert f"{home}, above {home}/cache, belongs to another user" in refused(make(), home / "cache")
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    os.chown(own, 12345, 12345)
    assert "has to belong to this user alone" in refused(make(), own)


def test_a_place_that_cannot_be_written_is_named(make: Callable[..., Path], cache: Path) -> None:
    cache.write_text("a file")
    assert f"File exists: '{cache}'" in refused(make(), cache / "below")


def test_another_python_is_named(make: Callable[..., Path], cache: Path) -> None:
    said = refused(make(tree="cpython-399-s390x-linux-gnu"), cache)
    assert f"is for cpython-399-s390x-linux-gnu, and this Python is {OWN}" in said
    assert not cache.exists()


def test_what_pythons_have_alike_is_in_it_once() -> None:
    trees = {"a": {"x": b"1", "y": b"1"}, "b": {"x": b"1", "y": b"2"}}
    assert pyz.common_part(list(trees.values())) == {"x": b"1"}
    packed = pyz.pack("1", trees, 1700000000)
    assert packed == pyz.pack("1", dict(reversed(trees.items())), 1700000000)
    assert packed.startswith(b"#!/usr/bin/env python3\n")


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        pytest.param("3.10", "b==1 --hash=sha256:02", id="older"),
        pytest.param("3.13", "b==2 --hash=sha256:03", id="newer"),
    ],
)
def test_conditions_are_judged_by_the_python_that_is_packed_for(python: str, expected: str) -> None:
    first, second = pyz.locked_for(LOCKED, python)
    assert first == "a==1 --hash=sha256:00 --hash=sha256:01"
    assert second == expected


def test_programs_of_wheels_are_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a/__init__.py", "")
        wheel.writestr("a-1.data/scripts/a", "")
    assert pyz.read_wheels([tmp_path / "a.whl"]) == {"a/__init__.py": b""}


@pytest.mark.machine
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_built_file_runs(tmp_path: Path, cache: Path) -> None:
    """With the locked packages, which come from the package index."""
    target = tmp_path / "clusterprep.pyz"
    pyz.build([".".join(map(str, sys.version_info[:2]))], target)
    environ = {**os.environ, "CLUSTERPREP_CACHE": str(cache)}

    def answer(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", str(target), *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1, 3), done.stderr
        return done.stdout

    assert "Logs in to every node" in answer("--help")
    assert "is valid" in answer("validate", str(ROOT / "inventory.example.yaml"))
    assert "on 1 node" in answer("check", "--local", "--only", "kernel.,mem.")
