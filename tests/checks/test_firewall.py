"""Packet filters of real machines: which drop what NCCL needs, which do not, which are unclear.

The listings are written for these tests: rules in the manner of ufw, firewalld, Docker and
kube-proxy, in the formats of nft -j and iptables-save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterprep.checks.firewall import parse_open
from clusterprep.facts.firewall import Chain, Rule, RuleMatch
from clusterprep.facts.pairs import Dial
from tests.support.fleet import LOOPBACK, absent, eth, findings, fleet, learned, told, with_facts

LISTINGS = Path(__file__).parents[1] / "facts" / "filters"
UNSURE = "unknown warning the rules do not tell"


def listing(name: str, *replaced: tuple[str, str], **more: str) -> Any:
    """A listing of tests/facts/filters, with some of its text exchanged."""
    text = (LISTINGS / name).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    kind = "nft" if name.endswith(".json") else "legacy"
    return learned(
        "net.filter", ["ok", {"nft": None, "iptables": None, "legacy": None, kind: text, **more}]
    )


def rules(*lines: str, policy: str = "ACCEPT", hook: str = "INPUT") -> Any:
    """A filter table of iptables with these rules."""
    text = "\n".join(["*filter", f":{hook} {policy} [0:0]", ":inner - [0:0]", *lines, "COMMIT", ""])
    return learned("net.filter", ["ok", {"nft": None, "iptables": None, "legacy": text}])


def filtered(
    found: Any,
    interface: str = "bond0",
    ports: Any = (32768, 60999),
    word: str = "ok",
    **options: Any,
) -> Any:
    """Three nodes in 10.0.0.0/16, of which n2 has these rules.

    `word`: what became of dials from and to it.
    """
    nodes = {
        f"n{number}": {
            "net.interfaces": (LOOPBACK, eth(interface, f"10.0.0.{number}/16")),
            "net.port_range": ports,
            "net.filter": found if number == 2 else (),
            "net.dials": tuple(
                Dial(
                    f"n{number}",
                    f"n{other}",
                    f"10.0.0.{other}",
                    40000,
                    word if 2 in (number, other) else "ok",
                )
                for other in (1, 2, 3)
                if other != number
            ),
        }
        for number in (1, 2, 3)
    }
    return fleet(**options, **nodes)


def verdict(found: Any, **options: Any) -> str:
    answers = told(filtered(found, **options), "net.firewall")
    assert answers["n1"] == answers["n3"] == "pass"
    return answers["n2"]


ALLOWED = "-A ufw-user-input -s 10.0.0.0/16 -j ACCEPT\nCOMMIT"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param((), "pass", id="no-filter"),
        pytest.param(listing("docker.rules"), "pass", id="docker-kubelet-fail2ban"),
        pytest.param(listing("kube-proxy.json"), "pass", id="kube-proxy-by-nft-and-sshguard"),
        pytest.param(listing("ufw.rules"), "fail warning", id="ufw-with-ssh-only"),
        pytest.param(listing("ufw.rules", ("COMMIT", ALLOWED)), "pass", id="ufw-with-the-network"),
        pytest.param(
            listing("ufw.rules", ("COMMIT", ALLOWED.replace("-s 10", "-i bond0 -s 10"))),
            "pass",
            id="ufw-with-both",
        ),
        pytest.param(
            listing("ufw.rules", ("COMMIT", ALLOWED.replace("10.0.0.0/16", "10.9.0.0/16"))),
            "fail warning",
            id="ufw-with-another-network",
        ),
        pytest.param(
            listing("ufw.rules", ("COMMIT", ALLOWED.replace("10.0.0.0/16", "10.0.0.1/32"))),
            UNSURE,
            id="one-peer-only",
        ),
        pytest.param(listing("firewalld.json"), "fail warning", id="firewalld-public"),
        pytest.param(
            listing("firewalld-trusted.json"), "pass", id="firewalld-with-a-trusted-source"
        ),
        pytest.param(
            listing("cloud-image.rules"), "fail warning", id="an-image-that-rejects-all-but-ssh"
        ),
        pytest.param(
            listing("nftables.json"), "fail warning", id="nftables-with-ssh-and-monitoring"
        ),
        pytest.param(
            listing("nftables.json", ('"ib*"', '"bond*"')), "pass", id="an-accept-for-the-interface"
        ),
        pytest.param(
            listing("nftables.json", ('"ib*"', '"lo"'), ("[9100, 9110]", "[1024, 65535]")),
            "pass",
            id="all-high-ports",
        ),
        pytest.param(
            listing("nftables.json", ("[9100, 9110]", "[32768, 50000]")),
            UNSURE,
            id="a-part-of-the-range",
        ),
        pytest.param(absent("denied"), "unknown warning denied", id="not-root"),
        pytest.param(absent("missing_tool"), "unknown warning missing_tool", id="no-nft"),
        pytest.param(absent("truncated"), "unknown warning truncated", id="too-many-rules"),
        pytest.param(absent("hung"), "unknown warning hung", id="hung"),
    ],
)
def test_filters_as_machines_have_them(found: Any, expected: str) -> None:
    assert verdict(found) == expected


@pytest.mark.parametrize(
    ("lines", "policy", "expected"),
    [
        pytest.param([], "DROP", "fail warning", id="a-policy-alone"),
        pytest.param(["-A INPUT -i bond0 -j ACCEPT"], "DROP", "pass", id="the-interface"),
        pytest.param(["-A INPUT -i bond+ -j ACCEPT"], "DROP", "pass", id="interfaces-like-it"),
        pytest.param(
            ["-A INPUT -i bond1 -j ACCEPT"], "DROP", "fail warning", id="another-interface"
        ),
        pytest.param(["-A INPUT ! -i eth0 -j ACCEPT"], "DROP", "pass", id="all-but-another"),
        pytest.param(
            ["-A INPUT -s 10.0.0.0/30 -p tcp -j ACCEPT"], "DROP", "pass", id="just-the-nodes"
        ),
        pytest.param(
            ["-A INPUT -s 10.0.0.0/31 -p tcp -j ACCEPT"], "DROP", UNSURE, id="some-of-the-nodes"
        ),
        pytest.param(
            [
                "-A INPUT -s 10.0.0.1/32 -p tcp -j ACCEPT",
                "-A INPUT -s 10.0.0.2/31 -p tcp -j ACCEPT",
            ],
            "DROP",
            "pass",
            id="a-rule-for-each-node",
        ),
        pytest.param(
            [
                "-A INPUT -s 10.0.0.1/32 -p tcp -j ACCEPT",
                "-A INPUT -s 10.0.0.0/31 -p tcp -j ACCEPT",
            ],
            "DROP",
            UNSURE,
            id="one-node-twice",
        ),
        pytest.param(
            [
                "-A INPUT -s 10.0.0.1/32 -p tcp -j ACCEPT",
                "-A INPUT -s 10.0.0.3/32 -p udp -j ACCEPT",
            ],
            "DROP",
            UNSURE,
            id="rules-that-differ-in-more",
        ),
        pytest.param(
            ["-A INPUT -s 10.0.0.0/16 -p udp -j ACCEPT"],
            "DROP",
            "fail warning",
            id="another-protocol",
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --dport 29500 -j ACCEPT"],
            "DROP",
            "fail warning",
            id="the-port-alone",
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --dport 32768:60999 -j ACCEPT"],
            "DROP",
            "pass",
            id="the-ephemeral-range",
        ),
        pytest.param(
            ["-A INPUT -p tcp -m multiport --dports 22,1024:65535 -j ACCEPT"],
            "DROP",
            "pass",
            id="several-ports",
        ),
        pytest.param(
            ["-A INPUT -p tcp -j inner", "-A inner -j ACCEPT"], "DROP", "pass", id="by-a-jump"
        ),
        pytest.param(
            ["-A INPUT -j inner", "-A inner -j RETURN"],
            "DROP",
            "fail warning",
            id="a-jump-that-returns",
        ),
        pytest.param(
            ["-A INPUT -g inner", "-A INPUT -j ACCEPT"],
            "DROP",
            "fail warning",
            id="goto-does-not-return",
        ),
        pytest.param(
            ["-A INPUT -m geoip --source-country DE -j ACCEPT"], "DROP", UNSURE, id="not-understood"
        ),
        pytest.param(
            ["-A INPUT -m set --match-set nodes src -j ACCEPT"], "DROP", UNSURE, id="a-named-set"
        ),
        pytest.param(["-A INPUT -j NFQUEUE --queue-num 0"], "DROP", UNSURE, id="a-program-decides"),
        pytest.param(
            ["-A INPUT -j inner-that-went"], "ACCEPT", UNSURE, id="a-chain-that-is-not-listed"
        ),
        pytest.param(
            ["-A INPUT -m limit --limit 5/sec -j ACCEPT"], "DROP", UNSURE, id="while-there-are-few"
        ),
        pytest.param(["-A INPUT -j LOG --log-prefix x"], "ACCEPT", "pass", id="logged"),
        pytest.param(
            ["-A INPUT -m conntrack --ctstate INVALID -j DROP"], "ACCEPT", "pass", id="invalid"
        ),
        pytest.param(
            ["-A INPUT -p icmp -m limit --limit 1/s -j DROP"], "ACCEPT", "pass", id="icmp"
        ),
        pytest.param(
            ["-A INPUT -m mark --mark 0x8000/0x8000 -j DROP"], "ACCEPT", "pass", id="marked"
        ),
        pytest.param(
            ["-A INPUT -m set --match-set f2b src -j DROP"],
            "ACCEPT",
            "pass",
            id="blocked-addresses",
        ),
        pytest.param(
            ["-A INPUT -m set ! --match-set nodes src -j DROP"],
            "ACCEPT",
            UNSURE,
            id="all-but-a-named-set",
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --tcp-flags ALL NONE -j DROP"],
            "ACCEPT",
            "pass",
            id="odd-flags",
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT"],
            "ACCEPT",
            "fail warning",
            id="all-new",
        ),
        pytest.param(
            [
                (
                    "-A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN "
                    "-m state --state NEW -j DROP"
                )
            ],
            "ACCEPT",
            "pass",
            id="new-without-syn",
        ),
        pytest.param(
            ["-A INPUT -s 10.0.0.0/8 -j DROP"], "ACCEPT", "fail warning", id="the-nodes-dropped"
        ),
        pytest.param(["-A INPUT ! -s 10.0.0.0/16 -j DROP"], "ACCEPT", "pass", id="others-dropped"),
        pytest.param(
            ["-A INPUT -d 10.0.0.2/32 -j DROP"], "ACCEPT", "fail warning", id="to-this-address"
        ),
        pytest.param(
            ["-A INPUT -m pkttype --pkt-type broadcast -j DROP"], "ACCEPT", "pass", id="broadcasts"
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --dport 111 -j DROP"], "ACCEPT", "pass", id="another-service"
        ),
        pytest.param(
            ["-A INPUT -p tcp -m tcp --dport nfs -j DROP"], "ACCEPT", UNSURE, id="a-port-by-name"
        ),
    ],
)
def test_one_packet_is_followed_through_the_rules(
    lines: list[str], policy: str, expected: str
) -> None:
    assert verdict(rules(*lines, policy=policy)) == expected


def test_the_range_is_the_nodes_own() -> None:
    found = rules("-A INPUT -p tcp -m tcp --dport 32768:60999 -j ACCEPT", policy="DROP")
    assert verdict(found, ports=(1024, 65535)) == UNSURE
    assert verdict(found, ports=(40000, 50000)) == "pass"


def test_what_goes_out_is_judged_too() -> None:
    assert verdict(rules(policy="DROP", hook="OUTPUT")) == "fail warning"
    assert (
        verdict(rules("-A OUTPUT -d 10.0.0.0/16 -o bond0 -j ACCEPT", policy="DROP", hook="OUTPUT"))
        == "pass"
    )
    assert verdict(rules(policy="DROP", hook="FORWARD")) == "pass"


def test_one_chain_that_drops_is_enough() -> None:
    accepting = Chain("inet a", "input", (Rule((), "accept"),), "input", "drop")
    dropping = Chain(
        "inet b", "early", (Rule((RuleMatch("proto", ("tcp",)),), "drop"),), "prerouting"
    )
    assert verdict((accepting,)) == "pass"
    assert verdict((accepting, dropping)) == "fail warning"


@pytest.mark.parametrize(("device", "expected"), [("bond0", "fail warning"), ("eth9", "pass")])
def test_a_hook_of_one_device_counts_for_that_one(device: str, expected: str) -> None:
    assert verdict((Chain("netdev t", "in", (), "ingress", "drop", device=device),)) == expected


@pytest.mark.parametrize(
    ("found", "seen", "remedy"),
    [
        (
            listing("ufw.rules"),
            "legacy ip filter INPUT, policy drop",
            "ufw allow in on bond0 from 10.0.0.0/16",
        ),
        (
            listing("firewalld.json"),
            "inet firewalld filter_INPUT, rule 6",
            "firewall-cmd --permanent --zone=trusted --add-source=10.0.0.0/16",
        ),
        (
            listing("cloud-image.rules"),
            "legacy ip filter INPUT, rule 6",
            "iptables -C INPUT -s 10.0.0.0/16 -j ACCEPT 2> /dev/null ||",
        ),
        (
            listing("nftables.json"),
            "inet filter input, policy drop",
            "nft insert rule inet filter input ip saddr 10.0.0.0/16 accept",
        ),
    ],
)
def test_the_place_is_named_and_the_remedy_is_of_the_tool_in_use(
    found: Any, seen: str, remedy: str
) -> None:
    (bad,) = [f for f in findings(filtered(found), "net.firewall") if f.verdict == "fail"]
    assert bad.seen == seen
    assert bad.remedy.startswith(remedy)


def test_rules_that_do_not_tell_point_to_what_measures() -> None:
    found = rules("-A INPUT -m geoip --source-country DE -j ACCEPT", policy="DROP")
    (unsure,) = [f for f in findings(filtered(found), "net.firewall") if f.verdict == "unknown"]
    assert "net.ports measures whether connections pass" in unsure.message


def test_rules_of_iptables_are_taken_from_its_own_listing() -> None:
    """nft lists them too, without saying what their extensions want."""
    text = (LISTINGS / "ufw.rules").read_text().replace("COMMIT", ALLOWED)
    through_nft = """{"nftables": [
        {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter",
                   "hook": "input", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "ip", "table": "filter", "chain": "INPUT",
                  "expr": [{"xt": null}, {"accept": null}]}}]}"""
    alone = learned("net.filter", ["ok", {"nft": through_nft, "iptables": None, "legacy": None}])
    both = learned("net.filter", ["ok", {"nft": through_nft, "iptables": text, "legacy": None}])
    assert verdict(alone) == UNSURE
    assert verdict(both) == "pass"


# ---------------------------------------------------------------- IPv6


def ipv6_rules(*lines: str, policy: str = "ACCEPT") -> Any:
    """A filter table of ip6tables with these rules, beside one of iptables that drops all."""
    ipv4 = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n"
    ipv6 = "\n".join(["*filter", f":INPUT {policy} [0:0]", *lines, "COMMIT", ""])
    answer = {"nft": None, "iptables": None, "legacy": ipv4, "legacy6": ipv6}
    return learned("net.filter", ["ok", answer])


def nft_rules(condition: str) -> Any:
    """A table of both families that drops what meets a condition, a payload in nft's JSON."""
    drop = '{"drop": null}'
    text = f"""{{"nftables": [
        {{"chain": {{"family": "inet", "table": "f", "name": "input", "type": "filter",
                    "hook": "input", "prio": 0, "policy": "accept"}}}},
        {{"rule": {{"family": "inet", "table": "f", "chain": "input",
                   "expr": [{condition}, {drop}]}}}}]}}"""
    return learned("net.filter", ["ok", {"nft": text, "iptables": None, "legacy": None}])


def address_match(protocol: str, address: str, operator: str = "==") -> str:
    field = f'{{"payload": {{"protocol": "{protocol}", "field": "saddr"}}}}'
    return f'{{"match": {{"op": "{operator}", "left": {field}, "right": "{address}"}}}}'


def over_ipv6(found: Any) -> Any:
    """Three nodes with IPv6 addresses alone, of which n2 has these rules."""
    nodes = {}
    for number in (1, 2, 3):
        own = eth("eth0", ipv6=(f"fd00::{number}/64",))
        nodes[f"n{number}"] = {
            "net.interfaces": (LOOPBACK, own),
            "net.port_range": (32768, 60999),
            "net.filter": found if number == 2 else (),
            "net.dials": absent("not_asked"),
        }
    return fleet(**nodes)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(ipv6_rules(), "pass", id="rules-of-ipv4-are-not-for-it"),
        pytest.param(ipv6_rules(policy="DROP"), "fail warning", id="policy"),
        pytest.param(
            ipv6_rules("-A INPUT -s fd00::/64 -j ACCEPT", policy="DROP"), "pass", id="accepted"
        ),
        pytest.param(ipv6_rules("-A INPUT -s fd00::/16 -j DROP"), "fail warning", id="dropped"),
        pytest.param(ipv6_rules("-A INPUT -s fd01::/16 -j DROP"), "pass", id="others-are-dropped"),
        pytest.param(nft_rules(address_match("ip6", "fd00::1")), UNSURE, id="one-of-two-peers"),
        pytest.param(nft_rules(address_match("ip6", "fd01::1")), "pass", id="no-peer"),
        pytest.param(
            nft_rules(address_match("ip", "10.0.0.1", "!=")), "pass", id="not-an-address-of-ipv4"
        ),
    ],
)
def test_packets_of_ipv6_meet_their_own_rules(found: Any, said: str) -> None:
    assert told(over_ipv6(found), "net.firewall") == {"n1": "pass", "n2": said, "n3": "pass"}


def test_rules_of_ipv6_are_not_for_packets_of_ipv4() -> None:
    answer = {"nft": None, "iptables": None, "legacy": None}
    dropping = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n"
    assert verdict(learned("net.filter", ["ok", {**answer, "legacy6": dropping}])) == "pass"
    assert verdict(nft_rules(address_match("ip6", "fd00::1", "!="))) == "pass"


def test_the_remedy_is_for_rules_of_ipv6() -> None:
    (found,) = [
        row
        for row in findings(over_ipv6(ipv6_rules(policy="DROP")), "net.firewall")
        if row.verdict == "fail"
    ]
    assert str(found.remedy).startswith("ip6tables -C INPUT -s fd00::/64 -j ACCEPT")


def test_one_node_has_no_other_to_let_in() -> None:
    one = {
        "net.interfaces": (eth("eth0", "10.0.0.1/16"),),
        "net.port_range": (32768, 60999),
        "net.filter": (),
    }
    assert told(fleet(n1=one), "net.firewall") == {"n1": "skip not_applicable"}


def test_without_an_interface_there_is_nothing_to_judge() -> None:
    seen = filtered((), interface="docker0")
    assert set(told(seen, "net.firewall").values()) == {"unknown warning eth.iface_choice"}


def test_a_required_open_network_is_an_error_where_it_is_not() -> None:
    seen = filtered(rules(policy="DROP"), each={"require": {"net.firewall": "open"}})
    assert told(seen, "net.firewall") == {"n1": "pass", "n2": "fail error", "n3": "pass"}


@pytest.mark.parametrize("text", ["", "closed", "10.0.0.0/16"])
def test_nothing_else_can_be_required(text: str) -> None:
    assert parse_open("open") == "open"
    with pytest.raises(ValueError, match="expected open"):
        parse_open(text)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(rules("-A INPUT -m set --match-set f2b src -j DROP"), id="a-named-set"),
        pytest.param(rules("-A INPUT -m mark --mark 0x8000/0x8000 -j DROP"), id="marked"),
        pytest.param(listing("kube-proxy.json"), id="kube-proxy-and-sshguard"),
    ],
)
@pytest.mark.parametrize("word", ["timed_out", "refused"])
def test_a_named_set_is_unknown_where_connections_failed(found: Any, word: str) -> None:
    assert verdict(found) == "pass"
    assert verdict(found, word=word) == UNSURE


def test_without_the_port_matrix_a_named_set_is_not_known_either() -> None:
    seen = filtered(rules("-A INPUT -m set --match-set f2b src -j DROP"))
    lost = with_facts(
        seen, {(name, "net.dials"): absent("not_asked") for name in ("n1", "n2", "n3")}
    )
    assert told(lost, "net.firewall")["n2"] == UNSURE


def test_rules_that_name_an_address_are_judged_for_each_node() -> None:
    """The same rules on all nodes are about one of them alone."""
    found = rules("-A INPUT -d 10.0.0.3/32 -j DROP")
    same_rules = {(name, "net.filter"): found for name in ("n1", "n2", "n3")}
    seen = with_facts(filtered(()), same_rules)
    assert told(seen, "net.firewall") == {"n1": "pass", "n2": "pass", "n3": "fail warning"}
