"""The reader of NVML against a library that answers what is described, up to the checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Finding, Fleet, Gpus, Inventory, Node, NodeSnapshot, Read
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import plan_queries
from tests.support import nvml
from tests.support.asked import interpret, reads
from tests.support.fleet import TODAY

pytestmark = pytest.mark.machine

ASK = """
import json, sys
from clusterprep.remote.agent import look, nvml
nvml.install(None)
json.dump(look.answer("nvml", ()), sys.stdout)
"""
MINE = tuple(
    check
    for name, check in registry.checks().items()
    if name.startswith(("gpu.", "nvl.")) or name in ("fw.gpu", "nv.module_vs_lib", "pcie.bar")
    if name not in ("gpu.xid", "gpu.sxid")  # these ask the kernel's log
    if "stress" not in check.tags  # those load the GPUs
)

# NVIDIA/nccl#1769: what NCCL prints of such a GPU, «fabric UUID 3143b15bc2cd192b.28cc9b5473fb5b93».
GB300 = {"state": 3, "clique": 32766, "cluster": "3143b15b-c2cd-192b-28cc-9b5473fb5b93"}


def asked(folder: Path, gpus: list[Mapping[str, Any]] | None = None, **system: Any) -> Any:
    """What the reader answers where this library is the machine's."""
    nvml.build(folder, [{"count": 8}, *(gpus or [])], **system)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def row(folder: Path, index: int, *changes: Mapping[str, Any], **system: Any) -> Any:
    word, answer = asked(folder, [{"index": index, **change} for change in changes], **system)
    assert word == "ok"
    return answer["gpus"][index]


# ---------------------------------------------------------------- the reader


def test_all_of_one_gpu(tmp_path: Path) -> None:
    found = row(tmp_path, 3)
    seconds = found.pop("seconds")
    assert 0 <= seconds < 1
    links = [[n, 1, [2, f"00000000:{(7, 8, 9, 10)[n % 4]:02x}:00.0"]] for n in range(18)]
    assert found == {
        "index": 3,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-0000-4000-8000-000000000003",
        "minor": 3,
        "pci": "00000000:5d:00.0",
        "vbios": "96.00.74.00.01",
        "inforom": "G520.0200.00.05",
        "gsp": "550.54.15",
        "part": "692-2G520-0200-000",
        "capability": [9, 0],
        "utilization": 0,
        "state": 0,
        "clock": 345,
        "memory": [81559 << 20, 551 << 20, 0],
        "ecc": [1, 1],
        "ecc_default": 1,
        "ecc_volatile": 0,
        "ecc_aggregate": 0,
        "sram": [0],
        "remap": [0, 0, 0, 0],
        "remap_banks": [2560, 0, 0, 0, 0],
        "throttle": [1, 1, 1],
        "temperature": 34,
        "memory_temperature": 44,
        "slowdown": 89,
        "margin": [53],
        "clock_max_graphics": 1980,
        "clock_max_memory": 2619,
        "clock_application_graphics": 1980,
        "clock_application_memory": 2619,
        "clock_default_graphics": 1980,
        "clock_default_memory": 2619,
        "power_limit": 700000,
        "power_default": 700000,
        "power_enforced": 700000,
        "persistence": 1,
        "mig": [0, 0],
        "compute_mode": 0,
        "virtualization": 0,
        "processes": [],
        "links": links,
        "fabric": [3, 0, 0, 0, 0],
        "cluster": "0" * 32,
        "p2p": [[4, 0], [5, 0], [6, 0], [7, 0]],
        "bar": 131072 << 20,
        "ecc_corrected": 0,
        "ecc_corrected_ever": 0,
        "retired_single": ["no", "not_applicable"],
        "retired_double": ["no", "not_applicable"],
        "retired_pending": ["no", "not_applicable"],
        "recovery": ["no", "not_applicable"],
        "violations": {"power": 0, "thermal": 0, "board_limit": 0, "reliability": 0},
        "link_errors": {"replay": 0, "recovery": 0, "crc": 0},
        "link_speeds": 26562,
    }


SAMPLE = """
import json, sys
from clusterprep.remote.agent import nvml
library = nvml.open_nvml()
handles, _ = library.handles()
answers = {}
for index, handle in handles.items():
    answers[index] = [library.changing(handle), library.totals(handle)]
json.dump(answers, sys.stdout)
library.close()
"""


def test_what_changes_is_sampled_while_the_library_stays_open(tmp_path: Path) -> None:
    busy = {
        "index": 1,
        "temperature": 71,
        "power": 640.5,
        "clock": {"graphics": 1755, "sm": 1755, "memory": 2619},
        "pcie_replays": 3,
        "ecc_volatile_corrected": 7,
        "throttle": 4,
        "link_errors": {"replay": {5: 12}, "recovery": 0, "crc": 0},
        "violations": {"power": 9_000_000_000, "thermal": 0, "board_limit": 0, "reliability": 0},
        "nvlink": [*[{"type": "switch", "pci": nvml.SWITCHES[0]}] * 17, "down"],
    }
    nvml.build(tmp_path, [{"count": 2}, busy, {"index": 0, "lost": "handle"}])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "1": [
            {
                "utilization": 0,
                "state": 0,
                "clock": 1755,
                "clock_memory": 2619,
                "throttle": 4,
                "temperature": 71,
                "power": 640500,
            },
            {
                "uuid": "GPU-00000000-0000-4000-8000-000000000001",
                "pcie_replays": 3,
                "ecc_volatile": 0,
                "ecc_corrected": 7,
                "violations": {
                    "power": 9_000_000_000,
                    "thermal": 0,
                    "board_limit": 0,
                    "reliability": 0,
                },
                "links": [[link, 1, None] for link in range(17)] + [[17, 0, None]],
                "link_errors": {"replay": [0] * 5 + [12] + [0] * 11, "recovery": 0, "crc": 0},
            },
        ]
    }


def test_what_is_said_of_the_whole(tmp_path: Path) -> None:
    _, answer = asked(tmp_path, driver="570.124.06", cuda=12080)
    assert (answer["driver"], answer["cuda"], len(answer["gpus"])) == ("570.124.06", 12080, 8)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4, "denied"),
        (9, "no_driver"),
        (15, "gpu_lost"),
        (17, "denied"),
        (18, "driver_library_mismatch"),
        (999, "nvml_not_started"),
    ],
)
def test_a_library_that_does_not_start(tmp_path: Path, code: int, reason: str) -> None:
    assert asked(tmp_path, init=code) == ["no", reason, f"nvmlInit answered {code}"]


@pytest.mark.parametrize("lost", ["handle", "calls"])
def test_a_lost_gpu_hides_nothing_of_the_others(tmp_path: Path, lost: str) -> None:
    _, answer = asked(tmp_path, [{"index": 3, "lost": lost}])
    assert answer["gpus"][3]["no"] == "gpu_lost"
    assert [gpu["name"] for gpu in answer["gpus"] if "no" not in gpu] == [
        "NVIDIA H100 80GB HBM3"
    ] * 7
    assert [other for other, _ in answer["gpus"][0]["p2p"]] == [1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"ecc": None}, "ecc", ["no", "not_applicable"]),
        ({"ecc": {"code": 4}}, "ecc", ["no", "denied"]),
        ({"ecc": {"code": 999}}, "ecc", ["no", "nvml_error", 999]),
        ({"codes": {"nvmlDeviceGetEccMode": 13}}, "ecc", ["no", "missing_tool"]),
        ({"codes": {"nvmlDeviceGetMemoryInfo_v2": 13}}, "memory", [81559 << 20, None, 551 << 20]),
        ({"codes": {"nvmlDeviceGetMemoryInfo_v2": 25}}, "memory", [81559 << 20, None, 551 << 20]),
        ({"fabric": None}, "fabric", ["no", "not_applicable"]),
        (
            {"fabric": {"state": 2, "status": 7, "clique": 5, "health": 0x1155, "summary": 2}},
            "fabric",
            [2, 7, 5, 0x1155, 2],
        ),
        ({"fabric": None}, "cluster", ["no", "not_applicable"]),
        ({"fabric": GB300}, "cluster", "3143b15bc2cd192b28cc9b5473fb5b93"),
        ({"nvlink": []}, "links", []),
        (
            {"nvlink": ["down", {"type": "gpu", "pci": "0000:2a:00.0"}]},
            "links",
            [[0, 0, None], [1, 1, [0, "00000000:2a:00.0"]]],
        ),
        ({"memory_temperature": None}, "memory_temperature", ["no", "not_applicable"]),
        ({"margin": -2}, "margin", [-2]),
        ({"codes": {"nvmlDeviceGetTemperature": 26}, "temperature": 41}, "temperature", 41),
        ({"temperature": {"code": 4}}, "temperature", ["no", "denied"]),
        ({"margin": None}, "margin", ["no", "not_applicable"]),
        ({"throttle": 0x80}, "throttle", [0x80] * 3),
        ({"p2p": {4: {"nvlink": 5}}}, "p2p", [[4, 5], [5, 0], [6, 0], [7, 0]]),
        ({"name": "x" * 79}, "name", "x" * 79),
        ({"name": "x" * 80}, "name", ["no", "nvml_error", 7]),
        ({"ecc_volatile_uncorrected": 1 << 40}, "ecc_volatile", 1 << 40),
    ],
)
def test_one_field_of_one_gpu(
    tmp_path: Path, change: Mapping[str, Any], field: str, value: Any
) -> None:
    assert row(tmp_path, 3, change)[field] == value


def test_processes_with_their_names(tmp_path: Path) -> None:
    me = os.getpid()
    found = row(tmp_path, 3, {"processes": [{"pid": me, "mib": 512}, {"pid": 4194303, "mib": 1}]})[
        "processes"
    ]
    own = Path(f"/proc/{me}/comm").read_text().strip()
    assert found == [[me, 512 << 20, own], [4194303, 1 << 20, None]]


def test_more_processes_than_were_expected(tmp_path: Path) -> None:
    many = [{"pid": 4000000 + number, "mib": 1} for number in range(100)]
    assert len(row(tmp_path, 3, {"processes": many})["processes"]) == 100


def test_the_processes_of_drivers_with_longer_structures(tmp_path: Path) -> None:
    """Drivers 535.43 to 535.86 fill 32 bytes for each process (pynvml 12.535.77 has the layout)."""
    three = [{"pid": 4_000_000 + number, "mib": number} for number in range(1, 4)]
    old = {"long_processes": 1, "without": ["nvmlDeviceGetRunningProcessDetailList"]}
    found = row(tmp_path / "few", 3, {"processes": three}, **old)["processes"]
    assert found == [[4_000_000 + number, number << 20, None] for number in range(1, 4)]
    many = [{"pid": 4_000_000 + number, "mib": 1} for number in range(100)]
    found = row(tmp_path / "many", 3, {"processes": many}, **old)["processes"]
    assert [pid for pid, *_ in found] == [process["pid"] for process in many]


def test_a_library_that_refuses_all_fields_for_one_that_it_does_not_know(tmp_path: Path) -> None:
    found = row(tmp_path, 3, {"retired_single": 2}, fields_before=200)
    assert (found["memory_temperature"], found["retired_single"]) == (44, 2)
    assert found["recovery"] == ["no", "nvml_error", 2]
    assert found["link_errors"] == {"replay": 0, "recovery": 0, "crc": 0}


def test_link_errors_of_libraries_without_their_fields(tmp_path: Path) -> None:
    counters = {"replay": 0, "recovery": {3: 4}, "crc": 1, "crc_data": 2}
    change = {"link_errors": None, "older_link_errors": counters}
    assert row(tmp_path, 3, change)["link_errors"] == {
        "replay": 0,
        "recovery": [0, 0, 0, 4, *[0] * 14],
        "crc": 3,
    }


@pytest.mark.parametrize(
    ("without", "field", "value"),
    [
        (["nvmlInitWithFlags"], "minor", 3),
        (["nvmlDeviceGetCurrentClocksEventReasons"], "throttle", [1, 1, 1]),
        (["nvmlDeviceGetMigMode"], "mig", ["no", "missing_tool"]),
        (["nvmlDeviceGetGpuFabricInfoV"], "fabric", [3, 0, 0, 0, 0]),
        (["nvmlDeviceGetGpuFabricInfoV"], "cluster", "0" * 32),
        (
            [
                "nvmlDeviceGetGpuFabricInfoV",
                "nvmlDeviceGetGpuFabricInfo_v4",
                "nvmlDeviceGetGpuFabricInfo",
            ],
            "fabric",
            ["no", "missing_tool"],
        ),
        (
            ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo_v4"],
            "fabric",
            [3, 0, 0, None, None],
        ),
        (["nvmlDeviceGetComputeRunningProcesses_v3"], "processes", []),
        (["nvmlDeviceGetMemoryInfo_v2"], "memory", [81559 << 20, None, 551 << 20]),
        (["nvmlDeviceGetMarginTemperature"], "margin", ["no", "missing_tool"]),
    ],
)
def test_an_older_library(tmp_path: Path, without: list[str], field: str, value: Any) -> None:
    assert row(tmp_path, 3, without=without)[field] == value


def test_a_slow_call_is_timed(tmp_path: Path) -> None:
    assert row(tmp_path, 3, {"delays": {"nvmlDeviceGetTemperature": 30000}})["seconds"] >= 0.03


def test_no_library(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["ok", None]


def test_no_gpu(tmp_path: Path) -> None:
    nvml.build(tmp_path, [])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["ok", {"driver": nvml.DRIVER, "cuda": 12040, "gpus": []}]


# ---------------------------------------------------------------- as far as the checks


def judged(answer: Any, others: Mapping[str, Any] | None = None, gpus: int = 8) -> list[Finding]:
    """The findings of my checks over a node that answers so."""
    addresses = [f"0000:{bus}:00.0" for bus in nvml.SEATS][:gpus]
    rows = [
        {"pci": at, "class": "0x030200", "numa": str(n // 4), "config": "de103023"}
        for n, at in enumerate(addresses)
    ]
    raw: dict[str, Any] = {
        "nvml": answer,
        "pci": ["ok", rows],
        "gpu_nodes": [
            "ok",
            {"nodes": dict.fromkeys(map(str, range(gpus)), "open"), "bound": addresses},
        ],
        "nvml_libraries": [
            "ok",
            {"/usr/lib64/libnvidia-ml.so.1": f"libnvidia-ml.so.{nvml.DRIVER}"},
        ],
        "fabric_manager": [
            "ok",
            {"state": "LoadState=loaded\nActiveState=active\n", "version": ""},
        ],
        "imex": ["ok", None],
        "files": ["ok", {}],
        "boot_id": ["ok", "x"],
        "file": [
            "ok",
            (
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {nvml.DRIVER}"
                "  Thu Feb 22 01:44:30 UTC 2024\n"
            ),
        ],
        **(others or {}),
    }
    node = Node("n1", "10.0.0.1", 0, gpus=Gpus(gpus))
    inventory = Inventory("test", (node,))
    plan = plan_queries(MINE, registry.facts())
    answers: dict[Read, Any] = {read: raw[read.kind] for read in reads(plan, node, inventory)}
    facts = interpret(plan, node, inventory, answers)
    fleet = Fleet(inventory, {"n1": NodeSnapshot("n1", "10.0.0.1", True, facts=facts)})
    return list(judge(fleet, MINE, TODAY))


# Without an earlier run they tell nothing.
FIRST_LOOK = ("gpu.ecc_corr", "nvl.errors")


def said(answer: Any, others: Mapping[str, Any] | None = None) -> dict[str, str]:
    """What my checks say of a node that answers so, but for those that pass or do not apply."""
    return {
        f.check: f"{f.verdict} {f.severity}"
        for f in judged(answer, others)
        if f.verdict != "pass" and not (f.verdict == "skip" and f.check in NOT_ON_HOPPER)
        if not (f.verdict == "skip" and f.check in FIRST_LOOK)
    }


NOT_ON_HOPPER = ("gpu.retired", "gpu.imex", "gpu.recovery")


def test_a_healthy_machine_passes_everything(tmp_path: Path) -> None:
    assert said(asked(tmp_path)) == {}


# One fault of GPU 3, and the only check that says something of it.
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"lost": "handle"}, "gpu.lost", "fail error"),
    ({"lost": "calls"}, "gpu.lost", "fail error"),
    (
        {"model": "h100", "name": "NVIDIA H100 NVL", "memory": 95830},
        "gpu.model_mix",
        "fail warning",
    ),
    ({"ecc": 0, "ecc_pending": 0}, "gpu.ecc_mode", "fail warning"),
    ({"ecc_pending": 0}, "gpu.ecc_mode", "fail warning"),
    (
        {
            "ecc": 0,
            "ecc_pending": 0,
            "ecc_default": 0,
            "index": 3,
            "codes": {"nvmlDeviceGetComputeMode": 13},
        },
        "gpu.compute_mode",
        "unknown warning",
    ),
    ({"ecc_volatile_uncorrected": 3, "ecc_aggregate_uncorrected": 3}, "gpu.ecc_unc", "fail error"),
    ({"sram_exceeded": 1}, "gpu.ecc_unc", "fail error"),
    ({"remap_pending": 1}, "gpu.remap", "fail warning"),
    ({"remap_failed": 1}, "gpu.remap", "fail error"),
    ({"throttle": 0x48}, "gpu.throttle_hw", "fail warning"),
    ({"throttle": 4}, "gpu.throttle_sw", "skip warning"),
    ({"clock_application": {"graphics": 1200, "memory": 2619}}, "gpu.clocks", "fail warning"),
    ({"power_enforced": 450}, "gpu.power_limit", "fail warning"),
    ({"temperature": 84, "margin": 3}, "gpu.temp", "fail warning"),
    ({"temperature": 87, "margin": None}, "gpu.temp", "fail warning"),
    ({"persistence": 0}, "gpu.persistence", "fail warning"),
    ({"mig": 1, "mig_pending": 1}, "gpu.mig", "fail warning"),
    ({"compute_mode": 3}, "gpu.compute_mode", "fail warning"),
    ({"processes": [{"pid": 4194303, "mib": 70000}], "used": 70000}, "gpu.busy", "fail warning"),
    ({"used": 70000}, "gpu.busy", "fail warning"),
    ({"delays": {"nvmlDeviceGetTemperature": 1_100_000}}, "gpu.latency", "fail warning"),
    ({"fabric": {"state": 2}}, "gpu.fabricmanager", "fail error"),
    ({"fabric": {"state": 3, "health": 0x1}}, "gpu.fabricmanager", "fail warning"),
    ({"vbios": "96.00.30.00.01"}, "fw.gpu", "fail warning"),
    (
        {"nvlink": [*["down"], *[{"type": "switch", "pci": nvml.SWITCHES[0]}] * 17]},
        "nvl.state",
        "fail error",
    ),
    ({"p2p": {4: {"nvlink": 5}}}, "nvl.topology", "fail warning"),
    ({"recovery": 1}, "gpu.recovery", "fail error"),
    ({"recovery": 3}, "gpu.recovery", "fail warning"),
    (
        {"retired_single": 2, "retired_double": 1, "retired_pending": 1},
        "gpu.retired",
        "fail warning",
    ),
    ({"bar": 256}, "pcie.bar", "fail warning"),
    ({"link_speeds": {4: 13281}}, "nvl.state", "fail error"),
    ({"ecc_aggregate_corrected": 60_000_000}, "gpu.ecc_corr", "fail warning"),
    ({"ecc": {"code": 4}}, "gpu.ecc_mode", "unknown warning"),
    ({"codes": {"nvmlDeviceGetRemappedRows": 999}}, "gpu.remap", "unknown warning"),
]


@pytest.mark.parametrize(("change", "check", "verdict"), FAULTS)
def test_one_fault_fires_one_check(
    tmp_path: Path, change: dict[str, Any], check: str, verdict: str
) -> None:
    found = said(asked(tmp_path, [{"index": 3, **change}]))
    if found.get("nvl.domain") == "skip error":  # a GPU that has not joined its fabric
        del found["nvl.domain"]
    assert found == {check: verdict}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (
            {
                "nvml_libraries": [
                    "ok",
                    {"/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.535.183.01"},
                ]
            },
            {"nv.module_vs_lib": "fail error"},
        ),
        (
            {
                "fabric_manager": [
                    "ok",
                    {"state": "LoadState=loaded\nActiveState=failed\n", "version": ""},
                ]
            },
            {"gpu.fabricmanager": "fail warning"},
        ),
        ({"fabric_manager": ["no", "missing_tool", "systemctl is not there"]}, {}),
    ],
)
def test_faults_around_the_gpus(
    tmp_path: Path, others: dict[str, Any], expected: dict[str, str]
) -> None:
    assert said(asked(tmp_path), others) == expected


def test_another_version_than_the_drivers_is_one_failure_and_many_unknowns(tmp_path: Path) -> None:
    found = said(asked(tmp_path, init=18))
    assert found.pop("nv.module_vs_lib") == "fail error"
    assert {verdict.split()[0] for verdict in found.values()} == {"unknown"}
    others = {"nv.module_vs_lib", "gpu.hidden", "gpu.imex"}
    assert set(found) | others == {check.name for check in MINE}


def test_a_library_that_does_not_start_is_one_failure(tmp_path: Path) -> None:
    """«Failed to initialize NVML: Unknown Error», as in containers after systemd was reloaded."""
    found = judged(asked(tmp_path, init=999))
    troubled = {f.check: (f.verdict, f.severity) for f in found if f.verdict != "skip"}
    assert troubled.pop("gpu.lost") == ("fail", "error")
    assert troubled.pop("gpu.busy") == ("unknown", "warning")  # so that no rank is started
    assert {verdict for verdict, _ in troubled.values()} <= {"pass"}
    (told,) = [f for f in found if f.check == "gpu.lost"]
    assert told.seen == "nvmlInit answered 999"
    assert told.remedy.startswith("nvidia-smi; dmesg")
    assert {f.message for f in found if f.check == "gpu.temp"} == {
        "nvmlInit answered 999: see gpu.lost"
    }


def test_a_host_whose_driver_lives_in_a_container() -> None:
    """The GPU operator: the driver has 8 GPUs, and this host has no libnvidia-ml."""
    found = judged(
        ["no", "no_nvml_library", "no libnvidia-ml.so.1 here, and the driver has GPUs: 8"]
    )
    unknown = {f.check for f in found if f.verdict == "unknown"}
    assert unknown == {"gpu.lost", "gpu.busy"}
    assert not [f for f in found if f.verdict == "fail"]
    (told,) = [f for f in found if f.check == "gpu.lost"]
    assert told.remedy.startswith("find / -xdev -name 'libnvidia-ml.so.*'")


def test_a_container_that_was_given_utility_alone(tmp_path: Path) -> None:
    """Without libcuda.so.1 the CUDA of the driver is not told (code 12); all else is."""
    assert said(asked(tmp_path, codes={"nvmlSystemGetCudaDriverVersion_v2": 12})) == {}


def test_a_gpu_that_needs_a_reset_is_an_error_whatever_answers_so(tmp_path: Path) -> None:
    calls = ["nvmlDeviceGetName", "nvmlDeviceGetTemperature", "nvmlDeviceGetEccMode"]
    for number, call in enumerate(calls):
        found = said(asked(tmp_path / str(number), [{"index": 3, "codes": {call: 16}}]))
        assert found["gpu.lost"] == "fail error"


def test_a_gb10_with_a_strangers_process(tmp_path: Path) -> None:
    """Both memory calls answer NOT_SUPPORTED there (nvitop#208, on 580.173)."""
    spark = {
        "index": 3,
        "memory": None,
        "reserved": None,
        "used": None,
        "processes": [{"pid": 4194303, "mib": 19 << 10}],
    }
    found = said(asked(tmp_path, [spark]))
    assert found == {"gpu.busy": "fail warning", "gpu.model_mix": "fail warning"}


def test_a_driver_that_never_answers_is_one_failure_and_many_unknowns() -> None:
    found = said(["no", "hung", "no answer within 10 s"])
    assert found.pop("gpu.latency") == "fail warning"
    assert {verdict.split()[0] for verdict in found.values()} == {"unknown"}


def test_cards_of_a_workstation_lack_what_boards_have(tmp_path: Path) -> None:
    nvml.build(tmp_path, [{"count": 8, "model": "rtx4090"}])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    found = said(json.loads(done.stdout), {"fabric_manager": ["ok", None]})
    skipped = {
        "gpu.ecc_mode",
        "gpu.ecc_unc",
        "gpu.remap",
        "gpu.fabricmanager",
        "nvl.domain",
        "nvl.state",
        "nvl.topology",
    }
    assert {check: verdict.split()[0] for check, verdict in found.items()} == dict.fromkeys(
        skipped, "skip"
    )


def test_an_old_driver_without_flags_and_newer_calls_still_answers(tmp_path: Path) -> None:
    device = "MemoryInfo_v2 CurrentClocksEventReasons ComputeRunningProcesses_v3 "
    device += "SramEccErrorStatus MarginTemperature GpuFabricInfoV GpuFabricInfo GspFirmwareVersion"
    newer = ["nvmlInitWithFlags", *(f"nvmlDeviceGet{name}" for name in device.split())]
    assert said(asked(tmp_path, without=newer)) == {}


def test_nothing_there_is_nothing_to_judge() -> None:
    nothing = {
        "pci": ["ok", []],
        "gpu_nodes": ["ok", {"nodes": {}, "bound": []}],
        "nvml_libraries": ["ok", {}],
        "fabric_manager": ["ok", None],
        "file": ["no", "missing", "/proc/driver/nvidia/version"],
    }
    found = said(["ok", None], nothing)
    assert found.pop("gpu.count") == "fail error"  # eight are declared
    assert set(found.values()) <= {"skip warning", "skip error"}
