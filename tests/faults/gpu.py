"""Faults of GPUs.

What the management library does is real. What its description says is laid over, and so is the bus.
"""

from __future__ import annotations

from typing import Any, Literal

from clusterprep.survey.registry import checks
from tests.faults.hgx import H100, LIBRARIES
from tests.faults.limits import KMSG, QUIET
from tests.faults.row import Plant, Row
from tests.support import nvml
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

_MODULE = "/proc/driver/nvidia/version"
NEWER = "550.90.07"
_XID = (
    "3,3,86300000000,-;NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)
_PROGRAM = (
    "3,3,86300000000,-;NVRM: Xid (PCI:0000:2a:00): 31, pid=4711, name=python3, "
    "Ch 00000008, intr 00000000.\n"
)
# Of public logs, but for times and addresses; tests/checks/driver_lines.py has their sources.
_OFF_THE_BUS = "3,3,86300000000,-;NVRM: GPU 0000:2a:00.0: GPU has fallen off the bus.\n"
_MIG = (
    "3,3,86300000000,-;NVRM: Xid (PCI:0000:2a:00 GPU-I:05): 95, pid=7062, Uncontained: LTC TAG "
    "(0x2,0x0). RST: Yes, D-RST: No\n"
)
_SXID = (
    "3,3,86300000000,-;nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM "
    "Fault Up\n"
)
_DLREQ = (
    "3,3,86300000000,-;nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 44 "
    "Minion Link DLREQ interrupt\n"
)
_POWER = (
    "4,3,5300200,-;mlx5_core 0000:29:00.0: mlx5_pcie_event:299:(pid 11): Detected insufficient "
    "power on the PCIe slot (27W).\n"
)
_WRAPPED = "6,70011,86300000000,-;usb 1-1: the oldest line that is left\n"


# What the management library would tell, were it to answer.
NOTHING_KNOWN = {
    name: "the management library does not answer"
    for name in checks()
    if name.startswith(("gpu.", "nvl.", "cuda.")) or name in ("fw.gpu", "pcie.bar", "sw.known_bad")
}


def _library(host: Host, *changes: dict[str, Any], **system: Any) -> Fault:
    """The library says something else of one GPU, or of all."""
    return faults.written(
        host, f"{LIBRARIES}/{nvml.DESCRIBED}", nvml.description([*H100, *changes], **system)
    )


def _says(index: int, **values: Any) -> Plant:
    return lambda host, lab: _library(host, {"index": index, **values})


def _seven(host: Host, lab: Lab) -> Fault:
    text = nvml.description([{"count": 7, "model": "h100"}])
    return faults.written(host, f"{LIBRARIES}/{nvml.DESCRIBED}", text)


def _library_file(host: Host) -> Fault:
    """The library of a newer driver."""
    library = f"{LIBRARIES}/libnvidia-ml.so"
    host.run(["cp", f"{library}.{nvml.DRIVER}", f"{library}.{NEWER}"])
    host.run(["ln", "-sf", f"libnvidia-ml.so.{NEWER}", f"{library}.1"])

    def undo() -> None:
        host.run(["ln", "-sf", f"libnvidia-ml.so.{nvml.DRIVER}", f"{library}.1"])
        host.run(["rm", f"{library}.{NEWER}"])

    return Fault(undo)


def _other_driver(host: Host, lab: Lab) -> Fault:
    """The whole driver is another, module and library."""
    module = faults.file_over(host, _MODULE, host.read(_MODULE).replace(nvml.DRIVER, NEWER))
    return faults.together(module, _library_file(host), _library(host, driver=NEWER))


def _half_upgraded(host: Host, lab: Lab) -> Fault:
    """The driver's package was upgraded, the old module is loaded, and NVML does not start."""
    return faults.together(_library_file(host), _library(host, init=18, driver=NEWER))


def _slow_at_work(host: Host, lab: Lab) -> Fault:
    """A GPU that computes while its link has the lowest speed; one at rest may have that."""
    seat = nvml.expanded(H100)[3]["pci"]
    clock = {"graphics": 1755, "sm": 1755, "memory": 2619}
    works = {"index": 3, "utilization": 98, "throttle": 0, "clock": clock}
    link = f"/sys/bus/pci/devices/{seat}/current_link_speed"
    return faults.together(_library(host, works), faults.file_over(host, link, "2.5 GT/s PCIe\n"))


def _row(
    name: str,
    check: str,
    plant: Plant,
    mechanism: Literal["real", "laid over"] = "laid over",
    **more: Any,
) -> Row:
    return Row(name, check, plant, mechanism, several=True, **more)


def _links(up: int) -> list[Any]:
    return [{"type": "switch", "pci": nvml.SWITCHES[link % 4]} for link in range(up)] + ["down"] * (
        18 - up
    )


_IMEX = """\
{"nodes": {"0": {"status": "READY", "host": "10.77.0.1", "connections": {}},
 "1": {"status": "UNAVAILABLE", "host": "10.77.0.2", "connections": {}}},
 "timestamp": "9/4/2026 00:00:00.000", "status": "DEGRADED"}
"""


def _lonely_imex(host: Host, lab: Lab) -> Fault:
    """IMEX runs, and the other node of its domain is not there."""
    return faults.together(
        faults.written(host, "/usr/bin/nvidia-imex-ctl", f"#!/bin/sh\ncat <<E\n{_IMEX}E\n", 0o755),
        faults.written(host, "/etc/nvidia-imex/nodes_config.cfg", "10.77.0.1\n10.77.0.2\n"),
    )


ROWS = (
    _row("seven GPUs of eight", "gpu.count", _seven),
    _row(
        "a GPU that is lost",
        "gpu.lost",
        _says(3, lost="calls"),
        "real",
        also={"gpu.count": "the driver lists it and it does not answer"},
    ),
    _row(
        "a GPU that needs a reset",
        "gpu.lost",
        _says(3, codes={"nvmlDeviceGetTemperature": 16}),
        also={"gpu.temp": "its temperature is what was refused"},
    ),
    _row("a reset that the driver asks for", "gpu.recovery", _says(3, recovery=1)),
    _row(
        "pages that wait to be retired",
        "gpu.retired",
        _says(5, retired_single=3, retired_double=1, retired_pending=1),
    ),
    _row(
        "memory that corrected too many errors",
        "gpu.ecc_corr",
        _says(5, ecc_aggregate_corrected=60_000_000),
    ),
    _row("a BAR1 of 256 MiB", "pcie.bar", _says(2, bar=256)),
    _row("an NVLink at half its speed", "nvl.state", _says(3, link_speeds={4: 13281})),
    _row("an IMEX domain without its other node", "gpu.imex", _lonely_imex),
    _row(
        "a library that does not start",
        "gpu.lost",
        lambda host, lab: _library(host, init=999),
        "real",
        also=NOTHING_KNOWN,
    ),
    _row("uncorrected ECC errors", "gpu.ecc_unc", _says(2, ecc_volatile_uncorrected=3)),
    _row("ECC waits for a reset", "gpu.ecc_mode", _says(1, ecc_pending=0)),
    _row("row remap pending", "gpu.remap", _says(5, remap_pending=1)),
    _row("row remap failed", "gpu.remap", _says(5, remap_failed=1)),
    _row("a hot GPU", "gpu.temp", _says(6, temperature=87, margin=2)),
    _row("a GPU that works over PCIe 1", "pcie.gen", _slow_at_work),
    _row("hardware slowdown", "gpu.throttle_hw", _says(6, throttle=0x48)),
    _row(
        "locked clocks",
        "gpu.clocks",
        _says(4, clock_application={"graphics": 1200, "sm": 1200, "memory": 2619}),
    ),
    _row("a lowered power limit", "gpu.power_limit", _says(0, power_limit=500, power_enforced=500)),
    _row("no persistence", "gpu.persistence", _says(7, persistence=0)),
    _row("MIG on", "gpu.mig", _says(7, mig=1, mig_pending=1)),
    _row("exclusive compute mode", "gpu.compute_mode", _says(0, compute_mode=3)),
    _row("a GPU in use", "gpu.busy", _says(2, processes=[{"pid": 1, "mib": 40960}], used=40960)),
    _row("a GPU of another model", "gpu.model_mix", _says(7, name="NVIDIA H200", memory=143771)),
    _row("another VBIOS", "fw.gpu", _says(1, vbios="96.00.61.00.01")),
    _row("an NVLink down", "nvl.state", _says(3, nvlink=_links(17))),
    _row("two GPUs without NVLink between them", "nvl.topology", _says(3, p2p={6: {"nvlink": 4}})),
    _row(
        "a GPU in another NVLink domain",
        "nvl.domain",
        _says(
            3, fabric={"state": 3, "clique": 2, "cluster": "9c6f5af3-53bf-49b5-a436-b66766c413c3"}
        ),
    ),
    _row(
        "fabric not set up",
        "gpu.fabricmanager",
        _says(0, fabric={"state": 2, "status": 0, "clique": 0, "health": 0, "summary": 0}),
    ),
    _row(
        "fabric manager stopped",
        "gpu.fabricmanager",
        lambda host, lab: faults.service(host, {"nvidia-fabricmanager.service": "inactive"}),
    ),
    _row(
        "Xid 79 in the kernel's log",
        "gpu.xid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _XID),
    ),
    _row(
        "Xid 31, which a program caused",
        "gpu.xid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _PROGRAM),
        verdict="pass",
    ),
    _row(
        "GPU that fell off the bus without an Xid",
        "gpu.xid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _OFF_THE_BUS),
    ),
    _row(
        "Xid of a GPU in MIG mode",
        "gpu.xid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _MIG),
    ),
    _row(
        "fatal SXid in the kernel's log",
        "gpu.sxid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _SXID),
    ),
    _row(
        "SXid that can be ignored",
        "gpu.sxid",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _DLREQ),
        verdict="pass",
    ),
    _row(
        "kernel's log that goes back minutes",
        "gpu.xid",
        lambda host, lab: faults.file_over(host, KMSG, _WRAPPED),
        verdict="unknown",
        reason="truncated",
        also={
            "gpu.sxid": "it is told there",
            "log.kernel": "likewise",
            "pcie.mlx_limited": "likewise",
        },
    ),
    _row(
        "network adapter with too little power",
        "pcie.mlx_limited",
        lambda host, lab: faults.file_over(host, KMSG, QUIET + _POWER),
    ),
    Row(
        "another driver",
        "nv.driver",
        _other_driver,
        "laid over",
        also={"fw.gpu": "the driver brings the firmware of the GPUs' own processor"},
    ),
    _row("driver half upgraded", "nv.module_vs_lib", _half_upgraded, "real", also=NOTHING_KNOWN),
    _row(
        "a driver that takes its time",
        "gpu.latency",
        _says(0, delays={"nvmlDeviceGetTemperature": 1300000}),
        "real",
    ),
    _row(
        "a driver that does not answer",
        "gpu.latency",
        lambda host, lab: _library(host, hangs=["nvmlDeviceGetHandleByIndex_v2"]),
        "real",
        also=NOTHING_KNOWN,
        # A slow driver is a warning, and what is unknown for it an error.
        apart=("cuda.runtime_vs_driver", "sw.known_bad"),
        slow=True,
    ),
)
