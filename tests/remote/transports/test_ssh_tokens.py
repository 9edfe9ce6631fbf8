"""Names of users and hosts, which an inventory may say, are no code for the shell of ssh_config."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from clusterprep.errors import InputError, Unreached
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh_route import Route, RouteMap
from clusterprep.remote.transports.ssh_tokens import (
    expand_for_shell,
    is_valid_host,
    is_valid_user,
)
from tests.support.command import CLI

GOOD_USERS = ("alice", "Alice.B-c_d+1", "DOMAIN\\alice", "alice@realm.example", "ünal", "_svc")
# Each begins, ends or separates something in a shell, or is an option of the program.
BAD_USERS = (
    "x`touch${IFS}PWNED`",
    "x;touch PWNED",
    "$(touch PWNED)",
    "x|touch",
    "x&touch",
    "x>PWNED",
    "x<PWNED",
    "x'y",
    'x"y',
    "{a,b}",
    "x\ntouch PWNED",
    "-oProxyCommand=touch",
    "x -oProxyCommand=touch",
    "x$IFS-oProxyCommand=touch",
    "x\\",
    "x*",
    "x\x1b",
)


def route(tmp_path: Path, config: str, user: str | None = None, name: str = "n1") -> Route:
    (tmp_path / "config").write_text(config)
    settings = SshSettings(user, config=str(tmp_path / "config"))
    return RouteMap().to(Node(name, name, 0, settings))


def file_of_ours(tmp_path: Path, user: str) -> Path:
    path = tmp_path / "inventory.yaml"
    quoted = '"' + "".join(f"\\x{ord(letter):02x}" for letter in user) + '"'
    path.write_text(f"nodes:\n  - {{name: n1}}\nssh:\n  user: {quoted}\n")
    return path


@pytest.mark.parametrize("user", BAD_USERS)
def test_the_inventory_refuses_them_with_the_line(user: str, tmp_path: Path) -> None:
    assert not is_valid_user(user)
    path = file_of_ours(tmp_path, user)
    with pytest.raises(InputError) as error:
        load_inventory(path)
    assert str(error.value).startswith(f"{path}:4: ssh.user: "), error.value
    # What runs first is the check of the file: nothing is asked, and nothing run.
    ansible = tmp_path / "hosts.yaml"
    ansible.write_text(
        "all:\n  hosts:\n    n1:\n      ansible_user: " + path.read_text().partition("user: ")[2]
    )
    with pytest.raises(InputError) as error:
        load_inventory(ansible)
    assert str(error.value).startswith(f"{ansible}:4: "), error.value


@pytest.mark.parametrize("user", [user for user in GOOD_USERS if user.isascii()])
def test_users_as_they_are(user: str, tmp_path: Path) -> None:
    assert is_valid_user(user)
    (node,) = load_inventory(file_of_ours(tmp_path, user)).nodes
    assert node.ssh.user == user
    assert route(tmp_path, "", user).user == user


@pytest.mark.parametrize("user", BAD_USERS)
def test_a_route_refuses_them_wherever_they_come_from(user: str, tmp_path: Path) -> None:
    """Not only the inventory says users: so does ssh_config, also that of an Include or a Match."""
    command = "ProxyCommand ssh -W %h:%p %r@bastion\n"
    with pytest.raises(Unreached) as error:
        route(tmp_path, command, user)
    assert error.value.reason == "name_unknown"
    with pytest.raises(Unreached):
        route(tmp_path, "", user)
    if "\n" in user or "\x1b" in user:
        return
    quoted = shlex.quote(user)
    with pytest.raises(Unreached):
        route(tmp_path, f"Match host n1\n  User {quoted}\nHost *\n{command}")
    with pytest.raises(Unreached):
        route(tmp_path, f"ProxyJump {shlex.quote(f'{user}@bastion')}\n")


@pytest.mark.parametrize("user", BAD_USERS)
def test_match_exec_does_not_run_them(user: str, tmp_path: Path) -> None:
    config = f'Match exec "cd {tmp_path}; true %r"\n  Port 7\n'
    with pytest.raises(Unreached):
        route(tmp_path, config, user)
    assert [path.name for path in tmp_path.iterdir()] == ["config"]


BAD_HOSTS = (
    "$(touch${IFS}PWNED)",
    "x;touch",
    "x`y`",
    "-oProxyCommand=x",
    "a b",
    "x\\",
    "a,b",
    "{a}",
)


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("option", ["HostName", "HostKeyAlias"])
def test_hosts_of_ssh_config(host: str, option: str, tmp_path: Path) -> None:
    token = {"HostName": "%h", "HostKeyAlias": "%k"}[option]
    config = f"{option} {shlex.quote(host)}\nProxyCommand nc {token} %p\n"
    with pytest.raises(Unreached) as error:
        route(tmp_path, config)
    assert error.value.reason == "name_unknown"


@pytest.mark.parametrize("host", ["n1", "fd00::1", "fe80::1%eth0", "10.0.0.1", "n1.example.com"])
def test_hosts_as_they_are(host: str) -> None:
    assert is_valid_host(host)


def test_every_token_of_a_line_is_looked_at_and_no_other() -> None:
    values = {"h": "n1", "r": "a;b", "l": "here;x", "L": "here", "u": "me", "d": "/home/a b"}
    assert expand_for_shell("nc %h %% %d %Z", values) == "nc n1 % /home/a b %Z"
    for letter in "rl":
        with pytest.raises(Unreached, match=f"%{letter} is "):
            expand_for_shell(f"nc %h %{letter}", values)


@pytest.mark.machine
@pytest.mark.parametrize("user", [*BAD_USERS, *GOOD_USERS])
def test_openssh_refuses_no_more_than_we_do(user: str) -> None:
    """What ssh takes for a dangerous name we do so, too; -G reads no network."""
    done = subprocess.run(
        ["ssh", "-G", "-F", "none", "-l", user, "n1"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        assert not is_valid_user(user), done.stderr


def test_nothing_of_an_inventory_runs_on_the_controller(tmp_path: Path) -> None:
    """The whole way of a command, with the proxy that people have, also where files are skipped."""
    config = tmp_path / "config"
    config.write_text("Host *\n  ProxyCommand ssh -W %h:%p %r@bastion.invalid\n")
    inventory = file_of_ours(tmp_path, "x`touch${IFS}PWNED`")
    inventory.write_text(inventory.read_text() + f"  config: {config}\n")
    for command in ("validate", "check"):
        done = subprocess.run(
            [*CLI, command, str(inventory)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert done.returncode == 2, done.stderr
        assert f"{inventory}:4: ssh.user: expected a user name" in done.stderr
    assert not list(tmp_path.glob("PWNED*"))
