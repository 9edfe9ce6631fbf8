"""Leftovers of looking for faults, debuggers, and search paths with another NCCL."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.env_leftovers import DEBUGGING
from clusterprep.facts.environment import Setting
from clusterprep.model import Interfaces
from tests.support.fleet import (
    NO_DEVICES,
    REASONS,
    absent,
    env,
    eth,
    findings,
    fleet,
    rdma_device,
    told,
    torch,
)

PROFILE = "/etc/profile.d/debug.sh"
CHECKS = ("env.bad_cuda", "env.nccl_debug", "env.ld_path")


def node(*settings: Setting, path: str = "login shell", **more: Any) -> dict[str, Any]:
    return {
        **NO_DEVICES,
        "rdma.devices": (rdma_device(),),
        "env.paths": {"login shell": (), "nccl": (), path: settings},
        "env.libraries": {},
        "net.interfaces": (eth("eth0", "10.0.0.1/16"),),
        "torch.build": torch(),
        "ssh.peer": "10.0.0.1",
        **more,
    }


def of(check: str, name: str, value: str, **settings: Any) -> str:
    return told(fleet(each=settings, n1=node(Setting(name, value, PROFILE, 4))), check)["n1"]


@pytest.mark.parametrize("name", DEBUGGING)
def test_debuggers_are_named_with_their_place(name: str) -> None:
    assert of("env.bad_cuda", name, "1") == "fail warning"
    (found,) = findings(fleet(n1=node(Setting(name, "1", PROFILE, 4))), "env.bad_cuda")
    assert f"{name}=1 from {PROFILE} line 4 (login shell)" == found.seen
    assert found.remedy.endswith(f"# &/' {PROFILE}")
    assert "line 4" in found.remedy.note


@pytest.mark.parametrize("value", ["0", "", "false", " 0 "])
def test_a_debugger_that_is_off_is_none(value: str) -> None:
    assert of("env.bad_cuda", "CUDA_LAUNCH_BLOCKING", value) == "pass"


def test_what_is_declared_is_meant() -> None:
    assert (
        of("env.bad_cuda", "CUDA_LAUNCH_BLOCKING", "1", env=env(CUDA_LAUNCH_BLOCKING="1")) == "pass"
    )
    assert of("env.nccl_debug", "NCCL_ALGO", "Ring", env=env(NCCL_ALGO="Ring")) == "pass"
    assert of("env.nccl_debug", "NCCL_ALGO", "Tree", env=env(NCCL_ALGO="Ring")) == "fail warning"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_P2P_DISABLE", "1", "fail warning"),
        ("NCCL_P2P_DISABLE", "0", "pass"),
        ("NCCL_P2P_DISABLE", "true", "pass"),  # acts only when it is exactly 1
        ("NCCL_SHM_DISABLE", "1", "fail warning"),
        ("NCCL_IB_DISABLE", "1", "fail warning"),
        ("NCCL_ALGO", "Ring", "fail warning"),
        ("NCCL_PROTO", "Simple", "fail warning"),
        ("NCCL_PROTO", "", "pass"),
        ("NCCL_DEBUG", "TRACE", "fail warning"),
        ("NCCL_DEBUG", "trace", "fail warning"),
        ("NCCL_DEBUG", "INFO", "pass"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "fail warning"),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", "pass"),
        ("NCCL_NET_GDR_LEVEL", "SYS", "pass"),
    ],
)
def test_workarounds(name: str, value: str, expected: str) -> None:
    assert of("env.nccl_debug", name, value) == expected


def test_what_the_plan_derives_is_no_leftover() -> None:
    assert of("env.nccl_debug", "NCCL_IB_DISABLE", "1", interfaces=Interfaces(rdma=())) == "pass"


def test_an_older_run_of_ours_is_no_leftover() -> None:
    setting = Setting("NCCL_IB_DISABLE", "1", "/etc/profile.d/clusterprep-nccl.sh", 5)
    assert told(fleet(n1=node(setting)), "env.nccl_debug") == {"n1": "pass"}


@pytest.mark.parametrize(
    ("name", "value", "libraries", "expected"),
    [
        ("LD_PRELOAD", "/opt/nccl/libnccl.so.2", {}, "fail warning"),
        ("LD_PRELOAD", "libjemalloc.so.2 /opt/cuda/stubs/libcuda.so", {}, "fail warning"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2", {}, "pass"),
        (
            "LD_LIBRARY_PATH",
            "/opt/nccl",
            {"/opt/nccl": ("libnccl.so", "libnccl.so.2")},
            "fail warning",
        ),
        (
            "LD_LIBRARY_PATH",
            "/opt/x:/opt/nccl",
            {"/opt/x": (), "/opt/nccl": ("libnccl.so.2",)},
            "fail warning",
        ),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64", {"/usr/local/cuda/lib64": ()}, "pass"),
        (
            "LD_LIBRARY_PATH",
            "/opt/cuda/stubs",
            {"/opt/cuda/stubs": ("libcuda.so",)},
            "fail warning",
        ),
        (
            "LD_LIBRARY_PATH",
            "/usr/local/nvidia/lib64",
            {"/usr/local/nvidia/lib64": ("libcuda.so.1",)},
            "pass",
        ),
        ("LD_LIBRARY_PATH", "/usr/lib/x", {"/usr/lib/x": ("libnccl.so.2",)}, "pass"),
        ("CUDA_HOME", "/opt/nccl", {"/opt/nccl": ("libnccl.so.2",)}, "pass"),
    ],
)
def test_search_paths(
    name: str, value: str, libraries: dict[str, tuple[str, ...]], expected: str
) -> None:
    facts = node(Setting(name, value, PROFILE, 1), **{"env.libraries": libraries})
    assert told(fleet(n1=facts), "env.ld_path") == {"n1": expected}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("reason", REASONS)
def test_not_knowing_is_no_pass(check: str, reason: str) -> None:
    part = node(**{"env.paths": {"login shell": absent(reason), "nccl": ()}})
    whole = node(**{"env.paths": absent(reason)})
    seen = fleet(n1=node(), n2=part, n3=whole)
    unknown = f"unknown warning {reason}"
    assert told(seen, check) == {"n1": "pass", "n2": unknown, "n3": unknown}
