"""What smpquery and lldpcli print of the switch at the other end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.facts.rail_neighbours import Neighbour
from tests.support.fleet import learned

# infiniband-diags, smpquery nodeinfo by a direct route: its fields; GUID and port are made up.
NODEINFO = """# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
ClassVers:.......................1
NodeType:........................Switch
NumPorts:........................41
SystemGuid:......................0xb8599f0300fc6de4
Guid:............................0xb8599f0300fc6de4
PortGuid:........................0xb8599f0300fc6de4
PartCap:.........................8
DevId:...........................0xd2f0
Revision:........................0x000000a0
LocalPort:.......................17
VendorId:........................0x0002c9
"""
# Public dumps of `lldpcli -f json0 show neighbors`: a Cisco Nexus, Cumulus on a Mellanox switch.
NEXUS = {
    "name": "eno8303",
    "chassis": [{"name": [{"value": "NKG-ESWA07-2.eng.citrite.net"}]}],
    "port": [{"id": [{"value": "Ethernet1/28"}], "descr": [{"value": "nkg-dt16/idrac"}]}],
}
CUMULUS = {
    "name": "p0",
    "chassis": [
        {
            "id": [{"type": "mac", "value": "00:11:22:33:44:55"}],
            "name": [{"value": "example-switch-01"}],
            "mgmt-ip": [{"value": "192.0.2.10"}, {"value": "2001:db8::10"}],
        }
    ],
    "port": [{"id": [{"type": "ifname", "value": "swp2"}], "ttl": [{"value": "120"}]}],
}
SEVERAL = [
    {**CUMULUS, "name": "vlldp", "chassis": [{"name": [{"value": f"neighbor-0{n}"}]}]}
    for n in range(3)
]


def heard(*rows: Any) -> str:
    return json.dumps({"lldp": [{"interface": list(rows)}]})


def known(lldp: str | None = None, **ib: str | None) -> Any:
    ports = {name.replace("_1", ":1"): text for name, text in ib.items()}
    return learned("net.rail_neighbours", ["ok", {"lldp": lldp, "ib": ports}])


def test_switches_over_lldp() -> None:
    assert known(heard(NEXUS, CUMULUS)) == {
        "eno8303": Neighbour("NKG-ESWA07-2.eng.citrite.net", "Ethernet1/28"),
        "p0": Neighbour("example-switch-01", "swp2"),
    }
    unnamed = {**CUMULUS, "chassis": [{"id": [{"type": "mac", "value": "00:11:22:33:44:55"}]}]}
    assert known(heard(unnamed)) == {"p0": Neighbour("00:11:22:33:44:55", "swp2")}


def test_several_switches_at_one_interface_are_none() -> None:
    assert known(heard(*SEVERAL)) == {}


def test_nobody_was_heard() -> None:
    assert known('{"lldp": [{}]}') == {}
    assert known() == {}


def test_switches_over_infiniband() -> None:
    assert known(mlx5_1=NODEINFO) == {"mlx5:1": Neighbour("0xb8599f0300fc6de4", "17")}
    assert known(mlx5_1=NODEINFO.replace("Switch", "Channel Adapter")) == {}
    assert known(mlx5_1=None) == {}


@pytest.mark.parametrize("text", ["", "{", '{"lldp": [{"interface": [{"name": "p0"}]}]}', "[]"])
def test_a_text_that_is_no_list_of_neighbours_is_garbled(text: str) -> None:
    assert known(text).reason == "garbled"


def test_an_answer_without_a_guid_is_garbled() -> None:
    assert known(mlx5_1="NodeType:........Switch\n").reason == "garbled"
