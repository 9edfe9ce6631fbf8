"""Driver libraries and NVMe disks, read from the files of a described machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent import hardware
from tests.machines import Machine
from tests.machines.play import answers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot")
INVENTORY = Inventory("test", (Node("n1", "10.0.0.1", 0),))
LIB = "/usr/lib/x86_64-linux-gnu"


def asked(kind: str, files: Mapping[str, str], **machine: Any) -> Any:
    read = Read(kind)
    described = Machine("n1", "10.0.0.1", files, **machine)
    return answers(described, [read], INVENTORY)[read]


def cache(*paths: str) -> str:
    """A cache of the loader: a header, then names and paths, each ended by a zero byte."""
    entries = [f"{path.rpartition('/')[2]}\0{path}\0" for path in paths]
    return "glibc-ld.so.cache1.1\0\0\0" + "".join(entries)


@pytest.mark.machine
@needs_root
def test_libraries_of_the_cache_with_what_they_lead_to() -> None:
    names = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libm.so.6")
    files = {
        "/etc/ld.so.cache": cache(*(f"{LIB}/{name}" for name in names)),
        f"{LIB}/libcuda.so.550.54.15": "ELF",
        f"{LIB}/libnvidia-ml.so.550.54.15": "",
        f"{LIB}/libm.so.6": "ELF",
    }
    links = {
        f"{LIB}/libcuda.so.1": "libcuda.so.550.54.15",
        f"{LIB}/libnvidia-ml.so.1": "libnvidia-ml.so.550.54.15",
        f"{LIB}/libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.550.54.15",
    }
    assert asked("driver_libraries", files, links=links) == [
        "ok",
        [
            [f"{LIB}/libcuda.so.1", 3, "libcuda.so.550.54.15"],
            [f"{LIB}/libnvidia-ml.so.1", 0, "libnvidia-ml.so.550.54.15"],
            [f"{LIB}/libnvidia-ptxjitcompiler.so.1", None, None],
        ],
    ]


@pytest.mark.machine
@needs_root
def test_a_machine_without_a_cache_has_no_libraries() -> None:
    assert asked("driver_libraries", {"/etc/hosts": ""}) == ["ok", []]


@pytest.mark.machine
@needs_root
def test_disks_of_sysfs_where_no_tool_is_installed() -> None:
    files = {
        "/sys/class/nvme/nvme0/model": "SAMSUNG MZQL23T8HCLS-00A07              \n",
        "/sys/class/nvme/nvme0/serial": "S64HNE0T000001      \n",
        "/sys/class/nvme/nvme0/firmware_rev": "GDC5902Q\n",
        "/sys/class/nvme/nvme0/state": "live\n",
        "/sys/class/nvme/nvme0/transport": "pcie\n",
    }
    disk = {
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "serial": "S64HNE0T000001",
        "firmware_rev": "GDC5902Q",
        "state": "live",
        "transport": "pcie",
    }
    expected = {"disks": {"nvme0": disk}, "tool": None, "health": {}}
    assert asked("nvme", files) == ["ok", expected]


def test_the_first_tool_that_is_installed_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "smartctl"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    name, health = hardware._health(["nvme0", "nvme1"])
    assert name == "smartctl"
    assert health["nvme1"] == ["ok", {"code": 0, "out": "-j -A /dev/nvme1\n", "err": ""}]
