"""The readers of devices on described machines, asked as on a node.

In a root folder with their files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Read
from clusterprep.remote.agent import devices, readers
from tests import machines as fleets
from tests.machines import Machine
from tests.machines.play import _read_inside
from tests.machines.tree import config, endpoint_config, grown

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root folder of its own takes root"),
]

PORT = {"class": "0x060400", "vendor": "0x8086"}
GPU = {"class": "0x030200", "vendor": "0x10de", "numa_node": 0}


def ask(kind: str, *args: Any, files: Mapping[str, str] | None = None, **described: Any) -> Any:
    grown_files, links, _ = grown(described)
    machine = Machine("n1", "10.0.0.1", {**grown_files, **(files or {})}, links)
    (answer,) = _read_inside(machine, [Read(kind, args)])
    return answer


def test_gpus_and_cards_are_looked_at_with_the_bridges_above_them_and_nothing_else() -> None:
    tree = [
        {"at": "0000:15:01.0", **PORT, "max_link_width": 16},
        {"at": "0000:16:00.0", "parent": "0000:15:01.0", **PORT, "acs": 0x1D},
        {"at": "0000:18:00.0", "parent": "0000:16:00.0", **GPU, "current_link_width": 8},
        {"at": "0000:19:00.0", "parent": "0000:16:00.0", "class": "0x020700", "vendor": "0x15b3"},
        {"at": "0000:20:00.0", **PORT},
        {"at": "0000:21:00.0", "parent": "0000:20:00.0", "class": "0x010802", "vendor": "0x144d"},
        {"at": "0000:22:00.0", "class": "0x030000", "vendor": "0x1a03"},
        {"at": "0000:23:00.0", "class": "0x068000", "vendor": "0x10de"},
    ]
    reason, found = ask("pci_tree", pci=tree)
    assert reason == "ok"
    assert [row["at"] for row in found["devices"]] == ["0000:18:00.0", "0000:19:00.0"]
    gpu = found["devices"][0]
    assert (gpu["above"], gpu["root"]) == (["0000:15:01.0", "0000:16:00.0"], "pci0000:15")
    assert (gpu["current_link_width"], gpu["max_link_width"], gpu["numa_node"]) == ("8", None, "0")
    assert {at: row["acs"] for at, row in found["bridges"].items()} == {
        "0000:15:01.0": None,
        "0000:16:00.0": 0x1D,
    }


def test_functions_of_one_infiniband_card_say_whether_they_lead_to_nvswitches() -> None:
    """The field is as in NVIDIA's Fabric Manager User Guide; what is around it is composed."""
    card = {"class": "0x020700", "vendor": "0x15b3"}
    tree = [
        {"at": "0000:18:00.0", **GPU},
        {"at": "0000:19:00.0", **card, "vpd": "MLX:MODL=CX75310AAS:SMDL=SW_MNG"},
        {"at": "0000:a0:00.0", **card, "vpd": "MLX:MN=MLNX:MODL=SHELL:SMDL=SW_MNG"},
        {"at": "0000:a0:00.1", **card, "vpd": "MLX:MN=MLNX:MODL=SHELL"},
        {"at": "0000:a0:00.2", **card},
    ]
    _, found = ask("pci_tree", pci=tree)
    said = {row["at"]: row.get("sw_mng", "not asked") for row in found["devices"]}
    assert said == {
        "0000:18:00.0": "not asked",
        "0000:19:00.0": "not asked",
        "0000:a0:00.0": True,
        "0000:a0:00.1": False,
        "0000:a0:00.2": None,
    }
    on_bus = {"/sys/bus/pci/drivers/nvidia-nvswitch/0000:07:00.0": ""}
    for others, files in ((tree, on_bus), (tree[1:], {})):
        _, found = ask("pci_tree", pci=others, files=files)
        assert not any("sw_mng" in row for row in found["devices"])


def test_a_bridge_that_left_the_bus_does_not_show_its_access_control(tmp_path: Path) -> None:
    space = tmp_path / "config"
    space.write_bytes(b"\xff" * 4096)
    assert devices._acs(str(space)) == "denied"


def test_device_control_of_network_cards() -> None:
    card = {"class": "0x020700", "vendor": "0x15b3"}
    tree = [
        {"at": "0000:18:00.0", **GPU},
        {"at": "0000:19:00.0", **card},
        {"at": "0000:1a:00.0", **card, "config": endpoint_config(0x5930)},
        {"at": "0000:1b:00.0", **card, "config": endpoint_config()[:64]},
        {"at": "0000:1c:00.0", **card, "config": "\0" * 256},
    ]
    _, found = ask("pci_tree", pci=tree)
    assert {row["at"]: row.get("devctl", "not asked") for row in found["devices"]} == {
        "0000:18:00.0": "not asked",
        "0000:19:00.0": 0x2930,
        "0000:1a:00.0": 0x5930,
        "0000:1b:00.0": "denied",
        "0000:1c:00.0": None,
    }


def test_errors_of_gpus_cards_and_bridges_without_the_zeros() -> None:
    counted = {
        "aer_dev_correctable": "RxErr 0\nBadTLP 7\nTOTAL_ERR_COR 7",
        "aer_dev_fatal": "TLP 0",
    }
    tree = [
        {"at": "0000:15:01.0", **PORT},
        {"at": "0000:18:00.0", "parent": "0000:15:01.0", **GPU, **counted},
        {"at": "0000:21:00.0", "class": "0x010802", "vendor": "0x144d", **counted},
        {"at": "0000:23:00.0", "class": "0x020000", "vendor": "0x15b3"},
    ]
    reason, found = ask("pci_errors", pci=tree)
    assert reason == "ok"
    assert found["0000:18:00.0"]["correctable"] == "BadTLP 7\nTOTAL_ERR_COR 7"
    assert found["0000:18:00.0"]["fatal"] == ""
    assert set(found) == {"0000:15:01.0", "0000:18:00.0"}


DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"
CONF = "/etc/nccl.conf"


@pytest.mark.parametrize(
    ("declared", "files", "expected"),
    [
        pytest.param(None, {}, None, id="none"),
        pytest.param(None, {DEFAULT: "<system/>"}, (DEFAULT, "<system/>"), id="default"),
        pytest.param(
            None,
            {CONF: "#NCCL_TOPO_FILE=/x\nNCCL_TOPO_FILE=/t.xml\n", "/t.xml": "own", DEFAULT: "x"},
            ("/t.xml", "own"),
            id="named-by-nccl.conf",
        ),
        pytest.param(
            "/d.xml", {CONF: "NCCL_TOPO_FILE=/t.xml\n", "/d.xml": "mine"}, ("/d.xml", "mine"),
            id="declared",
        ),
        pytest.param("/d.xml", {}, ("/d.xml", None), id="not-there"),
    ],
)  # fmt: skip
def test_the_topology_file_that_nccl_reads(
    declared: str | None, files: dict[str, str], expected: Any
) -> None:
    reason, found = ask("nccl_topology", declared, CONF, files=files)
    assert reason == "ok"
    assert (found if found is None else (found["path"], found["text"])) == expected


TOOL = """#!/bin/sh
echo "$0 $*"
"""


def test_switches_are_asked_by_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools are programs that print how they were called."""
    for tool in ("lldpcli", "smpquery"):
        (tmp_path / tool).write_text(TOOL)
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices._output(devices.LLDP) == f"{tmp_path}/lldpcli -f json0 show neighbors\n"
    asked = f"{tmp_path}/smpquery -C mlx5_0 -P 1 -t 100 -D nodeinfo 0,1\n"
    assert devices._leaf("mlx5_0", "1", {}) == asked
    assert devices._leaf("mlx5_1", "1", {"mlx5_0:1": None}) is None
    assert devices._output(["no-such-tool"]) is None
    assert devices._output(["false"]) is None


def test_a_node_without_tools_tells_of_no_switch() -> None:
    port = {"state": "4: ACTIVE", "link_layer": "InfiniBand"}
    reason, found = ask("rail_neighbours", rdma={"mlx5_0": {"ports": {1: port}}})
    assert (reason, found) == ("ok", {"lldp": None, "ib": {"mlx5_0:1": None}})


def acs_of(text: str | None) -> Any:
    tree = [
        {"at": "0000:15:01.0", "vendor": "0x8086"},
        {"at": "0000:18:00.0", "parent": "0000:15:01.0", **GPU},
    ]
    place = "/sys/devices/pci0000:15/0000:15:01.0/config"
    return ask("pci_tree", pci=tree, files={} if text is None else {place: text})[1]["bridges"][
        "0000:15:01.0"
    ]["acs"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(config(0x1D), 0x1D, id="first-capability"),
        pytest.param(config(None), None, id="no-capability"),
        pytest.param("\0" * 64, "denied", id="what-an-ordinary-user-sees"),
        pytest.param("\0" * 256, None, id="no-extended-space"),
        pytest.param(
            "\0" * 0x100 + "\x01\0\x01\x20".ljust(0x100, "\0") + "\x0d\0\x01\0\0\0\x05\0",
            0x05,
            id="second",
        ),
        pytest.param(
            "\0" * 0x100 + "\x01\0\x01\x10" + "\0" * 64, None, id="a-list-that-runs-in-circles"
        ),
        pytest.param("\0" * 0x100 + "\x0d\0\x01\0\0\0", "denied", id="cut"),
        pytest.param(None, "denied", id="no-file"),
    ],
)
def test_the_list_of_capabilities_is_walked(text: str | None, expected: Any) -> None:
    assert acs_of(text) == expected


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", True),
        ("processor\t: 0\nflags\t\t: fpu vme lahf_lm\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", None),
    ],
)
def test_a_virtual_machine_by_the_first_processor(cpuinfo: str, expected: bool | None) -> None:
    assert (
        ask("pci_tree", pci=[{"at": "0000:18:00.0", **GPU}], files={"/proc/cpuinfo": cpuinfo})[1][
            "virtual"
        ]
        is expected
    )


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("Amazon EC2", "hpc7g.16xlarge", True),
        ("Amazon EC2", "c7gn.metal", False),
        ("Google", "Google Compute Engine", True),
        ("Microsoft Corporation", "Virtual Machine", True),
        ("QEMU", "KVM Virtual Machine", True),  # leptonai/gpud and Lambda's GH200
        ("NVIDIA", "NVIDIA_DGX_Spark", False),
        ("Supermicro", "ARS-121GL-NB3-LCC-R1", False),
    ],
)
def test_an_arm_machine_is_virtual_by_its_firmware(
    vendor: str, product: str, expected: bool
) -> None:
    files = {
        "/proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n",
        "/sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "/sys/class/dmi/id/product_name": f"{product}\n",
    }
    answer = ask("pci_tree", pci=[{"at": "0000:18:00.0", **GPU}], files=files)
    assert answer[1]["virtual"] is expected


def test_iommu_groups_virtual_functions_and_drivers() -> None:
    here = "/sys/devices/pci0000:18/0000:18:00.0"
    links = {
        f"{here}/iommu_group": "/sys/kernel/iommu_groups/7",
        f"{here}/physfn": "/sys/devices/pci0000:17/0000:17:00.0",
    }
    files, more, _ = grown({"pci": [{"at": "0000:18:00.0", **GPU}]})
    files["/sys/kernel/iommu_groups/7/type"] = "DMA-FQ\n"
    machine = Machine(
        "n1",
        "10.0.0.1",
        files,
        {**more, **links, f"{here}/driver": "/sys/bus/pci/drivers/vfio-pci"},
    )
    (_, found) = _read_inside(machine, [Read("pci_tree")])[0]
    (row,) = found["devices"]
    assert (row["iommu"], row["physfn"], row["driver"]) == ("DMA-FQ", "0000:17:00.0", "vfio-pci")


def test_without_a_bus_there_is_no_tree() -> None:
    assert ask("pci_tree")[:2] == ["no", "missing"]


def test_gids_of_ethernet_ports_until_the_table_is_empty() -> None:
    entry, zero = (
        "fe80:0000:0000:0000:0000:0000:0000:0001",
        "0000:0000:0000:0000:0000:0000:0000:0000",
    )
    gids = {n: entry if n in (0, 1, 9, 20) else zero for n in range(32)}
    port = {
        "link_layer": "Ethernet",
        "state": "4: ACTIVE",
        "gids": gids,
        "types": {0: "IB/RoCE v1"},
        "ndevs": {1: "eth2"},
    }
    _, found = ask("rdma_tree", rdma={"mlx5_0": {"fw_ver": "28.39.1002", "ports": {1: port}}})
    assert found["mlx5_0"]["fw_ver"] == "28.39.1002"
    assert found["mlx5_0"]["ports"]["1"]["gids"] == [
        [0, entry, "IB/RoCE v1", None],
        [1, entry, None, "eth2"],
        [9, entry, None, None],
    ]


def test_infiniband_ports_have_a_lid() -> None:
    _, found = ask(
        "rdma_tree", rdma={"mlx5_0": {"ports": {1: {"link_layer": "InfiniBand", "lid": "0x1a"}}}}
    )
    assert found["mlx5_0"]["ports"] == {"1": {"lid": "0x1a", "gids": []}}


def test_verbs_with_their_devices_and_the_user() -> None:
    passwd = {
        "/etc/passwd": "train:x:1042:1042::/home/train:/bin/sh\n",
        "/etc/group": "render:x:99:train\n",
    }
    described = {"mlx5_3": {"ports": {}}}
    _, found = ask("verbs", "train", rdma=described, files=passwd)
    (row,) = found["devices"]
    assert (row["name"], row["device"], row["uid"]) == ("uverbs0", "mlx5_3", 0)
    assert (found["uid"], found["groups"]) == (1042, [99, 1042])
    assert ask("verbs", None, rdma=described)[1]["uid"] == 0
    assert ask("verbs", "nobody-here", rdma=described, files=passwd)[:2] == ["no", "no_user"]


def test_the_routes_of_nodes_without_several_rails_are_not_asked_for() -> None:
    assert ask("rail_routes", rdma={"mlx5_0": {"ports": {}}}) == ["ok", {"rails": []}]


def test_the_kernel_says_by_which_device_it_leaves() -> None:
    """Of this machine itself: loopback's neighbours are reached by loopback."""
    assert devices._leaves("127.0.0.1", 8) == "lo"
    assert devices._leaves("127.0.0.2", 31) is None
    own = [
        (row["address"], row["prefix"]) for rows in readers._addresses().values() for row in rows
    ]
    assert ("127.0.0.1", 8) in own


def test_an_address_that_is_not_ours_has_no_route() -> None:
    assert devices._leaves("203.0.113.7", 24) == ""


@pytest.mark.parametrize("name", ["hgx-h100-ib", "hgx-h100-roce"])
def test_a_whole_machine(name: str) -> None:
    asked = [Read("pci_tree"), Read("rdma_tree"), Read("verbs", (None,))]
    (_, tree), (_, rdma), (_, verbs) = _read_inside(fleets.load(name).machines[0], asked)
    assert sum(row["vendor"] == "0x10de" for row in tree["devices"]) == 8
    assert {row["acs"] for row in tree["bridges"].values()} == {0, None}
    assert len(rdma) == len(verbs["devices"])
    assert {device["pci"] for device in rdma.values()} <= {row["at"] for row in tree["devices"]}


ROUTERS = """
import json, subprocess, sys
from clusterprep.remote.agent import devices
def ip(words):
    subprocess.run(["ip", *words.split()], check=True)
for n in (1, 2):
    ip(f"link add rail{n} type veth peer name far{n}")
    ip(f"link set far{n} up")
    ip(f"link set rail{n} up")
    ip(f"address add 10.{n}.0.1/{sys.argv[1]} dev rail{n}")
held = [("rail1", "10.1.0.1", int(sys.argv[1])), ("rail2", "10.2.0.1", int(sys.argv[1]))]
for words in sys.argv[2:]:
    ip(words)
print(json.dumps([devices._router(name, address, prefix, held) for name, address, prefix in held]))
"""


@pytest.mark.parametrize(
    ("prefix", "more", "expected"),
    [
        pytest.param("24", [], [False, False], id="apart"),
        pytest.param(
            "24", ["route add 10.2.0.0/16 via 10.1.0.254 dev rail1"], [True, False], id="one-way"
        ),
        pytest.param(
            "24",
            [
                "route add default via 10.1.0.254 dev rail1 table 101",
                "rule add from 10.1.0.1 table 101",
            ],
            [True, False],
            id="by-a-table-of-its-own",
        ),
        pytest.param(
            "24",
            [
                "link add front type veth peer name back",
                "link set back up",
                "link set front up",
                "address add 172.20.0.1/24 dev front",
                "route add default via 172.20.0.254 dev front",
            ],
            [False, False],
            id="a-default-route-elsewhere",
        ),
        pytest.param("8", [], [None, None], id="one-network"),
        pytest.param("31", [], [None, None], id="no-neighbours-to-ask-for"),
    ],
)
def test_a_way_from_rail_to_rail_is_one_with_a_router(
    prefix: str, more: list[str], expected: list[Any]
) -> None:
    argv = ["unshare", "--net", sys.executable, "-c", ROUTERS, prefix, *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


RAILS_OF_IPV6 = """
import json, subprocess, sys
from clusterprep.remote.agent import devices
def ip(words):
    subprocess.run(["ip", *words.split()], check=True)
for n in (1, 2):
    ip(f"link add rail{n} type veth peer name far{n}")
    ip(f"link set far{n} up")
    ip(f"link set rail{n} up")
    ip(f"-6 address add fd00:0:0:{n}::5/{sys.argv[1]} dev rail{n} nodad")
for words in sys.argv[2:]:
    ip(words)
held = devices._global_addresses(["rail1", "rail2"])
answers = {"prefixes": [prefix for _, _, prefix in held]}
answers["leaves"] = [devices._leaves(address, prefix) for _, address, prefix in held]
answers["router"] = [devices._router(name, *rest, held) for name, *rest in held]
print(json.dumps(answers))
"""
OWN_DEFAULTS = [f"-6 route add default via fe80::1 dev rail{n} table {100 + n}" for n in (1, 2)]
BY_OWN_TABLES = [f"-6 rule add from fd00:0:0:{n}::5 table {100 + n}" for n in (1, 2)]


@pytest.mark.parametrize(
    ("prefix", "more", "prefixes", "leaves", "router"),
    [
        pytest.param("64", [], [64, 64], ["rail1", "rail2"], [False, False], id="apart"),
        pytest.param("48", [], [48, 48], ["rail1", "rail1"], [None, None], id="one-network"),
        pytest.param(
            "48",
            [
                "-6 rule add from fd00:0:0:2::5 table 102",
                "-6 route add fd00::/48 dev rail2 table 102",
            ],
            [48, 48],
            ["rail1", "rail2"],
            [None, None],
            id="one-network-and-a-rule",
        ),
        pytest.param(
            "64",
            [*OWN_DEFAULTS, *BY_OWN_TABLES],
            [64, 64],
            ["rail1", "rail2"],
            [True, True],
            id="a-router-on-each-rail",
        ),
        pytest.param(
            "64",
            ["-6 route add fd00::/48 via fe80::1 dev rail1"],
            [64, 64],
            ["rail1", "rail2"],
            [False, False],
            id="a-router-that-the-other-cable-goes-before",
        ),
        pytest.param("127", [], [127, 127], [None, None], [None, None], id="point-to-point"),
        pytest.param("128", [], [128, 128], [None, None], [None, None], id="alone"),
        pytest.param(
            "128",
            ["-6 route add fd00:0:0:1::/64 dev rail1", "-6 route add fd00:0:0:2::/64 dev rail2"],
            [64, 64],
            ["rail1", "rail2"],
            [False, False],
            id="dhcpv6-and-prefixes-of-routers",
        ),
        pytest.param(
            "128",
            ["-6 route add fd00::/48 dev rail1", "-6 route append fd00::/48 dev rail2"],
            [48, 48],
            ["rail1", "rail1"],
            [None, None],
            id="dhcpv6-and-one-network",
        ),
        pytest.param(
            "128",
            [f"-6 route add fd00:0:0:{n}::/64 via fe80::1 dev rail{n}" for n in (1, 2)],
            [128, 128],
            [None, None],
            [None, None],
            id="dhcpv6-and-a-router-for-all",
        ),
    ],
)
def test_the_kernel_says_by_which_rail_of_ipv6_it_leaves(
    prefix: str, more: list[str], prefixes: list[int], leaves: list[Any], router: list[Any]
) -> None:
    inside = 'mount -t sysfs sysfs /sys && exec "$0" "$@"'
    namespaces = ["unshare", "--net", "--mount", "sh", "-c", inside]
    argv = [*namespaces, sys.executable, "-c", RAILS_OF_IPV6, prefix, *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {"prefixes": prefixes, "leaves": leaves, "router": router}
    assert json.loads(done.stdout) == expected
