"""Small packages that a test builds, and a repository of them on hosts of the lab."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

from tests.support.lab import Host

PLACE = "/opt/lab-debs"  # on the host
SOURCE = f"deb [trusted=yes] file:{PLACE} ./\n"
# Nothing but this repository: the machine's own sources lead out of the lab.
LAY = f"""
mkdir -p {PLACE} && base64 -d | tar x -C {PLACE} || exit
rm -rf /etc/apt/sources.list.d /var/lib/apt/lists/*
echo '{SOURCE.strip()}' > /etc/apt/sources.list
exec apt-get -q update
"""


def build(
    folder: Path, name: str, version: str, files: dict[str, str] | None = None, **fields: str
) -> None:
    """Lay a package into a folder, and its paragraph into the folder's list.

    Scripts are files in /DEBIAN.
    """
    tree = folder / "trees" / f"{name}_{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    said = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "The Lab <lab@example.org>",
    }
    said |= {key.replace("_", "-"): value for key, value in fields.items()} | {
        "Description": "a package of the lab"
    }
    control = "".join(f"{key}: {value}\n" for key, value in said.items())
    (tree / "DEBIAN/control").write_text(control)
    (tree / "DEBIAN/conffiles").write_text(
        "".join(f"{path}\n" for path in files or {} if path.startswith("/etc/"))
    )
    for path, text in (files or {}).items():
        inside = tree / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        inside.chmod(0o755 if inside.parent.name == "DEBIAN" else 0o644)
    deb = folder / f"{name}_{version}_all.deb"
    argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, deb]
    subprocess.run(argv, check=True, capture_output=True)
    data = deb.read_bytes()
    place = (
        f"Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    )
    with (folder / "Packages").open("a") as listing:
        listing.write(control + place)


def lay(folder: Path, *hosts: Host) -> None:
    """Make the packages of a folder all that apt of these hosts has, from a `file:` repository."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    packed = subprocess.run(
        ["tar", "c", "-C", folder, *names], check=True, capture_output=True
    ).stdout
    for host in hosts:
        host.run(["sh", "-c", LAY], input=base64.b64encode(packed).decode())


def packages(host: Host, *names: str) -> list[str]:
    """«hold installed lab-tool 1.0» of what dpkg knows of these."""
    form = "${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n"
    rows = host.run(["dpkg-query", "-W", "-f", form, *names], check=False).stdout.splitlines()
    return sorted(row for row in rows if " not-installed " not in row)
