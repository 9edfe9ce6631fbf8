"""Builds an OCI image of Debian's files with clusterprep in it, by podman: `make image`."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import clusterprep
from release import deb
from release.source_date import build_environment

CONTAINERFILE = Path(__file__).with_name("Containerfile")
NAME = f"localhost/clusterprep:{clusterprep.__version__}"
INSTALL = "apt-get install -y --no-install-recommends /tmp/*.deb openssh-client ca-certificates"
# What an image has no use for.
REMOVE = "rm -rf /tmp/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale"


def build(package: Path) -> str:
    """Build the image of a Debian package and return its name."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root.tar")
        hooks = [f"copy-in {package} /tmp", deb.in_root(INSTALL), deb.in_root(REMOVE)]
        deb.make_root(hooks, target=str(root))
        time = build_environment(deb.ROOT)["SOURCE_DATE_EPOCH"]
        podman = ["podman", "build", "--quiet", f"--tag={NAME}", f"--timestamp={time}"]
        subprocess.run([*podman, f"--file={CONTAINERFILE}", folder], check=True)
    return NAME


if __name__ == "__main__":
    build(deb.build(deb.ROOT / "dist"))
