"""Versions around NCCL, as the files and commands of nodes tell them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import learned

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs)\n"
    "GCC version:  gcc version 11.4.0\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
)
# The first line is what the cookbook of AWS ParallelCluster and DeepEP's Dockerfile look for; the
# package names are those that rpm and dpkg give these packages. The rest is composed.
EFA = (
    "# EFA installer version: 1.30.0\n# Debug packages installed: no\n# Packages installed:\n"
    "efa-config-1.15-1.amzn2.noarch libfabric-aws-1.19.0amzn3.0-1.amzn2.x86_64 "
    "libfabric-aws-devel-1.19.0amzn3.0-1.amzn2.x86_64 aws-ofi-nccl-1.7.4-1.x86_64\n"
)
EFA_DEB = (
    "# EFA installer version: 1.43.2\n"
    "libfabric-aws-bin_2.1.0amzn5.0_amd64 libnccl-ofi_1.16.3-1_amd64\n"
)


@pytest.mark.parametrize(("text", "kind"), [(OPEN, "open"), (CLOSED, "closed"), (None, None)])
def test_the_kind_of_driver(text: str | None, kind: str | None) -> None:
    answer = ["ok", text]
    assert learned("nv.module", answer) == kind


def test_the_efa_software() -> None:
    assert learned("efa.packages", ["ok", EFA]) == {
        "efa-installer": "1.30.0",
        "libfabric": "1.19.0",
        "aws-ofi-nccl": "1.7.4",
    }
    assert learned("efa.packages", ["ok", EFA_DEB]) == {
        "efa-installer": "1.43.2",
        "libfabric": "2.1.0",
        "aws-ofi-nccl": "1.16.3",
    }
    assert learned("efa.packages", ["ok", None]) == {}
    assert learned("efa.packages", ["ok", "something else\n"]).reason == "garbled"


def test_libfabric_of_pkg_config() -> None:
    text = "prefix=/opt/amazon/efa\nName: libfabric\nVersion: 1.22.0amzn4.0\nLibs: -lfabric"
    files = {"/opt/amazon/efa/lib64/pkgconfig/libfabric.pc": text}
    assert learned("net.libfabric", ["ok", files]) == ("1.22.0amzn4.0",)
    assert learned("net.libfabric", ["ok", {}]) == ()


# As several people show it in their notes.
CTK = (
    "NVIDIA Container Toolkit CLI version 1.17.8\n"
    "commit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (["ok", {"code": 0, "out": CTK, "err": ""}], "1.17.8"),
    ],
)
def test_the_container_toolkit(answer: Any, version: str | None) -> None:
    assert learned("container.toolkit", answer) == version


@pytest.mark.parametrize("out", ["", "Segmentation fault\n"])
def test_a_toolkit_that_does_not_say_its_version_is_garbled(out: str) -> None:
    answer = ["ok", {"code": 139, "out": out, "err": ""}]
    assert learned("container.toolkit", answer).reason == "garbled"


# A user's report to nvidia-docker shows it, with how it was built.
CLI = (
    "cli-version: 1.10.0\nlib-version: 1.10.0\nbuild date: 2022-06-13T10:39+00:00\n"
    "build revision: 395fd41701117121f1fd04ada01e1d7e006a37ae\n"
)


def test_the_library_of_the_container_toolkit() -> None:
    answer = ["ok", {"code": 0, "out": CLI, "err": ""}]
    assert learned("container.library", answer) == "1.10.0"
    missing = learned("container.library", ["no", "missing_tool", "not there"])
    assert missing.reason == "missing_tool"
    broken = ["ok", {"code": 1, "out": "", "err": "libnvidia-container.so.1: no such file\n"}]
    assert learned("container.library", broken).reason == "garbled"
