"""`make test-bounds`: which Pythons it finds, what it installs, and what it says of the runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support import bounds
from tests.support.bounds import (
    LOWEST,
    NEWEST,
    PYTHONS,
    Run,
    candidates,
    failures,
    find,
    finished,
    lowest,
    main,
    runs,
    steps,
    table,
)

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PROJECT = bounds.tomllib.loads((bounds.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_python_has_the_newest_and_both_ends_the_lowest() -> None:
    assert [run.name for run in runs("3.13 3.10 3.9 3.12".split())] == [
        "3.9-lowest",
        "3.9-newest",
        "3.10-newest",
        "3.12-newest",
        "3.13-lowest",
        "3.13-newest",
    ]
    assert [run.end for run in runs(["3.12"])] == [LOWEST, NEWEST]


def test_the_oldest_python_is_the_one_that_the_package_asks_for() -> None:
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS.split()[0]}"


@pytest.mark.parametrize("python", PYTHONS.split())
def test_each_dependency_has_one_lower_bound_per_python(python: str) -> None:
    """A package without wheels for a new Python has a marker for it.

    Two that hold at once would contradict.
    """
    constraints = [Requirement(line) for line in lowest(PROJECT)]
    there = {"python_version": python, "python_full_version": f"{python}.0"}
    held = [one for one in constraints if one.marker is None or one.marker.evaluate(there)]
    assert len({one.name for one in held}) == len(held)
    assert {one.name for one in held} == {one.name for one in constraints}
    for one in held:
        (pin,) = one.specifier
        assert (pin.operator, Version(pin.version).is_prerelease) == ("==", False)


def test_what_is_exact_has_no_lower_bound() -> None:
    project = {
        "project": {
            "dependencies": ["click>=8.1.3,<9", "PyYAML>=6.0.2,<7; python_version >= '3.13'"],
            "optional-dependencies": {"dev": ["mypy==2.4.1"], "torch": ["torch>=2.0"]},
        }
    }
    assert lowest(project) == ["click==8.1.3", 'PyYAML==6.0.2 ; python_version >= "3.13"']


def test_a_python_must_run_be_the_version_and_make_environments(tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 3.1\n")
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho 'No module named ensurepip' >&2\nexit 1\n")
    for program in (shim, other, bare):
        program.chmod(0o755)
    unfit = [str(shim), str(other), str(bare), str(tmp_path / "missing")]
    assert find(HERE, unfit) is None
    right = tmp_path / "right"
    right.write_text(f"#!/bin/sh\necho {HERE}\n")
    right.chmod(0o755)
    assert find(HERE, [*unfit, str(right)]) == str(right)


def test_pyenvs_newest_release_comes_first(tmp_path: Path) -> None:
    for release in ("3.12.9", "3.12.10", "3.1.2"):
        folder = tmp_path / ".pyenv" / "versions" / release / "bin"
        folder.mkdir(parents=True)
        (folder / f"python{release.rpartition('.')[0]}").touch()
    first, *rest = candidates("3.12", tmp_path)
    assert (first, [Path(path).parts[-3] for path in rest]) == ("python3.12", ["3.12.10", "3.12.9"])


def test_a_missing_python_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "python3.97"
    there.write_text("#!/bin/sh\necho 3.97\n")
    there.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONS", "3.97 3.99 3.98")
    assert main([]) == 2
    said = capsys.readouterr()
    assert "Python 3.99, 3.98." in said.err
    assert "make test-bounds PYTHONS=" in said.err
    assert said.out == ""


def test_only_the_lowest_end_is_constrained(tmp_path: Path) -> None:
    for end in (LOWEST, NEWEST):
        venv, pip, pytest_ = steps(Run("3.12", end), "python3.12", ["-m", "not slow"], tmp_path)
        assert [name for name, _ in (venv, pip, pytest_)] == ["venv", "pip", "pytest"]
        assert ("--constraint" in pip[1]) is (end == LOWEST)
        assert "torch" not in " ".join(pip[1])
        assert pytest_[1][-2:] == ["-m", "not slow"]
        assert pip[1][0] == pytest_[1][0] == str(tmp_path / f"3.12-{end}" / "bin" / "python")


def test_a_step_that_fails_ends_its_run_alone_and_has_a_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    broken.chmod(0o755)
    (tmp_path / "3.12-newest.totals").write_text(
        '{"passed": 9}'
    )  # an earlier run's, which says nothing of this one
    run = finished(Run("3.12", NEWEST), str(broken), [], tmp_path)
    assert (run.result, run.counts) == ("venv: exit code 3", {})
    assert (tmp_path / "3.12-newest.log").read_text() == "no space left\n"


def test_the_table_has_a_line_per_run() -> None:
    done = [
        Run("3.10", LOWEST, {"passed": 9000, "failed": 0, "skipped": 3}, 61.4, "passed"),
        Run("3.13", NEWEST, {}, 2.0, "pip: exit code 1"),
    ]
    assert table(done).splitlines() == [
        "Python  bounds  passed  failed  skipped  seconds  result",
        "3.10    lowest  9000    0       3        61       passed",
        "3.13    newest  -       -       -        2        pip: exit code 1",
    ]


def test_failures_are_told_and_cut_where_they_are_many() -> None:
    log = "....F\nFAILED tests/a.py::b - assert 1\nERROR tests/c.py\n  FAILED no\n1 failed\n"
    assert failures(log) == ["FAILED tests/a.py::b - assert 1", "ERROR tests/c.py"]
    assert failures("FAILED x\n" * (bounds.SHOWN + 5))[-1] == "… and 5 more"
