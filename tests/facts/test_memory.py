"""The kernel's files about memory: meminfo, EDAC, swaps, NUMA nodes and their balancing."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.memory import EDAC, NODES, Errors, NumaNode, Swap
from clusterprep.model import Absent
from tests.support.fleet import learned

MEMINFO = (
    "MemTotal:       2113419832 kB\nMemFree:        2051604380 kB\nSwapTotal:             0 kB\n"
)
METAL = {"cpuinfo": "model name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu tsc\n"}
GUEST = {"cpuinfo": "model name\t: AMD EPYC\nflags\t\t: fpu tsc hypervisor\n"}
# Graviton3E: Arm processors have no flag of a hypervisor, so the firmware's name decides.
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nFeatures\t: fp asimd\n"
ARM_GUEST = {"cpuinfo": ARM, "guest": True}
ARM_METAL = {"cpuinfo": ARM, "guest": False}


def reason(found: object) -> str:
    assert isinstance(found, Absent), found
    return found.reason


def test_memory_is_counted_in_bytes() -> None:
    assert learned("mem.total", ["ok", MEMINFO]) == 2_113_419_832 << 10


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(["ok", ""], id="empty"),
        pytest.param(["ok", "MemTotal:       21134"], id="cut"),
        pytest.param(["ok", "MemFree: 1 kB\n"], id="no-total"),
        pytest.param(["ok", "Mémoire totale: 2113419832 kB\n"], id="another-language"),
        pytest.param(["ok", 2113419832], id="another-type"),
        pytest.param(["no", "missing", ""], id="no-file"),
    ],
)
def test_what_is_no_meminfo_is_garbled(answer: list[Any]) -> None:
    assert reason(learned("mem.total", answer)) == "garbled"


# ---------------------------------------------------------------- errors


def controllers(*counts: tuple[str, str], **more: str) -> dict[str, str]:
    """Files of memory controllers: (uncorrected, corrected) of each, and others below mc0."""
    files = {}
    for n, (uncorrected, corrected) in enumerate(counts):
        files |= {f"{EDAC}/mc{n}/ue_count": uncorrected, f"{EDAC}/mc{n}/ce_count": corrected}
    return {**files, **{f"{EDAC}/mc0/dimm0/{name}": text for name, text in more.items()}}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(controllers(("0", "0"), ("0", "0")), Errors(0, 0), id="none"),
        pytest.param(controllers(("0", "3"), ("0", "4")), Errors(0, 7), id="corrected"),
        pytest.param(controllers(("0", "0"), ("2", "0")), Errors(2, 0), id="the-second-controller"),
        pytest.param(
            controllers(("1", "0"), dimm_ue_count="1", dimm_label="CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
            Errors(1, 0, ("CPU_SrcID#0_MC#0_Chan#0_DIMM#0",)),
            id="labelled",
        ),
        pytest.param(
            controllers(("1", "0"), dimm_ue_count="1", dimm_label=""),
            Errors(1, 0, ("mc0 dimm0",)),
            id="no-label",
        ),
        pytest.param(
            controllers(("0", "0"), dimm_ue_count="0", dimm_label="A1"),
            Errors(0, 0),
            id="healthy-module",
        ),
    ],
)
def test_errors_are_those_of_all_controllers(files: dict[str, str], expected: Errors) -> None:
    assert learned("mem.errors", ["ok", files], ["ok", METAL]) == expected


@pytest.mark.parametrize(
    ("files", "cpus", "expected"),
    [
        pytest.param(["ok", {}], ["ok", METAL], "missing_tool", id="no-driver"),
        pytest.param(["ok", {}], ["ok", GUEST], "not_applicable", id="virtual-machine"),
        pytest.param(["ok", {}], ["ok", ARM_GUEST], "not_applicable", id="virtual-machine-on-arm"),
        pytest.param(["ok", {}], ["ok", ARM_METAL], "missing_tool", id="no-edac-on-arm"),
        pytest.param(
            ["ok", {}], ["no", "denied", ""], "missing_tool", id="what-machine-it-is-was-denied"
        ),
        pytest.param(["ok", {}], ["no", "missing", ""], "missing_tool", id="no-cpuinfo"),
        pytest.param(["no", "hung", ""], ["ok", GUEST], "hung", id="hung"),
        pytest.param(
            ["ok", {f"{EDAC}/mc0/ce_count": "0"}],
            ["ok", METAL],
            "garbled",
            id="uncorrected-unreadable",
        ),
        pytest.param(["ok", controllers(("", "0"))], ["ok", METAL], "garbled", id="empty"),
        pytest.param(["ok", controllers(("none", "0"))], ["ok", METAL], "garbled", id="words"),
        pytest.param(["ok", "0"], ["ok", METAL], "garbled", id="another-type"),
    ],
)
def test_errors_that_nobody_counts_are_not_none(
    files: list[Any], cpus: list[Any], expected: str
) -> None:
    assert reason(learned("mem.errors", files, cpus)) == expected


# ---------------------------------------------------------------- swap

HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(HEADER, (), id="none"),
        pytest.param(
            HEADER + "/swap.img                               file\t\t8388604\t\t0\t\t-2\n",
            (Swap("/swap.img", 8388604 << 10, 0),),
            id="unused-file",
        ),
        pytest.param(
            "Filename Type Size Used Priority\n"
            "/dev/dm-1 partition 4194300 512 -2\n"
            "/my\\040swap file 1024 4 10\n",
            (Swap("/dev/dm-1", 4194300 << 10, 512 << 10), Swap("/my swap", 1 << 20, 4 << 10)),
            id="two-in-use-and-a-blank",
        ),
    ],
)
def test_swaps_are_sizes_in_bytes(text: str, expected: tuple[Swap, ...]) -> None:
    assert learned("mem.swaps", ["ok", text]) == expected


def test_a_kernel_without_swap_has_none() -> None:
    assert learned("mem.swaps", ["no", "missing", "/proc/swaps"]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Welcome\n",
        "Datei Typ Größe Benutzt Priorität\n",
        HEADER + "/swap.img file 8388604",
        HEADER + "a b c d e\n",
    ],
)
def test_what_is_no_list_of_swaps_is_garbled_and_not_none(text: str) -> None:
    assert reason(learned("mem.swaps", ["ok", text])) == "garbled"


# ---------------------------------------------------------------- NUMA


def numa(*cpus: str, memory: str = "0-1") -> list[Any]:
    return [
        "ok",
        {f"{NODES}/node{n}/cpulist": text for n, text in enumerate(cpus)}
        | {f"{NODES}/has_memory": memory},
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            numa("0-55,112-167", "56-111,168-223"),
            (NumaNode(0, "0-55,112-167", True), NumaNode(1, "56-111,168-223", True)),
            id="two-sockets",
        ),
        pytest.param(
            numa("0-1", "2-3", memory="0"),
            (NumaNode(0, "0-1", True), NumaNode(1, "2-3", False)),
            id="one-is-empty",
        ),
        pytest.param(
            numa("0-71", ""),
            (NumaNode(0, "0-71", True), NumaNode(1, "", True)),
            id="memory-without-cpus",
        ),
        pytest.param(numa("0", memory="0"), (NumaNode(0, "0", True),), id="one-cpu"),
    ],
)
def test_numa_nodes_have_cpus_and_memory(answer: list[Any], expected: tuple[NumaNode, ...]) -> None:
    assert learned("numa.nodes", answer) == expected


def test_nodes_are_in_the_order_of_their_numbers() -> None:
    found = learned("numa.nodes", numa(*map(str, range(12)), memory="0-11"))
    assert [node.number for node in found] == list(range(12))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            ["ok", {f"{NODES}/has_memory": "0"}], "not_applicable", id="a-kernel-without-numa"
        ),
        pytest.param(["ok", {f"{NODES}/node0/cpulist": "0-3"}], "garbled", id="memory-unreadable"),
        pytest.param(numa("0-", memory="0"), "garbled", id="cut"),
        pytest.param(numa("all", memory="0"), "garbled", id="words"),
        pytest.param(numa("0-3", memory=""), "garbled", id="no-memory-anywhere"),
        pytest.param(["no", "denied", ""], "denied", id="denied"),
    ],
)
def test_a_layout_that_cannot_be_read_is_not_known(answer: list[Any], expected: str) -> None:
    assert reason(learned("numa.nodes", answer)) == expected


@pytest.mark.parametrize(
    ("setting", "online", "expected"),
    [
        pytest.param(["ok", "0\n"], ["ok", "0-1\n"], 0, id="off"),
        pytest.param(["ok", "1\n"], ["ok", "0-1\n"], 1, id="on"),
        pytest.param(["ok", "2\n"], ["ok", "0,2\n"], 2, id="tiers"),
        pytest.param(["ok", "1\n"], ["no", "missing", ""], 1, id="no-list-of-nodes"),
    ],
)
def test_balancing_is_a_number(setting: list[Any], online: list[Any], expected: int) -> None:
    assert learned("numa.balancing", setting, online) == expected


@pytest.mark.parametrize(
    ("setting", "online", "expected"),
    [
        pytest.param(["ok", "1\n"], ["ok", "0\n"], "not_applicable", id="one-node"),
        pytest.param(
            ["no", "missing", ""], ["ok", "0-1\n"], "not_applicable", id="a-kernel-without-it"
        ),
        pytest.param(["ok", ""], ["ok", "0-1\n"], "garbled", id="empty"),
        pytest.param(["ok", "off"], ["ok", "0-1\n"], "garbled", id="a-word"),
        pytest.param(["no", "denied", ""], ["ok", "0-1\n"], "denied", id="denied"),
    ],
)
def test_balancing_that_is_not_known_is_not_off(
    setting: list[Any], online: list[Any], expected: str
) -> None:
    assert reason(learned("numa.balancing", setting, online)) == expected


@pytest.mark.parametrize("memory", ["0-1024", "0-99999999999", "-1", "0--1"])
def test_more_numa_nodes_than_a_kernel_counts_are_none(memory: str) -> None:
    assert learned("numa.nodes", numa("0-1", "2-3", memory=memory)).reason == "garbled"
