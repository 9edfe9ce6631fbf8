"""ssh_config means what `ssh -G` says it means."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterprep.remote.transports.ssh_config import SshConfig, hostname, tokens
from clusterprep.remote.transports.ssh_tokens import expand
from tests.support.operations import operations

CONFIG = """
# before any block: for all
IdentityFile ~/.ssh/first
Include {folder}/more/*.conf
User=early

Host gpu* !gpu13
    HostName %h.cluster.example
    Port   2222
    IdentityFile "~/.ssh/with space"   # a comment
    ProxyJump admin@bastion:2200

Host 10.0.0.[7] plain "quoted"
    User seven

Match host *.cluster.example user early
    HostKeyAlias matched

Match originalhost gpu01 exec "test %n = gpu01"
    IdentitiesOnly yes
Match originalhost gpu01 !exec "test %n = gpu01"
    IdentitiesOnly no

Match final host gpu02.cluster.example
    UserKnownHostsFile /final

Host gpu01
    Port 99
    ProxyCommand nc "%h" %p # not a comment
BrokenLineWithoutValue
Host *
    User last
    ProxyJump none
"""
INCLUDED = """
Host gpu03 other
  User included
  Port 33
"""
OPTIONS = (
    "hostname",
    "user",
    "port",
    "proxyjump",
    "proxycommand",
    "identitiesonly",
    "hostkeyalias",
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text(INCLUDED)
    path = tmp_path / "config"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def of_openssh(path: Path, name: str) -> dict[str, list[str]]:
    """What `ssh -G` finds; it stops at the broken line, which we pass over."""
    clean = path.with_name("clean")
    clean.write_text(path.read_text().replace("BrokenLineWithoutValue\n", ""))
    done = subprocess.run(
        ["ssh", "-G", "-F", clean, name], capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        found.setdefault(option, []).append(value)
    return found


def shown(name: str, options: dict[str, list[str]]) -> dict[str, str]:
    """Options in the form in which both can be compared: `ssh -G` shows defaults too."""
    values = {
        "port": "22",
        **{option: options[option][0] for option in OPTIONS if option in options},
    }
    if values.get("proxyjump", "none") != "none":
        values.pop("proxycommand", None)  # came second
    values["hostname"] = hostname(name, options)
    return {option: value for option, value in values.items() if value not in ("none", "no")}


@pytest.mark.machine
@pytest.mark.parametrize(
    "name",
    ["gpu01", "gpu02", "gpu03", "gpu13", "other", "plain", "quoted", "10.0.0.[7]", "10.0.0.7"],
)
def test_the_same_answers_as_openssh(config: Path, name: str) -> None:
    theirs = of_openssh(config, name)
    ours = SshConfig.from_path(str(config)).lookup(name, {})
    assert shown(name, ours) == shown(name, theirs)
    assert ours["identityfile"] == theirs["identityfile"]


CRITERIA = (
    "host n1",
    "!host n1",
    "!originalhost n2",
    "!user nobody-of-this-name",
    "final",
    "!final",
    "canonical",
    "!canonical",
    "all",
)


@pytest.mark.machine
@pytest.mark.parametrize("criterion", CRITERIA)
def test_criteria_hold_and_hold_negated_as_in_openssh(criterion: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Match {criterion}\n  HostKeyAlias held\nMatch final all\n")
    theirs = of_openssh(path, "n1")
    ours = SshConfig.from_path(str(path)).lookup("n1", {})
    assert ours.get("hostkeyalias") == theirs.get("hostkeyalias"), criterion


@pytest.mark.parametrize(
    ("criterion", "holds"),
    [
        # OpenSSH asks for its own release, or for what it runs: that cannot be said here.
        ("version OpenSSH_9*", False),
        ("!version OpenSSH_9*", False),
        ("command uptime", False),
        ("!command uptime", False),
        ("of-a-later-release x", False),
        ("!of-a-later-release x", False),
        ("localnetwork nonsense", False),
        ("!localnetwork nonsense", False),
        # Newer than the ssh of this test's machine may be.
        ("localnetwork 127.0.0.0/8", True),
        ("!localnetwork 127.0.0.0/8", False),
        ("localnetwork 203.0.113.0/24", False),
        ("!localnetwork 203.0.113.0/24", True),
        ("localnetwork 203.0.113.0/24,127.0.0.0/8", True),
        ("localnetwork=::1/128,127.0.0.0/8", True),
        ("sessiontype exec", True),
        ("!sessiontype exec", False),
        ("!sessiontype shell", True),
        ("tagged fast", True),
        ("!tagged fast", False),
        ("!tagged slow", True),
        ("host=n1", True),
        ("!host=n1", False),
        ("!exec=false", True),
    ],
)
def test_what_cannot_be_said_holds_neither_way(criterion: str, holds: bool, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Tag fast\nMatch {criterion}\n  User held\n")
    assert ("user" in SshConfig.from_path(str(path)).lookup("n1", {})) is holds


def test_what_is_given_wins(config: Path) -> None:
    ours = SshConfig.from_path(str(config)).lookup(
        "gpu01", {"user": "me", "port": "7", "hostname": "10.9.9.9"}
    )
    assert (ours["user"], ours["port"], hostname("gpu01", ours)) == (["me"], ["7"], "10.9.9.9")
    assert "hostkeyalias" not in ours  # Match user early does not hold any more


def test_include_inherits_and_leaves_the_block_around_it(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.write_text("Port 1\nHost n2\nUser two\n")
    (tmp_path / "config").write_text(
        f"Host n1 n2\nInclude {inner}\nHostName after\nHost *\nPort 9\n"
    )
    config = SshConfig.from_path(str(tmp_path / "config"))
    assert config.lookup("n1", {}) == {"port": ["1"], "hostname": ["after"]}
    assert config.lookup("n2", {}) == {"port": ["1"], "user": ["two"], "hostname": ["after"]}
    assert config.lookup("n3", {}) == {"port": ["9"]}


def test_an_include_of_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"User me\nInclude {path}\n")
    assert SshConfig.from_path(str(path)).lookup("n1", {}) == {"user": ["me"]}


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    assert SshConfig.from_path(str(tmp_path / "none")).lookup("n1", {}) == {}


def test_tokens() -> None:
    words = tokens("n1", {"user": ["me"], "port": ["7"], "hostname": ["%h.lab"]})
    assert expand("%r@%h:%p %n %% %Z", words) == "me@n1.lab:7 n1 % %Z"


A_BLOCK = 8  # operations at most of a look at one; 4 when this was written


def test_a_look_grows_with_the_hosts_of_a_file_which_is_read_once(tmp_path: Path) -> None:
    def look(hosts: int) -> int:
        path = tmp_path / "config"
        path.write_text(
            "".join(f"Host gpu{n}\n  HostName 10.0.0.1\n" for n in range(hosts))
            + "Host *\nUser me\n"
        )
        config = SshConfig.from_path(str(path))
        path.unlink()
        assert all(config.lookup(f"gpu{number}", {})["user"] == ["me"] for number in range(100))
        return operations(lambda: config.lookup("gpu100", {}))

    few = look(1_000)
    assert few < A_BLOCK * 1_000
    assert look(2_000) < 2.2 * few
