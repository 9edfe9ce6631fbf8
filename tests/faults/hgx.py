"""Hosts made into servers with eight H100 and their InfiniBand cards, as in tests/machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests import machines as fleets
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.lab.faults.software import PYTHON

KIND = "hgx-h100-ib"
H100 = [{"count": 8, "model": "h100"}]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_MC0 = "/sys/devices/system/edac/mc/mc0"
EDAC = {f"{_MC0}/ue_count": "0\n", f"{_MC0}/ce_count": "0\n"}
# The host's interface stands on a card, so that what says its speed and its carrier counts.
CARD = {"/sys/class/net/eth0/device": "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"}
TOOLKIT = "/usr/local/cuda/version.json"


def machine(host: Host) -> fleets.Machine:
    """The machine that a host plays; there are fewer of them than hosts."""
    machines = fleets.load(KIND).machines
    return machines[(host.index - 1) % len(machines)]


def hgx(host: Host) -> Iterator[Fault]:
    """The PCI tree and the RDMA devices, the GPUs and their driver, and what jobs need."""
    described = machine(host)
    yield faults.file_over(host, "/proc/cpuinfo", bare_metal(host.read("/proc/cpuinfo")))
    yield faults.sys_tree(
        host, {**_own(host, described.files), **EDAC}, {**_below_sys(described.links), **CARD}
    )
    yield faults.gpus(host, H100, bus=False)
    host.run(["sh", "-c", "chmod 666 /dev/nvidia*"])  # as the driver makes them
    for path, text in described.files.items():
        if path.startswith("/dev/infiniband/"):
            yield faults.written(host, path, text, 0o666)
    yield faults.job_environment(host)
    yield faults.compiled_nccl(host, f"{LIBRARIES}/libnccl.so.2", 22105)
    yield faults.written(host, TOOLKIT, toolkit("12.4.1"))


def bare_metal(cpuinfo: str) -> str:
    """Return cpuinfo without the flag of a virtual machine, for which many checks say less."""
    return cpuinfo.replace(" hypervisor", "")


def toolkit(version: str) -> str:
    """version.json of a CUDA toolkit."""
    return f'{{"cuda": {{"name": "CUDA SDK", "version": "{version}"}}}}\n'


def _own(host: Host, described: Mapping[str, Any]) -> dict[str, str]:
    """The files below /sys with GUIDs of this host, as several hosts play one machine.

    The last group of a GUID begins with the number of the machine.
    """
    files = _below_sys(described)
    for path, text in files.items():
        if path.startswith("/sys/class/infiniband/") and path.endswith(("/node_guid", "/gids/0")):
            guid = text.strip()
            files[path] = f"{guid[:-4]}{host.index:02x}{guid[-2:]}\n"
    return files


def _below_sys(described: Mapping[str, Any]) -> dict[str, str]:
    """Without the interfaces: those of the host stay."""
    return {
        path: str(text)
        for path, text in described.items()
        if path.startswith("/sys/") and not path.startswith("/sys/class/net/")
    }


def inventory(lab: Lab) -> dict[str, Any]:
    """What the user declares."""
    return {"python": PYTHON, "gpus": {"count": 8, "model": "NVIDIA H100 80GB HBM3"}}
