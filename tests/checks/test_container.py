"""Containers that differ from their hosts, and containers that do not. The looks are composed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.container import HEALTHY
from clusterprep.facts.container import Inside, SharedMemory
from clusterprep.facts.environment import Setting
from clusterprep.model import Container, Runtime
from tests.support.fleet import findings, fleet, told

GIB = 1 << 30
OWN = {**HEALTHY.namespaces, "ipc": "ipc:[1]"}
BRIDGE = {**HEALTHY.namespaces, "net": "net:[1]"}


def job(engine: Any = "docker") -> Runtime:
    return Runtime(container=Container(engine, "job:1"))


def within(**changes: Any) -> Inside:
    return Inside(HEALTHY, replace(HEALTHY, **changes))


@pytest.mark.parametrize(
    ("check", "look", "expected"),
    [
        pytest.param("rt.devices", within(), "pass", id="devices"),
        pytest.param("rt.devices", within(devices={}), "fail error", id="no-devices"),
        pytest.param(
            "rt.devices",
            within(devices={**HEALTHY.devices, "/dev/infiniband/uverbs0": False}),
            "fail error",
            id="closed-device",
        ),
        pytest.param("rt.gpus", within(), "pass", id="gpus"),
        pytest.param("rt.gpus", within(devices={}), "fail error", id="no-gpus"),
        pytest.param("rt.gpus", within(libraries={}), "fail error", id="no-driver-library"),
        pytest.param("rt.memlock", within(), "pass", id="memlock"),
        pytest.param("rt.memlock", within(limits={"memlock": 65536.0}), "fail warning", id="low"),
        pytest.param("rt.shm", within(), "pass", id="shm-of-the-host"),
        pytest.param("rt.shm", within(shm=SharedMemory(GIB, GIB, 9)), "pass", id="shm-enough"),
        pytest.param("rt.shm", within(shm=SharedMemory(64, 64, 9)), "fail error", id="shm-small"),
        pytest.param("rt.shm", within(shm=None), "fail error", id="no-shm"),
        pytest.param("rt.ipc", within(), "pass", id="ipc-of-the-host"),
        pytest.param("rt.ipc", within(namespaces=OWN), "fail warning", id="own-ipc"),
        pytest.param("rt.ipc", within(namespaces={}), "unknown warning denied", id="hidden-ipc"),
        pytest.param("rt.network", within(), "pass", id="network-of-the-host"),
        pytest.param(
            "rt.network",
            within(namespaces=BRIDGE, interfaces={"eth0": "172.17.0.2"}),
            "fail error",
            id="bridge",
        ),
        pytest.param("rt.libs", within(), "pass", id="libraries"),
        pytest.param(
            "rt.libs",
            within(libraries={"libcuda.so.1": "/usr/lib/libcuda.so.535.1"}),
            "fail error",
            id="another-driver",
        ),
        pytest.param("rt.engine", within(), "pass", id="starts"),
        pytest.param(
            "rt.engine", Inside(HEALTHY, None, "no_image", "none"), "fail error", id="no-image"
        ),
        pytest.param(
            "rt.engine", Inside(HEALTHY, None, "hung", "late"), "unknown error hung", id="hangs"
        ),
        pytest.param(
            "rt.shm", Inside(HEALTHY, None, "hung", "late"), "unknown error hung", id="shm-unknown"
        ),
        pytest.param("rt.shm", None, "skip not_applicable", id="no-container"),
    ],
)
def test_a_container_is_compared_with_its_host(check: str, look: Any, expected: str) -> None:
    seen = fleet(each={"runtime": job()}, n1={"rt.inside": look, "rt.setup": None})
    assert told(seen, check) == {"n1": expected}


@pytest.mark.parametrize(
    ("address", "ipv6", "expected"),
    [
        pytest.param("fd00:77::1", ("fd00:77::1",), "pass", id="its-own"),
        pytest.param("fd00:77:0:0::1", ("fd00:77::1",), "pass", id="written-otherwise"),
        pytest.param("fd00:77::1", ("fd00:88::2",), "fail error", id="another"),
        pytest.param("fd00:77::1", (), "fail error", id="none"),
    ],
)
def test_a_network_of_its_own_may_have_the_address_of_ipv6(
    address: str, ipv6: tuple[str, ...], expected: str
) -> None:
    look = within(namespaces=BRIDGE, interfaces={"lo": "127.0.0.1"}, ipv6=ipv6)
    settings = {"runtime": job(), "address": address}
    seen = fleet(each=settings, n1={"rt.inside": look, "rt.setup": None})
    assert told(seen, "rt.network") == {"n1": expected}


def test_variables_of_a_login_are_looked_for_inside() -> None:
    paths = {"login shell": (Setting("NCCL_IB_TIMEOUT", "22"), Setting("GLOO_A", "1"))}
    facts = {"rt.setup": None, "env.paths": paths}
    inside = within(variables={"GLOO_A": "1"}, conf="NCCL_IB_TIMEOUT=22\n")
    lacking = within(variables={"GLOO_A": "1"})
    seen = fleet(
        each={"runtime": job()},
        n1={**facts, "rt.inside": inside},
        n2={**facts, "rt.inside": lacking},
    )
    assert told(seen, "rt.env") == {"n1": "pass", "n2": "fail warning"}


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        ("docker", "--ipc=host"),
        ("podman", "--ipc=host"),
        ("apptainer", "--bind /dev/shm"),
        ("enroot", "--mount /dev/shm:/dev/shm"),
    ],
)
def test_the_remedy_names_the_option_of_the_engine(engine: str, option: str) -> None:
    facts = {"rt.setup": None, "rt.inside": within(shm=SharedMemory(64, 64, 9))}
    (found,) = findings(fleet(each={"runtime": job(engine)}, n1=facts), "rt.shm")
    assert option in str(found.remedy)
