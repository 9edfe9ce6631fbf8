"""The driver's module and library, the GPUs' firmware and the fabric manager, which must match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.facts.gpu import (
    IN_PIECES,
    Readings,
    absence,
    columns,
    is_unsupported,
    nvml_read,
    parse_driver,
    per_gpu,
    refusal,
)
from clusterprep.facts.nvlink import FABRIC
from clusterprep.model import Absent, Inventory, Node, Read

# How the fabric manager prints its version, at the end of a line of its own.
_VERSION = re.compile(r"(\d+\.\d+\.\d+|\d+\.\d+)$")
LONGEST_VERSION = 64  # characters: a search from each of very many digits takes quadratic time


class Firmware(Struct, frozen=True):
    """Versions by part («VBIOS», «InfoROM», «GSP»).

    `board` is the part number of the board, or the GPU's name. `refused` says why NVML does not
    tell a part; a part that this GPU does not have is in neither.
    """

    board: str
    versions: Mapping[str, str]
    refused: tuple[Absent, ...] = ()


class Library(Struct, frozen=True):
    """The loaded module's version and that of each NVML library.

    `refused`: the driver refuses the library (code 18). `works`: NVML started, for which both must
    fit.
    """

    module: str | None
    files: Mapping[str, str | None]
    refused: bool
    works: bool


class FabricManager(Struct, frozen=True):
    """The service as systemd sees it.

    `version` is that of its program, None where it was not asked for.
    """

    loaded: str
    active: str
    version: str | None


class FabricState(Struct, frozen=True):
    """What GPUs report of their fabric (None: they cannot), the service, the driver's version."""

    fabric: Readings | None
    service: FabricManager | None
    driver: str | None


def _firmware(row: Mapping[str, Any]) -> Firmware:
    """Return the versions of one GPU; those that NVML refuses are left out."""
    versions = {}
    refused = []
    for part in ("VBIOS", "InfoROM", "GSP"):
        version = row[part.lower()]
        if isinstance(version, str) and version:
            versions[part] = version
        reason = refusal(version)
        if reason is not None and not is_unsupported(version):
            refused.append(absence(part, reason))
    if not versions:
        raise ValueError("no version of any firmware")
    board = row["name"]
    if not refusal(row["part"]):
        board = f"{board} {row['part']}"
    return Firmware(board, versions, tuple(refused))


def parse_library(nvml: Any, text: Any, files: Any) -> Library | Absent:
    """Parse NVML's answer, /proc/driver/nvidia/version, and the library files.

    `files` has the name that each path leads to in the end.
    """
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
    """Return «550.54.15» of libnvidia-ml.so.550.54.15, None for other names."""
    match = re.fullmatch(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", name)
    return match[1] if match else None


def _library_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    version = Read("file", ("/proc/driver/nvidia/version",))
    return (*nvml_read(node, inventory), version, Read("nvml_libraries"))


def _without_rows(answer: Any) -> Any:
    """Return an empty object for any answer of NVML: only that it answers counts."""
    return {} if isinstance(answer, Mapping) else answer


def parse_fabric_manager(answer: Mapping[str, str] | None) -> FabricManager | Absent | None:
    """Return the state of the fabric manager, None where no NVSwitch is on the bus."""
    if answer is None:
        return None
    if not answer["state"].strip():  # as in a container: systemctl exists and complains on stderr
        return Absent("systemd is not running", "systemctl says nothing of nvidia-fabricmanager")
    state = dict(line.split("=", 1) for line in answer["state"].splitlines() if "=" in line)
    words = answer["version"].split()
    match = _VERSION.search(words[-1][-LONGEST_VERSION:]) if words else None
    version = match[1] if match else None
    return FabricManager(state["LoadState"], state["ActiveState"], version)


def parse_fabric_state(nvml: Any, manager: Any) -> FabricState | Absent:
    """Return what the GPUs and the fabric manager report of the NVSwitch fabric.

    One of the two may be missing. Absent on a machine that has neither.
    """
    fabric = FABRIC.parse(nvml)
    service = manager if isinstance(manager, Absent) else parse_fabric_manager(manager)
    driver = _driver(nvml)
    if not isinstance(fabric, Absent):
        # What the GPUs report is worth more than a service that could not be asked.
        known_service = None if isinstance(service, Absent) else service
        return FabricState(fabric, known_service, driver)
    # A library that is too old to report the fabric leaves the answer to the service; a missing
    # library does not.
    may_ask_service = fabric.reason in ("not_applicable", "missing_tool")
    if not may_ask_service or isinstance(nvml, Absent):
        return fabric
    if service is None:
        return Absent("not_applicable", "no NVSwitch here")
    if isinstance(service, Absent):
        return service
    return FabricState(None, service, driver)


def _driver(nvml: Any) -> str | None:
    if not isinstance(nvml, Mapping):
        return None
    driver = nvml["driver"]
    return driver if isinstance(driver, str) else None


def _fabric_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (*nvml_read(node, inventory), Read("fabric_manager"))


def _fabric_columns(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "driver": answer["driver"],
        "gpus": columns(answer, "fabric"),
    }


FIRMWARE = per_gpu("gpu.firmware", _firmware, "name", "vbios", besides=("inforom", "gsp", "part"))
LIBRARY = Fact(
    "nv.library",
    _library_reads,
    parse_library,
    lenient=True,
    narrow=_without_rows,
    pieces=(*IN_PIECES, None, None),
)
FABRIC_STATE = Fact(
    "gpu.fabric_state",
    _fabric_reads,
    parse_fabric_state,
    lenient=True,
    narrow=_fabric_columns,
    pieces=(*IN_PIECES, None),
)
