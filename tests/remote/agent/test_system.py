"""Readers of the machine, inside roots that look like several.

Processors, governors, kernels, users, interrupts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from clusterprep.model import Inventory, Read
from clusterprep.remote.agent import system
from tests.machines import Machine
from tests.machines.play import answers

CPU = "/sys/devices/system/cpu"
PASSWD = "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:100:Alice:/home/alice:/bin/bash\n"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


def asked(
    files: Mapping[str, str], kind: str, *args: Any, links: Mapping[str, str] | None = None
) -> Any:
    """What the reader answers on a machine with these files."""
    read = Read(kind, args)
    machine = Machine("n1", "10.0.0.1", files, links or {})
    return answers(machine, [read], Inventory("test", ()))[read]


def topology(sockets: int, cores: int, threads: int) -> dict[str, str]:
    """Files of processors numbered as Intel and AMD do: all first threads, then all second ones."""
    cpuinfo = "processor\t: 0\nmodel name\t: EPYC\n\nprocessor\t: 1\nmodel name\t: EPYC\n"
    files = {"/proc/cpuinfo": cpuinfo}
    total = sockets * cores
    for cpu in range(total * threads):
        core = cpu % total
        siblings = ",".join(str(core + total * thread) for thread in range(threads))
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = f"{core // cores}\n"
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{siblings}\n"
    return files


@pytest.mark.machine
@needs_root
@pytest.mark.parametrize(("sockets", "cores", "threads"), [(2, 4, 2), (1, 4, 1), (2, 3, 1)])
def test_sockets_cores_and_processors_are_counted(sockets: int, cores: int, threads: int) -> None:
    word, value = asked(topology(sockets, cores, threads), "cpus")
    assert word == "ok"
    assert value["cpuinfo"] == "processor\t: 0\nmodel name\t: EPYC"
    assert (value["sockets"], value["cores"], value["cpus"]) == (
        sockets,
        sockets * cores,
        sockets * cores * threads,
    )


@pytest.mark.machine
@needs_root
def test_a_machine_without_cpuinfo_says_so() -> None:
    assert asked({}, "cpus")[:2] == ["no", "missing"]


def policies(driver: str, **governors: str) -> dict[str, str]:
    files = {}
    for policy, governor in governors.items():
        folder = f"{CPU}/cpufreq/{policy}"
        files |= {
            f"{folder}/scaling_driver": f"{driver}\n",
            f"{folder}/scaling_governor": f"{governor}\n",
        }
    return files


@pytest.mark.machine
@needs_root
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, [], id="none"),
        pytest.param(
            policies(
                "acpi-cpufreq", policy0="performance", policy1="performance", policy2="ondemand"
            ),
            [
                ["acpi-cpufreq", "ondemand", None, 1, "policy2"],
                ["acpi-cpufreq", "performance", None, 2, "policy0"],
            ],
            id="one-odd",
        ),
        pytest.param(
            policies("intel_pstate", policy0="powersave")
            | {f"{CPU}/cpufreq/policy0/energy_performance_preference": "balance_performance\n"},
            [["intel_pstate", "powersave", "balance_performance", 1, "policy0"]],
            id="preference",
        ),
    ],
)
def test_governors_are_gathered(files: dict[str, str], expected: list[Any]) -> None:
    assert asked(files, "governors") == ["ok", expected]


@pytest.mark.machine
@needs_root
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, [], id="container"),
        pytest.param(
            {
                "/boot/vmlinuz-5.15.0-105-generic": "",
                "/boot/vmlinuz-5.15.0-107-generic": "",
                "/boot/vmlinuz": "",
                "/boot/config-6.8.0": "",
                "/lib/modules/6.5.0/modules.dep": "",
            },
            ["5.15.0-105-generic", "5.15.0-107-generic"],
            id="ubuntu-and-modules-left-behind",
        ),
        pytest.param(
            {"/lib/modules/6.10.5-200.fc40.x86_64/vmlinuz": ""},
            ["6.10.5-200.fc40.x86_64"],
            id="fedora",
        ),
    ],
)
def test_kernels_are_those_that_could_be_booted(files: dict[str, str], expected: list[str]) -> None:
    assert asked(files, "kernels") == ["ok", expected]


@pytest.mark.machine
@needs_root
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param("alice", {"uid": 1000, "gid": 100}, id="local"),
        pytest.param("nobody-has-this-name", None, id="unknown"),
        pytest.param(None, {"uid": 0, "gid": 0}, id="this-user"),
    ],
)
def test_an_account_is_found_in_passwd(user: str | None, expected: Any) -> None:
    assert asked({"/etc/passwd": PASSWD}, "account", user) == ["ok", expected]


@pytest.mark.machine
@needs_root
def test_root_asks_no_sudo() -> None:
    assert asked({}, "rights") == ["ok", {"uid": 0, "user": "root", "sudo": None}]


# ---------------------------------------------------------------- interrupts

INTERRUPTS = """\
            CPU0       CPU1       CPU2
  24:          1          0          0   IO-APIC   5-edge      ACPI:Ged
  40:       1000          7          0  PCI-MSIX-0000:00:01.0   0-edge      eth0-TxRx-0
  41:          0       2000          0  PCI-MSIX-0000:00:01.0   1-edge      eth0-TxRx-1
 NMI:          3          3          3   Non-maskable interrupts
"""
CARD = "/sys/devices/pci0000:00/0000:00:01.0"


@pytest.mark.machine
@needs_root
def test_lines_belong_to_cards_and_bonds_stand_on_them() -> None:
    files = {
        "/proc/interrupts": INTERRUPTS,
        f"{CARD}/msi_irqs/40": "msix\n",
        f"{CARD}/msi_irqs/41": "msix\n",
        "/sys/class/net/eth0/queues/rx-0/rps_cpus": "0\n",
        "/sys/class/net/eth0/queues/rx-1/rps_cpus": "0\n",
        "/sys/class/net/eth0/queues/tx-0/xps_cpus": "0\n",
        "/sys/class/net/bond0/mtu": "1500\n",
        "/sys/class/net/lo/mtu": "65536\n",
    }
    links = {"/sys/class/net/eth0/device": CARD, "/sys/class/net/bond0/lower_eth0": "../eth0"}
    word, value = asked(files, "interrupts", links=links)
    assert word == "ok"
    assert value["devices"] == [
        {"name": "eth0", "gpu": False, "irqs": ["40", "41"], "queues": 2, "lines": {}}
    ]
    assert value["lower"] == {"bond0": ["eth0"]}
    assert value["seconds"] >= system.WINDOW


@pytest.mark.machine
@needs_root
def test_the_interrupts_of_virtio_belong_to_the_function_above_it() -> None:
    files = {
        f"{CARD}/msi_irqs/40": "msix\n",
        f"{CARD}/virtio0/status": "0x0f\n",
        "/proc/interrupts": INTERRUPTS,
    }
    _, value = asked(files, "interrupts", links={"/sys/class/net/eth0/device": f"{CARD}/virtio0"})
    assert value["devices"][0]["irqs"] == ["40"]


@pytest.mark.machine
@needs_root
def test_gpus_are_what_the_driver_holds_but_for_switches() -> None:
    gpu, switch = "/sys/devices/pci0000:17/0000:1b:00.0", "/sys/devices/pci0000:17/0000:07:00.0"
    files = {
        f"{gpu}/class": "0x030200\n",
        f"{gpu}/msi_irqs/41": "msi\n",
        f"{switch}/class": "0x068000\n",
    }
    files |= {"/sys/bus/pci/drivers/nvidia/new_id": "", "/proc/interrupts": INTERRUPTS}
    links = {f"/sys/bus/pci/drivers/nvidia/{place[-12:]}": place for place in (gpu, switch)}
    _, value = asked(files, "interrupts", links=links)
    assert [(device["name"], device["irqs"]) for device in value["devices"]] == [
        ("0000:1b:00.0", ["41"])
    ]


@pytest.mark.machine
@needs_root
def test_where_no_card_interrupts_nothing_is_waited_for() -> None:
    assert asked({}, "interrupts") == ["ok", {"seconds": system.WINDOW, "devices": [], "lower": {}}]


@pytest.mark.parametrize(
    ("new", "grown"),
    [
        pytest.param(b" 40: 1000 7 0 PCI-MSIX 0-edge eth0", {}, id="nothing"),
        pytest.param(
            b" 40: 1300 7 1 PCI-MSIX 0-edge eth0", {"CPU0": 300, "CPU2": 1}, id="two-cpus"
        ),
        pytest.param(b" 40: 4 7 0 PCI-MSIX 0-edge eth0", {}, id="set-up-anew"),
        pytest.param(b" 40: 1000 7 4 PCI-MSIX 0-edge eth0", {"CPU2": 4}, id="one-more-cpu"),
    ],
)
def test_only_what_grew_is_counted(new: bytes, grown: dict[str, int]) -> None:
    assert (
        system._increase(b" 40: 1000 7 0 PCI-MSIX 0-edge eth0", new, ["CPU0", "CPU1", "CPU2"])
        == grown
    )


def test_counters_go_round_at_32_bits() -> None:
    assert system._increase(b" 40: 4294967290 PCI-MSIX", b" 40: 4 PCI-MSIX", ["CPU0"]) == {
        "CPU0": 10
    }


def test_this_machine_answers_all_of_them() -> None:
    """What the kernel here says has the shape that the facts expect."""
    assert (
        system.read_cpus()["cpus"]
        >= system.read_cpus()["cores"]
        >= system.read_cpus()["sockets"]
        >= 1
    )
    assert system.read_account("root") == {"uid": 0, "gid": 0}
    assert system.read_interrupts()["seconds"] >= system.WINDOW
