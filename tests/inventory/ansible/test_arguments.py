"""Options of ssh in variables of Ansible: those with an effect, and those that are only told."""

from __future__ import annotations

import pytest

from clusterprep.inventory.ansible_arguments import SshArguments, read_arguments


def read(*texts: str) -> SshArguments:
    arguments = SshArguments()
    for text in texts:
        read_arguments(text, arguments)
    return arguments


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("-o ProxyJump=b", {"proxyjump": "b"}),
        ("-oProxyJump=b -o proxyjump=c", {"proxyjump": "b"}),
        ("-o 'ProxyCommand ssh -W %h:%p b'", {"proxycommand": "ssh -W %h:%p b"}),
        ('-o ProxyCommand="ssh -W %h:%p b"', {"proxycommand": "ssh -W %h:%p b"}),
        ("-J a,b -p2200 -l op", {"proxyjump": "a,b", "port": "2200", "user": "op"}),
        ("-Cqp 24 -4", {"port": "24"}),
        ('-o "User = op"', {"user": "op"}),
        ("-F ./ssh_config", {"config": "./ssh_config"}),
        ("-o UserKnownHostsFile=/etc/hosts.keys", {"userknownhostsfile": "/etc/hosts.keys"}),
        ("-o StrictHostKeyChecking=accept-new", {"stricthostkeychecking": "accept-new"}),
        ("-o ControlMaster=auto -o ServerAliveInterval=30 -A -tt", {}),
    ],
)
def test_options_are_read_as_ssh_reads_them(text: str, options: dict[str, str]) -> None:
    arguments = read(text)
    assert arguments.options == options
    assert arguments.unread == arguments.weakening == []


def test_the_first_text_wins_and_all_keys_count() -> None:
    arguments = read("-p 1 -i a", "-p 2 -o IdentityFile=b")
    assert arguments.options == {"port": "1"}
    assert arguments.identities == ["a", "b"]


@pytest.mark.parametrize(
    "option",
    [
        "StrictHostKeyChecking=no",
        "StrictHostKeyChecking=off",
        "UserKnownHostsFile=/dev/null",
        "UserKnownHostsFile=none",
        "GlobalKnownHostsFile=/dev/null",
    ],
)
def test_what_would_accept_any_host_key_has_no_effect(option: str) -> None:
    arguments = read(f"-o {option}")
    assert arguments.weakening == [option]
    assert arguments.options == {}


def test_what_means_nothing_here_is_told() -> None:
    assert read("-L 1:b:2 -o LocalCommand=x -o Tunnel=yes").unread == [
        "-L",
        "LocalCommand",
        "Tunnel",
    ]
