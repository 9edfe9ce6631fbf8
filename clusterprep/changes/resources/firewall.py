"""An nftables table of our own: the ports of a job are open between the cluster's nodes, and closed for everybody else.

Tables stand beside each other, and each of them may drop a packet, so ours opens nothing that another one closes. Where
another table closes these ports there is no plan, and the sentence says which rule it is. Ours drops nothing but the
first packets of TCP connections to these ports: no answer to a connection of the node's own, no UDP, and never SSH.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.changes.resources.hosts import table as addresses_in_hosts
from clusterprep.changes.resources.service import Unit, parse_unit
from clusterprep.checks.firewall import INBOUND, OUTBOUND, Packet, base_ends, command_to_accept
from clusterprep.facts import Fact
from clusterprep.facts.firewall import FIREWALL, Chain, Rule, RuleMatch, Ruleset
from clusterprep.facts.network import INTERFACES, PORT_RANGE
from clusterprep.model import Absent, Fleet, Inventory, Json, Read
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.nccl.interfaces import candidates, choose

FAMILY, NAME = "inet", "clusterprep"
TABLE = f"{FAMILY} {NAME}"
PATH = "/etc/nftables.d/clusterprep.nft"
SERVICE = "clusterprep-firewall.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
SSH_PORT = 22
LIMIT = 60.0  # seconds
NO_OPENING = "No table opens what another one drops"
HEAD = "# Written by clusterprep apply, which overwrites this file and the table in it.\n"
# As Debian's own nftables.service; that one empties all tables when it starts or is restarted, so ours follows it.
UNIT_TEXT = f"""\
# Written by clusterprep apply, which overwrites this file.
[Unit]
Description=Ports of the training cluster
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f {PATH}
ExecReload=/usr/sbin/nft -f {PATH}

[Install]
WantedBy=sysinit.target nftables.service
"""

Ranges = tuple[tuple[int, int], ...]  # first and last, in order, none next to another


@dataclass(frozen=True)
class Seen:
    """What the packet filters are; `nft` says whether there is the tool."""

    rules: Ruleset
    nft: bool


@dataclass(frozen=True)
class WantedRules:
    """Who may connect to which ports. Addresses and ports as numbers."""

    ipv4: Ranges
    ipv6: Ranges
    ports: Ranges
    ssh: Ranges


# ---------------------------------------------------------------- what has to be known


def seen(filters: Json, version: Json) -> Seen | Absent:
    """Rules are there without the tool only where they are unknown."""
    lacks = isinstance(version, Absent) and version.reason == "missing_tool"
    if isinstance(filters, Absent):
        return Seen((), nft=False) if lacks and filters.reason == "missing_tool" else filters
    return Seen(FIREWALL.parse(filters), not lacks)


def parse_sshd(answer: Json) -> tuple[int, ...]:
    """The ports of `sshd -T`, which prints its settings; none where it does not."""
    text = "" if isinstance(answer, Absent) else str(answer["out"])
    found = re.findall(r"^(?:port |listenaddress \S+:)(\d+)$", text, re.MULTILINE | re.IGNORECASE)
    return tuple(sorted({int(port) for port in found}))


def parse_service(answer: Json) -> Unit | None:
    """None where there is no systemd."""
    try:
        return None if isinstance(answer, Absent) else parse_unit(answer)
    except ValueError:
        return None


_READS = (Read("firewall"), Read("command", ("nft", "--version")))
RULES = Fact("firewall:rules", lambda node, _: _READS, seen, lenient=True)
SSHD = Fact(
    "firewall:sshd", lambda node, _: (Read("command", ("sshd", "-T")),), parse_sshd, lenient=True
)
_SHOW = (
    "systemctl",
    "show",
    "-p",
    "LoadState,UnitFileState,ActiveState,NeedDaemonReload",
    "--",
    SERVICE,
)
BOOT = Fact(
    "firewall:service", lambda node, _: (Read("command", _SHOW, 10.0),), parse_service, lenient=True
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (INTERFACES, PORT_RANGE, RULES, SSHD, BOOT)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH, UNIT)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"table {TABLE}", ""),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    for text in params.get("allow", ()):
        try:
            ip_network(text)
        except ValueError as error:
            yield "allow", f"expected addresses or networks such as 10.0.0.0/24; {error}"


# ---------------------------------------------------------------- what is wanted


def merged(spans: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


@once_per_fleet
def addresses_of(fleet: Fleet) -> frozenset[str]:
    """Every address from which a node of the inventory may connect. NoPlan where one is not known."""
    listed, unknown = addresses_in_hosts(fleet)
    if unknown:
        raise NoPlan(
            "name_unknown",
            f"the address of {unknown[0]} is not known: give it an `address:` in numbers",
        )
    found, choice = set(listed.values()), choose(fleet)
    for node in fleet.reached:
        interfaces = fleet.fact(node.name, INTERFACES.name)
        if isinstance(interfaces, Absent):
            raise NoPlan(
                interfaces.reason,
                f"the addresses of {node.name} are not known: {interfaces.detail}",
            )
        for each in candidates(interfaces):
            found.update(address.split("/")[0] for address in each.ipv4)
            found.update(each.ipv6)
        if node.name in choice.picks:
            found.add(choice.picks[node.name].address)
    away = set(listed) - {node.name for node in fleet.reached}
    if away and (more := sorted(found - set(listed.values()))):
        name = min(away)
        raise NoPlan(
            "not_reached",
            f"other nodes have more addresses than the inventory says ({more[0]}), so those of {name} are needed. "
            "It was left out or not reached, and would be shut out: apply this step to all nodes",
        )
    return frozenset(found)


def wanted(params: Params, known: PlanContext) -> WantedRules:
    file = known.written.get(
        RANGE
    )  # a setting that this playbook writes is in force before this step is done
    low, high = (
        known.facts[PORT_RANGE.name] if file is None else map(int, (file.content or b"").split())
    )
    port = known.fleet.inventory.master_port
    networks = [ip_network(text) for text in (*addresses_of(known.fleet), *params.get("allow", ()))]
    spans = [
        (net.version, int(net.network_address), int(net.broadcast_address)) for net in networks
    ]
    ssh = {SSH_PORT, known.node.ssh.port or SSH_PORT, *known.facts[SSHD.name]}
    return WantedRules(
        merged(span[1:] for span in spans if span[0] == 4),
        merged(span[1:] for span in spans if span[0] == 6),
        merged([(port, port), (low, high)]),
        merged((each, each) for each in ssh),
    )


def chain_of(want: WantedRules) -> Chain:
    """The only chain of the table."""
    tcp, ports = RuleMatch("proto", ("tcp",)), RuleMatch("dport", _texts(want.ports, str))
    rules = [
        Rule((RuleMatch("iif", ("lo",)),), "accept"),
        Rule((tcp, RuleMatch("dport", _texts(want.ssh, str))), "accept"),
        Rule((RuleMatch("saddr", _texts(want.ipv4, _ipv4)), tcp, ports), "accept"),
        Rule(
            (
                RuleMatch("family", ("ipv6",)),
                RuleMatch("saddr6", _texts(want.ipv6, _ipv6)),
                tcp,
                ports,
            ),
            "accept",
        ),
        Rule((tcp, ports, RuleMatch("flags", ("fin,syn,rst,ack", "syn"))), "drop"),
    ]
    rules = [rule for rule in rules if all(match.values for match in rule.matches)]
    return Chain(TABLE, "input", tuple(rules), "input", "accept", "filter", None)


def _ipv4(number: int) -> str:
    return str(IPv4Address(number))


def _ipv6(number: int) -> str:
    return str(IPv6Address(number))


def _texts(ranges: Ranges, written: Callable[[int], str]) -> tuple[str, ...]:
    return tuple(
        written(low) if low == high else f"{written(low)}-{written(high)}" for low, high in ranges
    )


def text_of(want: WantedRules) -> str:
    """The table as nft reads it: a former one goes and this one comes in one step."""
    lines = []
    for rule in chain_of(want).rules:
        words = [
            _WORDS[match.field].format(", ".join(match.values))
            for match in rule.matches
            if match.field in _WORDS
        ]
        lines.append(
            f"\t\t{' '.join(words)} {'counter drop' if rule.verdict == 'drop' else rule.verdict}\n"
        )
    opening = "\t\ttype filter hook input priority 0; policy accept;\n"
    body = f"table {TABLE} {{\n\tchain input {{\n{opening}{''.join(lines)}\t}}\n}}\n"
    return f"{HEAD}table {TABLE}\ndelete table {TABLE}\n{body}"


_WORDS = {
    "iif": 'iifname "{}"', "dport": "tcp dport {{ {} }}", "saddr": "ip saddr {{ {} }}", "saddr6": "ip6 saddr {{ {} }}",
    "flags": "tcp flags & (fin | syn | rst | ack) == syn",
}  # fmt: skip


def alike(chains: Iterable[Chain], want: WantedRules) -> bool:
    """Whether the table that is loaded is the one wanted, however nft lists its sets."""
    return [_plain(chain) for chain in chains] == [_plain(chain_of(want))]


def _plain(chain: Chain) -> object:
    rules = [(frozenset(map(_condition, rule.matches)), rule.verdict) for rule in chain.rules]
    return chain.name, chain.hook, chain.policy, chain.kind, rules


def _condition(match: RuleMatch) -> object:
    values: object = match.values
    if match.field == "flags":
        values = tuple(frozenset(value.split(",")) for value in match.values)
    elif match.field in ("saddr", "saddr6", "dport"):
        values = merged(map(_span, match.values))
    return match.field, values, match.negated


def _span(text: str) -> tuple[int, int]:
    """«10.0.0.0/30», «10.0.0.1-10.0.0.9» and «29500» as first and last; (-1, -1) for what is none of these."""
    first, _, last = text.partition("-")
    try:
        if "/" in text:
            net = ip_network(text)
            return int(net.network_address), int(net.broadcast_address)
        low, high = (
            int(end) if end.isdecimal() else int(ip_address(end)) for end in (first, last or first)
        )
    except ValueError:
        return -1, -1
    return low, high


# ---------------------------------------------------------------- other tables


def obstacles(known: PlanContext, want: WantedRules, rules: Ruleset) -> Iterator[tuple[bool, str]]:
    """Chains of others that drop what is to be open: whether they do so for certain, and the words for it."""
    choice = choose(known.fleet)
    pick = choice.picks.get(known.node.name)
    peers = tuple(sorted(int(IPv4Address(each.address)) for each in choice.picks.values()))
    if pick is None or len(peers) < 2:
        yield (
            False,
            "not known whether other tables drop it: no interface of several nodes is chosen",
        )
        return
    chains = {(chain.table, chain.name): chain for chain in rules}
    for hooks, inbound in ((INBOUND, True), (OUTBOUND, False)):
        for low, high in want.ports:
            packet = Packet(
                inbound, pick.name, int(IPv4Address(pick.address)), peers, (low, high), tried=False
            )
            for chain in (
                c
                for c in rules
                if c.hook in hooks and c.kind != "nat" and c.device in (None, pick.name)
            ):
                ends = base_ends(packet, chain, chains)
                way = "from" if inbound else "to"
                ports = f"{low}-{high}" if low != high else str(low)
                if set(ends) == {"drop"}:
                    cure = command_to_accept(rules, chain, pick.name, choice.network)
                    yield (
                        True,
                        f"{ends['drop']} drops TCP {way} the other nodes, port {ports}: {cure}. {NO_OPENING}",
                    )
                elif "drop" in ends:
                    yield False, f"may be dropped all the same by {ends['drop']}"


# ---------------------------------------------------------------- plan


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    found: Seen = known.facts[RULES.name]
    if not found.nft and not known.awaits("package", "command"):
        raise NoPlan(
            "cannot",
            "there is no nft on this node: a step before this one may bring it (package nftables)",
        )
    want = wanted(params, known)
    others = tuple(chain for chain in found.rules if chain.table != TABLE)
    hindered = list(obstacles(known, want, others))
    certain = [words for sure, words in hindered if sure]
    if certain and not known.awaits("command", "service", "package"):
        raise NoPlan("cannot", certain[0])
    operations, words = [], []
    for operation, word in (*load(known, want, found), *at_boot(known)):
        operations.append(operation)
        words.append(word)
    said = [word for word in words if word]
    if known.facts[BOOT.name] is None:
        said.append("not loaded at boot: there is no systemd here")
    said.extend(dict.fromkeys(words for _, words in hindered))
    yield StepAction(
        known.node.name, "firewall", f"table {TABLE}", "update", tuple(operations), "\n".join(said)
    )


def load(known: PlanContext, want: WantedRules, found: Seen) -> Iterator[tuple[Operation, str]]:
    """The file, and the table from it. An undo loads what the file was before, or takes the table away."""
    file, text = known.files[PATH], text_of(want).encode()
    mine = [chain for chain in found.rules if chain.table == TABLE]
    if file.content != text:
        yield Write(PATH, file.content, text), _difference(file.content, text)
    if not alike(mine, want):
        argv = ("nft", "-f", PATH)
        gone = RunCommand(("nft", "delete", "table", FAMILY, NAME), LIMIT, codes=(0, 1))
        if not mine:
            yield RunCommand(argv, LIMIT, undo=(gone,)), "loaded"
        elif file.content is not None:
            yield RunCommand(argv, LIMIT, again=(RunCommand(argv, LIMIT),)), "loaded"
        else:
            yield (
                RunCommand(argv, LIMIT),
                f"loaded; no way back: the former table has no file {PATH}",
            )


def at_boot(known: PlanContext) -> Iterator[tuple[Operation, str]]:
    unit: Unit | None = known.facts[BOOT.name]
    if unit is None:
        return
    file, text = known.files[UNIT], UNIT_TEXT.encode()
    if file.content != text:
        reload = RunCommand(("systemctl", "daemon-reload"), LIMIT)
        yield Write(UNIT, file.content, text), ""
        yield RunCommand(reload.argv, LIMIT, again=(reload,)), ""
    for verb, back, done in (
        ("enable", "disable", unit.file == "enabled"),
        ("start", "stop", unit.active == "active"),
    ):
        if not done:
            undo = (RunCommand(("systemctl", back, "--", SERVICE), LIMIT),)
            yield (
                RunCommand(("systemctl", verb, "--", SERVICE), LIMIT, undo=undo),
                "loaded at boot" if verb == "enable" else "",
            )


def _difference(before: bytes | None, after: bytes) -> str:
    lines = difflib.unified_diff(
        (before or b"").decode("utf-8", "replace").splitlines(),
        after.decode().splitlines(),
        PATH,
        PATH,
        "",
        "",
        2,
        "",
    )
    return "\n".join(lines)


RESOURCE = StepResource(
    "firewall", plan, facts=facts, paths=paths, parts=parts, wrong=wrong, texts={"allow": True}
)
