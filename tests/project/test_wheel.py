"""What is published: a wheel that works in an empty environment, with everything it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(400),
]  # the dependencies come from the package index


def run(*argv: str | Path, cwd: Path) -> str:
    """Return the standard output of a command, which must succeed, run without our environment."""
    env = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
    )
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_carries_what_lies_beside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.endswith("/")}
    wanted = {
        f"clusterprep/{path.relative_to(ROOT)}"
        for f in ("schemas", "playbooks")
        for path in (ROOT / f).iterdir()
    }
    data = (ROOT / "clusterprep" / "data").rglob("*")
    wanted |= {
        str(path.relative_to(ROOT))
        for path in data
        if path.suffix in (".json", ".html", ".css", ".js", ".tsv", ".rules")
    }
    assert wanted - inside == set()
    assert {
        "clusterprep/schemas/inventory.schema.json",
        "clusterprep/playbooks/site.yaml",
    } <= inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert not [name for name in inside if name.startswith("tests/")]


def test_the_wheel_validates_the_example_from_an_empty_environment(
    wheel: Path, tmp_path: Path
) -> None:
    """What is locked is laid out, and the wheel takes of it what it says that it needs.

    Nothing else can be had.
    """
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    pip = (tmp_path / "venv/bin/pip", "--quiet", "--disable-pip-version-check")
    laid, locked = tmp_path / "laid", ROOT / "requirements/run.txt"
    run(
        *pip,
        "download",
        "--require-hashes",
        "--only-binary=:all:",
        "-r",
        locked,
        "--dest",
        laid,
        cwd=tmp_path,
    )
    run(*pip, "install", "--no-index", "--find-links", laid, wheel, cwd=tmp_path)
    command = tmp_path / "venv/bin/clusterprep"
    example = ROOT / "inventory.example.yaml"
    assert "is valid" in run(command, "validate", example, cwd=tmp_path)
    assert "time.offset" in run(command, "explain", "time.offset", cwd=tmp_path)
    imported = "import clusterprep, sys; print(clusterprep.__file__)"
    assert str(tmp_path) in run(tmp_path / "venv/bin/python", "-c", imported, cwd=tmp_path)
