"""Processors and memory, which the lab cannot take apart: files over /proc and /sys say so."""

from __future__ import annotations

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

_EDAC = "/sys/devices/system/edac/mc/mc0"
_POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
_NODES = "/sys/devices/system/node"


def _other_processor(host: Host, lab: Lab) -> Fault:
    lines = host.read("/proc/cpuinfo").splitlines()
    told = [
        "model name\t: Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz"
        if x.startswith("model name")
        else x
        for x in lines
    ]
    return faults.file_over(host, "/proc/cpuinfo", "\n".join([*told, ""]))


def _less_memory(host: Host, lab: Lab) -> Fault:
    lines = host.read("/proc/meminfo").splitlines()
    total = int(lines[0].split()[1])
    return faults.file_over(
        host, "/proc/meminfo", "\n".join([f"MemTotal: {total * 15 // 16} kB", *lines[1:], ""])
    )


def _little_free(host: Host, lab: Lab) -> Fault:
    """What a RAM disk or a forgotten process holds is missing."""
    rows = host.read("/proc/meminfo").splitlines()
    total = int(rows[0].split()[1])
    told = [f"MemAvailable: {total // 64} kB" if "MemAvailable" in x else x for x in rows]
    return faults.file_over(host, "/proc/meminfo", "\n".join([*told, ""]))


def _says(host: Host, program: str, *lines: str) -> Fault:
    """A program that prints these lines whatever it is asked, in the place of one not here."""
    text = "\n".join(["#!/bin/sh", "cat <<'END'", *lines, "END", ""])
    return faults.written(host, f"/usr/local/bin/{program}", text, 0o755)


def _dead_fan(host: Host, lab: Lab) -> Fault:
    names = ("Power Overload", "Main Power Fault", "Power Control Fault", "Drive Fault")
    chassis = [f"{name:<21}: false" for name in names]
    log = ("Entries          : 187", "Percent Used     : 18%", "Overflow         : false")
    return _says(host, "ipmitool", *chassis, "Cooling/Fan Fault    : true", *log)


def _old_container_library(host: Host, lab: Lab) -> Fault:
    return _says(host, "nvidia-container-cli", "cli-version: 1.16.1", "lib-version: 1.16.1")


def _swapped(host: Host, lab: Lab) -> Fault:
    header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    return faults.file_over(
        host, "/proc/swaps", header + "/swap.img file\t\t8388604\t\t524288\t\t-2\n"
    )


def _lost_data(host: Host, lab: Lab) -> Fault:
    files = {f"{_EDAC}/ue_count": "2\n", f"{_EDAC}/ce_count": "12\n"}
    dimm = {
        f"{_EDAC}/dimm3/dimm_ue_count": "2\n",
        f"{_EDAC}/dimm3/dimm_label": "CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n",
    }
    return faults.sys_tree(host, files | dimm)


def _powersave(host: Host, lab: Lab) -> Fault:
    words = {
        "scaling_driver": "intel_cpufreq",
        "scaling_governor": "powersave",
        "energy_performance_preference": "",
    }
    return faults.sys_tree(host, {f"{_POLICY}/{name}": f"{word}\n" for name, word in words.items()})


def _two_numa_nodes(host: Host, lab: Lab) -> Fault:
    files = {
        f"{_NODES}/node0/cpulist": "0\n",
        f"{_NODES}/node1/cpulist": "1\n",
        f"{_NODES}/has_memory": "0\n",
    }
    return faults.sys_tree(host, files)


def _balanced(host: Host, lab: Lab) -> Fault:
    """Where there are two nodes to move between."""
    online = faults.file_over(host, f"{_NODES}/online", "0-1\n")
    return faults.together(online, faults.own_sysctl(host, "kernel.numa_balancing", "1"))


ROWS = (
    Row("another processor", "cpu.model", _other_processor, "laid over"),
    Row(
        "a sixteenth of the memory missing",
        "mem.size",
        _less_memory,
        "laid over",
        also={"mem.free": "what is free there stays as it was when the file was laid over"},
    ),
    Row("most of the memory taken", "mem.free", _little_free, "laid over"),
    Row("a fan that stands still", "ipmi.sensors", _dead_fan, "laid over"),
    Row("an old container toolkit", "sw.security", _old_container_library, "laid over"),
    Row("memory in swap", "mem.swap", _swapped, "laid over"),
    Row("uncorrected memory errors", "mem.errors", _lost_data, "laid over"),
    Row("governor powersave", "cpu.governor", _powersave, "laid over"),
    Row("another NUMA layout", "numa.nodes", _two_numa_nodes, "laid over"),
    Row(
        "all queues of a card on one CPU",
        "irq.balance",
        lambda host, lab: faults.crowded_interrupts(host, "eth0"),
        "laid over",
        also={"eth.speed": "no other host has a card, so there is no speed to compare"},
        apart=("eth.speed",),
    ),
    Row("memory moved between NUMA nodes", "numa.balancing", _balanced, "laid over"),
)
# On machines that have a BIOS, as the lab's own hosts do not.
HGX_ROWS = (
    Row(
        "an older BIOS",
        "fw.bios",
        lambda host, lab: faults.file_over(host, "/sys/class/dmi/id/bios_version", "1.01.00\n"),
        "laid over",
    ),
)
