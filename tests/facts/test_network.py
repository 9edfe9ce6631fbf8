"""Interfaces, ports and RDMA devices as the kernel shows them on machines that people have."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.facts.network import LINK, Interface, network_of
from tests.support.fleet import learned


def row(name: str, *addresses: str, scope: int = 0, **fields: Any) -> dict[str, Any]:
    """A row as the agent sends it: files of /sys/class/net/NAME as text, addresses from netlink."""
    shown = [
        {
            "address": a.split("/")[0],
            "prefix": int(a.split("/")[1]),
            "scope": LINK if a.startswith("fe80:") else scope,
        }
        for a in addresses
    ]
    return {
        "name": name,
        "physical": True,
        "bridge": False,
        "master": None,
        "mtu": "1500",
        "operstate": "up",
        "type": "1",
        "flags": "0x1003",
        "speed": "10000",
        "ifindex": "2",
        "carrier": "1",
        "duplex": "full",
        "carrier_changes": "2",
        "addresses": shown,
        **fields,
    }


def one(*args: Any, **fields: Any) -> Interface:
    (found,) = learned("net.interfaces", ["ok", [row(*args, **fields)]])
    return found


def with_prefix(prefix: object) -> dict[str, Any]:
    found = row("eth0", "10.0.0.7/24")
    found["addresses"][0]["prefix"] = prefix
    return found


LO = row(
    "lo",
    "127.0.0.1/8",
    scope=254,
    physical=False,
    operstate="unknown",
    type="772",
    flags="0x9",
    speed=None,
)
# /sys/class/net has this once the bonding driver is loaded: a file, which has no attributes.
BONDING_MASTERS = {
    **dict.fromkeys(("mtu", "operstate", "type", "flags", "speed", "ifindex", "carrier")),
    "name": "bonding_masters", "physical": False, "bridge": False, "master": None, "addresses": [],
}  # fmt: skip


def test_a_card_is_up_with_its_network() -> None:
    found = one("eth0", "10.0.0.7/24", mtu="9000", speed="100000")
    assert found == Interface(
        "eth0",
        True,
        True,
        False,
        True,
        False,
        None,
        9000,
        100_000,
        False,
        ("10.0.0.7/24",),
        "full",
        2,
    )
    assert found.networks == ("10.0.0.0/24",)
    assert found.addresses == ("10.0.0.7/24",)


@pytest.mark.parametrize(
    ("addresses", "ipv4", "bound"),
    [
        pytest.param(
            ["10.0.0.7/24", "10.1.0.7/24"], ("10.0.0.7/24", "10.1.0.7/24"), "10.0.0.7/24", id="two"
        ),
        pytest.param(
            ["169.254.3.4/16", "10.0.0.7/24"],
            ("10.0.0.7/24",),
            "169.254.3.4/16",
            id="link-local-first",
        ),
        pytest.param(
            ["10.0.0.7/24", "169.254.3.4/16"],
            ("10.0.0.7/24",),
            "10.0.0.7/24",
            id="link-local-second",
        ),
        pytest.param(
            ["fe80::1/64", "10.0.0.7/24"],
            ("10.0.0.7/24",),
            "10.0.0.7/24",
            id="ipv6-comes-after-ipv4",
        ),
        pytest.param(["169.254.3.4/16"], (), "169.254.3.4/16", id="link-local-alone"),
        pytest.param(["fe80::1/64"], (), "fe80::1/64", id="ipv6-link-local-alone"),
        pytest.param(["fd00::1/64", "fe80::1/64"], (), "fd00::1/64", id="ipv6-alone"),
        pytest.param([], (), None, id="none"),
    ],
)
def test_nccl_binds_the_first_address_and_prefers_ipv4(
    addresses: list[str], ipv4: tuple[str, ...], bound: str | None
) -> None:
    found = one("eth0", *addresses)
    assert (found.ipv4, found.bound) == (ipv4, bound)
    assert found.binds_link_local == (bound in ("169.254.3.4/16", "fe80::1/64"))


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.7/24",
        "10.255.255.254/31",
        "192.168.77.3/23",
        "255.255.255.255/32",
        "172.16.5.4/12",
        "10.1.2.3/0",
        "10.1.2.3",
        "fd00::1:2/64",
        "fd00::1",
    ],
)
def test_the_network_of_an_address_is_that_of_the_standard_library(address: str) -> None:
    assert network_of(address) == str(ip_interface(address).network)


def test_an_address_that_another_machine_has_is_none_to_use() -> None:
    told = row("eth0", "fd00::7/64", "fd00::8/64", "fe80::7/64")
    told["addresses"][0]["duplicate"] = True
    (found,) = learned("net.interfaces", ["ok", [told]])
    assert (found.ipv6, found.duplicates) == (("fd00::8/64",), ("fd00::7/64",))


def test_an_address_of_another_scope_is_bound_too_when_it_comes_first() -> None:
    first, second = one("eth0", "10.9.0.7/32", scope=254), one("eth0", "10.0.0.7/24")
    both = row("eth0", "10.0.0.7/24")
    both["addresses"] = [*row("eth0", "10.9.0.7/32", scope=254)["addresses"], *both["addresses"]]
    (found,) = learned("net.interfaces", ["ok", [both]])
    assert (first.ipv4, second.first, found.ipv4, found.bound) == (
        (),
        None,
        ("10.0.0.7/24",),
        "10.9.0.7/32",
    )


@pytest.mark.parametrize(
    ("number", "tunnel"),
    [
        ("1", False),
        ("32", False),
        ("772", False),
        ("65534", True),
        ("768", True),
        ("776", True),
        ("778", True),
        ("512", True),
    ],
)
def test_tunnels_are_known_by_their_kind_whatever_their_name(number: str, tunnel: bool) -> None:
    assert one("corp", "10.0.0.7/24", type=number).tunnel is tunnel


def test_loopback_has_no_address_to_offer() -> None:
    (found,) = learned("net.interfaces", ["ok", [LO]])
    assert found.loopback
    assert found.ipv4 == ()


@pytest.mark.parametrize(
    ("fields", "up", "running"),
    [
        pytest.param({"operstate": "up"}, True, True, id="up"),
        pytest.param({"operstate": "unknown"}, True, True, id="a-driver-that-does-not-say"),
        pytest.param({"operstate": "down", "carrier": "0"}, True, False, id="cable-out"),
        pytest.param({"operstate": "lowerlayerdown"}, True, False, id="vlan-of-a-dead-card"),
        pytest.param({"operstate": "dormant"}, True, False, id="waits-for-802.1x"),
        pytest.param({"operstate": "unknown", "carrier": "0"}, True, False, id="no-carrier"),
        pytest.param(
            {"operstate": "down", "flags": "0x1002", "carrier": None, "speed": None},
            False,
            False,
            id="off",
        ),
    ],
)
def test_up_is_the_flag_and_running_is_the_cable(
    fields: dict[str, Any], up: bool, running: bool
) -> None:
    found = one("eth0", "10.0.0.7/24", **fields)
    assert (found.up, found.running) == (up, running)


@pytest.mark.parametrize(
    ("speed", "expected"),
    [("100000", 100_000), ("-1", None), ("0", None), (None, None), ("", None)],
)
def test_a_speed_that_the_driver_does_not_know_is_none(
    speed: str | None, expected: int | None
) -> None:
    assert one("eth0", speed=speed).speed == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"duplex": "half", "carrier_changes": "4711"}, ("half", 4711), id="half"),
        pytest.param({"duplex": "unknown", "carrier_changes": "0"}, (None, 0), id="a-virtual-card"),
        pytest.param(
            {"duplex": None, "carrier_changes": None}, (None, None), id="a-link-that-is-down"
        ),
    ],
)
def test_duplex_and_changes_of_the_carrier_as_the_driver_says(
    fields: dict[str, Any], expected: object
) -> None:
    found = one("eth0", **fields)
    assert (found.duplex, found.carrier_changes) == expected


def test_an_agent_that_did_not_look_leaves_them_unknown() -> None:
    old = {
        key: value for key, value in row("eth0").items() if key not in ("duplex", "carrier_changes")
    }
    (found,) = learned("net.interfaces", ["ok", [old]])
    assert (found.duplex, found.carrier_changes) == (None, None)


def test_flags_that_could_not_be_read_are_not_up() -> None:
    assert not one("eth0", flags=None).up


@pytest.mark.parametrize(
    ("addresses", "scope", "expected"),
    [
        pytest.param(["10.0.0.7/24"], 0, ("10.0.0.7/24",), id="one"),
        pytest.param(
            ["10.0.0.7/24", "10.0.0.100/32"],
            0,
            ("10.0.0.7/24", "10.0.0.100/32"),
            id="a-virtual-one-beside",
        ),
        pytest.param(["fe80::1/64"], 253, (), id="ipv6-link-local"),
        pytest.param(["2001:db8::7/64"], 0, (), id="ipv6-only"),
        pytest.param(["169.254.12.7/16"], 0, (), id="dhcp-did-not-answer"),
        pytest.param(["169.254.12.7/16"], 253, (), id="link-local-as-such"),
        pytest.param([], 0, (), id="none"),
    ],
)
def test_only_global_ipv4_counts(
    addresses: list[str], scope: int, expected: tuple[str, ...]
) -> None:
    assert one("eth0", *addresses, scope=scope).ipv4 == expected


def test_container_interfaces_keep_what_marks_them() -> None:
    rows = [
        row("docker0", "172.17.0.1/16", physical=False, bridge=True, speed="10000"),
        row("veth1a2b3c4", physical=False, master="docker0"),
        row("eno1", master="bond0"),
        row("bond0", "10.0.0.7/24", physical=False, flags="0x1403"),
        row("eth0.100", "10.100.0.7/24", physical=False),
        row("ib0", "10.1.0.7/24", type="32", mtu="4092", speed="200000"),
    ]
    found = {i.name: i for i in learned("net.interfaces", ["ok", rows])}
    assert found["docker0"].bridge
    assert found["veth1a2b3c4"].master == "docker0"
    assert found["eno1"].master == "bond0"
    assert not found["bond0"].bridge
    assert found["eth0.100"].networks == ("10.100.0.0/24",)
    assert [i.name for i in found.values() if i.infiniband] == ["ib0"]


def test_the_file_of_the_bonding_driver_is_no_interface() -> None:
    found = learned(
        "net.interfaces", ["ok", [row("bond0", "10.0.0.7/24", physical=False), BONDING_MASTERS, LO]]
    )
    assert [interface.name for interface in found] == ["bond0", "lo"]


def test_an_interface_that_went_meanwhile_does_not_hide_the_others() -> None:
    gone = {**BONDING_MASTERS, "name": "veth9f8e7d6"}
    found = learned("net.interfaces", ["ok", [row("eth0", "10.0.0.7/24"), gone]])
    assert [interface.name for interface in found] == ["eth0"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(None, id="nothing"),
        pytest.param([{}], id="an-empty-row"),
        pytest.param(["eth0"], id="names-only"),
        pytest.param([row("eth0", mtu="big")], id="an-mtu-in-words"),
        pytest.param([row("eth0", mtu=None)], id="an-mtu-that-could-not-be-read"),
        pytest.param([row("eth0", flags="up")], id="flags-in-words"),
        pytest.param([row("eth0", speed="fast")], id="a-speed-in-words"),
        pytest.param([row("eth0", carrier_changes="often")], id="changes-in-words"),
        pytest.param([{**row("eth0"), "addresses": ["10.0.0.7"]}], id="addresses-as-text"),
        pytest.param([row("eth0", "10.0.0.256/24")], id="an-address-that-cannot-be"),
        pytest.param([row("eth0", "10.0.0.7/64")], id="a-prefix-that-cannot-be"),
        pytest.param([with_prefix(-1)], id="a-prefix-below-nothing"),
        pytest.param([with_prefix("24")], id="a-prefix-as-text"),
        pytest.param([with_prefix(True)], id="a-prefix-as-truth"),
    ],
)
def test_nonsense_is_garbled(rows: object) -> None:
    assert learned("net.interfaces", ["ok", rows]).reason == "garbled"


# ---------------------------------------------------------------- ports


def test_the_port_range_is_two_numbers() -> None:
    assert learned("net.port_range", ["ok", "32768\t60999\n"]) == (32768, 60999)


@pytest.mark.parametrize(
    "answer", [["ok", ""], ["ok", "32768"], ["ok", "a\tb"], ["no", "missing"], ["ok", "1 2 3"]]
)
def test_another_port_range_is_garbled(answer: list[object]) -> None:
    assert learned("net.port_range", answer).reason == "garbled"


NO_NAMES = [
    "",
    ".",
    "..",
    "eth0/../x",
    "eth 0",
    "eth0:1",
    "a" * 16,
    "eth0\n",
    "\x1b[2J",
    "e\u202e0",
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_the_kernel_takes_for_no_name_is_garbled(name: str) -> None:
    """A name reaches commands that users paste, so a strange one is not believed at all."""
    assert learned("net.interfaces", ["ok", [row(name)]]).reason == "garbled"
    assert learned("net.interfaces", ["ok", [row("eth0", master=name)]]).reason == "garbled"


def test_a_strange_name_that_the_kernel_takes_is_kept() -> None:
    assert one("eth0;$(x)`'\"").name == "eth0;$(x)`'\""
    assert one("a" * 15, master="bond0").master == "bond0"


def test_interfaces_of_two_nodes_are_equal_whatever_their_number() -> None:
    first, other = one("eth0", "10.0.0.1/24"), one("eth0", "10.0.0.1/24", ifindex="7")
    assert first.index != other.index
    assert (first == other, hash(first) == hash(other)) == (True, True)
    assert first != one("eth0", "10.0.0.1/24", mtu="9000")
    assert first != "eth0"


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_the_networks_of_an_interface_are_those_of_its_addresses(
    address: IPv4Address, prefix: int
) -> None:
    text = f"{address}/{prefix}"
    found = replace(one("eth0"), ipv4=(text, "10.0.0.1/32"))
    assert found.networks == (str(IPv4Interface(text).network), "10.0.0.1/32")
