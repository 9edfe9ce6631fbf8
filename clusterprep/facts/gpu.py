"""NVIDIA GPUs three ways: on the PCI bus, by the driver, and by NVML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.model import Absent, Inventory, Node, Read

Readings = Mapping[int, Any]  # of each GPU that answers, by NVML's index: a value, or Absent
PATIENCE = 10.0  # seconds that a driver gets to answer all of it
NO_GPU = Absent("not_applicable", "no GPU here")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int  # NVML's, which is PCI order
    name: str
    uuid: str
    pci: str


@dataclass(frozen=True)
class Nvml:
    """What NVML says; `lost` names the devices that did not answer and why, `denied` those that it may not show."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    lost: tuple[str, ...] = ()
    denied: tuple[int, ...] = ()


@dataclass(frozen=True)
class Function:
    """A GPU or NVSwitch on the PCI bus. `numa` is None where the machine does not say; `gone`: it answers all ones."""

    pci: str
    switch: bool
    numa: int | None
    gone: bool


@dataclass(frozen=True)
class Model:
    """What makes GPUs alike: memory in bytes as the driver gives it, compute capability as «9.0»."""

    name: str
    memory: int
    capability: str


@dataclass(frozen=True)
class DeviceNodes:
    """/dev/nvidiaN by minor number: open, hidden (by the device cgroup) or denied; and what the driver has bound."""

    nodes: Mapping[int, str]
    bound: tuple[str, ...]


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
        lost=tuple(
            f"GPU {r['index']}: {r['no']}" for r in rows if "no" in r and r["no"] != "denied"
        ),
        denied=tuple(r["index"] for r in rows if r.get("no") == "denied"),
    )


_NVML = (Read("nvml", (), limit=PATIENCE),)


def nvml_read(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """One call brings all that NVML says; equal reads are asked once."""
    return _NVML


def per_gpu(
    name: str, make: Callable[..., Any], *fields: str, besides: tuple[str, ...] | None = None
) -> Fact:
    """A fact with a reading of each GPU that answers: `make` of these fields of NVML's answer, none of them refused.

    With `besides` make gets a row of these fields and of others, which may be refused.
    """
    needed = (*fields, *(besides or ()))

    def parse(answer: dict[str, Any] | Absent | None) -> dict[int, Any] | Absent:
        if answer is None or (isinstance(answer, Absent) and answer.reason == "no_driver"):
            return NO_GPU
        if isinstance(answer, Absent):
            return answer
        rows = answer["gpus"]
        whole = besides is not None
        return _together(
            {r["index"]: _reading(make, r, fields, whole) for r in rows if "no" not in r}, rows
        )

    return Fact(
        name,
        nvml_read,
        parse,
        lenient=True,
        narrow=lambda answer: {"gpus": columns(answer, *needed)},
    )


def columns(answer: Mapping[str, Any], *fields: str) -> list[Any]:
    """NVML's rows with some of their fields; of a GPU that does not answer, what it says instead."""
    wanted = ("index", *fields)
    return [
        r if "no" in r else {field: r[field] for field in wanted if field in r}
        for r in answer["gpus"]
    ]


def _together(found: dict[int, Any], rows: list[dict[str, Any]]) -> dict[int, Any] | Absent:
    """Where no GPU has a value, the whole fact is absent, for the reason of the first."""
    if not rows:
        return NO_GPU
    if not found:
        return Absent(str(rows[0]["no"]), "no GPU answers")
    reasons = [value for value in found.values() if isinstance(value, Absent)]
    if len(reasons) < len(found):
        return found
    return next((r for r in reasons if r.reason != "not_applicable"), reasons[0])


def _reading(
    make: Callable[..., Any], row: Mapping[str, Any], fields: tuple[str, ...], whole: bool
) -> Any:
    for field in fields:
        reason = refused(row[field])
        if reason is not None:
            return absence(field, reason)
    return make(row) if whole else make(*(row[field] for field in fields))


def refused(value: object) -> list[Any] | None:
    """NVML's reason where it gave one instead of a value, or instead of one of several samples."""
    if not isinstance(value, list):
        return None
    if value[:1] == ["no"]:
        return value
    return next((part for part in value if isinstance(part, list) and part[:1] == ["no"]), None)


def absence(field: str, value: list[Any]) -> Absent:
    """NVML's reason as ours."""
    code = f" (code {value[2]})" if len(value) > 2 else ""
    words = (
        "is not supported by this GPU"
        if value[1] == "not_applicable"
        else f"was not answered{code}"
    )
    return Absent(str(value[1]), f"{field.replace('_', ' ')} {words}")


def number(value: object) -> int:
    """A number that NVML gave. Raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a number, seen {value!r}")  # noqa: TRY004 - a garbled answer, not our mistake
    return value


def rows(value: object) -> list[Any]:
    """A list that NVML gave. Raises ValueError for anything else, which could look like an empty one."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, seen {value!r}")  # noqa: TRY004 - a garbled answer, not our mistake
    return value


def parse_functions(devices: list[dict[str, Any]]) -> tuple[Function, ...]:
    """GPUs and NVSwitches (0x0680) on the bus; all ones is what a read of a device that is gone returns."""
    found = []
    for row in devices:
        numa = row["numa"]
        switch = row["class"].startswith("0x0680")
        if switch or row["class"].startswith(("0x0300", "0x0302")):
            at = None if numa is None or int(numa) < 0 else int(numa)
            found.append(Function(row["pci"], switch, at, row["config"] == "ffffffff"))
    return tuple(found)


def parse_listed(answer: Any) -> int | None:
    """How many GPUs NVML lists, if it says so."""
    return None if answer is None or isinstance(answer, Absent) else len(answer["gpus"])


def parse_gone(nvml: Any, rows: Any) -> tuple[str, ...] | Absent:
    """What is lost, by NVML or on the bus; where one of them does not answer, the other may still tell."""
    if isinstance(rows, Absent):
        return rows
    functions = parse_functions(rows)
    gone = [
        f"{f.pci} ({'NVSwitch' if f.switch else 'GPU'}): reads all ones"
        for f in functions
        if f.gone
    ]
    known = parse_nvml(nvml)
    if isinstance(known, Absent):
        if known.reason == "gpu_lost":
            gone.append(known.detail)
        return tuple(gone) if gone else known
    if not functions and known is None:
        return NO_GPU
    return (*(() if known is None else known.lost), *gone)


def parse_model(name: object, memory: object, capability: object) -> Model:
    """The name, the total of [total, reserved, used] and [9, 0]."""
    if not (
        isinstance(name, str) and name and isinstance(memory, list) and isinstance(capability, list)
    ):
        raise ValueError("NVML names no model")
    return Model(name, number(memory[0]), ".".join(str(number(part)) for part in capability))


def parse_nodes(answer: Mapping[str, Any]) -> DeviceNodes:
    """What /dev and /proc/driver/nvidia/gpus hold."""
    nodes = {int(minor): str(state) for minor, state in answer["nodes"].items()}
    if not set(nodes.values()) <= {"open", "hidden", "denied"}:
        raise ValueError(f"unknown states of device nodes in {nodes}")
    return DeviceNodes(nodes, tuple(map(str, answer["bound"])))


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


NVML = Fact("gpu.nvml", nvml_read, parse_nvml, lenient=True)
PCI = Fact("gpu.pci", lambda node, inventory: (Read("pci", ("0x10de",)),), parse_pci)
DRIVER = Fact("nv.driver", file("/proc/driver/nvidia/version"), parse_driver)
FUNCTIONS = Fact(
    "gpu.functions", lambda node, inventory: (Read("pci", ("0x10de",)),), parse_functions
)
NODES = Fact("gpu.nodes", lambda node, inventory: (Read("gpu_nodes"),), parse_nodes)
MODEL = per_gpu("gpu.model", parse_model, "name", "memory", "capability")
LISTED = Fact("gpu.listed", nvml_read, parse_listed, lenient=True)
GONE = Fact(
    "gpu.gone",
    lambda node, inv: (*nvml_read(node, inv), Read("pci", ("0x10de",))),
    parse_gone,
    lenient=True,
)
