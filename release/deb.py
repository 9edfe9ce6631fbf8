"""Builds dist/clusterprep_VERSION_all.deb with the tools of Debian 13: `make deb`.

Everything happens in a root made for it by mmdebstrap and removed after it. Debian 12 has too old
releases of what clusterprep needs. MIRROR names an archive of Debian nearby.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import dist

ROOT = Path(__file__).resolve().parents[1]
SUITE = "trixie"
# What debian/control asks for, but the compilers: nothing is compiled.
TOOLS = "debhelper,dh-python,pybuild-plugin-pyproject,python3-all,python3-hatchling,lintian"
# lintian says on stderr that it should not be run by root, which in this root is the only user.
BUILD = (
    "cd /source && dpkg-buildpackage -d -b -us -uc && cd / &&"
    " lintian --fail-on error,warning --info clusterprep_*.changes"
)


def make_root(hooks: Sequence[str], include: str = "", target: str = "/dev/null") -> None:
    """Make a root of Debian, run hooks of mmdebstrap with it, and keep it as `target`."""
    kind = "null" if target == "/dev/null" else "tar"
    command = ["mmdebstrap", "--quiet", "--variant=apt", f"--format={kind}"]
    words = [f"--customize-hook={hook}" for hook in hooks]
    if include:
        words.append(f"--include={include}")
    mirror = [os.environ["MIRROR"]] if os.environ.get("MIRROR") else []
    subprocess.run([*command, *words, SUITE, target, *mirror], check=True)


def in_root(script: str) -> str:
    """Return the hook that runs a shell script in the root."""
    return f"chroot \"$1\" sh -ec '{script}'"


def build(target: Path) -> Path:
    """Build the package, have lintian judge it, and return its file in the folder `target`."""
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        dist.build(ROOT, Path(folder), "sdist")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = archive.with_name(archive.name.removesuffix(".tar.gz"))
        source.chmod(0o755)
        source = source.rename(Path(folder, "source"))
        for old in target.glob("clusterprep_*_all.deb"):
            old.unlink()
        copy = f'cp "$1"/clusterprep_*_all.deb {shlex.quote(str(target))}'
        make_root([f"copy-in {source} /", in_root(BUILD), copy], TOOLS)
    (package,) = target.glob("clusterprep_*_all.deb")
    return package


if __name__ == "__main__":
    build(ROOT / "dist")
