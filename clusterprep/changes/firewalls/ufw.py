"""ufw: rules ahead of those that it has, each with a comment that names them as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.firewalls.owner import COMMENT, FirewallOwner
from clusterprep.changes.firewalls.rules import (
    WantedRules,
    ipv4_networks,
    ipv6_networks,
    ports_without_ssh,
    too_many,
)
from clusterprep.changes.resources import NoPlan
from clusterprep.model.operations import Operation, RunCommand

TARGET = "rules of ufw"
TABLES = ("ip filter", "legacy ip filter")  # of iptables, which its rules are in
MOST_NETWORKS = 64  # each of them is a command of its own, which takes some 0.4 s
LIMIT = 60.0  # seconds
_OURS = re.compile(
    r"ufw (?:allow from ([0-9A-Fa-f:./]+) to any port ([0-9:,]+) proto tcp|deny ([0-9:,]+)/tcp)"
    rf" comment '{COMMENT}'"
)


class UfwRule(Struct, frozen=True):
    """One rule: a network may connect to ports; without a source all others may not."""

    ports: str
    source: str = ""

    def __str__(self) -> str:
        if self.source:
            return f"allow from {self.source} to any port {self.ports} proto tcp"
        return f"deny {self.ports}/tcp"

    def words(self) -> tuple[str, ...]:
        """Return the rule as ufw takes it."""
        if self.source:
            source = ("from", self.source)
            return "allow", "proto", "tcp", *source, "to", "any", "port", self.ports
        return "deny", "proto", "tcp", "to", "any", "port", self.ports


def changes(wanted: WantedRules, owner: FirewallOwner) -> Iterator[tuple[Operation, str]]:
    """Yield how the rules come about, each command with a line for people.

    Raises NoPlan for more networks than ufw shall have.
    """
    rules = wanted_rules(wanted, owner.ipv4_only)
    loaded = loaded_rules(owner.rules)
    if set(loaded) == set(rules) and are_in_order(loaded):
        return
    kept = set(rules) & set(loaded)
    if not are_in_order(loaded) or rules[0] not in kept:
        # Every new rule comes to the top, so one that denies has to come before those that allow.
        kept = set()
    for rule in loaded:
        if rule not in kept:
            yield delete(rule), f"-{rule}"
    for rule in rules:
        if rule not in kept:
            yield prepend(rule), f"+{rule}"


def wanted_rules(wanted: WantedRules, ipv4_only: bool) -> list[UfwRule]:
    """Return the rules in the order in which they are put at the top, so the first ends last."""
    texts = []
    for low, high in ports_without_ssh(wanted):
        texts.append(str(low) if low == high else f"{low}:{high}")
    ports = ",".join(texts)
    networks = ipv4_networks(wanted.ipv4)
    if not ipv4_only:
        networks += ipv6_networks(wanted.ipv6)
    message = too_many(len(networks), MOST_NETWORKS, "ufw")
    if message:
        raise NoPlan("cannot", message)
    return [UfwRule(ports), *(UfwRule(ports, network) for network in networks)]


def loaded_rules(lines: Sequence[str]) -> list[UfwRule]:
    """Return the rules of ours among the lines of `ufw show added`."""
    rules = []
    for line in lines:
        match = _OURS.fullmatch(line)
        if match is None:
            continue
        source, ports, denied = match.groups()
        rules.append(UfwRule(denied) if denied else UfwRule(ports, source))
    return rules


def are_in_order(rules: Sequence[UfwRule]) -> bool:
    """Return whether no rule for IPv4 that allows comes behind the one that denies.

    ufw lists rules for IPv6 alone behind all others.
    """
    denied = False
    for rule in rules:
        if not rule.source:
            denied = True
        elif denied and ":" not in rule.source:
            return False
    return True


def prepend(rule: UfwRule) -> RunCommand:
    """Return the command that puts a rule at the top."""
    run = RunCommand(("ufw", "prepend", *rule.words(), "comment", COMMENT), LIMIT)
    return replace(run, undo=(_delete(rule),))


def delete(rule: UfwRule) -> RunCommand:
    """Return the command that takes a rule away; a rule that is not there is no error."""
    undo = RunCommand(("ufw", "prepend", *rule.words(), "comment", COMMENT), LIMIT)
    return replace(_delete(rule), undo=(undo,))


def _delete(rule: UfwRule) -> RunCommand:
    return RunCommand(("ufw", "--force", "delete", *rule.words()), LIMIT)
