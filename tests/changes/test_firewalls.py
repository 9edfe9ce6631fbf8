"""Rules of firewalld and ufw: what is written, what is loaded already, and what is refused.

The listings are those of firewalld 1.3.3 and ufw 0.36.2 of Debian 12.
"""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from clusterprep.changes.firewalls import firewalld, ufw
from clusterprep.changes.firewalls.owner import FirewallOwner, parse_owner
from clusterprep.changes.firewalls.rules import WantedRules, ends_of, ports_without_ssh
from clusterprep.changes.resources import NoPlan
from clusterprep.model import Absent
from clusterprep.model.operations import Operation, RunCommand, Write

PORTS = ((29500, 29500), (32768, 60999))


def wanted(*networks: str, ipv6: tuple[str, ...] = (), ssh: int = 22) -> WantedRules:
    ranges = tuple(ends_of(ip_network(network)) for network in networks)
    ranges6 = tuple(ends_of(ip_network(network)) for network in ipv6)
    return WantedRules(ranges, ranges6, PORTS, ((ssh, ssh),))


def shown(operation: Operation) -> str:
    if isinstance(operation, RunCommand):
        return " ".join(operation.argv)
    assert isinstance(operation, Write)
    return operation.path


@pytest.mark.parametrize(
    ("ssh", "expected"),
    [
        (22, PORTS),
        (29500, ((32768, 60999),)),
        (32768, ((29500, 29500), (32769, 60999))),
        (40000, ((29500, 29500), (32768, 39999), (40001, 60999))),
        (60999, ((29500, 29500), (32768, 60998))),
    ],
)
def test_a_port_of_sshd_is_neither_opened_nor_closed(ssh: int, expected: object) -> None:
    assert ports_without_ssh(wanted("10.0.0.1/32", ssh=ssh)) == expected


# ---------------------------------------------------------------- firewalld

LOADED = (
    (
        'rule priority="-1" family="ipv4" source address="10.0.0.0/30" port port="29500" '
        'protocol="tcp" accept'
    ),
    (
        'rule priority="-1" family="ipv4" source address="10.0.0.0/30" port port="32768-60999" '
        'protocol="tcp" accept'
    ),
    'rule port port="29500" protocol="tcp" drop',
    'rule port port="32768-60999" protocol="tcp" drop',
)
RUNNING = FirewallOwner("firewalld", "1.3.3")


def test_the_policy_is_written_checked_and_loaded() -> None:
    write, check, reload = [op for op, _ in firewalld.changes(wanted("10.0.0.0/30"), RUNNING, None)]
    assert isinstance(write, Write)
    assert write.path == "/etc/firewalld/policies/clusterprep.xml"
    assert (write.after or b"").decode().count("<accept/>") == 2
    assert shown(check) == "firewall-cmd --check-config"
    assert isinstance(reload, RunCommand)
    assert shown(reload) == "firewall-cmd --reload"
    assert [each.argv for each in reload.again] == [("firewall-cmd", "--reload")]


def test_a_policy_that_is_there_and_loaded_needs_nothing() -> None:
    want = wanted("10.0.0.0/30")
    text = firewalld.policy_text(want).encode()
    loaded = FirewallOwner("firewalld", "1.3.3", LOADED, unsaved=True)
    assert list(firewalld.changes(want, loaded, text)) == []
    not_loaded = list(firewalld.changes(want, RUNNING, text))
    assert [shown(operation) for operation, _ in not_loaded] == [
        "firewall-cmd --check-config",
        "firewall-cmd --reload",
    ]


def test_only_what_differs_is_shown() -> None:
    loaded = FirewallOwner("firewalld", "1.3.3", LOADED)
    ((_, line), *_) = firewalld.changes(wanted("10.0.0.0/29"), loaded, b"")
    assert [row[0] for row in line.split("\n")] == ["-", "-", "+", "+"]
    assert 'address="10.0.0.0/29"' in line


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (FirewallOwner("firewalld", "0.6.3"), "0.6.3 knows no policies"),
        (FirewallOwner("firewalld", "1.3.3", unsaved=True), "--runtime-to-permanent"),
    ],
)
def test_what_firewalld_cannot_have_is_said(owner: FirewallOwner, words: str) -> None:
    with pytest.raises(NoPlan, match=words):
        list(firewalld.changes(wanted("10.0.0.0/30"), owner, None))


def test_too_many_networks_are_refused_with_what_helps() -> None:
    scattered = [f"10.{number // 100}.{number % 100}.1/32" for number in range(600)]
    with pytest.raises(NoPlan, match="600 networks, and firewalld shall have 512 at most"):
        list(firewalld.changes(wanted(*scattered), RUNNING, None))
    with pytest.raises(NoPlan, match="`allow:` of the step"):
        list(ufw.changes(wanted(*scattered[:65]), FirewallOwner("ufw")))


# ---------------------------------------------------------------- ufw

ADDED = (
    "Added user rules (see 'ufw status' for running firewall):",
    "ufw allow from 10.0.0.9 to any port 29500,32768:60999 proto tcp comment 'clusterprep'",
    "ufw allow from 10.0.0.0/30 to any port 29500,32768:60999 proto tcp comment 'clusterprep'",
    "ufw deny 29500,32768:60999/tcp comment 'clusterprep'",
    "ufw allow 22/tcp",
    "ufw allow from 10.9.0.0/24 to any port 8000 proto tcp comment 'of the site'",
    "ufw allow from fd00::1 to any port 29500,32768:60999 proto tcp comment 'clusterprep'",
)
ENDS = "to any port 29500,32768:60999"


def of_ufw(want: WantedRules, lines: tuple[str, ...], ipv4_only: bool = False) -> list[str]:
    changes = ufw.changes(want, FirewallOwner("ufw", "0.36.2", lines, ipv4_only=ipv4_only))
    return [shown(operation) for operation, _ in changes]


def test_rules_of_ufw_come_to_the_top_so_the_one_that_denies_is_first() -> None:
    assert of_ufw(wanted("10.0.0.0/30"), ADDED[4:6]) == [
        f"ufw prepend deny proto tcp {ENDS} comment clusterprep",
        f"ufw prepend allow proto tcp from 10.0.0.0/30 {ENDS} comment clusterprep",
    ]


def test_rules_of_ufw_that_are_there_need_nothing_and_others_stay() -> None:
    want = wanted("10.0.0.0/30", "10.0.0.9/32", ipv6=("fd00::1/128",))
    assert of_ufw(want, ADDED) == []
    more = wanted("10.0.0.0/30", "10.0.0.12/32", ipv6=("fd00::1/128",))
    assert of_ufw(more, ADDED) == [
        f"ufw --force delete allow proto tcp from 10.0.0.9 {ENDS}",
        f"ufw prepend allow proto tcp from 10.0.0.12 {ENDS} comment clusterprep",
    ]
    assert (
        of_ufw(wanted("10.0.0.0/30", "10.0.0.9/32", ipv6=("fd00::1/128",)), ADDED[:6], True) == []
    )


def test_rules_of_ufw_in_the_wrong_order_are_made_anew() -> None:
    lines = (ADDED[3], ADDED[2])
    assert of_ufw(wanted("10.0.0.0/30"), lines) == [
        f"ufw --force delete deny proto tcp {ENDS}",
        f"ufw --force delete allow proto tcp from 10.0.0.0/30 {ENDS}",
        f"ufw prepend deny proto tcp {ENDS} comment clusterprep",
        f"ufw prepend allow proto tcp from 10.0.0.0/30 {ENDS} comment clusterprep",
    ]


def test_each_rule_of_ufw_goes_back() -> None:
    for operation, _ in ufw.changes(wanted("10.0.0.8/30"), FirewallOwner("ufw", "0.36.2", ADDED)):
        assert isinstance(operation, RunCommand)
        (undo,) = operation.undo or ()
        verbs = {operation.argv[1], undo.argv[1]}
        assert verbs == {"--force", "prepend"}


# ---------------------------------------------------------------- whose the rules are


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("owner none\nend\n", FirewallOwner()),
        (
            f"owner firewalld 1.3.3\ndiffers\n\t{LOADED[2]}\nend\n",
            FirewallOwner("firewalld", "1.3.3", ("differs", LOADED[2]), unsaved=True),
        ),
        (
            "owner ufw 0.36.2\nipv4-only\nufw allow 22/tcp\nend\n",
            FirewallOwner("ufw", "0.36.2", ("ipv4-only", "ufw allow 22/tcp"), ipv4_only=True),
        ),
    ],
)
def test_the_owner_and_its_rules(out: str, expected: FirewallOwner) -> None:
    assert parse_owner({"code": 0, "out": out, "err": ""}) == expected


@pytest.mark.parametrize("out", ["", "owner ufw 0.36.2\nufw allow", "end\n", "hello\nend\n"])
def test_an_answer_without_an_owner_or_an_end_is_not_understood(out: str) -> None:
    with pytest.raises(ValueError, match=r"no owner|come to an end"):
        parse_owner({"code": 0, "out": out, "err": ""})
    assert parse_owner(Absent("hung", "x")) == Absent("hung", "x")
