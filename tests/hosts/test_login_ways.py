"""Hosts that differ in how one logs in: shells, locales, a bastion, certificates, narrow sshds.

What `check` learns of them is the same as of any other host. Hosts of other systems are in
test_unlike_hosts.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab
from tests.support.lab.unlike import CERTIFICATES, Unlike, ssh_settings, unlike_lab

pytestmark = pytest.mark.hosts

PASSWORDS = "KbdInteractiveAuthentication yes\nAuthenticationMethods keyboard-interactive"
HOSTS = (
    Unlike(),
    Unlike(login_shell="zsh", locale="ja_JP.UTF-8", become="sudo"),
    Unlike(login_shell="fish", locale="de_DE.UTF-8"),
    Unlike(login_shell="tcsh", locale="de_DE.ISO-8859-1", become="sudo"),
    Unlike(bastion="n1"),
    Unlike(sshd=CERTIFICATES),
    Unlike(sshd="MaxSessions 1"),
    Unlike(sshd="MaxStartups 1"),
    Unlike(login_shell="rbash"),
    Unlike(sshd=PASSWORDS),
)
REFUSED = {"n9": "denied", "n10": "auth_refused"}
ONLY = "--only=ssh.reach,host.identity,os.release,kernel.version,lim.nofile,env.shadow,net.ports"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require_lab()
    with unlike_lab(hosts=HOSTS) as unlike:
        yield unlike


@pytest.fixture(scope="module")
def checked(lab: Lab) -> Answer:
    path = lab.inventory(
        ssh=ssh_settings(lab),
        groups={"by-sudo": {"nodes": "n2,n4", "become": True}},
        job_user="root",
    )
    return clusterprep(lab, "check", ONLY, inventory=path)


def test_every_way_that_ends_in_a_shell_is_a_way_in(checked: Answer) -> None:
    reached = {node["name"] for node in checked.report["nodes"] if node["reached"]}
    assert reached == {f"n{number}" for number in range(1, 9)}


def test_a_restricted_shell_and_a_password_alone_are_refused_with_the_reason(
    checked: Answer,
) -> None:
    lost = {node["name"]: node["reason"] for node in checked.report["nodes"] if not node["reached"]}
    assert lost == REFUSED
    said = {name: f["message"] for f in checked.findings("ssh.reach") for name in f["nodes"]}
    assert "rbash" in said["n9"]
    assert "keyboard-interactive" in said["n10"]


def test_all_are_judged_alike(checked: Answer) -> None:
    for check in ("host.identity", "os.release", "kernel.version", "env.shadow"):
        assert set(checked.blamed(check, "pass")) >= {f"n{n}" for n in range(1, 9)}, check


def test_the_host_behind_the_bastion_is_reached_by_no_other_way(lab: Lab) -> None:
    ssh = {**lab.inventory_content()["ssh"], "config": "/dev/null", "connect_timeout": 1}
    direct = lab.inventory(lab.folder / "direct.yaml", ssh=ssh)
    found = clusterprep(lab, "check", "--only=ssh.reach", "--limit=n5", inventory=direct)
    (node,) = [node for node in found.report["nodes"] if node["name"] == "n5"]
    assert not node["reached"]


def test_commands_run_in_every_shell(lab: Lab) -> None:
    path = lab.inventory(lab.folder / "exec.yaml", ssh=ssh_settings(lab))
    words = ("printf", "%s|", "a  b", "$HOME", "ä!")
    ran = clusterprep(lab, "exec", "--limit=n[1-8]", "--", *words, inventory=path)
    assert ran.code == 0
    assert {result["stdout"] for result in ran.report["results"]} == {"a  b|$HOME|ä!|"}
