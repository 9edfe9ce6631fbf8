"""EFA and Slingshot: cards, plug-in, libfabric and NCCL_NET; topology files of real clouds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.environment import Setting
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.topology_file import TopologyFile
from clusterprep.facts.torch import Plugin, Plugins
from clusterprep.model import EnvSetting
from clusterprep.model.versions import leading_numbers
from tests.support.fleet import absent, findings, fleet, libraries, told
from tests.support.rails import hca

NO_LINK = PciLink(None, None, None, None)


def tree(cards: int = 4, chip: tuple[str, str] = ("0x1d0f", "0xefa1"), gpus: int = 2) -> PciTree:
    """A virtual machine with GPUs and cards of a fabric on the bus itself."""
    devices = [
        PciDevice(f"0000:{number + 16:02x}:00.0", True, "0x10de", NO_LINK) for number in range(gpus)
    ]
    for number in range(cards):
        at = f"0000:{number + 80:02x}:00.0"
        devices.append(PciDevice(at, False, chip[0], NO_LINK, device=chip[1], driver="efa"))
    return PciTree(tuple(devices), {}, virtual=True)


def efa(count: int = 4) -> tuple[Any, ...]:
    return tuple(hca(f"rdmap{80 + n}s0", f"0000:{80 + n:02x}:00.0") for n in range(count))


CASSINI = ("0x17db", "0x0501")
NET = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"


def ofi(version: str | None, libfabric: str | None = "1.22") -> Plugins:
    """aws-ofi-nccl of a version; None for a plug-in of something else."""
    old = version is not None and () < leading_numbers(version) < (1, 12)
    names = ("AWS Libfabric",) if old else ("Libfabric",)
    plugin = Plugin(NET, 1 << 20, "5f" * 32, names if version else (), version)
    return Plugins((plugin,), None, libfabric)


NONE = Plugins(())


# ---------------------------------------------------------------- cards


@pytest.mark.parametrize(
    ("cards", "rdma", "expected"),
    [
        pytest.param(4, 4, "pass", id="as-the-others"),
        pytest.param(3, 3, "fail warning", id="one-less"),
        pytest.param(4, 3, "fail warning", id="one-without-driver"),
        pytest.param(0, 0, "fail warning", id="none"),
    ],
)
def test_cards_of_one_node_of_three(cards: int, rdma: int, expected: str) -> None:
    good = {"pci.tree": tree(), "rdma.devices": efa()}
    odd = {"pci.tree": tree(cards), "rdma.devices": efa(rdma)}
    seen = fleet(n1=good, n2=odd, n3=good)
    assert told(seen, "fabric.devices") == {"n1": "pass", "n2": expected, "n3": "pass"}


def test_a_number_that_is_required() -> None:
    facts = {"pci.tree": tree(), "rdma.devices": efa()}
    for wanted, expected in (("4", "pass"), ("32", "fail error")):
        seen = fleet(each={"require": {"fabric.devices": wanted}}, n1=facts)
        assert told(seen, "fabric.devices") == {"n1": expected}


def test_a_slingshot_card_without_its_driver() -> None:
    cards = tree(4, CASSINI)
    idle = replace(
        cards, devices=tuple(replace(d, driver=None) if not d.gpu else d for d in cards.devices)
    )
    facts = {"rdma.devices": ()}
    seen = fleet(n1={**facts, "pci.tree": cards}, n2={**facts, "pci.tree": idle})
    assert told(seen, "fabric.devices") == {"n1": "pass", "n2": "fail warning"}


def test_nodes_without_such_a_fabric() -> None:
    facts = {"pci.tree": tree(0), "rdma.devices": ()}
    assert told(fleet(n1=facts, n2=facts), "fabric.devices") == dict.fromkeys(
        ("n1", "n2"), "skip not_applicable"
    )


# ---------------------------------------------------------------- plug-in


def judged(
    plugins: Any, pci: PciTree | None = None, env: dict[str, str] | None = None, **each: Any
) -> str:
    settings = tuple(Setting(name, value) for name, value in (env or {}).items())
    facts = {
        "pci.tree": tree() if pci is None else pci,
        "nccl.plugins": plugins,
        "env.paths": {"ssh command": settings, "nccl": ()},
    }
    return told(fleet(each=each, n1=facts), "fabric.plugin")["n1"]


@pytest.mark.parametrize(
    ("version", "libfabric", "expected"),
    [
        # aws-ofi-nccl, RELEASENOTES.md: the libfabric that each release requires.
        ("1.16.3", "1.22", "pass"),
        ("1.13.2-aws", "1.22", "pass"),
        ("1.13.0-aws", "1.21", "fail warning"),
        ("1.12.1-aws", "1.18", "pass"),
        ("1.8.0-aws", "1.18", "pass"),
        ("1.8.1-aws", "1.17", "fail warning"),
        ("1.7.4-aws", "1.11", "pass"),
        ("1.7.4-aws", "1.10", "fail warning"),
        # Captured logs: 1.17.1 and 1.18.0 with libfabric 2.3, 1.14.0 with 1.22.
        ("1.17.1", "2.3", "pass"),
        ("1.18.0", "2.3", "pass"),
        ("1.14.0", "1.22", "pass"),
        ("1.14.0", None, "fail warning"),
        ("git-6e504db", "2.3", "pass"),
    ],
)
def test_libfabric_for_a_plugin_on_efa(version: str, libfabric: str | None, expected: str) -> None:
    assert judged(ofi(version, libfabric)) == expected


def test_slingshot_has_no_libfabric_of_aws() -> None:
    """A captured log: aws-ofi-nccl 1.19.2 over cxi says «Using Libfabric version 1.22»."""
    assert judged(ofi("1.19.2", "1.22"), tree(4, CASSINI)) == "pass"
    assert judged(ofi("1.14.0", "1.20"), tree(4, CASSINI)) == "pass"


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param(NONE, "fail warning", id="no-plug-in"),
        pytest.param(ofi(None), "fail warning", id="a-plug-in-of-something-else"),
        pytest.param(
            Plugins((Plugin(NET, None, None),)), "unknown warning denied", id="not-readable"
        ),
        pytest.param(absent("hung"), "unknown warning hung", id="not-known"),
    ],
)
def test_efa_without_its_plugin(plugins: Any, expected: str) -> None:
    assert judged(plugins) == expected


def test_a_host_without_nccl_runs_its_jobs_in_containers() -> None:
    facts = {"pci.tree": tree(), "nccl.plugins": NONE, "env.paths": {}}
    none = libraries(system=None, loaded=None, wheel=None, wheel_version=None)
    for known, expected in ((none, "skip not_applicable"), (libraries(), "fail warning")):
        seen = fleet(n1={**facts, "nccl.libraries": known})
        assert told(seen, "fabric.plugin") == {"n1": expected}


def test_a_node_without_gpus_needs_no_plugin() -> None:
    assert judged(NONE, tree(4, gpus=0)) == "skip not_applicable"
    assert judged(NONE, tree(0)) == "skip not_applicable"


@pytest.mark.parametrize(
    ("version", "net", "expected"),
    [
        ("1.14.0", "Libfabric", "pass"),
        ("1.14.0", "libfabric", "pass"),
        ("1.14.0", "AWS Libfabric", "pass"),
        ("1.14.0", "OFI", "pass"),
        ("1.9.1-aws", "AWS Libfabric", "pass"),
        ("1.9.1-aws", "Libfabric", "fail warning"),
        ("1.14.0", "gIB", "fail warning"),
        ("1.14.0", "Socket", "pass"),
    ],
)
def test_the_network_that_nccl_net_names(version: str, net: str, expected: str) -> None:
    assert judged(ofi(version, "1.22"), env={"NCCL_NET": net}) == expected
    declared = {"NCCL_NET": EnvSetting(net, "env")}
    facts = {"pci.tree": tree(), "nccl.plugins": ofi(version, "1.22"), "env.paths": {}}
    assert told(fleet(each={"env": declared}, n1=facts), "fabric.plugin")["n1"] == expected


def test_networks_of_google() -> None:
    """Names as NCCL prints them: «Using network gIB», «Using network FasTrak»."""
    gib = Plugins((Plugin("/usr/local/gib/lib64/libnccl-net.so", 9, "5f" * 32, ("gIB",)),))
    assert judged(gib, tree(0), {"NCCL_NET": "gIB"}) == "pass"
    assert judged(NONE, tree(0), {"NCCL_NET": "gIB"}) == "fail warning"


def test_sharp_takes_a_plugin() -> None:
    sharp = Plugins((Plugin("/opt/hpcx/lib/libnccl-net.so", 9, "5f" * 32, ("SHARP",)),))
    assert judged(sharp, tree(0), {"NCCL_COLLNET_ENABLE": "1"}) == "pass"
    assert judged(NONE, tree(0), {"NCCL_COLLNET_ENABLE": "1"}) == "fail warning"
    assert judged(NONE, tree(0), {"NCCL_COLLNET_ENABLE": "0"}) == "skip not_applicable"


# ---------------------------------------------------------------- topology files

OWN = tree(4)
GPUS = tuple(gpu.at for gpu in OWN.gpus)
CARDS = tuple(device.at for device in OWN.devices if not device.gpu)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(None, "skip not_applicable", id="none"),
        pytest.param(TopologyFile("/t", True, GPUS, CARDS), "pass", id="its-own"),
        pytest.param(TopologyFile("/t", True, (), (), (*GPUS, *CARDS)), "pass", id="no-classes"),
        pytest.param(TopologyFile("/t", True, GPUS), "pass", id="gpus-alone"),
        pytest.param(TopologyFile("/t", True, GPUS[:1], CARDS), "fail warning", id="a-gpu-less"),
        pytest.param(
            TopologyFile("/t", True, (*GPUS, "0000:99:00.0"), CARDS),
            "fail warning",
            id="a-gpu-more",
        ),
        pytest.param(TopologyFile("/t", True, GPUS, CARDS[:3]), "fail warning", id="a-card-less"),
        pytest.param(TopologyFile("/t", False), "fail warning", id="not-there"),
        pytest.param(absent("truncated"), "unknown warning truncated", id="too-large"),
    ],
)
def test_topology_file_against_the_bus(found: Any, expected: str) -> None:
    facts = {"pci.tree": OWN, "rdma.devices": efa(), "nccl.topology": found}
    assert told(fleet(n1=facts), "fabric.topology") == {"n1": expected}


def test_what_is_wrong_with_a_topology_file_is_named() -> None:
    other = TopologyFile("/opt/microsoft/ndv5-topo.xml", True, ("0001:00:00.0",))
    facts = {"pci.tree": OWN, "rdma.devices": efa(), "nccl.topology": other}
    (found,) = findings(fleet(n1=facts), "fabric.topology")
    assert found.seen == f"GPU {', '.join(GPUS)} not in it; 0001:00:00.0 not on the bus"
