"""Nodes with versions that are known to be bad, and nodes that do not say what they have."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import Model
from clusterprep.facts.gpu_driver import FabricManager, FabricState
from clusterprep.model import Fleet
from clusterprep.model.known_bad import KnownBad
from tests.support.fleet import (
    absent,
    findings,
    fleet,
    libraries,
    rdma_device,
    told,
    torch,
)

X86 = Cpus("Intel(R) Xeon(R) Platinum 8480C", 2, 112, 224)
GRACE = Cpus("CPU implementer 0x41 part 0xd4f", 2, 144, 144)
H100 = Model("NVIDIA H100 80GB HBM3", 85520809984, "9.0")
SOUND: dict[str, Any] = {
    "torch.build": torch(),
    "nccl.libraries": libraries(system=None),
    "nv.driver": "580.159.03",
    "nv.module": "open",
    "kernel.release": "6.8.0-60-generic",
    "os.release": "ubuntu 24.04",
    "host.uptime": 864000.0,
    "cpu.processors": X86,
    "gpu.model": {0: H100},
    "gpu.fabric_state": FabricState({}, FabricManager("loaded", "active", None), "580.159.03"),
    "rdma.devices": (rdma_device(),),
    "cuda.toolkit": "12.4.1",
    "efa.packages": {},
    "net.libfabric": (),
    "container.toolkit": "1.19.1",
    "container.library": "1.19.1",
}


def one(**facts: Any) -> Fleet:
    """A sound node, with other values for some facts; «__» in a name stands for its dot."""
    changed = {name.replace("__", "."): value for name, value in facts.items()}
    return fleet(n1={**SOUND, **changed})


def ids(seen: Fleet, check: str = "sw.known_bad") -> list[str]:
    """The entries that the findings name."""
    names = []
    for finding in findings(seen, check):
        if finding.verdict == "fail":
            names.append(finding.seen.partition(": ")[2])
    return sorted(names)


def test_a_node_without_a_bad_version_passes() -> None:
    assert told(one(), "sw.known_bad") == {"n1": "pass"}


@pytest.mark.parametrize(
    ("facts", "entries", "verdict"),
    [
        pytest.param(
            {"torch__build": torch(nccl="2.28.9"), "cpu__processors": GRACE},
            ["nccl-arm-proxy-wedge", "nccl-avg-one-rank", "nccl-gh200-ll128", "nccl-one-rank-leak"],
            "fail error + fail warning + fail warning + fail warning",
            id="nccl-on-arm",
        ),
        pytest.param(
            {"torch__build": torch("2.7.0+cu126", "12.6", "2.26.2"), "nv__driver": "550.163.01"},
            ["nccl-graph-capture-slow", "torch-nonblocking-hang"],
            "fail warning + fail warning",
            id="torch-and-its-nccl",
        ),
        pytest.param(
            {"nccl__libraries": libraries(system="2.29.2")},
            ["nccl-2.29.2-hang", "nccl-avg-one-rank"],
            "fail warning + fail warning",
            id="the-system's-nccl",
        ),
        pytest.param(
            {"efa__packages": {"efa-installer": "1.47.0", "aws-ofi-nccl": "1.18.0"}},
            ["ofi-1.18-broadcast"],
            "fail error",
            id="plug-in",
        ),
        pytest.param(
            {"rdma__devices": (replace(rdma_device(), firmware="28.38.1002"),)},
            ["cx7-dr4-link"],
            "fail warning",
            id="firmware",
        ),
        pytest.param(
            {"kernel__release": "7.0.0-31-generic", "cpu__processors": GRACE},
            ["kernel-7.0.0-31-rdma"],
            "fail warning",
            id="kernel-with-its-build",
        ),
        pytest.param(
            {
                "nv__driver": "580.105.08",
                "host__uptime": 60 * 86400.0,
                "gpu__model": {0: replace(H100, capability="10.0")},
                "torch__build": torch(nccl="2.26.5"),
            },
            ["driver-b200-66-days"],
            "fail warning",
            id="up-for-sixty-days",
        ),
    ],
)
def test_a_bad_version_is_named(facts: dict[str, Any], entries: list[str], verdict: str) -> None:
    assert ids(one(**facts)) == entries
    assert told(one(**facts), "sw.known_bad") == {"n1": verdict}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"gpu__model": absent("denied")}, "unknown warning denied"),
        ({"rdma__devices": absent("garbled")}, "unknown warning garbled"),
        ({"nv__driver": absent("denied")}, "unknown warning denied"),
        ({"gpu__model": absent("not_applicable"), "nv__module": None}, "pass"),
    ],
)
def test_what_is_not_known_is_not_passed(facts: dict[str, Any], expected: str) -> None:
    assert told(one(**facts), "sw.known_bad") == {"n1": expected}


def test_what_is_bad_is_named_although_something_else_is_not_known() -> None:
    seen = one(torch__build=torch(nccl="2.29.2"), gpu__model=absent("denied"))
    assert told(seen, "sw.known_bad")["n1"].startswith("fail warning")
    assert "unknown warning denied" in told(seen, "sw.known_bad")["n1"]


def test_a_finding_says_what_happens_what_helps_and_where_it_was_told() -> None:
    seen = one(torch__build=torch("2.7.0", "12.6", "2.26.2"), nv__driver="550.163.01")
    finding = next(f for f in findings(seen, "sw.known_bad") if "torch-" in f.seen)
    assert finding.seen == "2.7.0: torch-nonblocking-hang"
    assert finding.wanted == "2.7.1 or newer"
    assert finding.message.startswith("this version of torch is known to hang jobs: Jobs that pass")
    assert finding.remedy == (
        "bring torch to 2.7.1 or newer; until then: TORCH_NCCL_USE_COMM_NONBLOCKING=0; "
        "https://github.com/pytorch/pytorch/issues/153960"
    )


def test_the_site_adds_entries_and_replaces_shipped_ones() -> None:
    own = KnownBad("site-1", "torch", "==2.6.0", "slow", "Slow here.", "https://wiki.example/7")
    other = KnownBad("nccl-2.29.2-hang", "nccl", "==9.9", "hang", "Not here.", "https://x.example")
    nodes = {"n1": {**SOUND, "torch.build": torch(nccl="2.29.2")}}
    seen = fleet(inventory={"known_bad": (own, other)}, **nodes)
    assert ids(seen) == ["nccl-avg-one-rank", "site-1"]


def test_required_none_makes_each_an_error() -> None:
    each = {"require": {"sw.known_bad": "none"}}
    seen = fleet(each=each, n1={**SOUND, "torch.build": torch(nccl="2.28.3")})
    assert set(told(seen, "sw.known_bad")["n1"].split(" + ")) == {"fail error"}


@pytest.mark.parametrize(
    ("facts", "required", "expected"),
    [
        ({}, None, "pass"),
        ({"container__toolkit": "1.16.1"}, None, "fail warning"),
        ({"container__toolkit": "1.16.1"}, "none", "fail error"),
        ({"container__library": "1.16.1"}, None, "fail warning"),
        ({"container__library": absent("missing_tool")}, None, "pass"),
        (
            {
                "container__toolkit": absent("missing_tool"),
                "container__library": absent("missing_tool"),
            },
            None,
            "pass",
        ),
        ({"container__library": absent("hung")}, None, "unknown warning hung"),
        ({"container__toolkit": absent("hung")}, None, "unknown warning hung"),
        ({"nv__driver": "550.54.15"}, None, "pass + skip not required"),
        ({"nv__driver": "550.54.15"}, "none", "fail error"),
        ({"nv__driver": None, "nv__module": None}, None, "pass"),
    ],
)
def test_known_vulnerabilities(facts: dict[str, Any], required: str | None, expected: str) -> None:
    seen = one(**facts)
    if required:
        nodes = dict(seen.snapshots["n1"].facts)
        seen = fleet(each={"require": {"sw.security": required}}, n1=nodes)
    assert told(seen, "sw.security") == {"n1": expected}


def test_the_vulnerabilities_of_a_component_are_one_finding() -> None:
    finding = findings(one(container__toolkit="1.17.0"), "sw.security")[0]
    assert finding.seen == (
        "1.17.0, 1.19.1: toolkit-cve-2024-0135, toolkit-cve-2025-23359, toolkit-cve-2025-23266"
    )
    assert finding.wanted == "1.17.8 or newer"
