"""The packet filter: the ports of the job are open between the cluster's nodes, else closed.

Where firewalld or ufw owns the rules, the step has it do that (`changes/firewalls/`). Elsewhere,
and where our table is already, it is a table of nftables.

Tables stand beside each other, and each of them may drop a packet, so ours opens nothing that
another one closes. Where another table closes these ports there is no plan, and the message says
which rule it is. Ours drops nothing but the first packets of TCP connections to these ports: no
answer to a connection of the node's own, no UDP, and never SSH.

First packets are recognised by their TCP flags and not by connection tracking, which would cost
every packet of the cluster and whose table may overflow. The table is compared with the values that
nft lists (`facts/firewall.py`), because each release of nft writes sets differently.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.firewalls import firewalld, ufw
from clusterprep.changes.firewalls.owner import READS, FirewallOwner, parse_owner
from clusterprep.changes.firewalls.rules import Ranges, WantedRules, ends_of, merge_ranges
from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.changes.resources.hosts import host_addresses
from clusterprep.changes.resources.service import (
    Unit,
    daemon_reload,
    parse_unit,
    reversible,
    show_command,
)
from clusterprep.checks.firewall import INBOUND, OUTBOUND, Packet, base_ends, command_to_accept
from clusterprep.facts import Fact
from clusterprep.facts.firewall import FIREWALL, Chain, Rule, RuleMatch, Ruleset
from clusterprep.facts.network import INTERFACES, PORT_RANGE
from clusterprep.model import Absent, Fleet, Inventory, Json, Read
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.nccl.interfaces import Choice, Pick, candidates, choose, plain

FAMILY, NAME = "inet", "clusterprep"
TABLE = f"{FAMILY} {NAME}"
PATH = "/etc/nftables.d/clusterprep.nft"
SERVICE = "clusterprep-firewall.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
SSH_PORT = 22
LIMIT = 60.0  # seconds
BRINGERS = ("package", "command")  # resources whose steps may bring nft
OPENERS = ("command", "service", "package")  # resources whose steps may change other tables
NO_OPENING = "No table opens what another one drops"
HEAD = "# Written by clusterprep apply, which overwrites this file and the table in it.\n"
# As Debian's own nftables.service. That one empties all tables when it starts or is restarted, so
# ours follows it.
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

LOOPBACK = RuleMatch("iif", ("lo",))
TCP = RuleMatch("proto", ("tcp",))
IPV6 = RuleMatch("family", ("ipv6",))
FIRST_PACKET = RuleMatch("flags", ("fin,syn,rst,ack", "syn"))  # of a TCP connection
# Conditions of a rule as nft reads them, by the field that they are about.
_CONDITIONS = {
    "iif": 'iifname "{}"',
    "dport": "tcp dport {{ {} }}",
    "saddr": "ip saddr {{ {} }}",
    "saddr6": "ip6 saddr {{ {} }}",
    "flags": "tcp flags & (fin | syn | rst | ack) == syn",
}

Change = tuple[Operation, str]  # an operation, and a line for people


class PacketFilters(Struct, frozen=True):
    """The rules of all packet filters, and whether there is the tool nft."""

    rules: Ruleset
    nft: bool


class Obstacle(Struct, frozen=True):
    """What another table does to packets that are to be accepted; `certain`: it drops all."""

    certain: bool
    message: str


# ---------------------------------------------------------------- what has to be known


def parse_filters(filters: Json, version: Json) -> PacketFilters | Absent:
    """Return the packet filters; without the tool there are none, unless they are unknown."""
    has_nft = not _is_missing(version)
    if _is_missing(filters) and not has_nft:
        return PacketFilters((), nft=False)
    if isinstance(filters, Absent):
        return filters
    return PacketFilters(FIREWALL.parse(filters), has_nft)


def _is_missing(answer: Json) -> bool:
    return isinstance(answer, Absent) and answer.reason == "missing_tool"


def parse_sshd(answer: Json) -> tuple[int, ...]:
    """Return the ports of `sshd -T`, which prints its settings; none where it does not."""
    if isinstance(answer, Absent):
        return ()
    pattern = r"^(?:port |listenaddress \S+:)(\d+)(?: rdomain \S+)?$"
    ports = re.findall(pattern, str(answer["out"]), re.MULTILINE | re.IGNORECASE)
    return tuple(sorted(set(map(int, ports))))


def parse_service(answer: Json) -> Unit | None:
    """Return the unit that loads the table at boot, None where there is no systemd."""
    if isinstance(answer, Absent):
        return None
    try:
        unit = parse_unit(answer)
    except ValueError:
        return None
    return None if isinstance(unit, Absent) else unit


_FILTER_READS = (Read("firewall"), Read("command", ("nft", "--version")))
_SSHD_READS = (Read("command", ("sshd", "-T")),)
_SERVICE_READS = (Read("command", show_command(SERVICE), 10.0),)
RULES = Fact("firewall:rules", lambda node, _: _FILTER_READS, parse_filters, lenient=True)
SSHD = Fact("firewall:sshd", lambda node, _: _SSHD_READS, parse_sshd, lenient=True)
BOOT = Fact("firewall:service", lambda node, _: _SERVICE_READS, parse_service, lenient=True)
OWNER = Fact("firewall:owner", lambda node, _: READS, parse_owner, lenient=True)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (INTERFACES, PORT_RANGE, RULES, SSHD, BOOT, OWNER)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH, UNIT, firewalld.PATH)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"table {TABLE}", ""),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    for text in params.get("allow", ()):
        try:
            ip_network(text)
        except ValueError as error:
            yield "allow", f"expected addresses or networks such as 10.0.0.0/24; {error}"


# ---------------------------------------------------------------- what is wanted


@once_per_fleet
def addresses_of(fleet: Fleet) -> frozenset[str]:
    """Return every address from which a node of the inventory may connect.

    Raises NoPlan where one is not known.
    """
    by_name, unknown = host_addresses(fleet)
    if unknown:
        message = f"the address of {unknown[0]} is not known: give it an `address:` in numbers"
        raise NoPlan("name_unknown", message)
    addresses = set(by_name.values())
    choice = choose(fleet)
    reached = set()
    for node in fleet.reached:
        reached.add(node.name)
        addresses.update(_interface_addresses(fleet, node.name))
        if node.name in choice.picks:
            addresses.add(choice.picks[node.name].address)
    further = addresses.difference(by_name.values())
    not_reached = set(by_name) - reached
    if not_reached and further:
        raise NoPlan(
            "not_reached",
            f"other nodes have more addresses than the inventory says ({min(further)}), "
            f"so those of {min(not_reached)} are needed. "
            "It was left out or not reached, and would be shut out: apply this step to all nodes",
        )
    return frozenset(addresses)


def _interface_addresses(fleet: Fleet, node: str) -> set[str]:
    interfaces = fleet.fact(node, INTERFACES.name)
    if isinstance(interfaces, Absent):
        message = f"the addresses of {node} are not known: {interfaces.detail}"
        raise NoPlan(interfaces.reason, message)
    addresses: set[str] = set()
    for interface in candidates(interfaces):
        addresses.update(map(plain, (*interface.ipv4, *interface.ipv6)))
    return addresses


def wanted_rules(params: Params, context: PlanContext) -> WantedRules:
    """Return which addresses may connect to which ports of this node."""
    fleet = context.fleet
    master_port = fleet.inventory.master_port
    ports = merge_ranges([(master_port, master_port), _ephemeral_ports(context)])
    ipv4 = []
    ipv6 = []
    for text in (*addresses_of(fleet), *params.get("allow", ())):
        network = ip_network(text)
        if network.version == 4:
            ipv4.append(ends_of(network))
        else:
            ipv6.append(ends_of(network))
    return WantedRules(merge_ranges(ipv4), merge_ranges(ipv6), ports, _ssh_ports(context))


def _ssh_ports(context: PlanContext) -> Ranges:
    """Return the usual port, the one that the inventory names, and those that sshd listens on."""
    ports = {SSH_PORT}
    ports.update(context.facts[SSHD.name])
    if context.node.ssh.port:
        ports.add(context.node.ssh.port)
    return merge_ranges((port, port) for port in ports)


def _ephemeral_ports(context: PlanContext) -> tuple[int, int]:
    """Return the first and the last port that the kernel gives to connections of programs."""
    # A value that this playbook writes is in force before this step is done.
    file = context.written.get(RANGE)
    if file is None:
        low, high = context.facts[PORT_RANGE.name]
        return low, high
    low, high = (file.content or b"").split()
    return int(low), int(high)


def wanted_chain(wanted: WantedRules) -> Chain:
    """Return the only chain of the table."""
    ports = _is_in("dport", wanted.ports, str)
    ssh = _is_in("dport", wanted.ssh, str)
    ipv4 = _is_in("saddr", wanted.ipv4, _ipv4)
    ipv6 = _is_in("saddr6", wanted.ipv6, _ipv6)
    rules = [_accept(LOOPBACK), _accept(TCP, ssh)]
    if wanted.ipv4:
        rules.append(_accept(ipv4, TCP, ports))
    if wanted.ipv6:
        rules.append(_accept(IPV6, ipv6, TCP, ports))
    rules.append(Rule((TCP, ports, FIRST_PACKET), "drop"))
    return Chain(TABLE, "input", tuple(rules), hook="input")


def _accept(*matches: RuleMatch) -> Rule:
    return Rule(matches, "accept")


def _ipv4(number: int) -> str:
    return str(IPv4Address(number))


def _ipv6(number: int) -> str:
    return str(IPv6Address(number))


def _is_in(field: str, ranges: Ranges, written: Callable[[int], str]) -> RuleMatch:
    """Return the condition that a field is in these ranges; `written` is for each of their ends."""
    texts = []
    for low, high in ranges:
        text = written(low)
        if low != high:
            text += f"-{written(high)}"
        texts.append(text)
    return RuleMatch(field, tuple(texts))


def table_text(wanted: WantedRules) -> str:
    """Return the table as nft reads it: it deletes a former one and adds this one in one step."""
    rules = "".join(map(_rule_text, wanted_chain(wanted).rules))
    opening = "\t\ttype filter hook input priority 0; policy accept;\n"
    chain = f"\tchain input {{\n{opening}{rules}\t}}\n"
    body = f"table {TABLE} {{\n{chain}}}\n"
    return f"{HEAD}table {TABLE}\ndelete table {TABLE}\n{body}"


def _rule_text(rule: Rule) -> str:
    statements = []
    for match in rule.matches:
        if match.field in _CONDITIONS:
            values = ", ".join(match.values)
            statements.append(_CONDITIONS[match.field].format(values))
    if rule.verdict == "drop":
        statements.append("counter")
    statements.append(rule.verdict)
    return f"\t\t{' '.join(statements)}\n"


# ---------------------------------------------------------------- comparison with what is loaded


def is_loaded(chains: Iterable[Chain], wanted: WantedRules) -> bool:
    """Return whether these chains are the wanted table, in whatever form nft lists its sets."""
    loaded = [_comparable(chain) for chain in chains]
    chain = wanted_chain(wanted)
    return loaded == [_comparable(chain)]


def _comparable(chain: Chain) -> object:
    rules = []
    for rule in chain.rules:
        conditions = frozenset(map(_condition, rule.matches))
        rules.append((conditions, rule.verdict))
    return chain.name, chain.hook, chain.policy, chain.kind, rules


def _condition(match: RuleMatch) -> object:
    values: object = match.values
    if match.field == "flags":
        values = tuple(frozenset(value.split(",")) for value in match.values)
    elif match.field in ("saddr", "saddr6", "dport"):
        values = merge_ranges(map(_span, match.values))
    return match.field, values, match.negated


def _span(text: str) -> tuple[int, int]:
    """Return the first and last of «10.0.0.0/30», «10.0.0.1-10.0.0.9» or «29500».

    (-1, -1) stands for what is none of these.
    """
    try:
        if "/" in text:
            return ends_of(ip_network(text))
        first, _, last = text.partition("-")
        low = _number(first)
        high = _number(last) if last else low
    except ValueError:
        return -1, -1
    return low, high


def _number(text: str) -> int:
    """Return a port or an address as a number."""
    if text.isdecimal():
        return int(text)
    return int(ip_address(text))


# ---------------------------------------------------------------- other tables


def obstacles(context: PlanContext, wanted: WantedRules, rules: Ruleset) -> Iterator[Obstacle]:
    """Yield what chains of other tables drop, or may drop, of what is to be accepted."""
    choice = choose(context.fleet)
    pick = choice.picks.get(context.node.name)
    if pick is None or len(choice.picks) < 2:
        message = "no interface of several nodes is chosen"
        yield Obstacle(False, f"not known whether other tables drop it: {message}")
        return
    chains = {(chain.table, chain.name): chain for chain in rules}
    for packet in _packets(choice, pick, wanted):
        for chain in rules:
            if not _sees(chain, packet):
                continue
            ends = base_ends(packet, chain, chains)
            if set(ends) == {"drop"}:
                cure = command_to_accept(rules, chain, pick.name, choice.network)
                yield Obstacle(True, _dropped(packet, ends["drop"], cure))
            elif "drop" in ends:
                yield Obstacle(False, f"may be dropped all the same by {ends['drop']}")


def _packets(choice: Choice, pick: Pick, wanted: WantedRules) -> Iterator[Packet]:
    """Yield the packets that the table accepts on the chosen interface, inbound ones first."""
    numbers = []
    for picked in choice.picks.values():
        address = ip_address(picked.address)
        numbers.append(int(address))
    peers = tuple(sorted(numbers))
    own = int(ip_address(pick.address))
    for inbound in (True, False):
        for ports in wanted.ports:
            yield Packet(
                inbound,
                pick.name,
                own,
                peers,
                ports,
                tried=False,
                ipv6=pick.is_ipv6,
            )


def _sees(chain: Chain, packet: Packet) -> bool:
    """Return whether such a packet enters the filter rules of this chain."""
    hooks = INBOUND if packet.inbound else OUTBOUND
    if chain.hook not in hooks or chain.kind == "nat" or not packet.enters(chain):
        return False
    return chain.device in (None, packet.interface)


def _dropped(packet: Packet, rule: str, cure: str) -> str:
    direction = "from" if packet.inbound else "to"
    low, high = packet.ports
    ports = str(low)
    if low != high:
        ports = f"{low}-{high}"
    effect = f"{rule} drops TCP {direction} the other nodes, port {ports}"
    return f"{effect}: {cure}. {NO_OPENING}"


# ---------------------------------------------------------------- plan


class Work(Struct, frozen=True):
    """What is done: to which target, with which changes.

    `tables` have the rules that these changes are about.
    """

    target: str
    changes: tuple[Change, ...]
    tables: tuple[str, ...]


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    filters: PacketFilters = context.facts[RULES.name]
    wanted = wanted_rules(params, context)
    work = _work(context, wanted, filters)
    hindrances = _hindrances(context, wanted, filters, work)
    operations = tuple(operation for operation, _ in work.changes)
    lines = [line for _, line in work.changes if line]
    if work.target == f"table {TABLE}" and context.facts[BOOT.name] is None:
        lines.append("not loaded at boot: there is no systemd here")
    lines.extend(hindrances)
    yield StepAction(
        context.node.name,
        "firewall",
        work.target,
        "update",
        operations,
        "\n".join(lines),
    )


def _work(context: PlanContext, wanted: WantedRules, filters: PacketFilters) -> Work:
    """Return what is done, by the owner of the rules. Raises NoPlan where that cannot be."""
    owner: FirewallOwner = context.facts[OWNER.name]
    if context.files[PATH].content is not None:
        owner = FirewallOwner()  # our table is here already, and two would contradict each other
    if owner.name == "firewalld":
        content = context.files[firewalld.PATH].content
        changes = tuple(firewalld.changes(wanted, owner, content))
        return Work(firewalld.TARGET, changes, firewalld.TABLES)
    if owner.name == "ufw":
        return Work(ufw.TARGET, tuple(ufw.changes(wanted, owner)), ufw.TABLES)
    if not filters.nft and not context.awaits(*BRINGERS):
        cure = "a step before this one may bring it (package nftables)"
        raise NoPlan("cannot", f"there is no nft on this node: {cure}")
    changes = (*load(context, wanted, filters), *at_boot(context))
    return Work(f"table {TABLE}", changes, (TABLE,))


def _hindrances(
    context: PlanContext, wanted: WantedRules, filters: PacketFilters, work: Work
) -> list[str]:
    """Return what may keep the ports closed.

    Raises NoPlan if they stay closed for certain, and no earlier step may open them. The tables of
    the owner are looked at once its rules are as wanted: until then they are what is changed.
    """
    may_be_opened = context.awaits(*OPENERS)
    left_out = work.tables if work.changes else (TABLE,)
    others = tuple(chain for chain in filters.rules if chain.table not in left_out)
    messages: dict[str, None] = {}  # each of them once
    for obstacle in obstacles(context, wanted, others):
        if obstacle.certain and not may_be_opened:
            raise NoPlan("cannot", obstacle.message)
        messages[obstacle.message] = None
    return list(messages)


def load(context: PlanContext, wanted: WantedRules, filters: PacketFilters) -> Iterator[Change]:
    """Yield how the file is written and the table loaded from it, each with a line for people.

    An undo loads what the file was before, or deletes the table.
    """
    file = context.files[PATH]
    text = table_text(wanted).encode()
    if file.content != text:
        difference = _difference(file.content, text)
        yield Write(PATH, file.content, text), difference
    former = [chain for chain in filters.rules if chain.table == TABLE]
    if is_loaded(former, wanted):
        return
    run = RunCommand(("nft", "-f", PATH), LIMIT)
    if not former:
        argv = ("nft", "delete", "table", FAMILY, NAME)
        delete = RunCommand(argv, LIMIT, codes=(0, 1))
        yield replace(run, undo=(delete,)), "loaded"
    elif file.content is not None:
        yield replace(run, again=(run,)), "loaded"
    else:
        yield run, f"loaded; no way back: the former table has no file {PATH}"


def at_boot(context: PlanContext) -> Iterator[Change]:
    """Yield how the table is loaded at every boot, each operation with a line for people."""
    unit: Unit | None = context.facts[BOOT.name]
    if unit is None:
        return
    file = context.files[UNIT]
    text = UNIT_TEXT.encode()
    if file.content != text:
        yield Write(UNIT, file.content, text), ""
        yield daemon_reload(LIMIT), ""
    if unit.file != "enabled":
        yield reversible("enable", "disable", SERVICE, LIMIT), "loaded at boot"
    if unit.active != "active":
        yield reversible("start", "stop", SERVICE, LIMIT), ""


def _difference(before: bytes | None, after: bytes) -> str:
    """Return a unified diff of the file, with two lines of context."""
    former = b"" if before is None else before
    old = former.decode("utf-8", "replace").splitlines()
    new = after.decode().splitlines()
    lines = difflib.unified_diff(
        old,
        new,
        PATH,
        PATH,
        n=2,
        lineterm="",
    )
    return "\n".join(lines)


RESOURCE = StepResource(
    "firewall", plan, facts=facts, paths=paths, parts=parts, wrong=wrong, texts={"allow": True}
)
