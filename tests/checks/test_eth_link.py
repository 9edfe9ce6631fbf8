"""Cards below the NCCL interface: slow, half duplex, loose, alone in a bond, and virtual."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.eth_link import parse_policy, parse_speed
from clusterprep.facts.bonding import Bond
from clusterprep.model import Gpus
from tests.support.fleet import LOOPBACK, absent, bond, eth, findings, fleet, told


def plain(number: int, speed: int | None = 25_000, **fields: Any) -> dict[str, Any]:
    """A node whose NCCL interface is one card."""
    return {
        "net.interfaces": (LOOPBACK, eth("eth0", f"10.0.0.{number}/24", speed=speed, **fields)),
        "net.bonds": {},
    }


def bonded(
    number: int, *speeds: int | None, one: Bond | None = None, **fields: Any
) -> dict[str, Any]:
    """A node whose NCCL interface is bond0, with a card for each speed; None: its cable is out."""
    cards = tuple(
        replace(eth(f"eth{n}", master="bond0", running=speed is not None), speed=speed, **fields)
        for n, speed in enumerate(speeds or (25_000, 25_000), 1)
    )
    total = sum(speed or 0 for speed in speeds) or 50_000
    above = eth("bond0", f"10.0.0.{number}/24", speed=total, physical=False)
    return {"net.interfaces": (LOOPBACK, *cards, above), "net.bonds": {"bond0": one or bond()}}


def named(*nodes: Any, **options: Any) -> Any:
    return fleet(**options, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)})


# ---------------------------------------------------------------- speed


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([plain(1), plain(2), plain(3)], ["pass"] * 3, id="equal"),
        pytest.param(
            [plain(1), plain(2, 1000), plain(3)], ["pass", "fail warning", "pass"], id="one-slow"
        ),
        pytest.param([plain(1), plain(2, 1000)], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([plain(1)], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [plain(n, None) for n in (1, 2, 3)], ["skip not_applicable"] * 3, id="virtual-cards"
        ),
        pytest.param(
            [plain(n, physical=False) for n in (1, 2, 3)],
            ["skip not_applicable"] * 3,
            id="containers",
        ),
        pytest.param([bonded(1), bonded(2), bonded(3)], ["pass"] * 3, id="bonds"),
        pytest.param(
            [bonded(1), bonded(2, 25_000, 10_000), bonded(3)],
            ["pass", "fail warning", "pass"],
            id="a-slow-member",
        ),
        pytest.param(
            [bonded(1), bonded(2, 25_000, None), bonded(3)],
            ["pass", "fail warning", "pass"],
            id="a-member-down",
        ),
        pytest.param(
            [plain(1, duplex="half"), plain(2), plain(3)],
            ["fail warning", "pass", "pass"],
            id="half-duplex",
        ),
        pytest.param(
            [plain(1), plain(2), {**plain(3), "net.interfaces": absent("hung")}],
            ["pass", "pass", "unknown warning hung"],
            id="not-known",
        ),
        pytest.param(
            [plain(1), plain(2), {**plain(3), "net.interfaces": (LOOPBACK,)}],
            ["pass", "pass", "unknown warning eth.iface_choice"],
            id="no-interface",
        ),
    ],
)
def test_one_speed_on_all_nodes(nodes: list[Any], expected: list[str]) -> None:
    assert list(told(named(*nodes), "eth.speed").values()) == expected


def test_speeds_are_shown_card_by_card() -> None:
    (bad,) = [
        f
        for f in findings(named(bonded(1), bonded(2, 25_000, 1000), bonded(3)), "eth.speed")
        if f.seen != ""
    ][:1]
    assert "2 x 25 Gbit/s on n[1,3]" in bad.seen
    assert "25 Gbit/s + 1 Gbit/s on n2" in bad.seen


def test_nodes_of_another_kind_may_have_another_speed() -> None:
    settings = {
        "n1": {"gpus": Gpus(0)},
        "n2": {"gpus": Gpus(8)},
        "n3": {"gpus": Gpus(8)},
        "n4": {"gpus": Gpus(8)},
    }
    seen = named(plain(1, 1000), plain(2), plain(3), plain(4, 10_000), some=settings)
    assert told(seen, "eth.speed") == {
        "n1": "skip not_applicable",
        "n2": "pass",
        "n3": "pass",
        "n4": "fail warning",
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([2, 2, 2], ["pass"] * 3, id="quiet"),
        pytest.param([2, 10, 2], ["pass"] * 3, id="a-reboot-of-the-switch-or-two"),
        pytest.param([2, 11, 2], ["pass", "fail warning", "pass"], id="just-over"),
        pytest.param([4, 16, 4], ["pass"] * 3, id="four-times-the-others"),
        pytest.param([4, 17, 4], ["pass", "fail warning", "pass"], id="more-than-four-times"),
        pytest.param([300, 320, 310], ["pass"] * 3, id="all-alike"),
        pytest.param([2, 4711], ["pass"] * 2, id="two-nodes-tell-nothing"),
        pytest.param([None, None, None], ["pass"] * 3, id="an-old-kernel"),
    ],
)
def test_a_loose_cable_shows_beside_the_other_nodes(
    changes: list[Any], expected: list[str]
) -> None:
    seen = named(*(plain(number, carrier_changes=count) for number, count in enumerate(changes, 1)))
    assert list(told(seen, "eth.speed").values()) == expected


@pytest.mark.parametrize(
    ("wanted", "facts", "expected"),
    [
        pytest.param("25G", plain(1), "pass", id="on-the-limit"),
        pytest.param("25001", plain(1), "fail error", id="just-over"),
        pytest.param("10G", plain(1), "pass", id="more-than-required"),
        pytest.param("100G", plain(1), "fail error", id="less"),
        pytest.param("25G", bonded(1), "pass", id="each-card"),
        pytest.param("50G", bonded(1), "pass", id="all-cards-together"),
        pytest.param("100 Gbit/s", bonded(1), "fail error", id="less-together"),
        pytest.param("25G", plain(1, None), "skip not_applicable", id="a-virtual-card"),
    ],
)
def test_a_required_speed_is_a_least(wanted: str, facts: dict[str, Any], expected: str) -> None:
    assert told(named(facts, each={"require": {"eth.speed": wanted}}), "eth.speed") == {
        "n1": expected
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("25000", 25_000), ("25G", 25_000), ("100 Gb/s", 100_000), ("1000M", 1000)],
)
def test_speeds_as_people_write_them(text: str, expected: int) -> None:
    assert parse_speed(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "25T", "2x25G", "25.5G"])
def test_other_speeds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a speed"):
        parse_speed(text)


def test_a_vlan_and_a_bridge_stand_on_their_cards() -> None:
    slow = bonded(2, 25_000, 1000)
    rows = slow["net.interfaces"]
    vlan = (*(replace(i, ipv4=()) for i in rows), eth("bond0.100", "10.0.0.2/24", physical=False))
    bridge = (
        *(replace(i, ipv4=(), master="br0" if i.name == "bond0" else i.master) for i in rows),
        eth("br0", "10.0.0.2/24", physical=False, bridge=True),
    )
    for interfaces in (vlan, bridge):
        seen = named(bonded(1), {**slow, "net.interfaces": interfaces}, bonded(3))
        assert told(seen, "eth.speed")["n2"] == "fail warning"


# ---------------------------------------------------------------- bonds

SPLIT = replace(
    bond(), members=tuple(replace(m, aggregator=str(n)) for n, m in enumerate(bond().members))
)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(bond(), "pass", id="lacp"),
        pytest.param(replace(bond(), partner=None), "pass", id="not-root"),
        pytest.param(bond(policy="encap3+4"), "pass", id="a-hash-for-tunnels"),
        pytest.param(bond(mode="active-backup", policy=None), "pass", id="active-backup"),
        pytest.param(
            bond(mode="active-backup", policy="layer2"), "pass", id="a-hash-that-is-not-used"
        ),
        pytest.param(bond(eth2="down"), "fail warning", id="a-member-down"),
        pytest.param(bond(eth2="going down"), "fail warning", id="a-member-on-its-way"),
        pytest.param(
            bond(mode="active-backup", policy=None, eth2="down"),
            "fail warning",
            id="a-dead-standby",
        ),
        pytest.param(SPLIT, "fail warning", id="two-aggregators"),
        pytest.param(replace(bond(), partner="00:00:00:00:00:00"), "fail warning", id="no-partner"),
        pytest.param(bond(policy="layer2"), "fail warning", id="a-hash-of-addresses"),
        pytest.param(bond(policy="layer2+3"), "fail warning", id="a-hash-of-hosts"),
        pytest.param(bond(mode="balance-xor", policy="layer2"), "fail warning", id="xor"),
        pytest.param(
            bond(mode="balance-rr", policy="layer2"), "pass", id="round-robin-hashes-nothing"
        ),
        pytest.param(
            Bond("bond0", "802.3ad", "down", (), "layer3+4"), "fail warning", id="no-members"
        ),
    ],
)
def test_a_bond_has_all_its_members_and_spreads(one: Bond, expected: str) -> None:
    assert told(named(bonded(1, one=one)), "eth.bond") == {"n1": expected}


@pytest.mark.parametrize("count", [0, 1])
def test_a_report_that_leaves_out_a_member_is_no_report(count: int) -> None:
    cut = replace(bond(), members=bond().members[:count])
    assert told(named(bonded(1, one=cut)), "eth.bond") == {"n1": "unknown warning garbled"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(plain(1), "skip not_applicable", id="no-bond"),
        pytest.param(
            {**plain(1), "net.bonds": {"bond1": bond("bond1", eth2="down")}},
            "skip not_applicable",
            id="other",
        ),
        pytest.param(
            {**bonded(1), "net.bonds": absent("denied")}, "unknown warning denied", id="denied"
        ),
        pytest.param(
            {**bonded(1), "net.bonds": absent("garbled")}, "unknown warning garbled", id="garbled"
        ),
        pytest.param(
            {**bonded(1), "net.interfaces": ()},
            "unknown warning eth.iface_choice",
            id="no-interface",
        ),
    ],
)
def test_only_the_bond_of_the_nccl_interface_counts(facts: dict[str, Any], expected: str) -> None:
    assert told(named(facts), "eth.bond") == {"n1": expected}


def teamed(number: int, second: bool = True, address: str = "10.0.0") -> tuple[Any, ...]:
    """A team of two cards as the kernel shows it; the second has a carrier or not."""
    return (
        eth("ens1f0", master="team7"),
        eth("ens1f1", master="team7", running=second),
        eth("team7", f"{address}.{number}/24", physical=False),
    )


def rows(number: int, *more: Any) -> dict[str, Any]:
    """A node whose NCCL interface is one card, with more beside it."""
    one = plain(number)
    return {**one, "net.interfaces": (*one["net.interfaces"], *more)}


VRF = (
    eth("ens1f0", "10.7.0.1/24", master="blue"),
    eth("ens1f1", "10.8.0.1/24", master="blue", running=False),
    eth("blue", "10.9.9.9/32", physical=False),
)
OVS = (
    eth("ens1f0", master="ovs-system"),
    eth("ens1f1", master="ovs-system", running=False),
    eth("ovs-system", physical=False, up=False, running=False),
)
BRIDGE = (
    eth("ens1f1", master="br7", running=False),
    eth("br7", "10.7.0.1/24", physical=False, bridge=True),
)
OTHER_BOND = (
    eth("eth1", master="bond1"),
    eth("eth2", master="bond1"),
    eth("bond1", "10.7.0.1/24", physical=False),
)


BOND_OF_IPV6 = (*OTHER_BOND[:2], eth("bond1", ipv6=("fd00:7::1/64",), physical=False))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(
            {**rows(1, *BOND_OF_IPV6), "net.bonds": {"bond1": bond("bond1", eth2="down")}},
            "fail warning",
            id="another-bond-with-ipv6-alone",
        ),
        pytest.param(
            {"net.interfaces": (LOOPBACK, *teamed(1)), "net.bonds": {}},
            "skip not_applicable",
            id="whole-and-how-it-shares-is-not-told",
        ),
        pytest.param(
            {"net.interfaces": (LOOPBACK, *teamed(1, False)), "net.bonds": {}},
            "fail warning",
            id="without-a-carrier",
        ),
        pytest.param(rows(1, *teamed(1, True, "10.7.0")), "skip not_applicable", id="of-others"),
        pytest.param(
            rows(1, *teamed(1, False, "10.7.0")), "fail warning", id="of-others-without-a-carrier"
        ),
        pytest.param(rows(1, *VRF), "skip not_applicable", id="a-vrf-joins-nothing"),
        pytest.param(rows(1, *OVS), "skip not_applicable", id="nor-does-open-vswitch"),
        pytest.param(rows(1, *BRIDGE), "skip not_applicable", id="nor-does-a-bridge"),
        pytest.param(
            {**rows(1, *OTHER_BOND), "net.bonds": {"bond1": bond("bond1", eth2="down")}},
            "fail warning",
            id="another-bond-without-a-member",
        ),
        pytest.param(
            {**rows(1, *OTHER_BOND), "net.bonds": {"bond1": bond("bond1", policy="layer2")}},
            "skip not_applicable",
            id="another-bond-spreads-as-it-likes",
        ),
    ],
)
def test_a_team_and_what_nccl_does_not_use_have_all_members_too(
    facts: dict[str, Any], expected: str
) -> None:
    assert told(named(facts), "eth.bond") == {"n1": expected}


def test_a_member_of_a_team_is_named() -> None:
    facts = {"net.interfaces": (LOOPBACK, *teamed(1, False)), "net.bonds": {}}
    (bad,) = findings(named(facts), "eth.bond")
    assert bad.message == "ens1f1 of team7 is not up"
    assert bad.seen == "team7: ens1f0 up, ens1f1 down"
    assert bad.remedy.startswith("ethtool ens1f1; ip link set dev ens1f1 up")


def test_the_remedy_names_the_card_and_the_bond() -> None:
    (bad,) = findings(named(bonded(1, one=bond(eth2="down"))), "eth.bond")
    assert bad.message == "eth2 of bond0 is not up"
    assert bad.remedy.startswith("ethtool eth2; ip link set dev eth2 up")
    (bad,) = findings(named(bonded(1, one=bond(policy="layer2"))), "eth.bond")
    assert bad.remedy.startswith("ip link set dev bond0 type bond xmit_hash_policy layer3+4")


@pytest.mark.parametrize(
    ("wanted", "policy", "expected"),
    [
        ("layer2+3", "layer2+3", "pass"),
        ("layer2+3", "layer3+4", "fail error"),
        ("layer3+4", "layer3+4", "pass"),
    ],
)
def test_a_required_hash_is_that_one(wanted: str, policy: str, expected: str) -> None:
    seen = named(bonded(1, one=bond(policy=policy)), each={"require": {"eth.bond": wanted}})
    assert told(seen, "eth.bond") == {"n1": expected}


def test_a_hash_that_does_not_exist_is_refused() -> None:
    assert parse_policy("layer3+4") == "layer3+4"
    with pytest.raises(ValueError, match="expected a transmit hash policy"):
        parse_policy("layer4")
