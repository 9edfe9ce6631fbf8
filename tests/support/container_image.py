"""An image for containers of lab hosts: Debian's Python 3 and the virtual environment's torch.

It is made of files of this machine, without a registry, once for all test runs. It is kept in
`containers` of the virtual environment or in CLUSTERPREP_CONTAINERS_DIR, as a read-only store that
podman on every lab host shares.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

IMAGE = "localhost/job:1"
PYTHON = Path("/usr/bin/python3")
# What `import torch` needs besides torch. Torch's own tests, headers and tools are left out.
PACKAGES = ("torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx")
PACKAGES += ("jinja2", "markupsafe", "filelock", "fsspec")
LEFT_OUT = ("torch/include", "torch/test", "torch/bin/proto*", "torch/_inductor/codegen")
LEFT_OUT += ("torch/lib/*.a", "sympy/*/tests", "networkx/*/tests")
PROGRAMS = ("sh", "bash", "env", "sleep", "cat", "ls", "id", "test", "true", "hostname", "kill")
LIMIT = 300  # seconds to put the image together


def why_not() -> str | None:
    """Why no container can run on lab hosts here, in one line; None if they can."""
    for tool in ("podman", "crun"):
        if shutil.which(tool) is None:
            return f"containers need {tool} (apt install podman crun)"
    if not PYTHON.exists():
        return f"the image is made of {PYTHON}, which is not there"
    if _version_of(PYTHON) != "{}.{}".format(*sys.version_info):
        return f"{PYTHON} is not {sys.version_info.major}.{sys.version_info.minor}, as torch is"
    return None


def folder() -> Path:
    """Where the image is kept."""
    kept = os.environ.get("CLUSTERPREP_CONTAINERS_DIR")
    return Path(kept or Path(sys.prefix, "containers"))


def store() -> Path:
    """The read-only store with IMAGE, made once."""
    place = folder() / "store"
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _make(place)
    return place


def _make(place: Path) -> None:
    # podman takes no path of its state with more than 50 characters.
    with tempfile.TemporaryDirectory(dir=folder()) as given, tempfile.TemporaryDirectory() as run:
        root, new = Path(given, "root"), Path(given, "store")
        _fill(root)
        podman = ["podman", "--root", str(new), "--runroot", run, "--storage-driver", "overlay"]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                [*podman, "import", "--quiet", "-", IMAGE],
                stdin=tar.stdout,
                check=True,
                timeout=LIMIT,
                capture_output=True,
            )
        new.rename(place)


def _fill(root: Path) -> None:
    """Put the files of the image below `root`."""
    for name in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "tmp", "root", "proc"):
        (root / name).mkdir(parents=True)
    for name in ("sys", "dev", "run", "var", "home"):
        (root / name).mkdir()
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    version = "python{}.{}".format(*sys.version_info)
    programs = [Path(shutil.which(name) or f"/bin/{name}").resolve() for name in PROGRAMS]
    python = PYTHON.resolve()
    standard = Path("/usr/lib", version)
    site = Path(sysconfig.get_path("purelib"))
    target = root / "usr/lib/python3/dist-packages"
    target.mkdir(parents=True)
    _copy([standard], root / "usr/lib")
    _copy([site / name for name in PACKAGES if (site / name).exists()], target)
    for name, program in zip(PROGRAMS, programs, strict=True):
        shutil.copy2(program, root / "usr/bin" / name)
    shutil.copy2(python, root / "usr/bin" / version)
    (root / "usr/bin/python3").symlink_to(version)
    users = [*programs, python, *standard.rglob("*.so"), *(site / "torch").rglob("*.so*")]
    for library in _libraries(users, site):
        beside = root / str(library).lstrip("/")
        beside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, beside)


def _copy(sources: list[Path], target: Path) -> None:
    """Copy files and folders into a folder, without what no test needs."""
    skipped = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    for source in sources:
        words = ["tar", "-C", str(source.parent), *skipped, "-c", source.name]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as tar:
            unpack = ["tar", "-C", str(target), "-x"]
            subprocess.run(unpack, stdin=tar.stdout, check=True, timeout=LIMIT)


def _libraries(users: list[Path], site: Path) -> set[Path]:
    """Return the system's libraries that these files need, and the loader."""
    said = subprocess.run(
        ["ldd", *map(str, users)], capture_output=True, text=True, check=False, timeout=LIMIT
    ).stdout
    found = set()
    for line in said.splitlines():
        words = line.split()
        paths = [word for word in words if word.startswith("/") and not word.endswith(":")]
        if paths and not Path(paths[0]).is_relative_to(site):
            found.add(Path(paths[0]))
    return found


def _version_of(python: Path) -> str:
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    return done.stdout.strip()
