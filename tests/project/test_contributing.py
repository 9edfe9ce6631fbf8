"""The recipe for a check in CONTRIBUTING.md, followed to the letter in a copy of the checkout."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```\n", re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without what tools left, and with the two files of the recipe."""
    folder = tmp_path_factory.mktemp("contributor") / "checkout"
    leave = shutil.ignore_patterns(
        ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "shared"
    )
    shutil.copytree(ROOT, folder, ignore=leave)
    for path in [
        folder,
        *folder.rglob("*"),
    ]:  # modes are copied too, and a checkout may be read-only
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    recipe = FILES.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(recipe) == 2
    for name, text in recipe:
        assert not (ROOT / name).exists(), (
            f"{name} is built by now: the recipe needs another example"
        )
        (folder / name).write_text(text)
    return folder


def run(folder: Path, *words: str) -> str:
    """Output of a module run in the copy, which has to succeed."""
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_its_test_passes_and_so_do_the_tests_of_all_checks(copy: Path) -> None:
    run(
        copy,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/checks",
        "tests/project/test_architecture.py",
    )


def test_linters_and_types_agree(copy: Path) -> None:
    files = [name for name, _ in FILES.findall((ROOT / "CONTRIBUTING.md").read_text())]
    run(copy, "ruff", "check", "--no-cache", *files)
    run(copy, "ruff", "format", "--no-cache", "--check", *files)
    run(
        copy,
        "mypy",
        "--cache-dir=/dev/null",
        "-m",
        "clusterprep.checks.mem",
        "--follow-imports=silent",
    )


def test_it_is_there_without_another_line(copy: Path) -> None:
    assert "mem.free" in run(copy, "clusterprep", "check", "--local", "--only", "mem.", "-v")
    assert "MemAvailable" in run(copy, "clusterprep", "explain", "mem.free")
