"""/proc/net/bonding as it is printed for root, for others, and in modes that people use."""

from __future__ import annotations

import pytest

from clusterprep.facts.bonding import Bond, Member
from tests.support.fleet import learned

# In the format of bonding v5.15, as root reads it: two ports against an MLAG pair.
LACP = """\
Ethernet Channel Bonding Driver: v5.15.0-105-generic

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: layer3+4 (1)
MII Status: up
MII Polling Interval (ms): 100
Up Delay (ms): 0
Down Delay (ms): 0
Peer Notification Delay (ms): 0

802.3ad info
LACP active: on
LACP rate: fast
Min links: 0
Aggregator selection policy (ad_select): stable
System priority: 65535
System MAC address: 94:6d:ae:5a:11:20
Active Aggregator Info:
\tAggregator ID: 1
\tNumber of ports: 2
\tActor Key: 21
\tPartner Key: 1001
\tPartner Mac Address: 44:38:39:ff:00:12

Slave Interface: enp41s0f0np0
MII Status: up
Speed: 25000 Mbps
Duplex: full
Link Failure Count: 0
Permanent HW addr: 94:6d:ae:5a:11:20
Slave queue ID: 0
Aggregator ID: 1
Actor Churn State: none
Partner Churn State: none
Actor Churned Count: 0
Partner Churned Count: 0
details actor lacp pdu:
    system priority: 65535
    system mac address: 94:6d:ae:5a:11:20
    port key: 21
    port priority: 255
    port number: 1
    port state: 63
details partner lacp pdu:
    system priority: 65535
    system mac address: 44:38:39:ff:00:12
    oper key: 1001
    port priority: 255
    port number: 11
    port state: 63

Slave Interface: enp41s0f1np1
MII Status: up
Speed: 25000 Mbps
Duplex: full
Link Failure Count: 1
Permanent HW addr: 94:6d:ae:5a:11:21
Slave queue ID: 0
Aggregator ID: 1
Actor Churn State: none
Partner Churn State: none
Actor Churned Count: 0
Partner Churned Count: 0
"""
# The same for a user who is not root: neither the aggregator's info nor the PDUs.
START, END = LACP.index("System priority"), LACP.index("\nSlave Interface")
FOR_USERS = LACP[:START] + LACP[END:]
BACKUP = """\
Ethernet Channel Bonding Driver: v3.7.1 (April 27, 2011)

Bonding Mode: fault-tolerance (active-backup) (fail_over_mac active)
Primary Slave: None
Currently Active Slave: ib0
MII Status: up
MII Polling Interval (ms): 100
Up Delay (ms): 0
Down Delay (ms): 0

Slave Interface: ib0
MII Status: up
Speed: 200000 Mbps
Duplex: full
Link Failure Count: 0
Permanent HW addr: 00:00:10:49:fe:80
Slave queue ID: 0

Slave Interface: ib1
MII Status: down
Speed: Unknown
Duplex: Unknown
Link Failure Count: 3
Permanent HW addr: 00:00:18:49:fe:80
Slave queue ID: 0
"""
EMPTY = """\
Ethernet Channel Bonding Driver: v6.8.0-45-generic

Bonding Mode: load balancing (round-robin)
MII Status: down
MII Polling Interval (ms): 0
"""
CARDS = (Member("enp41s0f0np0", "up", "1"), Member("enp41s0f1np1", "up", "1"))


def read(text: object) -> object:
    return learned("net.bonds", ["ok", {"/proc/net/bonding/bond0": text}])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            LACP, Bond("bond0", "802.3ad", "up", CARDS, "layer3+4", "44:38:39:ff:00:12"), id="root"
        ),
        pytest.param(
            FOR_USERS, Bond("bond0", "802.3ad", "up", CARDS, "layer3+4", None), id="another-user"
        ),
        pytest.param(
            BACKUP,
            Bond("bond0", "active-backup", "up", (Member("ib0", "up"), Member("ib1", "down"))),
            id="active-backup",
        ),
        pytest.param(EMPTY, Bond("bond0", "balance-rr", "down"), id="no-members"),
        pytest.param(
            LACP.replace("layer3+4 (1)", "vlan+srcmac (5)"),
            Bond("bond0", "802.3ad", "up", CARDS, "vlan+srcmac", "44:38:39:ff:00:12"),
            id="another-hash",
        ),
    ],
)
def test_a_bond_is_read_with_its_members(text: str, expected: Bond) -> None:
    assert read(text) == {"bond0": expected}


def test_members_that_go_up_and_down_and_have_no_aggregator_keep_their_words() -> None:
    text = LACP.replace(
        "Speed: 25000 Mbps\nDuplex: full\nLink Failure Count: 1",
        "Speed: Unknown\nDuplex: Unknown",
        1,
    )
    head, tail = text.split("Slave Interface: enp41s0f1np1\n")
    text = (
        head
        + "Slave Interface: enp41s0f1np1\n"
        + tail.replace("Status: up", "Status: going back").replace(
            "Aggregator ID: 1", "Aggregator ID: N/A"
        )
    )
    found = read(text)
    assert isinstance(found, dict)
    assert found["bond0"].members[1] == Member("enp41s0f1np1", "going back", "N/A")


def test_several_bonds_and_none() -> None:
    both = {"/proc/net/bonding/bond0": LACP, "/proc/net/bonding/bond-ib": BACKUP}
    assert list(learned("net.bonds", ["ok", both])) == ["bond0", "bond-ib"]
    assert learned("net.bonds", ["ok", {}]) == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(None, id="nothing"),
        pytest.param("Bonding Mode: something new\nMII Status: up\n", id="another-mode"),
        pytest.param(LACP[: LACP.index("MII Status")], id="cut-in-the-head"),
        pytest.param(LACP[: LACP.rindex("Permanent HW addr")], id="cut-in-a-member"),
        pytest.param(LACP[: LACP.rindex("Aggregator ID")], id="cut-before-the-aggregator"),
        pytest.param(LACP[: LACP.rindex("MII Status")], id="cut-after-a-name"),
    ],
)
def test_a_report_that_was_cut_is_garbled(text: object) -> None:
    found = read(text)
    assert getattr(found, "reason", found) == "garbled"


def test_a_folder_that_could_not_be_read_is_not_one_without_bonds() -> None:
    assert learned("net.bonds", ["no", "hung", ""]).reason == "hung"
