"""Packet filters in one form for nft and iptables: chains of rules with matches and a verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts import Fact, Needs
from clusterprep.model import Read


class RuleMatch(Struct, frozen=True):
    """One condition: the packet's `field` is one of `values`.

    Fields are iif, oif, family, proto, saddr, daddr, sport, dport, flags, state, status, pkttype,
    dsttype and mark, and «other» for a condition that is not understood.
    """

    field: str
    values: tuple[str, ...] = ()
    negated: bool = False


class Rule(Struct, frozen=True):
    """Conditions, and the verdict where all are met.

    Verdicts are accept, drop, jump, goto, return, none, and unsure.
    """

    matches: tuple[RuleMatch, ...]
    verdict: str
    target: str | None = None


class Chain(Struct, frozen=True):
    """A chain; packets enter at one with a `hook`.

    `table` is «inet filter», `device` that of an ingress hook.
    """

    table: str
    name: str
    rules: tuple[Rule, ...] = ()
    hook: str | None = None
    policy: str = "accept"
    kind: str = "filter"
    device: str | None = None


Ruleset = tuple[Chain, ...]
ChainKey = tuple[str, str]  # names of the table and of the chain
OTHER = RuleMatch("other")

# Statements of nft that neither match nor decide, and targets of iptables of that sort.
SILENT = frozenset({
    "counter", "log", "mangle", "comment", "notrack", "set", "map", "dup", "flow", "secmark",
    "last", "ct helper", "ct timeout", "ct expectation",
})  # fmt: skip
SILENT_TARGETS = frozenset({
    "LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "CONNSECMARK", "SECMARK", "CT", "NOTRACK", "TCPMSS",
    "CHECKSUM", "CLASSIFY", "TRACE", "AUDIT", "SET", "DSCP", "TTL", "TCPOPTSTRIP", "TOS", "RATEEST",
    "LED", "IDLETIMER",
})  # fmt: skip
# Other targets of iptables that end the walk of a packet or send it elsewhere.
DECIDING_TARGETS = frozenset({"REJECT", "NFQUEUE", "QUEUE"})
HOOKS = {
    "PREROUTING": "prerouting",
    "INPUT": "input",
    "FORWARD": "forward",
    "OUTPUT": "output",
    "POSTROUTING": "postrouting",
}
ENDS = {
    "accept": "accept",
    "drop": "drop",
    "reject": "drop",
    "return": "return",
    "continue": "none",
}


def parse_firewall(answer: dict[str, str | None]) -> Ruleset:
    """Return all chains of IPv4 and IPv6.

    Rules that iptables-nft made come from its own listing where there is one, not from that of nft.
    """
    nft = answer["nft"]
    chains = () if nft is None else parse_nft(nft)
    # Answers that earlier releases recorded have no listings of IPv6.
    chains = _with_compatible(chains, answer["iptables"], "ip")
    chains = _with_compatible(chains, answer.get("ip6tables"), "ip6")
    for text, family in (
        (answer["legacy"], "legacy ip"),
        (answer.get("legacy6"), "legacy ip6"),
    ):
        if text is not None:
            chains += parse_iptables(text, family)
    return chains


def _with_compatible(chains: Ruleset, listing: str | None, family: str) -> Ruleset:
    """Return the chains with those that iptables-nft lists, in the place of what nft lists."""
    if listing is None:
        return chains
    own_chains = parse_iptables(listing, family)
    own_tables = {chain.table for chain in own_chains}
    return tuple(chain for chain in chains if chain.table not in own_tables) + own_chains


# ---------------------------------------------------------------- nft


def parse_nft(text: str) -> Ruleset:
    """Parse the output of `nft -j list ruleset`."""
    chains: dict[ChainKey, dict[str, Any]] = {}
    rules: dict[ChainKey, list[Rule]] = {}
    for item in json.loads(text)["nftables"]:
        if "chain" in item:
            chain = item["chain"]
            table = f"{chain['family']} {chain['table']}"
            chains[table, chain["name"]] = chain
        elif "rule" in item:
            rule = item["rule"]
            table = f"{rule['family']} {rule['table']}"
            chain_rules = rules.setdefault((table, rule["chain"]), [])
            chain_rules += _nft_rules(rule["expr"])
    ruleset = []
    for (table, name), chain in chains.items():
        if chain["family"] in ("ip", "ip6", "inet", "netdev"):
            chain_rules = rules.get((table, name), [])
            ruleset.append(_nft_chain(table, chain, chain_rules))
    return tuple(ruleset)


def _nft_chain(table: str, chain: dict[str, Any], rules: Iterable[Rule]) -> Chain:
    """Return a chain as nft describes it, with its rules.

    A chain of several devices lists them; it then counts for all interfaces.
    """
    device = chain.get("dev")
    if not isinstance(device, str):
        device = None
    return Chain(
        table=table,
        name=chain["name"],
        rules=tuple(rules),
        hook=chain.get("hook"),
        policy=chain.get("policy", "accept"),
        kind=chain.get("type", "filter"),
        device=device,
    )


def _nft_rules(expressions: Iterable[dict[str, Any]]) -> Iterable[Rule]:
    """Yield one rule, or one for each element of a verdict map."""
    matches: list[RuleMatch] = []
    unsure = False
    for expression in expressions:
        ((key, body),) = expression.items()
        if key == "vmap":
            yield from _rules_of_map(tuple(matches), body)
            return
        verdict = _nft_verdict(key, body)
        if verdict is not None:
            yield Rule(tuple(matches), *verdict)
            return
        conditions = _nft_conditions(key, body)
        matches += conditions
        if conditions == [OTHER] and _may_decide(key, body):
            unsure = True
    yield Rule(tuple(matches), "unsure" if unsure else "none")


def _nft_verdict(key: str, body: Any) -> tuple[str, str | None] | None:
    """Return the verdict of a statement and the chain that it jumps to, None if it has none."""
    if key in ENDS:
        return ENDS[key], None
    if key in ("jump", "goto"):
        return key, body["target"]
    if key == "xt" and isinstance(body, dict) and body.get("type") == "target":
        return _verdict_of_target(str(body.get("name"))), None
    return None


def _nft_conditions(key: str, body: Any) -> list[RuleMatch]:
    """Return the conditions of a statement without a verdict; OTHER if it is not understood."""
    if key == "match":
        return _nft_match(body["left"], body["right"], body["op"])
    if key in SILENT:
        return []
    # nft names an extension of iptables at best.
    if key == "xt" and isinstance(body, dict) and body.get("name") == "comment":
        return []
    return [OTHER]


def _may_decide(key: str, body: Any) -> bool:
    """Return whether a statement that is not understood may have a verdict of its own."""
    if key == "xt":
        return not isinstance(body, dict)
    return key not in ("match", "limit", "meter", "quota", "ct count")


def _rules_of_map(matches: tuple[RuleMatch, ...], body: dict[str, Any]) -> Iterable[Rule]:
    """Yield a rule for each element of a verdict map, which also meets `matches`.

    The body is {"key": …, "data": {"set": [[value, {verdict: …}], …]}}, or names a map in "data".
    """
    data = body["data"]
    if not isinstance(data, dict):
        # The elements of a named map are not listed with it; they single out some packets.
        yield Rule((*matches, OTHER), "accept")
        return
    for value, verdict in data["set"]:
        ((key, target),) = verdict.items()
        conditions = matches
        if value != "*":
            conditions += tuple(_nft_match(body["key"], value, "=="))
        if key in ("jump", "goto"):
            yield Rule(conditions, key, target["target"])
        else:
            yield Rule(conditions, ENDS.get(key, "unsure"))


def _nft_match(left: Any, right: Any, op: str) -> list[RuleMatch]:
    """Return the conditions of one `match`; several where naming a port names the protocol too."""
    values = _values(right)
    if op not in ("==", "!=", "in") or not isinstance(left, dict) or values is None:
        return [OTHER]
    negated = op == "!="
    ((kind, body),) = left.items()
    if kind == "payload" and "protocol" in body:
        return _payload(body["protocol"], body["field"], values, negated)
    return [_nft_condition(kind, body, values, negated)]


def _nft_condition(kind: str, body: Any, values: tuple[str, ...], negated: bool) -> RuleMatch:
    """Return the condition on one kind of value; OTHER if it is not understood."""
    if kind == "&":
        return _masked_condition(body, values, negated)
    if kind == "meta":
        return _meta(body["key"], values, negated)
    if kind == "ct":
        return _conntrack(body["key"], values, negated)
    if kind == "fib" and body == {
        "result": "type",
        "flags": ["daddr"],
    }:
        return RuleMatch("dsttype", values, negated)
    return OTHER


# Keys of `meta` in nft, and their fields here.
META_FIELDS = {
    "iifname": "iif",
    "iif": "iif",
    "oifname": "oif",
    "oif": "oif",
    "l4proto": "proto",
    "nfproto": "family",
    "protocol": "family",
    "pkttype": "pkttype",
}


def _meta(key: str, values: tuple[str, ...], negated: bool) -> RuleMatch:
    if key == "mark":
        return _mark(values, negated)
    if key not in META_FIELDS:
        return OTHER
    return RuleMatch(META_FIELDS[key], values, negated)


def _conntrack(key: str, values: tuple[str, ...], negated: bool) -> RuleMatch:
    if key == "mark":
        return _mark(values, negated)
    if key not in ("state", "status"):
        return OTHER
    return RuleMatch(key, values, negated)


# Fields of the IPv4 header in nft, and their names here.
IP_FIELDS = {"saddr": "saddr", "daddr": "daddr", "protocol": "proto"}


def _payload(protocol: str, field: str, values: tuple[str, ...], negated: bool) -> list[RuleMatch]:
    """Return the conditions on a header's field; that of a protocol names the protocol too."""
    if protocol == "ip":
        if field not in IP_FIELDS:
            return [OTHER]
        return [RuleMatch(IP_FIELDS[field], values, negated)]
    if protocol == "ip6":
        return [RuleMatch("family", ("ipv6",)), RuleMatch(f"{field}6", values, negated)]
    matches = []
    if protocol != "th":  # «th» is the transport header of any protocol
        matches.append(RuleMatch("proto", (protocol,)))
    if field in ("sport", "dport"):
        matches.append(RuleMatch(field, values, negated))
    else:
        matches.append(OTHER)
    return matches


def _masked_condition(parts: Any, values: tuple[str, ...], negated: bool) -> RuleMatch:
    """Parse «tcp flags & (fin|syn|rst|ack) == syn» and «meta mark & 0x8000 == 0x8000»."""
    source, mask = parts
    if source in ({"meta": {"key": "mark"}}, {"ct": {"key": "mark"}}):
        return _mark(values, negated)
    if source != {
        "payload": {
            "protocol": "tcp",
            "field": "flags",
        }
    }:
        return OTHER
    flags = _values(mask)
    if not flags:
        return OTHER
    return RuleMatch("flags", (",".join(flags), ",".join(values)), negated)


def _mark(values: tuple[str, ...], negated: bool) -> RuleMatch:
    """Return the condition that the packet has a mark; OTHER where it must have none."""
    wants_zero = all(value in ("0", "0x0") for value in values)
    if wants_zero == negated:
        return RuleMatch("mark", ("set",))
    return OTHER


def _values(right: Any) -> tuple[str, ...] | None:
    """Return the right side of a match as texts, None where it is not understood.

    Examples are «10.0.0.0/8», «1024-65535» and «@name».
    """
    if isinstance(right, str | int):
        return (str(right),)
    if isinstance(right, list):
        return _all_values(right)
    if isinstance(right, dict) and len(right) == 1:
        ((kind, body),) = right.items()
        return _values_of_kind(kind, body)
    return None


def _values_of_kind(kind: str, body: Any) -> tuple[str, ...] | None:
    """Return the same for a value that nft writes as {kind: body}."""
    if kind == "prefix":
        return (f"{body['addr']}/{body['len']}",)
    if kind == "range":
        return (f"{body[0]}-{body[1]}",)
    if kind == "elem":
        return _values(body["val"])
    if kind in ("set", "|") and isinstance(body, list):
        return _all_values(body)
    return None


def _all_values(items: list[Any]) -> tuple[str, ...] | None:
    values: list[str] = []
    for item in items:
        item_values = _values(item)
        if item_values is None:
            return None
        values += item_values
    return tuple(values)


# ---------------------------------------------------------------- iptables


def parse_iptables(text: str, family: str = "ip") -> Ruleset:
    """Parse the output of iptables-save. Raises ValueError where it ends in the middle of a table.

    `family`, as "ip" or "legacy ip6", goes before the names of the tables.
    """
    is_ipv6 = family.endswith("ip6")
    policies: dict[ChainKey, str] = {}
    rules: dict[ChainKey, list[Rule]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line == "COMMIT":
            table = ""
        elif line.startswith(":") and table:
            name, policy = line[1:].split()[:2]
            policies[table, name] = policy
        elif line.startswith("-A ") and table:
            _, name, *options = shlex.split(line)
            rule = _iptables_rule(options)
            rules.setdefault((table, name), []).append(_of_ipv6(rule) if is_ipv6 else rule)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"iptables-save printed '{line[:60]}'")
    if table:
        raise ValueError("the listing of iptables ends in the middle of a table")
    chains = []
    for (table, name), policy in policies.items():
        chain_rules = rules.get((table, name), [])
        chains.append(
            _iptables_chain(
                family,
                table,
                name,
                policy,
                chain_rules,
            )
        )
    return tuple(chains)


def _of_ipv6(rule: Rule) -> Rule:
    """Return a rule of ip6tables, whose addresses have the same options as those of iptables."""
    matches = []
    for match in rule.matches:
        if match.field in ("saddr", "daddr"):
            matches.append(replace(match, field=f"{match.field}6"))
        else:
            matches.append(match)
    return replace(rule, matches=tuple(matches))


def _iptables_chain(
    family: str, table: str, name: str, policy: str, rules: Iterable[Rule]
) -> Chain:
    """Return a chain of iptables; only one that packets enter has a hook and a policy."""
    # «-» stands for the policy of a chain that only other chains jump to.
    hook = None if policy == "-" else HOOKS.get(name)
    return Chain(
        table=f"{family} {table}",
        name=name,
        rules=tuple(rules),
        hook=hook,
        policy=policy.lower() if hook else "accept",
        kind="nat" if table == "nat" else "filter",
    )


# Options of iptables whose argument is the value of one field.
PLAIN = {
    "-s": "saddr",
    "-d": "daddr",
    "-i": "iif",
    "-o": "oif",
    "-p": "proto",
    "--dport": "dport",
    "--sport": "sport",
    "--dports": "dport",
    "--sports": "sport",
    "--ctstate": "state",
    "--state": "state",
    "--ctstatus": "status",
    "--dst-type": "dsttype",
    "--pkt-type": "pkttype",
}


def _iptables_rule(words: list[str]) -> Rule:
    """Return the rule of the options behind «-A CHAIN»."""
    matches: list[RuleMatch] = []
    for option, negated, arguments in _options(words):
        if option in ("-j", "-g"):
            return _jump(option, arguments[0], tuple(matches))
        match = _iptables_match(option, arguments, negated)
        if match is not None:
            matches.append(match)
    return Rule(tuple(matches), "none")


def _options(words: list[str]) -> Iterable[tuple[str, bool, list[str]]]:
    """Yield each option, whether a «!» negates it, and its arguments."""
    negated = False
    position = 0
    while position < len(words):
        option = words[position]
        position += 1
        if option == "!":
            negated = True
            continue
        end = position + 1
        if option != "--comment":  # the text of a comment may begin with a dash
            end = _next_option(words, position)
        yield option, negated, words[position:end]
        negated = False
        position = end


def _next_option(words: list[str], start: int) -> int:
    for position in range(start, len(words)):
        if words[position] == "!" or words[position].startswith("-"):
            return position
    return len(words)


def _iptables_match(option: str, arguments: list[str], negated: bool) -> RuleMatch | None:
    """Return the condition of one option, None for an option that has none."""
    if option in ("-m", "--comment"):
        return None
    if option in PLAIN:
        return RuleMatch(PLAIN[option], _split_values(arguments[0]), negated)
    if option == "--mark":
        value = arguments[0].partition("/")[0]
        return _mark((value,), negated)
    if option == "--tcp-flags":
        mask, flags = arguments[0].lower(), arguments[1].lower()
        return RuleMatch("flags", (mask, flags), negated)
    if option == "--match-set" and arguments[1:2] in (["src"], ["dst"]):
        field = "saddr" if arguments[1] == "src" else "daddr"
        return RuleMatch(field, (f"@{arguments[0]}",), negated)
    return OTHER


def _split_values(text: str) -> tuple[str, ...]:
    """Return «22,80,6000:7000» as («22», «80», «6000-7000»)."""
    if "/" in text:
        return (text,)
    values = text.lower().replace(":", "-")
    return tuple(values.split(","))


def _jump(option: str, target: str, matches: tuple[RuleMatch, ...]) -> Rule:
    if target in ("ACCEPT", "DROP", "RETURN"):
        return Rule(matches, ENDS[target.lower()])
    if target in SILENT_TARGETS or target in DECIDING_TARGETS:
        return Rule(matches, _verdict_of_target(target))
    return Rule(matches, "jump" if option == "-j" else "goto", target)


def _verdict_of_target(name: str) -> str:
    """Return the verdict of a target that is no chain."""
    if name == "REJECT":
        return "drop"
    if name in SILENT_TARGETS:
        return "none"
    return "unsure"


NEEDS = Needs("root", "the kernel lists its packet filters to root alone, where it has any in use")
FIREWALL = Fact(
    "net.filter", lambda node, inventory: (Read("firewall"),), parse_firewall, needs=NEEDS
)
