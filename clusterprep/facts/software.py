"""Versions of what stands around NCCL: driver, EFA, libfabric, NVIDIA's container toolkit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, command, file
from clusterprep.facts.gpu import parse_driver
from clusterprep.model import Inventory, Node, Read

# The file that AWS's installer leaves: «# EFA installer version: 1.30.0» (the fifth word of the
# first line), then the packages as dpkg or rpm name their files, such as
# libfabric-aws-1.19.0amzn3.0-1.x86_64 and aws-ofi-nccl-1.7.4.
EFA_FILE = "/opt/amazon/efa_installed_packages"
_INSTALLER = re.compile(r"EFA installer version: (\d+(?:\.\d+)+)")
_EFA_PACKAGES = {
    "libfabric": re.compile(r"\blibfabric-aws(?:-bin)?[-_](\d+(?:\.\d+)+)"),
    "aws-ofi-nccl": re.compile(r"\b(?:aws-ofi-nccl|libnccl-ofi(?:-ngc)?)[-_](\d+(?:\.\d+)+)"),
}
# Where pkg-config files of libfabric are. «*» stands for one name.
_LIBFABRIC = (
    "/opt/amazon/efa/*/pkgconfig/libfabric.pc",
    "/usr/lib/*/pkgconfig/libfabric.pc",
    "/usr/lib64/pkgconfig/libfabric.pc",
    "/usr/local/lib/pkgconfig/libfabric.pc",
    "/opt/cray/libfabric/*/lib64/pkgconfig/libfabric.pc",
)
_PC_VERSION = re.compile(r"^Version: *(\d\S*)$", re.MULTILINE)
_LIBRARY = re.compile(r"^lib-version: (\d[\w.~+-]*)$", re.MULTILINE)
_TOOLKIT = re.compile(r"NVIDIA Container Toolkit CLI version (\d[\w.~+-]*)")


def parse_module_kind(text: str | None) -> str | None:
    """Return "open" or "closed" for the loaded kernel module, None where no driver is loaded.

    The open one writes «NVIDIA UNIX Open Kernel Module for x86_64».
    """
    if parse_driver(text) is None:
        return None
    return "open" if "Open Kernel Module" in (text or "") else "closed"


def parse_efa(text: str | None) -> dict[str, str]:
    """Return the versions of EFA's installer, libfabric and NCCL plug-in, as far as they are there.

    Empty where EFA was not installed. Raises ValueError if the installer's version is missing.
    """
    if text is None:
        return {}
    installer = _INSTALLER.search(text)
    if installer is None:
        raise ValueError(f"{EFA_FILE} names no version of the installer")
    versions = {"efa-installer": installer[1]}
    for name, pattern in _EFA_PACKAGES.items():
        package = pattern.search(text)
        if package is not None:
            versions[name] = package[1]
    return versions


def parse_libfabric(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the versions of libfabric that are installed for building, in ascending paths."""
    versions: dict[str, None] = {}
    for path, text in sorted(files.items()):
        match = _PC_VERSION.search(text)
        if match is None:
            raise ValueError(f"{path} names no version")
        versions[match[1]] = None
    return tuple(versions)


def parse_toolkit(answer: Mapping[str, Any]) -> str:
    """Return the version of NVIDIA's container toolkit.

    `nvidia-ctk --version` prints «NVIDIA Container Toolkit CLI version 1.17.8» and the commit.
    """
    match = _TOOLKIT.search(answer["out"])
    if answer["code"] != 0 or match is None:
        raise ValueError(f"nvidia-ctk ended with {answer['code']}: {answer['out']!r:.80}")
    return match[1]


def parse_container_library(answer: Mapping[str, Any]) -> str:
    """Return the version of libnvidia-container.

    It starts containers for the toolkit and has its versions; `nvidia-container-cli --version`
    prints «cli-version: 1.17.8», «lib-version: 1.17.8» and how it was built.
    """
    match = _LIBRARY.search(answer["out"])
    if answer["code"] != 0 or match is None:
        raise ValueError(f"nvidia-container-cli ended with {answer['code']}: {answer['out']!r:.80}")
    return match[1]


def _libfabric_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("files", _LIBFABRIC),)


MODULE = Fact("nv.module", file("/proc/driver/nvidia/version"), parse_module_kind)
EFA = Fact("efa.packages", file(EFA_FILE), parse_efa)
LIBFABRIC = Fact("net.libfabric", _libfabric_reads, parse_libfabric)
TOOLKIT = Fact(
    "container.toolkit",
    command("nvidia-ctk", "--version"),
    parse_toolkit,
    costly=("command",),
)
CONTAINER_LIBRARY = Fact(
    "container.library",
    command("nvidia-container-cli", "--version"),
    parse_container_library,
    costly=("command",),
)
