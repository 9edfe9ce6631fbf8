"""The hooks for pre-commit: what they take, and how they end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
}
FILES = {
    "inventory.yaml": "nodes: [{name: n1, address: 10.0.0.1}]\n",
    "racks/inventory.lab.yml": "nodes: [{name: n1, address: 10.0.0.1}]\n",
    "racks/inventory.bad.yml": "nodes: [{name: n1, adress: 10.0.0.1}]\n",
    "other.yaml": "nodes: nothing\n",
    "etc/nccl.conf": "NCCL_DEBUG=WARN\n",
    "etc/nccl.bad.conf": "export NCCL_DEBUG=WARN\n",
    "etc/other.conf": "export NCCL_DEBUG=WARN\n",
    "a nccl file.env": "NCCL_SOCKET_NTHREADS=4M\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def chosen(hook: str) -> list[str]:
    return [name for name in FILES if re.search(HOOKS[hook]["files"], name)]


def run(folder: Path, hook: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry, the arguments of the user, and files."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*shlex.split(HOOKS[hook]["entry"]), *words],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_hooks_take_files_by_their_names() -> None:
    inventories = ["inventory.yaml", "racks/inventory.lab.yml", "racks/inventory.bad.yml"]
    assert chosen("clusterprep-validate") == inventories
    settings = ["etc/nccl.conf", "etc/nccl.bad.conf", "a nccl file.env"]
    assert chosen("clusterprep-lint") == settings


@pytest.mark.parametrize(
    ("hook", "good", "bad"),
    [
        ("clusterprep-validate", "inventory.yaml", "racks/inventory.bad.yml"),
        ("clusterprep-lint", "etc/nccl.conf", "etc/nccl.bad.conf"),
    ],
)
def test_one_bad_file_among_good_ones_fails(
    repository: Path, hook: str, good: str, bad: str
) -> None:
    done = run(repository, hook, good)
    assert done.returncode == 0, done.stderr
    done = run(repository, hook, bad, good)
    assert done.returncode in (1, 2)
    assert Path(bad).name in done.stdout + done.stderr


def test_options_are_for_every_file(repository: Path) -> None:
    words = ("--nccl=2.21.5", "etc/nccl.conf", "a nccl file.env")
    assert run(repository, "clusterprep-lint", *words).returncode == 0  # a warning
    done = run(repository, "clusterprep-lint", "--strict", *words)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.timeout(900)  # two minutes, most of them for what is installed
def test_pre_commit_itself_runs_them(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a clone of this checkout, as in a repository of others. It needs a package index."""
    program = shutil.which("pre-commit")
    if program is None:
        pytest.skip("pre-commit is not installed")
    # Both want repositories: one with the hooks, as they are here now, and one to check.
    ours = tmp_path_factory.mktemp("hooks") / "ours"
    shutil.copytree(ROOT, ours, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "*cache*"))
    for folder in (ours, repository):
        for words in (("init", "--quiet"), ("add", "--all", "--force")):
            subprocess.run(["git", *words], cwd=folder, check=True)
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    commit = ("commit", "--quiet", "--no-verify", "--message=all")
    subprocess.run(["git", *author, *commit], cwd=ours, check=True)
    for hook, code in (("clusterprep-validate", 1), ("clusterprep-lint", 1)):
        done = subprocess.run(
            [program, "try-repo", str(ours), hook, "--files", *chosen(hook)],
            cwd=repository,
            env={**os.environ, "PRE_COMMIT_HOME": str(ours.parent / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "bad" in done.stdout
