"""The Pythons of this machine that agents are tried with: from 3.6, the oldest that nodes have.

They are looked for where pyenv keeps them and on PATH. A Python that is elsewhere takes part if its
folder is on PATH: `PATH=/opt/python3.14/bin:$PATH make test-all`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

import pytest

from tests.support.surroundings import login_home

RELEASES = tuple(f"3.{minor}" for minor in range(6, 15))
OWN = f"3.{sys.version_info[1]}"
NOT_HERE = "Python {} is neither in pyenv nor on PATH"
PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"


@functools.cache
def find_python(release: str) -> str | None:
    """Return the path of a Python of this release, None if there is none here."""
    if release == OWN:
        return getattr(sys, "_base_executable", sys.executable)  # not that of a virtual environment
    of_pyenv = login_home().glob(f".pyenv/versions/{release}.*/bin/python{release}")
    installed = sorted(map(str, of_pyenv))
    if installed:
        return installed[-1]
    on_path = shutil.which(f"python{release}")
    if on_path and _runs(on_path, release):
        return on_path
    return None


def _runs(program: str, release: str) -> bool:
    """Return whether a program is this Python: on PATH it may be a script of pyenv's for none."""
    told = subprocess.run([program, "-ISc", PROBE], capture_output=True, text=True, check=False)
    return told.stdout.strip() == release


def releases_here() -> list[str]:
    """Return the releases that are on this machine, the oldest first."""
    return [release for release in RELEASES if find_python(release)]


def each_release() -> list[object]:
    """Return a parameter for each release, skipped in words where it is not on this machine.

    The oldest and the newest one belong to the fast tests, those between to the slow ones.
    """
    here = releases_here()
    fast = (here[0], here[-1])
    parameters = []
    for release in RELEASES:
        marks: list[pytest.MarkDecorator] = []
        if release not in here:
            marks = [pytest.mark.skip(reason=NOT_HERE.format(release))]
        if release not in fast:
            marks.append(pytest.mark.slow)
        parameters.append(pytest.param(release, marks=marks))
    return parameters
