"""An environment for jobs, as an image or a shared folder brings it.

It has an interpreter and a torch that is never imported.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.lab.faults.fault import Fault
from tests.support.lab.rooms import Host

HOME = "/opt/job"
PYTHON = f"{HOME}/bin/python"
SITE = f"{HOME}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
VERSION = f"{SITE}/torch/version.py"
WHEEL_NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


# An id has the address where NCCL would listen: without settings, the first that is not of lo or
# docker.
_UNIQUE_ID = """
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>
int ncclGetUniqueId(char *id) {
    struct ifaddrs *all, *one;
    memset(id, 0, 128);
    if (getifaddrs(&all)) return 2;
    for (one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
        if (!strncmp(one->ifa_name, "lo", 2) || !strncmp(one->ifa_name, "docker", 6)) continue;
        memcpy(id + 8, one->ifa_addr, sizeof(struct sockaddr_in));
        return 0;
    }
    return 3;
}
"""


def nccl_source(code: int) -> str:
    """A library that says which NCCL it is and where it would listen, and can nothing else."""
    return f"{_UNIQUE_ID}int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}\n"


def version_file(version: str, cuda: str | None) -> str:
    """torch/version.py as the wheels have it."""
    return (
        f"from typing import Optional\n__version__ = '{version}'\n"
        f"debug = False\ncuda: Optional[str] = {cuda!r}\n"
    )


def job_environment(
    host: Host, version: str = "2.6.0+cu124", cuda: str = "12.4", nccl: int = 22105
) -> Fault:
    """A virtual environment in /opt/job with torch's version, its NCCL, and a library to load it.

    That library finds NCCL as conda's does, by DT_RUNPATH, so that LD_LIBRARY_PATH comes before it.
    """
    target = Path(f"/proc/{host.pid}/root{HOME}")
    shutil.copytree(_made(version, cuda, nccl), target, symlinks=True)
    return Fault(lambda: shutil.rmtree(target))


@functools.cache
def _made(version: str, cuda: str, nccl: int) -> Path:
    keep = tempfile.TemporaryDirectory(prefix="clusterprep-job-", ignore_cleanup_errors=True)
    _KEPT.append(keep)
    home = Path(keep.name, "job")
    site = home / Path(SITE).relative_to(HOME)
    for folder in (home / "bin", site / "torch/lib", site / "nvidia/nccl/lib"):
        folder.mkdir(parents=True)
    real = Path(os.path.realpath(sys.executable))
    (home / "bin/python").symlink_to(real)
    (home / "pyvenv.cfg").write_text(
        f"home = {real.parent}\ninclude-system-site-packages = false\n"
    )
    (site / "torch/__init__.py").write_text("raise ImportError('a stand-in')\n")
    (site / "torch/version.py").write_text(version_file(version, cuda))
    library = site / "nvidia/nccl/lib/libnccl.so.2"
    _compile(["-Wl,-soname,libnccl.so.2", "-o", str(library)], nccl_source(nccl))
    path = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../../nvidia/nccl/lib"
    user = "int ncclGetVersion(int *); int torch_cuda(int *v) { return ncclGetVersion(v); }\n"
    _compile([path, "-o", str(site / "torch/lib/libtorch_cuda.so"), str(library)], user)
    return home


# Folders that live as long as this process.
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def compiled_nccl(host: Host, path: str, code: int) -> Fault:
    """An NCCL of this version at this path of the host, over one that may be there."""
    target = Path(f"/proc/{host.pid}/root{path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.read_bytes() if target.exists() else None
    target.unlink(missing_ok=True)
    shutil.copyfile(_library(code), target)

    def undo() -> None:
        target.unlink()
        if before is not None:
            target.write_bytes(before)

    return Fault(undo)


@functools.cache
def _library(code: int) -> Path:
    keep = tempfile.TemporaryDirectory(prefix="clusterprep-nccl-", ignore_cleanup_errors=True)
    _KEPT.append(keep)
    path = Path(keep.name, "libnccl.so.2")
    _compile(["-Wl,-soname,libnccl.so.2", "-o", str(path)], nccl_source(code))
    return path


def _compile(words: list[str], source: str) -> None:
    # Libraries behind the source: the linker takes from them what is still missing.
    argv = ["cc", "-x", "c", "-shared", "-fPIC", "-", "-x", "none", *words]
    subprocess.run(argv, input=source, text=True, check=True, capture_output=True)
