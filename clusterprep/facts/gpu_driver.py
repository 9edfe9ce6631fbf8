"""What must fit together around the driver: its module and library, the GPUs' firmware, the fabric manager."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.facts.gpu import Readings, columns, nvml_read, parse_driver, per_gpu, refused
from clusterprep.facts.nvlink import FABRIC
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Firmware:
    """Versions by part («VBIOS», «InfoROM», «GSP»); `board` is the part number of the board, or the GPU's name."""

    board: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Library:
    """The loaded module's version, that of each NVML library, and whether the driver refuses the library (code 18)."""

    module: str | None
    files: Mapping[str, str | None]
    refused: bool
    works: bool  # NVML started, for which both must fit


@dataclass(frozen=True)
class FabricManager:
    """The service as systemd sees it, and the version of its program where it was asked for."""

    loaded: str
    active: str
    version: str | None


@dataclass(frozen=True)
class FabricState:
    """What GPUs say of their fabric (None: they have no word for it), the service, and the driver's version."""

    fabric: Readings | None
    service: FabricManager | None
    driver: str | None


def _firmware(row: Mapping[str, Any]) -> Firmware:
    versions = {"VBIOS": row["vbios"], "InfoROM": row["inforom"], "GSP": row["gsp"]}
    known = {part: text for part, text in versions.items() if isinstance(text, str) and text}
    if not known:
        raise ValueError("no version of any firmware")
    return Firmware(row["name"] if refused(row["part"]) else f"{row['name']} {row['part']}", known)


def parse_library(nvml: Any, text: Any, files: Any) -> Library | Absent:
    """NVML's answer, /proc/driver/nvidia/version and the library files with what they lead to."""
    for answer in (text, files):
        if isinstance(answer, Absent):
            return answer
    mismatch = isinstance(nvml, Absent) and nvml.reason == "driver_library_mismatch"
    works = isinstance(nvml, Mapping)
    versions = {path: _version_of(str(name)) for path, name in files.items()}
    module = parse_driver(text)
    if not versions and not mismatch and not works:
        return Absent("not_applicable", "no NVIDIA management library here")
    if module is None and not mismatch:
        return Absent("not_applicable", "no NVIDIA driver is loaded")
    return Library(module, versions, mismatch, works)


def _version_of(name: str) -> str | None:
    match = re.fullmatch(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", name)
    return match[1] if match else None


def _library_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    version = Read("file", ("/proc/driver/nvidia/version",))
    return (*nvml_read(node, inventory), version, Read("nvml_libraries"))


def parse_fabric_manager(answer: Mapping[str, str] | None) -> FabricManager | Absent | None:
    """None where no NVSwitch is on the bus."""
    if answer is None:
        return None
    if not answer["state"].strip():  # as in a container: systemctl is there and complains on stderr
        return Absent("systemd is not running", "systemctl says nothing of nvidia-fabricmanager")
    state = dict(line.split("=", 1) for line in answer["state"].splitlines() if "=" in line)
    version = re.search(r"(\d+\.\d+\.\d+|\d+\.\d+)\s*$", answer["version"].strip())
    return FabricManager(state["LoadState"], state["ActiveState"], version[1] if version else None)


def parse_fabric_state(nvml: Any, service: Any) -> FabricState | Absent:
    """Either of the two may tell; a machine that has neither a fabric nor an NVSwitch is not one of these."""
    fabric = FABRIC.parse(nvml)
    asked = service if isinstance(service, Absent) else parse_fabric_manager(service)
    driver = (
        nvml["driver"] if isinstance(nvml, Mapping) and isinstance(nvml["driver"], str) else None
    )
    if not isinstance(
        fabric, Absent
    ):  # what the GPUs say is worth more than a service that could not be asked
        return FabricState(fabric, None if isinstance(asked, Absent) else asked, driver)
    # A library that has no word for the fabric leaves it to the service; one that is not there does not.
    if fabric.reason not in ("not_applicable", "missing_tool") or isinstance(nvml, Absent):
        return fabric
    if asked is None:
        return Absent("not_applicable", "no NVSwitch here")
    return asked if isinstance(asked, Absent) else FabricState(None, asked, driver)


FIRMWARE = per_gpu("gpu.firmware", _firmware, "name", "vbios", besides=("inforom", "gsp", "part"))
LIBRARY = Fact(
    "nv.library",
    _library_reads,
    parse_library,
    lenient=True,
    narrow=lambda answer: {} if isinstance(answer, Mapping) else answer,
)
FABRIC_STATE = Fact(
    "gpu.fabric_state",
    lambda node, inventory: (*nvml_read(node, inventory), Read("fabric_manager")),
    parse_fabric_state,
    lenient=True,
    narrow=lambda answer: {"driver": answer["driver"], "gpus": columns(answer, "fabric")},
)
