"""NVIDIA GPUs three ways: on the PCI bus, by the driver, and by NVML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.model import Absent, Read


@dataclass(frozen=True)
class Gpu:
    index: int  # NVML's, which is PCI order
    name: str
    uuid: str
    pci: str


@dataclass(frozen=True)
class Nvml:
    """What NVML says; `lost` names the devices that did not answer and why."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    lost: tuple[str, ...] = ()


def parse_nvml(answer: dict[str, Any] | Absent | None) -> Nvml | Absent | None:
    """None when the node has no NVML library, or one that finds no driver: toolkits bring it to nodes without GPUs."""
    if isinstance(answer, Absent) and answer.reason != "no_driver":
        return answer
    if answer is None or isinstance(answer, Absent):
        return None
    rows = answer["gpus"]
    return Nvml(
        driver=answer["driver"],
        cuda=f"{answer['cuda'] // 1000}.{answer['cuda'] % 1000 // 10}",  # 12040 is 12.4
        gpus=tuple(Gpu(r["index"], r["name"], r["uuid"], r["pci"]) for r in rows if "no" not in r),
        lost=tuple(f"GPU {r['index']}: {r['no']}" for r in rows if "no" in r),
    )


def parse_pci(rows: list[dict[str, str]]) -> tuple[str, ...]:
    """PCI addresses of NVIDIA display (0x0300) and 3D (0x0302) controllers."""
    return tuple(row["pci"] for row in rows if row["class"].startswith(("0x0300", "0x0302")))


def parse_driver(text: str | None) -> str | None:
    """The version in «NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14 …»; None: not loaded."""
    if text is None:
        return None
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    if match is None:
        raise ValueError("no version in /proc/driver/nvidia/version")
    return match[1]


NVML = Fact("gpu.nvml", lambda node, inventory: (Read("nvml", (), limit=10.0),), parse_nvml, lenient=True)
PCI = Fact("gpu.pci", lambda node, inventory: (Read("pci", ("0x10de",)),), parse_pci)
DRIVER = Fact("nv.driver", file("/proc/driver/nvidia/version"), parse_driver)
