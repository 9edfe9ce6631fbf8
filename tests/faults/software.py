"""What jobs load: torch, NCCL, CUDA, an interpreter."""

from __future__ import annotations

import sys

from tests.faults.hgx import LIBRARIES, TOOLKIT, toolkit
from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.lab.faults.software import HOME, SITE, VERSION, WHEEL_NCCL, version_file

_SHADOW = "/opt/nccl"


def _torch(host: Host, version: str, cuda: str | None) -> Fault:
    return faults.written(host, VERSION, version_file(version, cuda))


def _shadowed(host: Host, lab: Lab) -> Fault:
    """A module file or a profile put another NCCL before torch's."""
    library = faults.compiled_nccl(host, f"{_SHADOW}/libnccl.so.2", 22304)
    return faults.together(library, faults.session_environment(host, {"LD_LIBRARY_PATH": _SHADOW}))


def _other_base(host: Host, lab: Lab) -> Fault:
    """The same environment, made from an interpreter at another place."""
    host.run(["ln", "-s", sys.base_prefix, "/opt/base"])
    moved = faults.written(
        host, f"{HOME}/pyvenv.cfg", "home = /opt/base/bin\ninclude-system-site-packages = false\n"
    )
    return faults.together(Fault(lambda: host.run(["rm", "/opt/base"])), moved)


ROWS = (
    Row("another torch", "torch.version", lambda host, lab: _torch(host, "2.4.1+cu124", "12.4")),
    Row(
        "torch missing",
        "torch.version",
        lambda host, lab: faults.without(host, f"{SITE}/torch"),
        also={"nccl.torch": "without torch nothing says which NCCL would be loaded"},
    ),
    Row(
        "a CPU build of torch",
        "torch.version",
        lambda host, lab: _torch(host, "2.6.0+cpu", None),
    ),
    Row(
        "torch for a CUDA that the driver cannot run",
        "cuda.runtime_vs_driver",
        lambda host, lab: _torch(host, "2.6.0+cu124", "13.0"),
    ),
    Row(
        "another NCCL beside torch",
        "nccl.torch",
        lambda host, lab: faults.compiled_nccl(host, WHEEL_NCCL, 22203),
    ),
    Row(
        "an NCCL that is known to hang",
        "sw.known_bad",
        lambda host, lab: faults.compiled_nccl(host, WHEEL_NCCL, 22902),
        also={"nccl.torch": "it is another one than that of the other nodes"},
        apart=("nccl.torch",),
    ),
    Row(
        "LD_LIBRARY_PATH with another NCCL",
        "nccl.torch",
        _shadowed,
        also={
            "nccl.system": "programs without an NCCL of their own load that one too",
            "env.ld_path": "it says where the variable is set",
        },
    ),
    Row(
        "another NCCL of the system",
        "nccl.system",
        lambda host, lab: faults.compiled_nccl(host, f"{LIBRARIES}/libnccl.so.2", 22203),
    ),
    Row(
        "an NCCL plug-in on one node",
        "nccl.plugin",
        lambda host, lab: faults.compiled_nccl(host, f"{LIBRARIES}/libnccl-net.so", 1),
    ),
    Row(
        "another CUDA toolkit",
        "cuda.toolkit",
        lambda host, lab: faults.written(host, TOOLKIT, toolkit("12.1.0")),
    ),
    Row("another interpreter", "python.env", _other_base),
)
