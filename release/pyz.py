"""Builds dist/clusterprep.pyz, one file for machines without pip: `make pyz`.

In it are the program and the locked releases of what it needs, but no torch. Packages with compiled
parts are there for each Python that is supported, on the kind of processor that this machine has;
PYTHONS='3.11 3.13' takes fewer. `pyz_start` is what runs first.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from packaging.requirements import Requirement

from release import dist, pyz_start
from release.source_date import source_date
from tests.support.bounds import PYTHONS

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "requirements" / "run.txt"
TARGET = Path("dist", "clusterprep.pyz")
INTERPRETER = b"#!/usr/bin/env python3\n"
OLDEST_GLIBC, NEWEST_GLIBC = 5, 28  # 2.28 is that of RHEL 8; all that we support have a newer one

Tree = Mapping[str, bytes]  # the files of packages by their paths


def build(pythons: Iterable[str], target: Path) -> None:
    """Build the file for these Pythons, such as 3.12."""
    machine = platform.machine()
    with tempfile.TemporaryDirectory() as folder:
        dist.build(ROOT, Path(folder), "wheel")
        (own,) = Path(folder).glob("*.whl")
        trees = {}
        for python in pythons:
            wheels = [own, *download(python, machine, Path(folder, python))]
            trees[tree_name(python, machine)] = read_wheels(wheels)
    version = own.name.split("-")[1]
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(pack(version, trees, source_date(ROOT, os.environ)))
    target.chmod(0o755)


def tree_name(python: str, machine: str) -> str:
    """Return what Python calls itself in the names of compiled modules."""
    return f"cpython-{python.replace('.', '')}-{machine}-linux-gnu"


def download(python: str, machine: str, folder: Path) -> list[Path]:
    """Return the wheels of the locked releases for a Python, each checked by its hash."""
    folder.mkdir()
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(locked_for(LOCKED.read_text(encoding="utf-8"), python)))
    platforms = [
        f"--platform=manylinux_2_{minor}_{machine}"
        for minor in range(OLDEST_GLIBC, NEWEST_GLIBC + 1)
    ]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    chosen = ["--require-hashes", "--no-deps", "--only-binary=:all:", f"--python-version={python}"]
    places = [f"--requirement={wanted}", f"--dest={folder}"]
    # What pip says is about mirrors of this machine, unless it fails.
    done = subprocess.run(
        [*pip, *chosen, *platforms, *places], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"Packages for Python {python} on {machine} cannot be had:\n{done.stderr}")
    return sorted(folder.glob("*.whl"))


def locked_for(text: str, python: str) -> Iterator[str]:
    """Yield the lines of a file of `make lock` that hold for a Python, without conditions.

    pip judges conditions by the Python that it runs in.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    for line in filter(None, lines):
        release, *hashes = line.split(" --hash=")
        wanted = Requirement(release)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            words = [
                f"{wanted.name}{wanted.specifier}",
                *(f"--hash={one.strip()}" for one in hashes),
            ]
            yield " ".join(words)


def read_wheels(paths: Iterable[Path]) -> Tree:
    """Return the files of wheels as they lie in a site-packages folder.

    Programs and manual pages, which a wheel has in folders called «….data», are left out.
    """
    tree: dict[str, bytes] = {}
    for path in paths:
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                folder = name.split("/")[0]
                if not name.endswith("/") and not folder.endswith(".data"):
                    tree[name] = wheel.read(name)
    return tree


def pack(version: str, trees: Mapping[str, Tree], time: int) -> bytes:
    """Return the bytes of the file; what all trees have alike is in it once."""
    common = common_part(list(trees.values()))
    parts = {pyz_start.COMMON: common}
    for name, tree in trees.items():
        parts[name] = {path: data for path, data in tree.items() if path not in common}
    archives = {f"{name}.zip": zipped(tree, time) for name, tree in sorted(parts.items())}
    digest = hashlib.sha256(b"".join(archives.values())).hexdigest()[:16]
    start = Path(pyz_start.__file__).read_bytes()
    build_line = " ".join([f"{version}-{digest}", *sorted(trees)])
    # Stored: what is inside is compressed, and a start reads a list of few names.
    outer = {"__main__.py": start, pyz_start.BUILD: build_line.encode(), **archives}
    return zipped(outer, time, zipfile.ZIP_STORED, before=INTERPRETER)


def common_part(trees: list[Tree]) -> Tree:
    """Return the files that all trees have with the same bytes; of a single one, none."""
    first, *others = trees
    if not others:
        return {}
    return {
        path: data
        for path, data in first.items()
        if all(other.get(path) == data for other in others)
    }


def zipped(
    files: Tree, time: int, method: int = zipfile.ZIP_DEFLATED, before: bytes = b""
) -> bytes:
    """Return a zip archive of the files, behind a first line, made of nothing but the arguments."""
    date = datetime.fromtimestamp(time, tz=timezone.utc).timetuple()[:6]
    packed = io.BytesIO()
    packed.write(before)
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = method
            entry.create_system = 3  # Unix, so that the mode counts
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return packed.getvalue()


if __name__ == "__main__":
    build((os.environ.get("PYTHONS") or PYTHONS).split(), ROOT / TARGET)
    sys.stdout.write(f"{TARGET}\n")
