"""NVIDIA's management library as a stand-in for tests.

Built from nvml.c, answering what a test describes.

`build(folder, gpus, **system)` puts libnvidia-ml.so.1 and its description into a folder. The
library needs nothing else, no environment and no driver, so it serves processes in a chroot, on a
host of the lab, and in the test itself.

A GPU is a mapping; what it does not say is that of a healthy GPU of its `model` (MODELS, h100 when
left out). `{count: 8, model: h100}` stands for eight, and `{index: 3, …}` changes the fourth of
those listed so far. `seed`, a number, makes UUIDs and serial numbers that no other machine has.

    name, uuid, serial, part, vbios, inforom, gsp     texts; part is the board's part number
    pci             "0000:18:00.0"
    minor           N of /dev/nvidiaN
    numa            NUMA node, only for the distance between GPUs (the kernel's is a file of /sys)
    capability      "9.0"
    memory, reserved, used      MiB
    ecc, ecc_pending, ecc_default    0 or 1; default: what the factory sets, 0 on workstation cards
    ecc_volatile_uncorrected, ecc_volatile_corrected
    ecc_aggregate_uncorrected, ecc_aggregate_corrected
    sram_exceeded               0 or 1
    remap_corrected, remap_uncorrected, remap_pending, remap_failed
    remap_banks                 [max, high, partial, low, none]
    throttle                    bits of the clocks event reasons
    clock, clock_max, clock_application, clock_default, clock_customer
                                {graphics, sm, memory} in MHz
    power, power_limit, power_default, power_enforced, power_min, power_max        W
    temperature, memory_temperature, margin     °C; margin is what is left to the slowdown
    shutdown, slowdown, memory_max, gpu_max     °C, the thresholds
    persistence, mig, mig_pending, compute_mode, virtualization       numbers of the header
    processes, graphics         [{pid, mib}, …]
    nvlink                      one entry per link: down, or {type: switch|gpu, pci: …}
    p2p                         {index of the other: {nvlink: status}}; 0 is fine, 5 not supported
    fabric                      {state, status, clique, health, summary, cluster: UUID}
    pcie_generation, pcie_max_generation, pcie_width, pcie_max_width, pcie_replays
    bar                         MiB of BAR1
    retired_single, retired_double, retired_pending     pages; null from Ampere on
    recovery                    nvmlDeviceGpuRecoveryAction_t; null before driver 570
    violations                  {power, thermal, board_limit, reliability: nanoseconds}
    link_speed, link_speeds     MB/s of each link; {link: MB/s} of those that differ
    link_errors                 {kind: count of each link, or {link: count}}, kinds as in LINK_KINDS
    older_link_errors           the same for the function that was there before the fields
    utilization                 % of the last sample period
    state                       P-state, a number

Any value may be null (the call answers «not supported», 3) or `{code: 4}` (it answers that). And
for one GPU
    lost: handle | calls        GPU_IS_LOST for its handle, or for every call with the handle
    codes: {CALL: 13}, hangs: [CALL], delays: {CALL: microseconds}

`system` says the same of all: driver ("550.54.15"), cuda (12040), nvml, init (the code of init: 9
driver not loaded, 18 other version than the driver, 4 no permission), count (when it is to differ
from the list), long_processes (1: structures of 32 bytes), fields_before (N: a call that asks for a
field from N on is refused as a whole), codes, hangs, delays, without: [names
left out of the library], library (the version in the library's file name; default: the driver's).
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("nvml.c")
SONAME = "libnvidia-ml.so.1"
DESCRIBED = "nvml.described"  # the library's own name for it
DRIVER = "550.54.15"
MIB = 1 << 20

# Where GPUs and NVSwitches of the recorded fleets are.
SEATS = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
SWITCHES = tuple(f"0000:{bus}:00.0" for bus in ("07", "08", "09", "0a"))

# An HGX H100: nvidia-smi -q of such machines as found in public bug reports, and NVIDIA's data
# sheets.
_HEALTHY: dict[str, Any] = {
    "reserved": 551,
    "used": 0,
    "ecc": 1,
    "ecc_pending": 1,
    "ecc_default": 1,
    "ecc_volatile_uncorrected": 0,
    "ecc_volatile_corrected": 0,
    "ecc_aggregate_uncorrected": 0,
    "ecc_aggregate_corrected": 0,
    "sram_exceeded": 0,
    "remap_corrected": 0,
    "remap_uncorrected": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "remap_banks": [2560, 0, 0, 0, 0],
    "throttle": 1,
    "shutdown": 92,
    "slowdown": 89,
    "memory_max": 95,
    "gpu_max": 87,
    "temperature": 34,
    "memory_temperature": 44,
    "margin": 53,
    "persistence": 1,
    "mig": 0,
    "mig_pending": 0,
    "compute_mode": 0,
    "virtualization": 0,
    "processes": [],
    "graphics": [],
    "pcie_generation": 5,
    "pcie_max_generation": 5,
    "pcie_width": 16,
    "pcie_max_width": 16,
    "pcie_replays": 0,
    "retired_single": None,
    "retired_double": None,
    "retired_pending": None,
    "recovery": None,
    "violations": {"power": 0, "thermal": 0, "board_limit": 0, "reliability": 0},
    "utilization": 0,
    "state": 0,
}
# Fields of links by kind: of NVLink up to Hopper, and from Blackwell on (nvml.h).
LINK_KINDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed": 206,
    "overrun": 207,
    "received": 208,
    "integrity": 211,
    "discarded": 212,
    "recovered": 213,
    "not_recovered": 214,
    "effective": 219,
    "symbol": 221,
}
_OLDER_KINDS = {"replay": 0, "recovery": 1, "crc": 2, "crc_data": 3}
_NVLINK_4 = {"link_errors": {"replay": 0, "recovery": 0, "crc": 0}}
_NVLINK_5 = {"link_errors": dict.fromkeys(list(LINK_KINDS)[3:], 0), "link_speed": 53125}


def _model(
    name: str, capability: str, memory: int, watts: int, clocks: tuple[int, int, int], **more: Any
) -> Any:
    """`clocks`: idle and highest graphics clock, and memory clock, in MHz."""
    idle, top, mem = clocks
    most = {"graphics": top, "sm": top, "memory": mem}
    power = {"power": watts // 10, "power_min": watts // 3, **dict.fromkeys(_LIMITS, watts)}
    given = {"name": name, "capability": capability, "memory": memory, **power}
    given.update(dict.fromkeys(("clock_max", "clock_application", "clock_default"), most))
    return {**_HEALTHY, **given, "clock": {"graphics": idle, "sm": idle, "memory": mem}, **more}


_LIMITS = ("power_limit", "power_default", "power_enforced", "power_max")
_BARE: dict[str, Any] = {"nvlinks": 0, "fabric": None}
_NO_ECC: dict[str, Any] = dict.fromkeys(
    "ecc ecc_pending ecc_default ecc_volatile_uncorrected ecc_volatile_corrected "
    "ecc_aggregate_uncorrected ecc_aggregate_corrected sram_exceeded "
    "remap_corrected remap_uncorrected remap_pending remap_failed "
    "remap_banks".split()
)
_FABRIC = {"fabric": {"state": 3, "status": 0, "clique": 0, "health": 0, "summary": 0}}
# `nvlinks`: how many links, spread over the NVSwitches.
MODELS: dict[str, dict[str, Any]] = {
    "h100": _model(
        "NVIDIA H100 80GB HBM3",
        "9.0",
        81559,
        700,
        (345, 1980, 2619),
        nvlinks=18,
        part="692-2G520-0200-000",
        vbios="96.00.74.00.01",
        inforom="G520.0200.00.05",
        **_FABRIC,
        bar=131072,
        link_speed=26562,
        **_NVLINK_4,
    ),
    "h200": _model(
        "NVIDIA H200",
        "9.0",
        143771,
        700,
        (345, 1980, 3201),
        nvlinks=18,
        part="692-2G520-0280-501",
        vbios="96.00.89.00.01",
        inforom="G520.0280.00.05",
        **_FABRIC,
        bar=262144,
        link_speed=26562,
        **_NVLINK_4,
    ),
    "b200": _model(
        "NVIDIA B200",
        "10.0",
        183359,
        1000,
        (120, 1965, 3996),
        nvlinks=18,
        part="692-2G525-0220-001",
        vbios="97.00.82.00.01",
        inforom="G525.0220.00.03",
        **_FABRIC,
        bar=262144,
        recovery=0,
        **_NVLINK_5,
    ),
    "a100": _model(
        "NVIDIA A100-SXM4-80GB",
        "8.0",
        81920,
        400,
        (210, 1410, 1593),
        nvlinks=12,
        part="692-2G506-0212-002",
        vbios="92.00.45.00.05",
        inforom="G506.0212.00.01",
        margin=None,
        fabric=None,
        bar=131072,
        link_speed=25000,
        **_NVLINK_4,
    ),
    "h100-pcie": _model(
        "NVIDIA H100 PCIe",
        "9.0",
        81559,
        350,
        (345, 1755, 1593),
        part="900-21010-0000-000",
        vbios="96.00.30.00.01",
        inforom="1010.0200.00.02",
        **_BARE,
        bar=131072,
    ),
    "l40s": _model(
        "NVIDIA L40S",
        "8.9",
        46068,
        350,
        (210, 2520, 9001),
        part="900-2G133-0080-000",
        vbios="95.02.66.00.02",
        inforom="G133.0242.00.03",
        **_BARE,
        bar=65536,
    ),
    "l20": _model(
        "NVIDIA L20",
        "8.9",
        46068,
        275,
        (210, 2520, 9001),
        part="900-2G133-0020-000",
        vbios="95.02.79.00.0A",
        inforom="G133.0300.00.02",
        **_BARE,
        bar=65536,
    ),
    "a10g": _model(
        "NVIDIA A10G",
        "8.6",
        23028,
        300,
        (210, 1710, 6251),
        part="900-2G133-A840-100",
        vbios="94.02.75.00.01",
        inforom="G133.0210.00.04",
        margin=None,
        **_BARE,
        bar=32768,
    ),
    "rtx4090": _model(
        "NVIDIA GeForce RTX 4090",
        "8.9",
        24564,
        450,
        (210, 3105, 10501),
        part=None,
        vbios="95.02.3C.80.9F",
        inforom="G002.0000.00.03",
        **_BARE,
        **_NO_ECC,
        bar=32768,
    ),
}

_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2}
_CLOCK_KEYS = ("clock", "clock_max", "clock_application", "clock_default", "clock_customer")
_IN_MIB = {
    "memory": "memory",
    "reserved": "memory_reserved",
    "used": "memory_used",
    "bar": "bar",
}
_WATTS = ("power", "power_limit", "power_default", "power_enforced", "power_min", "power_max")
_RENAMED = {
    "temperature": "temperature.0",
    "memory_temperature": "field.82",
    "retired_single": "field.29",
    "retired_double": "field.30",
    "retired_pending": "field.31",
    "recovery": "field.230",
    "link_speed": "field.164",
    "shutdown": "threshold.0",
    "slowdown": "threshold.1",
    "memory_max": "threshold.2",
    "gpu_max": "threshold.3",
}
_VIOLATIONS = {"power": 74, "thermal": 75, "board_limit": 77, "reliability": 79}
_CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pci": 4}
_OURS = ("model", "count", "index", "numa", "nvlinks", "seed")  # keys that are no answers

Gpu = Mapping[str, Any]


def build(folder: Path, gpus: Iterable[Gpu], **system: Any) -> Path:
    """The library in a folder, ready to be loaded; it says what is described."""
    folder.mkdir(parents=True, exist_ok=True)
    driver = system.get("driver", DRIVER)
    real = folder / f"libnvidia-ml.so.{system.pop('library', driver)}"
    shutil.copyfile(_compiled(tuple(system.pop("without", ()))), real)
    link = folder / SONAME
    link.unlink(missing_ok=True)
    link.symlink_to(real.name)
    (folder / DESCRIBED).write_text(description(gpus, **system))
    return link


def description(gpus: Iterable[Gpu], **system: Any) -> str:
    """The text that the library reads."""
    each = expanded(gpus, system.get("driver", DRIVER))
    whole = {
        "driver": DRIVER,
        "cuda": 12040,
        "nvml": f"12.{system.get('driver', DRIVER)}",
        "count": len(each),
    }
    rows = [("-", key, value) for key, value in {**whole, **system}.items() if key not in _TROUBLES]
    rows += [("-", key, value) for key, value in _troubles(system)]
    for index, gpu in enumerate(each):
        rows += [(str(index), key, value) for key, value in _answers(gpu, index, each)]
    return "".join(
        f"{who} {key} {_value(value)}\n" for who, key, value in rows if value is not None
    )


def expanded(gpus: Iterable[Gpu], driver: str = DRIVER) -> list[dict[str, Any]]:
    """Every GPU with all it answers."""
    each: list[dict[str, Any]] = []
    for gpu in gpus:
        if "index" in gpu:
            each[gpu["index"]].update(gpu)
        else:
            each += [
                _whole(gpu, len(each) + number, driver) for number in range(gpu.get("count", 1))
            ]
    return each


def _whole(gpu: Gpu, index: int, driver: str) -> dict[str, Any]:
    model = MODELS[gpu.get("model", "h100")]
    bus = SEATS[index] if index < len(SEATS) else f"{0xDC + index:02x}"
    seed = int(gpu.get("seed", 0))
    own = {
        "uuid": f"GPU-{seed:08x}-0000-4000-8000-{index:012x}",
        "serial": str(1650000000000 + 100 * seed + index),
        "pci": f"0000:{bus}:00.0",
        "minor": index,
        "numa": 0 if index < 4 else 1,
        "gsp": driver,
    }
    links = gpu.get("nvlinks", model["nvlinks"])
    own["nvlink"] = [
        {"type": "switch", "pci": SWITCHES[link % len(SWITCHES)]} for link in range(links)
    ]
    return {**model, **own, **gpu}


_TROUBLES = ("codes", "hangs", "delays")


def _troubles(described: Gpu) -> list[tuple[str, Any]]:
    rows = [(f"code.{call}", code) for call, code in described.get("codes", {}).items()]
    rows += [(f"hang.{call}", 1) for call in described.get("hangs", ())]
    return rows + [(f"delay.{call}", wait) for call, wait in described.get("delays", {}).items()]


def _answers(gpu: Gpu, index: int, each: Sequence[Gpu]) -> list[tuple[str, Any]]:
    rows = _troubles(gpu)
    for key, value in gpu.items():
        if key not in (*_OURS, *_TROUBLES):
            rows += _rows(key, value)
    for other, peer in enumerate(each):
        if other != index:
            rows += _pair(gpu, other, peer)
    return rows


def _rows(key: str, value: Any) -> list[tuple[str, Any]]:
    refused = isinstance(value, Mapping) and "code" in value
    if key in _CLOCK_KEYS:
        return [
            (f"{key}.{n}", value if refused or value is None else value.get(name))
            for name, n in _CLOCKS.items()
        ]
    if key == "capability":
        parts = (
            (None, None) if value is None else (value, value) if refused else str(value).split(".")
        )
        return [("capability_major", parts[0]), ("capability_minor", parts[1])]
    if key == "nvlink" and not refused:
        return [(f"nvlink.{link}", _link(end)) for link, end in enumerate(value or ())]
    if key in _COUNTERS:
        return _counter_rows(key, value)
    if key == "p2p":
        return [
            (f"p2p.{_CAPABILITIES[c]}.{o}", s) for o, caps in value.items() for c, s in caps.items()
        ]
    if key == "fabric" and isinstance(value, Mapping) and "cluster" in value:
        digits = str(value["cluster"]).replace("-", "")
        plain = {part: item for part, item in value.items() if part != "cluster"}
        return [("fabric_cluster", digits), *_rows(key, plain)]
    return [
        (
            _IN_MIB.get(key, _RENAMED.get(key, key)),
            value if refused or value is None else _plain(key, value),
        )
    ]


_COUNTERS = {
    "link_errors": ("field", LINK_KINDS),
    "older_link_errors": ("nvlink_error", _OLDER_KINDS),
    "violations": ("field", _VIOLATIONS),
    "link_speeds": ("field.164", {link: link for link in range(36)}),
}


def _counter_rows(key: str, value: Any) -> list[tuple[str, Any]]:
    """Counters of a GPU or of its links; a number stands for all links."""
    prefix, kinds = _COUNTERS[key]
    rows: list[tuple[str, Any]] = []
    for kind, count in (value or {}).items():
        if isinstance(count, Mapping) and "code" not in count:
            rows += [(f"{prefix}.{kinds[kind]}.{link}", number) for link, number in count.items()]
            rows.append((f"{prefix}.{kinds[kind]}", 0))
        else:
            rows.append((f"{prefix}.{kinds[kind]}", count))
    return rows


def _plain(key: str, value: Any) -> Any:
    if key in _IN_MIB:
        return int(value * MIB)
    if key in _WATTS:
        return int(value * 1000)
    if key in ("processes", "graphics"):
        return " ".join(f"{row['pid']}:{int(row.get('mib', 0) * MIB)}" for row in value) or "-"
    if key == "fabric":
        return " ".join(
            str(value.get(part, 0)) for part in ("state", "status", "clique", "health", "summary")
        )
    return value


def _link(end: Any) -> Any:
    if isinstance(end, Mapping) and "pci" in end:
        return f"up {2 if end.get('type', 'switch') == 'switch' else 0} {end['pci']}"
    return end


def _pair(gpu: Gpu, other: int, peer: Gpu) -> list[tuple[str, Any]]:
    near = {
        link["pci"]
        for link in gpu.get("nvlink") or ()
        if isinstance(link, Mapping) and "pci" in link
    }
    far = {
        link["pci"]
        for link in peer.get("nvlink") or ()
        if isinstance(link, Mapping) and "pci" in link
    }
    joined = near & far or peer["pci"] in near
    rows: list[tuple[str, Any]] = [(f"ancestor.{other}", 40 if gpu["numa"] == peer["numa"] else 50)]
    if not joined and other not in gpu.get("p2p", {}):
        rows.append((f"p2p.2.{other}", 5))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"!{value['code']}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@functools.cache
def _compiled(without: tuple[str, ...]) -> Path:
    """Return the library without the symbols that it must lack.

    It is compiled once for each text of its source.
    """
    hidden = " ".join(f"{name};" for name in without)
    script = f"{{ global: nvml*; local: {hidden} *; }};"
    mark = hashlib.sha256(SOURCE.read_bytes() + script.encode()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"clusterprep-nvml-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    ready = place / f"{mark}.so"
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=place) as folder:
            (Path(folder) / "exported").write_text(script)
            made = Path(folder) / "made.so"
            flags = [
                "-shared",
                "-fPIC",
                "-O1",
                f"-Wl,-soname,{SONAME}",
                f"-Wl,--version-script={folder}/exported",
            ]
            subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", made, SOURCE], check=True)
            made.rename(ready)
    return ready
