"""The driver's version file of both module flavours, NVML's answer, and GPUs on the PCI bus."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu import (
    DeviceNodes,
    Function,
    Gone,
    Gpu,
    Listed,
    Model,
    Nvml,
    parse_pci,
)
from clusterprep.model import Absent
from tests.support.fleet import learned

PROPRIETARY = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  \
(dvs-builder@U16-I1-N08-05-2)  \
Tue Mar  5 22:15:33 UTC 2024
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
GRACE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build  \
(dvs-builder@U22-I3-AE18-09-6)  \
Wed Feb 26 02:16:25 UTC 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
OLD = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.223.02  Sat Oct  7 15:39:11 UTC 2023
GCC version:  gcc version 8.5.0 20210514 (Red Hat 8.5.0-20) (GCC)
"""
TWO_PARTS = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.26  Mon Jan  6 00:00:00 UTC 2025\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(PROPRIETARY, "550.54.14", id="proprietary"),
        pytest.param(OPEN, "550.54.15", id="open"),
        pytest.param(GRACE, "570.124.06", id="open-on-arm"),
        pytest.param(OLD, "470.223.02", id="branch-470"),
        pytest.param(TWO_PARTS, "570.26", id="two-parts"),
    ],
)
def test_the_driver_is_the_module_that_is_loaded(text: str, expected: str) -> None:
    assert learned("nv.driver", ["ok", text]) == expected


def test_no_file_is_no_driver() -> None:
    assert learned("nv.driver", ["no", "missing", "/proc/driver/nvidia/version"]) is None


@pytest.mark.parametrize(
    "text", ["", "NVRM version: \n", "550.54.14", "NVRM version: NVIDIA UNIX Kernel Module  soon\n"]
)
def test_a_driver_file_without_a_version_is_garbled(text: str) -> None:
    assert learned("nv.driver", ["ok", text]).reason == "garbled"


# ---------------------------------------------------------------- NVML

H100 = "NVIDIA H100 80GB HBM3"


def row(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "name": H100,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index + 1:02x}:00.0",
    }


def test_nvml_gives_versions_and_gpus() -> None:
    answer = {"driver": "550.54.15", "cuda": 12040, "gpus": [row(0), row(1)]}
    gpus = (Gpu(0, H100, "GPU-0", "00000000:01:00.0"), Gpu(1, H100, "GPU-1", "00000000:02:00.0"))
    assert learned("gpu.nvml", ["ok", answer]) == Nvml("550.54.15", "12.4", gpus)


@pytest.mark.parametrize(
    ("code", "text"), [(11080, "11.8"), (12000, "12.0"), (12090, "12.9"), (13020, "13.2")]
)
def test_cuda_of_the_driver_is_decoded(code: int, text: str) -> None:
    assert learned("gpu.nvml", ["ok", {"driver": "1.2", "cuda": code, "gpus": []}]).cuda == text


def test_a_lost_gpu_is_named_and_does_not_hide_the_others() -> None:
    lost = {"index": 1, "no": "gpu_lost", "why": "nvmlDeviceGetHandleByIndex_v2 answered 15"}
    found = learned(
        "gpu.nvml", ["ok", {"driver": "550.54.15", "cuda": 12040, "gpus": [row(0), lost, row(2)]}]
    )
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    assert found.lost == ("GPU 1: gpu_lost",)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(["ok", None], id="no-library"),
        pytest.param(
            ["no", "no_driver", "nvmlInit_v2 answered 9"], id="a-library-without-a-driver"
        ),
    ],
)
def test_without_library_or_driver_there_is_no_nvml(answer: list[Any]) -> None:
    assert learned("gpu.nvml", answer) is None


@pytest.mark.parametrize(
    "reason", ["denied", "hung", "timed_out", "gpu_lost", "driver_library_mismatch", "nvml_error"]
)
def test_any_other_trouble_of_nvml_is_not_knowing(reason: str) -> None:
    assert learned("gpu.nvml", ["no", reason, "why"]) == Absent(reason, "why")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="a-list"),
        pytest.param({}, id="nothing"),
        pytest.param({"driver": "1", "cuda": "12.4", "gpus": []}, id="cuda-as-text"),
        pytest.param(
            {"driver": "1", "cuda": 12040, "gpus": [{"index": 0}]}, id="a-gpu-without-a-name"
        ),
        pytest.param({"driver": "1", "cuda": 12040, "gpus": None}, id="no-list"),
    ],
)
def test_nonsense_from_nvml_is_garbled(answer: object) -> None:
    assert learned("gpu.nvml", ["ok", answer]).reason == "garbled"


# ---------------------------------------------------------------- PCI


def test_only_display_and_3d_controllers_are_gpus() -> None:
    rows = [
        {"pci": "0000:01:00.0", "class": "0x030000"},  # a workstation card
        {"pci": "0000:01:00.1", "class": "0x040300"},  # its sound
        {"pci": "0000:17:00.0", "class": "0x030200"},  # H100
        {"pci": "0000:c0:00.0", "class": "0x068000"},  # NVSwitch
    ]
    assert parse_pci(rows) == ("0000:01:00.0", "0000:17:00.0")
    assert learned("gpu.pci", ["ok", []]) == ()


@pytest.mark.parametrize(
    "answer", [["ok", None], ["no", "missing"], ["ok", [{"pci": "0000:01:00.0"}]], ["ok", 7]]
)
def test_a_bus_that_could_not_be_read_is_not_empty(answer: list[Any]) -> None:
    assert learned("gpu.pci", answer).reason == "garbled"


# ---------------------------------------------------------------- what stands around NVML

BUS = {"pci": "0000:18:00.0", "class": "0x030200", "numa": "0", "config": "de103023"}


@pytest.mark.parametrize(
    ("row", "function"),
    [
        (BUS, Function("0000:18:00.0", False, 0, False)),
        ({**BUS, "numa": "-1"}, Function("0000:18:00.0", False, None, False)),
        ({**BUS, "numa": None, "config": None}, Function("0000:18:00.0", False, None, False)),
        ({**BUS, "config": "ffffffff"}, Function("0000:18:00.0", False, 0, True)),
        ({**BUS, "class": "0x068000"}, Function("0000:18:00.0", True, 0, False)),
    ],
)
def test_functions_of_the_bus(row: dict[str, Any], function: Function) -> None:
    sound = {**BUS, "class": "0x040300"}
    assert learned("gpu.functions", ["ok", [row, sound]]) == (function,)


@pytest.mark.parametrize(
    "rows", [None, [{}], [{**BUS, "numa": "one"}], [{"pci": "0000:18:00.0", "class": "0x030200"}]]
)
def test_unknown_functions_are_garbled(rows: Any) -> None:
    assert learned("gpu.functions", ["ok", rows]).reason == "garbled"


LOST = {"index": 3, "no": "gpu_lost", "why": ""}


@pytest.mark.parametrize(
    ("by_nvml", "bus", "expected"),
    [
        (["ok", {"driver": "1", "cuda": 12040, "gpus": [row(0)]}], [BUS], Gone()),
        (
            ["ok", {"driver": "1", "cuda": 12040, "gpus": [row(0), LOST]}],
            [BUS],
            Gone(lost=("GPU 3: gpu_lost",)),
        ),
        (
            ["ok", {"driver": "1", "cuda": 12040, "gpus": [row(0)]}],
            [{**BUS, "config": "ffffffff"}],
            Gone(lost=("0000:18:00.0 (GPU): reads all ones",)),
        ),
        (
            ["ok", None],
            [{**BUS, "class": "0x068000", "config": "ffffffff"}],
            Gone(lost=("0000:18:00.0 (NVSwitch): reads all ones",)),
        ),
        (
            ["no", "hung", "why"],
            [{**BUS, "config": "ffffffff"}],
            Gone(lost=("0000:18:00.0 (GPU): reads all ones",)),
        ),
        (["no", "hung", "why"], [BUS], Absent("hung", "why")),
        (["no", "gpu_lost", "nvmlInit answered 15"], [BUS], Gone(lost=("nvmlInit answered 15",))),
        (
            ["no", "reset_required", "nvmlInit answered 16"],
            [BUS],
            Gone(reset=("nvmlInit answered 16",)),
        ),
        (
            ["no", "nvml_not_started", "nvmlInit answered 999"],
            [BUS],
            Gone(stopped="nvmlInit answered 999"),
        ),
        (["no", "no_nvml_library", "8 GPUs"], [BUS], Gone(missing="8 GPUs")),
        (["no", "no_driver", ""], [BUS], Gone()),
        (["ok", None], [], Absent("not_applicable", "no GPU here")),
    ],
)
def test_lost_by_the_driver_or_on_the_bus(by_nvml: Any, bus: Any, expected: Any) -> None:
    assert learned("gpu.gone", by_nvml, ["ok", bus]) == expected


@pytest.mark.parametrize("bus", [["no", "denied", "x"], ["no", "timed_out", "x"], ["ok", 7]])
def test_a_bus_that_could_not_be_read_hides_losses(bus: Any) -> None:
    nvml = ["ok", {"driver": "1", "cuda": 12040, "gpus": [row(0)]}]
    assert isinstance(learned("gpu.gone", nvml, bus), Absent)


def test_device_nodes() -> None:
    found = learned(
        "gpu.nodes", ["ok", {"nodes": {"0": "open", "10": "hidden"}, "bound": ["0000:18:00.0"]}]
    )
    assert found == DeviceNodes({0: "open", 10: "hidden"}, ("0000:18:00.0",))
    for answer in (
        None,
        {},
        {"nodes": {"0": "shut"}, "bound": []},
        {"nodes": {"x": "open"}, "bound": []},
    ):
        assert learned("gpu.nodes", ["ok", answer]).reason == "garbled"


def test_models() -> None:
    full = {**row(0), "memory": [80 << 30, 551 << 20, 0], "capability": [9, 0]}
    answer = {"driver": "1", "cuda": 12040, "gpus": [full]}
    assert learned("gpu.model", ["ok", answer]) == {0: Model(H100, 80 << 30, "9.0")}
    for change in (
        {"name": ""},
        {"name": None},
        {"memory": None},
        {"memory": ["80 GB"]},
        {"capability": "9.0"},
    ):
        assert learned("gpu.model", ["ok", {"gpus": [{**full, **change}]}]).reason == "garbled"
    assert (
        learned("gpu.model", ["ok", {"gpus": [{**full, "memory": ["no", "denied"]}]}]).reason
        == "denied"
    )


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (["ok", {"gpus": [row(0), LOST]}], Listed(2)),
        (["ok", {"gpus": [row(0), {"index": 1, "no": "denied"}]}], Listed(2, (1,))),
        (["ok", {"gpus": []}], Listed(0)),
        (["ok", None], None),
        (["no", "denied", "nvmlInit answered 4"], None),
    ],
)
def test_how_many_are_listed(answer: Any, count: int | None) -> None:
    assert learned("gpu.listed", answer) == count


def of_rows(*rows: dict[str, Any], cuda: Any = 12040) -> list[Any]:
    return ["ok", {"driver": "580.95.05", "cuda": cuda, "gpus": list(rows)}]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"temperature": ["no", "gpu_lost"]}, Gone(lost=("GPU 0: gpu_lost",))),
        ({"throttle": [1, ["no", "reset_required"]]}, Gone(reset=("GPU 0: reset_required",))),
        (
            {"violations": {"power": ["no", "reset_required"]}},
            Gone(reset=("GPU 0: reset_required",)),
        ),
        ({"p2p": [[1, ["no", "gpu_lost"]]]}, Gone()),  # that is about GPU 1
        ({"name": ["no", "reset_required"]}, Gone(reset=("GPU 0: reset_required",))),
        ({"uuid": ["no", "nvml_error", 999]}, Gone(silent=("GPU 0: nvml_error",))),
        ({"temperature": ["no", "nvml_error", 999]}, Gone()),
        ({"ecc": ["no", "denied"]}, Gone()),
    ],
)
def test_one_refused_call_is_enough_to_know_a_gpu_that_cannot_be_used(
    change: dict[str, Any], expected: Gone
) -> None:
    assert learned("gpu.gone", of_rows({**row(0), **change}), ["ok", [BUS]]) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("nvml_error", Gone(silent=("GPU 3 answered 999",))),
        ("interrupts", Gone(broken=("GPU 3: the kernel has trouble with its interrupts",))),
        ("power_cables", Gone(broken=("GPU 3: its power cables are not attached properly",))),
        ("reset_required", Gone(reset=("GPU 3: reset_required",))),
        ("denied", Gone()),
    ],
)
def test_a_handle_that_is_refused_for_another_reason_is_not_a_gpu_that_is_gone(
    reason: str, expected: Gone
) -> None:
    refused = {"index": 3, "no": reason, "why": "GPU 3 answered 999"}
    got = learned("gpu.gone", of_rows(row(0), refused), ["ok", [BUS]])
    if expected.silent:
        expected = Gone(silent=("GPU 3: GPU 3 answered 999",))
    assert got == expected


def test_a_driver_that_does_not_tell_its_cuda_still_tells_its_gpus() -> None:
    """Code 12 where libcuda.so.1 is missing: NVIDIA_DRIVER_CAPABILITIES=utility (nvml.h)."""
    found = learned("gpu.nvml", of_rows(row(0), cuda=["no", "missing_tool"]))
    assert (found.cuda, len(found.gpus)) == (None, 1)


def test_a_gpu_that_does_not_say_its_name_is_counted_and_not_garbled() -> None:
    found = learned("gpu.nvml", of_rows(row(0), {**row(1), "name": ["no", "reset_required"]}))
    assert [gpu.index for gpu in found.gpus] == [0]
    assert found.lost == ("GPU 1: reset_required",)


def test_gpus_without_memory_of_their_own() -> None:
    """GB10 answers «not supported» to both memory calls, and lists processes (nvitop#208)."""
    spark = {
        **row(0),
        "name": "NVIDIA GB10",
        "memory": ["no", "not_applicable"],
        "capability": [12, 1],
        "processes": [[4711, 19 << 30, "python3"]],
    }
    assert learned("gpu.model", of_rows(spark)) == {0: Model("NVIDIA GB10", None, "12.1")}
    use = learned("gpu.use", of_rows(spark))[0]
    assert ([process.pid for process in use.processes], use.used) == ([4711], None)
    for reason in ("denied", "nvml_error", "reset_required"):
        refused = {**spark, "memory": ["no", reason]}
        assert learned("gpu.use", of_rows(refused)).reason == reason


def test_gpus_that_may_not_be_shown_are_not_lost() -> None:
    hidden = {"index": 1, "no": "denied", "why": "GPU 1 answered 4"}
    found = learned(
        "gpu.nvml", ["ok", {"driver": "550.54.15", "cuda": 12040, "gpus": [row(0), hidden]}]
    )
    assert (found.lost, found.denied) == ((), (1,))
