"""The Debian package and the image: built, judged by lintian, installed in a bare root, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import clusterprep
from release import deb, image
from tests.project.test_supply import RUN

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "inventory.example.yaml"
# Debian 13 has Fabric 2.6, which does for what we use; elsewhere a newer one is installed.
OLDER = {"fabric"}
# Of these Debian has no release that is too old.
ANY = {"click", "Jinja2", "PyYAML"}


def control_bounds() -> dict[str, str]:
    """Return the lowest version of each package that debian/control names with one."""
    text = (ROOT / "debian" / "control").read_text()
    return dict(re.findall(r"python3-(\w+) \(>= ([^)]*)\)", text))


@pytest.mark.parametrize("wanted", RUN, ids=str)
def test_the_package_asks_for_the_releases_that_the_program_needs(wanted: Requirement) -> None:
    if wanted.name in ANY:
        return
    lowest = [bound.version for bound in wanted.specifier if bound.operator == ">="]
    named = control_bounds()[wanted.name.lower()]
    assert [named] == lowest or wanted.name in OLDER


def test_the_newest_entry_of_its_changelog_is_this_version() -> None:
    first = (ROOT / "debian" / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"clusterprep ({clusterprep.__version__}) ")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root and mmdebstrap")
    return deb.build(tmp_path_factory.mktemp("deb"))


@pytest.mark.machine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_package_runs(package: Path, tmp_path: Path) -> None:
    script = (
        "cd /tmp && apt-get install -y --no-install-recommends man-db ./*.deb >/dev/null;"
        "{ clusterprep --help; clusterprep validate inventory.example.yaml;"
        " clusterprep check --local --only kernel.,mem. || true; man clusterprep; } >answers"
    )
    hooks = [f"copy-in {package} {EXAMPLE} /tmp", deb.in_root(script)]
    deb.make_root([*hooks, f"copy-out /tmp/answers {tmp_path}"])
    answers = (tmp_path / "answers").read_text()
    for expected in ("Usage: clusterprep", "is valid", "on 1 node", "CLUSTERPREP(1)"):
        assert expected in answers


@pytest.mark.machine
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_the_image_runs(package: Path) -> None:
    name = image.build(package)

    def answer(*words: str) -> str:
        # Limits of this process: a container may not raise them.
        options = ["--rm", "--ulimit=host", "--network=none", "--read-only"]
        command = ["podman", "run", *options, name, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    try:
        assert "Usage: clusterprep" in answer()
        assert "on 1 node" in answer("check", "--local", "--only", "kernel.,mem.")
    finally:
        subprocess.run(["podman", "rmi", "--force", name], check=True, capture_output=True)
