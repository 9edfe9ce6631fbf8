"""Full-size packets that do not get through, and round trips that are longer than others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.pairs import Dial
from tests.support.fleet import absent, eth, findings, fleet, told

NAMES = ("n1", "n2", "n3", "n4")


def dial(dialer: str, listener: str, **measured: Any) -> Dial:
    healthy = {"rtt": 50e-6, "packet": 9000, "carried": 9000, "path_mtu": 9000}
    return Dial(dialer, listener, f"10.0.0.{listener[1:]}", 40000, "ok", **{**healthy, **measured})


PAIRS = tuple(itertools.permutations(NAMES, 2))


def nodes(
    *changed: Dial, names: tuple[str, ...] = NAMES, mtu: int = 9000, **other: Any
) -> dict[str, Any]:
    """Facts of a fleet in which every node dials every other; `changed` replaces single dials."""
    instead = {(d.dialer, d.listener): d for d in changed}
    dials = [instead.get(pair, dial(*pair)) for pair in itertools.permutations(names, 2)]
    return {
        name: {
            "net.dials": other.get(name, tuple(d for d in dials if d.dialer == name)),
            "net.interfaces": (eth("eth0", f"10.0.0.{name[1:]}/16", mtu=mtu),),
        }
        for name in names
    }


def around(name: str, **measured: Any) -> list[Dial]:
    """Every dial to and from one node."""
    return [dial(a, b, **measured) for a, b in PAIRS if name in (a, b)]


STUCK = {"carried": 1500}
ALL_PASS = dict.fromkeys(NAMES, "pass")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param([], ALL_PASS, id="all-well"),
        pytest.param(around("n3", **STUCK), {"n3": "fail error"}, id="the-switch-port-of-one-node"),
        pytest.param(around("n3", carried=0), {"n3": "fail error"}, id="not-even-small-ones"),
        pytest.param(around("n3", path_mtu=1500), {"n3": "fail error"}, id="a-router-said-so"),
        pytest.param(
            [dial("n1", "n2", **STUCK)],
            {"n1": "fail error", "n2": "fail error", "n3": "pass", "n4": "pass"},
            id="one-way-of-one-pair",
        ),
        pytest.param(
            [replace(dial("n1", "n2"), word="refused", packet=None, carried=None)],
            ALL_PASS,
            id="net.ports-says-that",
        ),
        pytest.param(
            around("n3", packet=1452, carried=1452), ALL_PASS, id="clamped-on-the-way-and-carried"
        ),
        pytest.param(
            around("n3", path_mtu=0), ALL_PASS, id="a-kernel-that-does-not-say-the-path-mtu"
        ),
    ],
)
def test_whose_path_is_too_small(changed, expected):
    assert told(fleet(**nodes(*changed)), "eth.path_mtu") == expected


def test_the_largest_size_and_both_ends_are_said():
    (bad,) = [
        f
        for f in findings(fleet(**nodes(dial("n1", "n2", **STUCK))), "eth.path_mtu")
        if f.verdict == "fail"
    ]
    assert (bad.seen, bad.wanted) == ("1500 bytes on n1 → n2", "9000 bytes")
    assert bad.remedy == "ping -M do -s 8972 10.0.0.2"
    assert "from n1" in bad.remedy.note


def test_the_remedy_for_ipv6_leaves_room_for_its_larger_header():
    stuck = replace(dial("n1", "n2", **STUCK), address="fd00::2")
    (bad,) = [f for f in findings(fleet(**nodes(stuck)), "eth.path_mtu") if f.verdict == "fail"]
    assert bad.remedy == "ping -M do -s 8952 fd00::2"


def test_a_smaller_interface_is_named_although_tcp_adapts_to_it():
    facts = nodes(*[dial(a, b, packet=1500, carried=1500) for a, b in PAIRS if "n3" in (a, b)])
    facts["n3"]["net.interfaces"] = (eth("eth0", "10.0.0.3/16", mtu=1500),)
    assert told(fleet(**facts), "eth.path_mtu")["n3"] == "fail error"
    (bad,) = [f for f in findings(fleet(**facts), "eth.path_mtu") if f.verdict == "fail"]
    assert (bad.seen, bad.wanted) == ("1500 bytes", "9000 bytes")
    assert "too large for the other end, between n3 and the others" in bad.message


def test_a_larger_interface_is_named_for_what_it_sends():
    small = {"packet": 1500, "carried": 1500, "path_mtu": 1500}
    every = [dial(a, b, **{**small, **({"path_mtu": 9000} if a == "n3" else {})}) for a, b in PAIRS]
    facts = nodes(*every, mtu=1500)
    facts["n3"]["net.interfaces"] = (eth("eth0", "10.0.0.3/16", mtu=9000),)
    assert told(fleet(**facts), "eth.path_mtu")["n3"] == "fail error"


def unequal(mtu_of: dict[str, int], **settings: Any) -> Any:
    """A fleet in which TCP keeps to the smaller MTU of the two ends."""
    names = tuple(mtu_of)
    every = []
    for a, b in itertools.permutations(names, 2):
        packet = min(mtu_of[a], mtu_of[b])
        every.append(dial(a, b, packet=packet, carried=packet, path_mtu=mtu_of[a]))
    facts = nodes(*every, names=names)
    for name, mtu in mtu_of.items():
        facts[name]["net.interfaces"] = (eth(f"ens{name[1:]}", f"10.0.0.{name[1:]}/16", mtu=mtu),)
        facts[name]["rdma.devices"] = ()
    return fleet(**facts, **settings)


@pytest.mark.parametrize(
    ("mtu_of", "wish"),
    [
        pytest.param({"n1": 1500, "n2": 9000, "n3": 1500, "n4": 1500}, "1500", id="larger"),
        pytest.param({"n1": 9000, "n2": 1500, "n3": 9000, "n4": 9000}, "9000", id="smaller"),
    ],
)
def test_the_path_wants_the_mtu_that_the_interface_check_wants(
    mtu_of: dict[str, int], wish: str
) -> None:
    seen = unequal(mtu_of)
    for check in ("eth.mtu", "eth.path_mtu"):
        (bad,) = [f for f in findings(seen, check) if f.verdict == "fail"]
        assert bad.nodes == ("n2",)
        assert bad.wanted.split()[0] == wish
        assert bad.remedy == f"ip link set dev ens2 mtu {wish}"


def test_the_path_wants_the_mtu_that_is_declared() -> None:
    seen = unequal(
        {"n1": 1500, "n2": 9000, "n3": 1500, "n4": 1500}, each={"require": {"eth.mtu": "9000"}}
    )
    bad = [f for f in findings(seen, "eth.path_mtu") if f.verdict == "fail"]
    assert bad
    for finding in bad:
        assert "mtu 1500" not in finding.remedy


def test_two_unequal_ends_are_both_named_without_a_placeholder() -> None:
    (bad,) = findings(unequal({"n1": 9000, "n2": 1500}), "eth.path_mtu")
    assert bad.nodes == ("n1", "n2")
    assert (bad.seen, bad.wanted) == ("9000 bytes on n1, 1500 on n2", "the same on both")
    assert bad.remedy == (
        "give ens1 of n1, ens2 of n2 one MTU: 9000 if all switches between them carry it, else 1500"
    )


def test_the_coverage_is_said():
    (good,) = findings(fleet(**nodes()), "eth.path_mtu")
    assert good.seen == "9000 bytes; 12 of 12 directed pairs tried"


def test_loopback_carries_what_ipv4_has() -> None:
    """Its MTU is 65536; the kernel says 65535 of the path; TCP sends segments of half of that."""
    measured = {"packet": 32793, "carried": 32793, "path_mtu": 65535}
    every = [dial(a, b, **measured) for a, b in PAIRS]
    assert told(fleet(**nodes(*every, mtu=65536)), "eth.path_mtu") == ALL_PASS
    less = [replace(one, path_mtu=65000) for one in every]
    assert "fail error" in told(fleet(**nodes(*less, mtu=65536)), "eth.path_mtu").values()


@pytest.mark.parametrize("check", ["eth.path_mtu", "net.latency"])
@pytest.mark.parametrize("reason", ["denied", "hung", "garbled", "eth.iface_choice"])
def test_what_was_not_dialled_is_not_known(check, reason):
    severity = "error" if check == "eth.path_mtu" else "warning"
    seen = fleet(**nodes(n2=absent(reason)))
    assert told(seen, check)["n2"] == f"unknown {severity} {reason}"


@pytest.mark.parametrize("packet", [0, None])
def test_a_packet_whose_fate_is_not_known_is_not_a_pass(packet):
    changed = [dial("n2", other, packet=packet, carried=None) for other in NAMES if other != "n2"]
    said = told(fleet(**nodes(*changed)), "eth.path_mtu")
    assert said["n2"] == "unknown error no full-size packet was measured"


@pytest.mark.parametrize(
    ("carried", "seen", "message"),
    [
        (1500, "1500 bytes", "full-size packets get through between no two nodes, small ones do"),
        (
            0,
            "less than 1280 bytes",
            "packets of 1280 bytes and more get through between no two nodes",
        ),
    ],
)
def test_a_network_that_carries_no_full_size_packets_is_one_fault_of_no_single_node(
    carried, seen, message
):
    every = [dial(a, b, carried=carried) for a, b in PAIRS]
    (bad,) = findings(fleet(**nodes(*every)), "eth.path_mtu")
    assert (bad.verdict, bad.nodes, bad.seen, bad.message) == ("fail", NAMES, seen, message)
    assert bad.remedy == "ping -M do -s 8972 10.0.0.2"
    assert "from n1" in bad.remedy.note


def test_that_small_packets_get_through_is_said_only_where_they_did():
    (bad,) = [
        f
        for f in findings(fleet(**nodes(*around("n3", carried=0))), "eth.path_mtu")
        if f.verdict == "fail"
    ]
    assert bad.message.endswith(
        "packets of 1280 bytes and more do not get through between n3 and the others"
    )


@pytest.mark.parametrize("check", ["eth.path_mtu", "net.latency"])
def test_one_node_has_no_path(check):
    assert told(fleet(**nodes(names=("n1",))), check) == {"n1": "skip not_applicable"}


@pytest.mark.parametrize("check", ["eth.path_mtu", "net.latency"])
def test_a_path_is_unknown_if_no_packet_got_through(check):
    dials = [replace(dial(a, b), word="timed_out", rtt=None) for a, b in PAIRS]
    assert all(said.startswith("unknown") for said in told(fleet(**nodes(*dials)), check).values())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param([], ALL_PASS, id="all-alike"),
        pytest.param(
            around("n3", rtt=0.02),
            {n: "fail warning" if n == "n3" else "pass" for n in NAMES},
            id="one-node",
        ),
        pytest.param(
            around("n3", rtt=549e-6), ALL_PASS, id="half-a-millisecond-is-a-busy-processor"
        ),
        pytest.param(
            around("n3", rtt=551e-6),
            {n: "fail warning" if n == "n3" else "pass" for n in NAMES},
            id="just-over",
        ),
        pytest.param(
            [dial("n1", "n2", rtt=0.02), dial("n2", "n1", rtt=0.02)],
            {"n1": "fail warning", "n2": "fail warning", "n3": "pass", "n4": "pass"},
            id="one-pair",
        ),
        pytest.param(
            [dial("n1", "n2", rtt=0.02)], ALL_PASS, id="one-direction-alone-was-only-late"
        ),
    ],
)
def test_slow_round_trips(changed, expected):
    assert told(fleet(**nodes(*changed)), "net.latency") == expected


def test_far_apart_everywhere_is_this_cluster():
    far = [dial(a, b, rtt=0.03) for a, b in PAIRS]
    assert told(fleet(**nodes(*far)), "net.latency") == ALL_PASS
    required = fleet(each={"require": {"net.latency": "1ms"}}, **nodes(*far))
    assert set(told(required, "net.latency").values()) == {"fail error"}


def test_a_slow_pair_is_one_finding():
    slow = [dial("n1", "n2", rtt=0.02), dial("n2", "n1", rtt=0.02)]
    bad = [f for f in findings(fleet(**nodes(*slow)), "net.latency") if f.verdict == "fail"]
    assert [(f.nodes, f.seen) for f in bad] == [(("n1", "n2"), "20 ms")]
