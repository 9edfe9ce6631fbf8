"""Device nodes, libraries and the fabric manager, read from the files of a described machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent.gpu_devices import has_switches_apart, read_imex
from tests.machines import Machine
from tests.machines.play import answers
from tests.support import nvml

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot"),
]
INVENTORY = Inventory("test", (Node("n1", "10.0.0.1", 0),))


def asked(kind: str, *args: str, **machine: Any) -> Any:
    read = Read(kind, args)
    return answers(Machine("n1", "10.0.0.1", **machine), [read], INVENTORY)[read]


def test_device_nodes_and_bound_devices() -> None:
    files = {
        "/dev/nvidia0": "",
        "/dev/nvidia11": "",
        "/dev/nvidiactl": "",
        "/dev/nvidia-uvm": "",
        "/proc/driver/nvidia/gpus/0000:18:00.0/information": "Device Minor: 0\n",
    }
    expected = {"nodes": {"0": "open", "11": "open"}, "bound": ["0000:18:00.0"]}
    assert asked("gpu_nodes", files=files) == ["ok", expected]


def test_a_machine_without_gpus() -> None:
    assert asked("gpu_nodes", files={"/dev/null": ""}) == ["ok", {"nodes": {}, "bound": []}]
    assert asked("nvml_libraries", files={"/usr/lib/x": ""}) == ["ok", {}]


def test_the_library_and_what_it_leads_to() -> None:
    path = f"/usr/lib/x86_64-linux-gnu/{nvml.SONAME}"
    gpus = ({"count": 1}, {"system": {"library": "535.183.01"}})
    assert asked("nvml_libraries", gpus=gpus) == ["ok", {path: "libnvidia-ml.so.535.183.01"}]
    files = {"/usr/lib64/libnvidia-ml.so.470.1": "x"}
    links = {"/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.470.1"}
    assert asked("nvml_libraries", files=files, links=links) == [
        "ok",
        {"/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.470.1"},
    ]


def test_a_link_that_leads_nowhere_is_no_library() -> None:
    links = {"/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.470.1"}
    assert asked("nvml_libraries", files={"/usr/lib/x": ""}, links=links) == ["ok", {}]


def test_functions_of_the_bus_with_their_numa_node_and_first_word() -> None:
    folder = "/sys/bus/pci/devices/0000:18:00.0"
    files = {
        f"{folder}/vendor": "0x10de\n",
        f"{folder}/class": "0x030200\n",
        f"{folder}/numa_node": "1\n",
    }
    row = {"pci": "0000:18:00.0", "class": "0x030200", "numa": "1", "config": None}
    assert asked("pci", "0x10de", files=files) == ["ok", [row]]
    assert asked("pci", "0x10de", files={**files, f"{folder}/config": "\x7f\x45LF…"}) == [
        "ok",
        [{**row, "config": "7f454c46"}],
    ]
    assert asked("pci", "0x15b3", files=files) == ["ok", []]


def test_the_library_answers_in_the_machines_own_root() -> None:
    """What a fleet describes is what the reader of NVML sees there."""
    word, answer = asked(
        "nvml", gpus=({"count": 2, "model": "l20"}, {"system": {"driver": "570.124.06"}})
    )
    assert (word, answer["driver"]) == ("ok", "570.124.06")
    assert [gpu["name"] for gpu in answer["gpus"]] == ["NVIDIA L20"] * 2


def test_a_library_lies_where_a_debian_machine_has_it(tmp_path: Path) -> None:
    made = nvml.build(tmp_path, [{"count": 1}], driver="570.124.06")
    assert made == tmp_path / nvml.SONAME
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "libnvidia-ml.so.1",
        "libnvidia-ml.so.570.124.06",
        nvml.DESCRIBED,
    ]


def test_a_driver_without_its_library_is_no_machine_without_gpus() -> None:
    """As where the GPU operator keeps the driver in a container."""
    files = {"/proc/driver/nvidia/gpus/0000:18:00.0/information": "Device Minor: 0\n"}
    assert asked("nvml", files=files) == ["ok", None]  # a container that was given no GPU
    files["/dev/nvidia0"] = ""
    why = "no libnvidia-ml.so.1 here, although the driver has GPUs: 1"
    assert asked("nvml", files=files) == ["no", "no_nvml_library", why]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("de100129", True),  # HGX B200
        ("de108231", True),  # HGX B300
        ("de104129", False),  # GB200: the switches of its rack have their own hosts
        ("de103023", False),  # H100: its switches are on the bus
        ("ffffffff", False),
        (None, False),
    ],
)
def test_gpus_whose_switches_are_no_devices_of_this_host(
    config: str | None, expected: bool
) -> None:
    row = {"pci": "0000:8f:00.0", "class": "0x030200", "numa": "0", "config": config}
    assert has_switches_apart([row]) is expected


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("active", ["active", "inactive"])
def test_imex(tmp_path: Path, active: str) -> None:
    systemctl, control = tmp_path / "systemctl", tmp_path / "nvidia-imex-ctl"
    program(systemctl, f"echo LoadState=loaded; echo ActiveState={active}")
    program(control, 'echo "$*"')
    nodes = tmp_path / "nodes_config.cfg"
    nodes.write_text("# of this domain\n192.0.2.1\n\n192.0.2.2\n")
    assert read_imex(str(control), str(nodes), str(systemctl)) == {
        "state": f"LoadState=loaded\nActiveState={active}\n",
        "domain": "-N -j\n" if active == "active" else None,
        "nodes": 2,
    }
    nodes.unlink()
    assert read_imex(str(control), str(nodes), str(systemctl))["nodes"] is None
    assert read_imex(str(tmp_path / "not-there")) is None
