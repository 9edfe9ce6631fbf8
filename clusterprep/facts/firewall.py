"""Packet filters in one form, whether nft or iptables lists them: chains of rules, each with matches and a verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from clusterprep.facts import Fact, Needs
from clusterprep.model import Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RuleMatch:
    """One condition: the packet's `field` is one of `values`. The field «other» is one that is not understood."""

    field: str  # iif, oif, family, proto, saddr, daddr, sport, dport, flags, state, status, pkttype, dsttype, mark, other
    values: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True)
class Rule:
    """Conditions and what happens where all are met: accept, drop, jump, goto, return, none, or unsure."""

    matches: tuple[RuleMatch, ...]
    verdict: str
    target: str | None = None


@dataclass(frozen=True)
class Chain:
    """A chain; one with a `hook` is where packets enter. `table` is «inet filter», `device` that of an ingress hook."""

    table: str
    name: str
    rules: tuple[Rule, ...] = ()
    hook: str | None = None
    policy: str = "accept"
    kind: str = "filter"
    device: str | None = None


Ruleset = tuple[Chain, ...]
OTHER = RuleMatch("other")

# Statements of nft that neither match nor decide, and targets of iptables of that sort.
SILENT = frozenset({
    "counter", "log", "mangle", "comment", "notrack", "set", "map", "dup", "flow", "secmark", "last",
    "ct helper", "ct timeout", "ct expectation",
})  # fmt: skip
SILENT_TARGETS = frozenset({
    "LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "CONNSECMARK", "SECMARK", "CT", "NOTRACK", "TCPMSS", "CHECKSUM",
    "CLASSIFY", "TRACE", "AUDIT", "SET", "DSCP", "TTL", "TCPOPTSTRIP", "TOS", "RATEEST", "LED", "IDLETIMER",
})  # fmt: skip
HOOKS = {
    "PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward", "OUTPUT": "output", "POSTROUTING": "postrouting"
}  # fmt: skip
ENDS = {
    "accept": "accept",
    "drop": "drop",
    "reject": "drop",
    "return": "return",
    "continue": "none",
}


def parse_firewall(answer: dict[str, str | None]) -> Ruleset:
    """All chains of IPv4. Rules that iptables made are taken from its own listing where there is one."""
    texts = [answer[key] for key in ("nft", "iptables", "legacy")]
    chains = parse_nft(texts[0]) if texts[0] is not None else ()
    if texts[1] is not None:
        compatible = parse_iptables(texts[1])
        listed = {chain.table for chain in compatible}
        chains = (*(chain for chain in chains if chain.table not in listed), *compatible)
    return (*chains, *(parse_iptables(texts[2], "legacy ") if texts[2] is not None else ()))


# ---------------------------------------------------------------- nft


def parse_nft(text: str) -> Ruleset:
    """The output of `nft -j list ruleset`."""
    chains: dict[tuple[str, str], dict[str, Any]] = {}
    rules: dict[tuple[str, str], list[Rule]] = {}
    for item in json.loads(text)["nftables"]:
        if "chain" in item:
            chain = item["chain"]
            chains[(f"{chain['family']} {chain['table']}", chain["name"])] = chain
        elif "rule" in item:
            rule = item["rule"]
            place = (f"{rule['family']} {rule['table']}", rule["chain"])
            rules.setdefault(place, []).extend(_nft_rules(rule["expr"]))
    return tuple(
        Chain(
            table,
            name,
            tuple(rules.get((table, name), ())),
            chain.get("hook"),
            chain.get("policy", "accept"),
            chain.get("type", "filter"),
            chain["dev"] if isinstance(chain.get("dev"), str) else None,
        )
        for (table, name), chain in chains.items()
        if chain["family"] in ("ip", "inet", "netdev")
    )


def _nft_rules(expressions: Iterable[dict[str, Any]]) -> Iterable[Rule]:
    """One rule, or one for each element of a verdict map."""
    matches: list[RuleMatch] = []
    unsure = False
    for expression in expressions:
        ((key, body),) = expression.items()
        if key in ENDS:
            yield Rule(tuple(matches), ENDS[key])
            return
        if key in ("jump", "goto"):
            yield Rule(tuple(matches), key, body["target"])
            return
        if key == "match":
            matches += _nft_match(body["left"], body["right"], body["op"])
        elif key == "vmap":
            yield from _verdict_map(tuple(matches), body)
            return
        elif key == "xt":
            words, verdict = _xt(body)
            matches += words
            if verdict is not None:
                yield Rule(tuple(matches), verdict)
                return
            unsure = unsure or not isinstance(body, dict)
        elif key not in SILENT:
            matches.append(OTHER)
            unsure = unsure or key not in ("limit", "meter", "quota", "ct count")
    yield Rule(tuple(matches), "unsure" if unsure else "none")


def _xt(body: dict[str, str] | None) -> tuple[list[RuleMatch], str | None]:
    """An extension of iptables that nft names at best."""
    if isinstance(body, dict) and body.get("type") == "target":
        return [], _target(str(body.get("name")))
    return ([] if isinstance(body, dict) and body.get("name") == "comment" else [OTHER]), None


def _verdict_map(matches: tuple[RuleMatch, ...], body: dict[str, Any]) -> Iterable[Rule]:
    data = body["data"]
    if not isinstance(
        data, dict
    ):  # a named map: it is not listed with its elements, which single out some packets
        yield Rule((*matches, OTHER), "accept")
        return
    for value, verdict in data["set"]:
        ((key, target),) = verdict.items()
        also = _nft_match(body["key"], value, "==") if value != "*" else []
        if key in ("jump", "goto"):
            yield Rule((*matches, *also), key, target["target"])
        else:
            yield Rule((*matches, *also), ENDS.get(key, "unsure"))


def _nft_match(left: Any, right: Any, op: str) -> list[RuleMatch]:
    """Conditions of one `match`; several where naming a port names the protocol too."""
    negated, values = op == "!=", _values(right)
    if op not in ("==", "!=", "in") or not isinstance(left, dict) or values is None:
        return [OTHER]
    ((kind, body),) = left.items()
    if kind == "&":
        return [_masked(body, values, negated)]
    if kind == "meta":
        return [_meta(body["key"], values, negated)]
    if kind == "ct" and body["key"] in ("state", "status", "mark"):
        return [
            _mark(values, negated)
            if body["key"] == "mark"
            else RuleMatch(body["key"], values, negated)
        ]
    if kind == "payload" and "protocol" in body:
        return _payload(body["protocol"], body["field"], values, negated)
    local = kind == "fib" and body == {"result": "type", "flags": ["daddr"]}
    return [RuleMatch("dsttype", values, negated) if local else OTHER]


def _meta(key: str, values: tuple[str, ...], negated: bool) -> RuleMatch:
    if key == "mark":
        return _mark(values, negated)
    fields = {
        "iifname": "iif", "iif": "iif", "oifname": "oif", "oif": "oif", "l4proto": "proto", "nfproto": "family",
        "protocol": "family", "pkttype": "pkttype",
    }  # fmt: skip
    return RuleMatch(fields[key], values, negated) if key in fields else OTHER


def _payload(protocol: str, field: str, values: tuple[str, ...], negated: bool) -> list[RuleMatch]:
    if protocol == "ip":
        known = {"saddr": "saddr", "daddr": "daddr", "protocol": "proto"}
        return [RuleMatch(known[field], values, negated) if field in known else OTHER]
    if protocol == "ip6":
        return [RuleMatch("family", ("ipv6",)), RuleMatch(f"{field}6", values, negated)]
    named = [] if protocol == "th" else [RuleMatch("proto", (protocol,))]
    if field == "flags":
        return [*named, OTHER]
    return [*named, RuleMatch(field, values, negated) if field in ("sport", "dport") else OTHER]


def _masked(parts: Any, values: tuple[str, ...], negated: bool) -> RuleMatch:
    """«tcp flags & (fin|syn|rst|ack) == syn» and «meta mark & 0x8000 == 0x8000»."""
    source, mask = parts
    if source in ({"meta": {"key": "mark"}}, {"ct": {"key": "mark"}}):
        return _mark(values, negated)
    flags = _values(mask)
    if source == {"payload": {"protocol": "tcp", "field": "flags"}} and flags:
        return RuleMatch("flags", (",".join(flags), ",".join(values)), negated)
    return OTHER


def _mark(values: tuple[str, ...], negated: bool) -> RuleMatch:
    """Whether the packet must bear a mark."""
    zero = all(value in ("0", "0x0") for value in values)
    return RuleMatch("mark", ("set",)) if zero == negated else OTHER


def _values(right: Any) -> tuple[str, ...] | None:
    """The right side as texts: «10.0.0.0/8», «1024-65535», «@name»; None for what is not understood."""
    if isinstance(right, str | int):
        return (str(right),)
    items = right
    if isinstance(right, dict) and len(right) == 1:
        ((kind, body),) = right.items()
        if kind == "prefix":
            return (f"{body['addr']}/{body['len']}",)
        if kind == "range":
            return (f"{body[0]}-{body[1]}",)
        if kind == "elem":
            return _values(body["val"])
        items = body if kind in ("set", "|") else None
    if not isinstance(items, list):
        return None
    parts = [_values(item) for item in items]
    return (
        None
        if any(part is None for part in parts)
        else tuple(word for part in parts for word in part or ())
    )


# ---------------------------------------------------------------- iptables


def parse_iptables(text: str, before: str = "") -> Ruleset:
    """The output of iptables-save. Raises ValueError where it ends in the middle of a table."""
    chains: dict[tuple[str, str], tuple[str | None, str]] = {}
    rules: dict[tuple[str, str], list[Rule]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line == "COMMIT":
            table = ""
        elif line.startswith(":") and table:
            name, policy = line[1:].split()[:2]
            chains[(table, name)] = (HOOKS.get(name) if policy != "-" else None, policy.lower())
        elif line.startswith("-A ") and table:
            words = shlex.split(line)
            rules.setdefault((table, words[1]), []).append(_iptables_rule(words[2:]))
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"iptables-save printed '{line[:60]}'")
    if table:
        raise ValueError("the listing of iptables ends in the middle of a table")
    return tuple(
        Chain(
            f"{before}ip {table}",
            name,
            tuple(rules.get((table, name), ())),
            hook,
            policy if hook else "accept",
            "nat" if table == "nat" else "filter",
        )
        for (table, name), (hook, policy) in chains.items()
    )


PLAIN = {
    "-s": "saddr", "-d": "daddr", "-i": "iif", "-o": "oif", "-p": "proto", "--dport": "dport", "--sport": "sport",
    "--dports": "dport", "--sports": "sport", "--ctstate": "state", "--state": "state", "--dst-type": "dsttype",
    "--pkt-type": "pkttype", "--ctstatus": "status",
}  # fmt: skip


def _iptables_rule(words: list[str]) -> Rule:
    matches: list[RuleMatch] = []
    negated, at = False, 0
    while at < len(words):
        word, rest = words[at], words[at + 1 :]
        end = next(
            (n for n, other in enumerate(rest) if other == "!" or other.startswith("-")), len(rest)
        )
        if word in ("-j", "-g"):
            return _jump(word, rest[0], tuple(matches))
        if word == "!":
            negated, at = True, at + 1
            continue
        if word in PLAIN:
            matches.append(RuleMatch(PLAIN[word], _listed(rest[0]), negated))
        elif word == "--mark":
            matches.append(_mark((rest[0].split("/")[0],), negated))
        elif word == "--tcp-flags":
            matches.append(RuleMatch("flags", (rest[0].lower(), rest[1].lower()), negated))
        elif word == "--comment":
            end = 1
        elif word == "--match-set" and rest[1:2] in (["src"], ["dst"]):
            matches.append(
                RuleMatch("saddr" if rest[1] == "src" else "daddr", (f"@{rest[0]}",), negated)
            )
        elif word != "-m":
            matches.append(OTHER)
        negated, at = False, at + 1 + end
    return Rule(tuple(matches), "none")


def _listed(text: str) -> tuple[str, ...]:
    """«22,80,6000:7000» as («22», «80», «6000-7000»)."""
    return (
        tuple(word.replace(":", "-") for word in text.lower().split(","))
        if "/" not in text
        else (text,)
    )


def _jump(word: str, target: str, matches: tuple[RuleMatch, ...]) -> Rule:
    if target in ("ACCEPT", "DROP", "RETURN"):
        return Rule(matches, ENDS[target.lower()])
    verdict = (
        _target(target)
        if target.isupper() and target in {*SILENT_TARGETS, "REJECT", "NFQUEUE", "QUEUE"}
        else None
    )
    return (
        Rule(matches, verdict)
        if verdict
        else Rule(matches, "jump" if word == "-j" else "goto", target)
    )


def _target(name: str) -> str:
    return "drop" if name == "REJECT" else "none" if name in SILENT_TARGETS else "unsure"


NEEDS = Needs("root", "the kernel lists its packet filters to root alone, where it has any in use")
FIREWALL = Fact(
    "net.filter", lambda node, inventory: (Read("firewall"),), parse_firewall, needs=NEEDS
)
