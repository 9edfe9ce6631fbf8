"""What nft and iptables print, in one form; and what is no listing of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.firewall import Rule, RuleMatch
from tests.support.fleet import learned

RECORDED = Path(__file__).parents[1] / "facts" / "filters"
NOTHING: dict[str, Any] = {"nft": None, "iptables": None, "legacy": None}
SYN = {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn", "rst", "ack"]]}
OTHER = RuleMatch("other")


def expressions(*items: Any) -> tuple[Rule, ...]:
    """The rules that a rule of nft becomes."""
    chain = {
        "family": "inet",
        "table": "t",
        "name": "c",
        "type": "filter",
        "hook": "input",
        "policy": "accept",
    }
    rule = {"family": "inet", "table": "t", "chain": "c", "expr": list(items)}
    text = json.dumps({"nftables": [{"metainfo": {}}, {"chain": chain}, {"rule": rule}]})
    (found,) = learned("net.filter", ["ok", {**NOTHING, "nft": text}])
    rules: tuple[Rule, ...] = found.rules
    return rules


def match(left: Any, right: Any, op: str = "==") -> tuple[RuleMatch, ...]:
    (rule,) = expressions({"match": {"op": op, "left": left, "right": right}}, {"accept": None})
    return rule.matches


@pytest.mark.parametrize(
    ("left", "right", "op", "expected"),
    [
        ({"meta": {"key": "iifname"}}, "eth*", "==", (RuleMatch("iif", ("eth*",)),)),
        (
            {"meta": {"key": "l4proto"}},
            {"set": ["tcp", "udp"]},
            "!=",
            (RuleMatch("proto", ("tcp", "udp"), True),),
        ),
        ({"meta": {"key": "mark"}}, 16, "==", (RuleMatch("mark", ("set",)),)),
        ({"meta": {"key": "mark"}}, 0, "==", (OTHER,)),
        ({"&": [{"meta": {"key": "mark"}}, 16384]}, 0, "!=", (RuleMatch("mark", ("set",)),)),
        ({"meta": {"key": "skuid"}}, 0, "==", (OTHER,)),
        (
            {"ct": {"key": "state"}},
            ["established", "related"],
            "in",
            (RuleMatch("state", ("established", "related")),),
        ),
        ({"ct": {"key": "helper"}}, "ftp", "==", (OTHER,)),
        (SYN, "syn", "==", (RuleMatch("flags", ("fin,syn,rst,ack", "syn")),)),
        (
            {"fib": {"result": "type", "flags": ["daddr"]}},
            "local",
            "==",
            (RuleMatch("dsttype", ("local",)),),
        ),
        ({"fib": {"result": "oif", "flags": ["saddr"]}}, False, "==", (OTHER,)),
        (
            {"payload": {"protocol": "ip6", "field": "saddr"}},
            "fe80::1",
            "==",
            (RuleMatch("family", ("ipv6",)), RuleMatch("saddr6", ("fe80::1",))),
        ),
        (
            {"payload": {"protocol": "udp", "field": "dport"}},
            {"range": [5000, 6000]},
            "==",
            (RuleMatch("proto", ("udp",)), RuleMatch("dport", ("5000-6000",))),
        ),
        (
            {"payload": {"protocol": "ip", "field": "saddr"}},
            {"set": [{"prefix": {"addr": "10.0.0.0", "len": 8}}, {"elem": {"val": "192.0.2.1"}}]},
            "==",
            (RuleMatch("saddr", ("10.0.0.0/8", "192.0.2.1")),),
        ),
        ({"payload": {"protocol": "ip", "field": "ttl"}}, 1, "==", (OTHER,)),
        ({"payload": {"base": "th", "offset": 0, "len": 16}}, 1, "==", (OTHER,)),
        ({"concat": [{"meta": {"key": "mark"}}]}, "@services", "==", (OTHER,)),
        ({"meta": {"key": "iifname"}}, "eth0", "<", (OTHER,)),
        ({"meta": {"key": "iifname"}}, {"numgen": {}}, "==", (OTHER,)),
    ],
)
def test_conditions_of_nft(left: Any, right: Any, op: str, expected: tuple[RuleMatch, ...]) -> None:
    assert match(left, right, op) == expected


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"counter": {"packets": 0, "bytes": 0}}, {"drop": None}], (Rule((), "drop"),)),
        ([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}], (Rule((), "drop"),)),
        ([{"reject": None}], (Rule((), "drop"),)),
        ([{"log": {"prefix": "x"}}], (Rule((), "none"),)),
        ([{"jump": {"target": "a"}}], (Rule((), "jump", "a"),)),
        ([{"goto": {"target": "a"}}], (Rule((), "goto", "a"),)),
        ([{"limit": {"rate": 5, "per": "second"}}, {"accept": None}], (Rule((OTHER,), "accept"),)),
        ([{"queue": {"num": 0}}], (Rule((OTHER,), "unsure"),)),
        ([{"xt": None}], (Rule((OTHER,), "unsure"),)),
        ([{"xt": None}, {"drop": None}], (Rule((OTHER,), "drop"),)),
        ([{"xt": {"type": "match", "name": "comment"}}, {"drop": None}], (Rule((), "drop"),)),
        ([{"xt": {"type": "match", "name": "geoip"}}, {"drop": None}], (Rule((OTHER,), "drop"),)),
        ([{"xt": {"type": "target", "name": "REJECT"}}], (Rule((), "drop"),)),
        ([{"xt": {"type": "target", "name": "LOG"}}], (Rule((), "none"),)),
        ([{"xt": {"type": "target", "name": "WHATEVER"}}], (Rule((), "unsure"),)),
        (
            [{"vmap": {"key": {"meta": {"key": "mark"}}, "data": "@map"}}],
            (Rule((OTHER,), "accept"),),
        ),
        (
            [
                {
                    "vmap": {
                        "key": {"ct": {"key": "state"}},
                        "data": {
                            "set": [
                                ["invalid", {"drop": None}],
                                ["new", {"jump": {"target": "a"}}],
                                ["*", {"queue": {}}],
                            ]
                        },
                    }
                }
            ],
            (
                Rule((RuleMatch("state", ("invalid",)),), "drop"),
                Rule((RuleMatch("state", ("new",)),), "jump", "a"),
                Rule((), "unsure"),
            ),
        ),
    ],
)
def test_statements_of_nft(items: list[Any], expected: tuple[Rule, ...]) -> None:
    assert expressions(*items) == expected


def test_tables_that_ipv4_does_not_meet_are_left_out() -> None:
    text = (RECORDED / "kube-proxy.json").read_text()
    found = learned("net.filter", ["ok", {**NOTHING, "nft": text}])
    assert {chain.table for chain in found} == {"ip kube-proxy", "inet sshguard"}


def test_no_filter_in_use_is_an_answer() -> None:
    assert learned("net.filter", ["ok", NOTHING]) == ()
    assert (
        learned("net.filter", ["ok", {**NOTHING, "nft": '{"nftables": [{"metainfo": {}}]}'}]) == ()
    )


def test_chains_of_iptables_have_the_hooks_of_their_names() -> None:
    found = learned(
        "net.filter", ["ok", {**NOTHING, "legacy": (RECORDED / "docker.rules").read_text()}]
    )
    hooks = {(chain.table, chain.name): (chain.hook, chain.policy, chain.kind) for chain in found}
    assert hooks["legacy ip filter", "FORWARD"] == ("forward", "drop", "filter")
    assert hooks["legacy ip nat", "PREROUTING"] == ("prerouting", "accept", "nat")
    assert hooks["legacy ip filter", "f2b-sshd"] == (None, "accept", "filter")
    (banned,) = [chain for chain in found if chain.name == "f2b-sshd"]
    assert banned.rules[0] == Rule((RuleMatch("saddr", ("203.0.113.7/32",)),), "drop")
    assert banned.rules[1] == Rule((RuleMatch("saddr", ("@f2b-more",)),), "drop")


UFW = (RECORDED / "ufw.rules").read_text()
NFT = (RECORDED / "nftables.json").read_text()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({**NOTHING, "nft": NFT[: len(NFT) // 2]}, id="json-that-was-cut"),
        pytest.param({**NOTHING, "nft": ""}, id="empty"),
        pytest.param({**NOTHING, "nft": "table inet filter {\n}\n"}, id="no-json"),
        pytest.param(
            {**NOTHING, "nft": '{"nftables": [{"rule": {"expr": [{}]}}]}'}, id="an-empty-rule"
        ),
        pytest.param({**NOTHING, "legacy": UFW[: len(UFW) // 2]}, id="rules-that-were-cut"),
        pytest.param({**NOTHING, "legacy": UFW.rpartition("COMMIT")[0]}, id="no-end"),
        pytest.param({**NOTHING, "legacy": "iptables-save: Fehler"}, id="another-text"),
        pytest.param({"nft": None}, id="a-part"),
        pytest.param(None, id="nothing"),
    ],
)
def test_another_listing_is_garbled(answer: object) -> None:
    assert learned("net.filter", ["ok", answer]).reason == "garbled"


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "truncated", "hung"])
def test_a_listing_that_was_refused_keeps_its_reason(reason: str) -> None:
    assert learned("net.filter", ["no", reason, "nft"]).reason == reason
