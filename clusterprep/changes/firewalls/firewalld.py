"""firewalld: a policy of its own for the ports of a job, ahead of all zones.

The policy is one file of ours, so nothing that others have set is touched. Before the zones it
accepts the nodes and drops all others on these ports; what it does not decide, the zones decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from clusterprep.changes.firewalls.owner import POLICY, FirewallOwner
from clusterprep.changes.firewalls.rules import (
    WantedRules,
    ipv4_networks,
    ipv6_networks,
    ports_without_ssh,
    too_many,
)
from clusterprep.changes.resources import NoPlan
from clusterprep.model.operations import Operation, RunCommand, Write
from clusterprep.model.versions import leading_numbers

PATH = f"/etc/firewalld/policies/{POLICY}.xml"
TARGET = f"policy {POLICY} of firewalld"
TABLES = ("inet firewalld", "ip firewalld")  # of nft, which its rules are in
OLDEST = (0, 9)  # the first release with policies
MOST_NETWORKS = 512  # each of them is a rule for every range of ports
LIMIT = 120.0  # seconds; a reload takes some 3 s
# Zones come at 0. Policies of a lower priority decide before ours.
PRIORITY = -100
HEAD = f"""\
<?xml version="1.0" encoding="utf-8"?>
<!-- Written by clusterprep apply, which overwrites this file. -->
<policy priority="{PRIORITY}" target="CONTINUE">
  <short>Training cluster</short>
  <description>The ports of a job are open between the nodes, else closed.</description>
  <ingress-zone name="ANY"/>
  <egress-zone name="HOST"/>
"""
RELOAD = RunCommand(("firewall-cmd", "--reload"), LIMIT)
CHECK = RunCommand(("firewall-cmd", "--check-config"), LIMIT, undo=())
UNSAVED = (
    "firewalld has rules that are loaded and not kept, and to load a policy it drops these: "
    "firewall-cmd --runtime-to-permanent keeps them, firewall-cmd --reload drops them"
)


def changes(
    wanted: WantedRules, owner: FirewallOwner, content: bytes | None
) -> Iterator[tuple[Operation, str]]:
    """Yield how the policy is written and loaded, each operation with a line for people.

    `content` is that of the policy's file. Raises NoPlan where firewalld cannot have the policy.
    """
    if leading_numbers(owner.version) < OLDEST:
        raise NoPlan(
            "cannot", f"firewalld {owner.version} knows no policies: it takes 0.9 or newer"
        )
    rules = wanted_rules(wanted)
    text = policy_text(wanted).encode()
    loaded = [rule for rule in owner.rules if rule.startswith("rule ")]
    is_loaded = sorted(loaded) == sorted(rules)
    if content == text and is_loaded:
        return
    if owner.unsaved:
        raise NoPlan("cannot", UNSAVED)
    if content != text:
        yield Write(PATH, content, text), "\n".join(difference(loaded, rules))
    yield CHECK, ""
    yield replace(RELOAD, again=(RELOAD,)), "loaded"


def difference(before: list[str], after: list[str]) -> Iterator[str]:
    """Yield the rules that go and those that come."""
    for rule in before:
        if rule not in after:
            yield f"-{rule}"
    for rule in after:
        if rule not in before:
            yield f"+{rule}"


def _sources(wanted: WantedRules) -> list[tuple[str, str]]:
    """Return the family and the network of all who may connect. Raises NoPlan for too many."""
    sources = [("ipv4", network) for network in ipv4_networks(wanted.ipv4)]
    sources += [("ipv6", network) for network in ipv6_networks(wanted.ipv6)]
    message = too_many(len(sources), MOST_NETWORKS, "firewalld")
    if message:
        raise NoPlan("cannot", message)
    return sources


def _ports(wanted: WantedRules) -> list[str]:
    ranges = ports_without_ssh(wanted)
    return [str(low) if low == high else f"{low}-{high}" for low, high in ranges]


def wanted_rules(wanted: WantedRules) -> list[str]:
    """Return the rules of the policy as `firewall-cmd --list-rich-rules` writes them."""
    rules = []
    for port in _ports(wanted):
        for family, source in _sources(wanted):
            rules.append(
                f'rule priority="-1" family="{family}" source address="{source}" '
                f'port port="{port}" protocol="tcp" accept'
            )
    for port in _ports(wanted):
        rules.append(f'rule port port="{port}" protocol="tcp" drop')
    return rules


def policy_text(wanted: WantedRules) -> str:
    """Return the file of the policy."""
    elements = []
    for port in _ports(wanted):
        for family, source in _sources(wanted):
            elements.append(
                f'  <rule family="{family}" priority="-1">\n'
                f'    <source address="{source}"/>\n'
                f'    <port port="{port}" protocol="tcp"/>\n'
                "    <accept/>\n"
                "  </rule>\n"
            )
    for port in _ports(wanted):
        elements.append(
            f'  <rule>\n    <port port="{port}" protocol="tcp"/>\n    <drop/>\n  </rule>\n'
        )
    return f"{HEAD}{''.join(elements)}</policy>\n"
