"""GPUs on a host that has none: a management library with described answers, and driver files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.machines import tree
from tests.support import nvml
from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import sys_tree
from tests.support.lab.rooms import Host

_FOLDER = "usr/lib/x86_64-linux-gnu"
_VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  \
(dvs-builder@U16-I1-N08-05-2)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""


def gpus(host: Host, described: Iterable[Mapping[str, Any]], **system: Any) -> Fault:
    """GPUs as tests.support.nvml describes them.

    By NVML, as /dev/nvidia*, on the PCI bus and as the loaded driver's version.

    `bus` (default true) lays PCI functions over /sys; `module` is the loaded module's version, the
    driver's when left out and none at all with None. A kernel without /proc/driver cannot show one:
    there recorded fleets must do.
    """
    rows = list(described)
    bus, module = system.pop("bus", True), system.pop("module", system.get("driver", nvml.DRIVER))
    shown = (
        module is not None and host.run(["test", "-d", "/proc/driver"], check=False).returncode == 0
    )
    root = Path(f"/proc/{host.pid}/root")
    made = nvml.build(root / _FOLDER, rows, **system)
    each = nvml.expanded(rows, system.get("driver", nvml.DRIVER))
    devices = [f"/dev/nvidia{gpu['minor']}" for gpu in each]
    host.run(["touch", "/dev/nvidiactl", *devices])
    undo = [sys_tree(host, *_bus(each)).undo] if bus else []
    if shown:
        host.run(
            ["mount", "-t", "tmpfs", "tmpfs", "/proc/driver"]
        )  # no folder can be made in /proc itself
        host.write("/proc/driver/nvidia/version", _VERSION.format(driver=module))

    def take_away() -> None:
        for path in (made.parent / made.readlink(), made, made.with_name(nvml.DESCRIBED)):
            path.unlink(missing_ok=True)
        host.run(["rm", "-f", "/dev/nvidiactl", *devices])
        if shown:
            host.run(["umount", "--lazy", "/proc/driver"])
        for step in undo:
            step()

    return Fault(take_away)


def _bus(each: Iterable[Mapping[str, Any]]) -> tree.Grown:
    functions = [
        {
            "at": gpu["pci"],
            "class": "0x030200",
            "vendor": "0x10de",
            "device": "0x2330",
            "numa_node": gpu["numa"],
        }
        for gpu in each
        if isinstance(gpu["pci"], str)
    ]
    return tree.pci(functions)
