"""Which GPUs a process sees: lists of numbers, of UUIDs and of both, as CUDA reads them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.facts.environment import Setting
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.visible_gpus import (
    NAME,
    ORDER,
    Session,
    Visible,
    bus_address,
    session_of,
    visible_gpus,
)
from tests.support.fleet import absent

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932aa00-0000-4000-8000-000000000001",
    "GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bde",
    "GPU-39ac7bce-e3d6-b426-008e-fa47897c72d5",
)
FOUR = Nvml(
    "550.54.15",
    "12.4",
    tuple(
        Gpu(index, "NVIDIA L20", uuid, f"00000000:{index + 16:02X}:00.0")
        for index, uuid in enumerate(UUIDS)
    ),
)
MIXED = replace(FOUR, gpus=(replace(FOUR.gpus[0], name="NVIDIA L40S"), *FOUR.gpus[1:]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, Visible((0, 1, 2, 3)), id="unset"),
        pytest.param("", Visible(()), id="empty"),
        pytest.param("-1", Visible(()), id="minus-one"),
        pytest.param("NoDevFiles", Visible(()), id="slurm-without-gpus"),
        pytest.param("2,3", Visible((2, 3)), id="two"),
        pytest.param("3,2", Visible((3, 2)), id="order-is-kept"),
        pytest.param(" 1 , 2 ", Visible((1, 2)), id="blanks"),
        pytest.param("0,1,4,2", Visible((0, 1), "4", 3), id="past-the-last"),
        pytest.param("0,-1,2", Visible((0,), "-1", 2), id="minus-one-in-between"),
        pytest.param("0,,2", Visible((0,), "", 2), id="empty-item"),
        pytest.param("0,one,2", Visible((0,), "one", 2), id="a-word"),
        pytest.param("0,1,0", Visible((), "0", 3), id="twice"),
        pytest.param(UUIDS[2], Visible((2,)), id="uuid"),
        pytest.param("GPU-d1,GPU-39ac7bce", Visible((2, 3)), id="beginnings"),
        pytest.param("gpu-D1B9", Visible((2,)), id="letters-of-either-case"),
        pytest.param("GPU-d1,GPU-8932", Visible((2,), "GPU-8932", 2), id="of-two-gpus"),
        pytest.param("GPU-ffff,GPU-d1", Visible((), "GPU-ffff", 1), id="of-no-gpu"),
        pytest.param("GPU-d1,0", Visible((2,), "0", 2), id="number-behind-uuid"),
        pytest.param("0,GPU-d1", Visible((0,), "GPU-d1", 2), id="uuid-behind-number"),
        pytest.param(f"MIG-{UUIDS[2]}/1/0", Visible((2,)), id="instance-before-470"),
    ],
)
def test_the_list_is_read_as_cuda_does(value: str | None, expected: Visible) -> None:
    assert visible_gpus(value, FOUR) == expected


def test_the_gpu_of_an_instance_is_not_guessed() -> None:
    found = visible_gpus("MIG-4f421ec4-5175-50ef-8452-d6abb13cb1d2", FOUR)
    assert found.indices == ()
    assert "MIG" in found.unknown


def test_cuda_may_number_different_models_otherwise() -> None:
    assert "CUDA_DEVICE_ORDER" in visible_gpus("1,2", MIXED).doubt
    assert visible_gpus("1,2", MIXED, "PCI_BUS_ID").doubt == ""
    assert visible_gpus("GPU-d1", MIXED).doubt == ""
    assert visible_gpus("1,2", FOUR).doubt == ""


def setting(name: str, value: str) -> Setting:
    return Setting(name, value, "/etc/environment", 1)


def test_the_session_is_that_of_the_paths_that_cuda_has() -> None:
    paths = {
        "login shell": (setting(NAME, "0,1"), setting(ORDER, "PCI_BUS_ID")),
        "ssh command": (setting(NAME, "0,1"), setting(ORDER, "PCI_BUS_ID")),
        "nccl": (setting(NAME, "7"),),
        "slurm": (setting(NAME, "6"),),
    }
    assert session_of(paths) == Session("0,1", "PCI_BUS_ID", ("login shell", "ssh command"))


def test_a_path_that_sets_a_list_goes_before_one_that_does_not() -> None:
    paths = {"login shell": (), "ssh command": (setting(NAME, "2"),), "systemd": absent("denied")}
    assert session_of(paths) == Session("2", None, ("ssh command",), (None,))


def test_a_session_that_is_not_known_shows_no_list() -> None:
    assert session_of(absent("not_asked")) == Session(None, None, ())


@pytest.mark.parametrize(
    ("pci", "known", "expected"),
    [
        pytest.param("00000000:18:00.0", {"0000:18:00.0"}, "0000:18:00.0", id="eight-digits"),
        pytest.param("0000000F:01:00.0", {"000f:01:00.0"}, "000f:01:00.0", id="gb10"),
        # NVIDIA/nvidia-docker#1316: an Azure virtual machine with a P100
        pytest.param("03F8CFDD:00:00.0", {"cfdd:00:00.0"}, "cfdd:00:00.0", id="hyper-v"),
        pytest.param("00010000:01:00.0", {"10000:01:00.0"}, "10000:01:00.0", id="vmd"),
        pytest.param("03f8cfdd:00:00.0", set(), "3f8cfdd:00:00.0", id="nothing-known"),
    ],
)
def test_addresses_are_those_of_the_kernel(pci: str, known: set[str], expected: str) -> None:
    assert bus_address(pci, known) == expected
