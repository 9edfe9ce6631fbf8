"""Fabric's habits through `Cluster`, against two hosts that only a jump host reaches."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

USER, PASSWORD = "alice", "correct-horse"
BEHIND = ("n2", "n3")


# Drops SSH from everywhere but one address.
ONLY_FROM = """\
table inet behind {{
  chain input {{
    type filter hook input priority 0;
    tcp dport 22 ip saddr != {{ 127.0.0.1, {address} }} drop
  }}
}}
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Lab:
    """n2 and n3 take no connection of the controller: only n1, the jump host, reaches them."""
    for host in lab4.hosts:
        faults.add_user(host, USER, "password", PASSWORD)
        host.write(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL:ALL) ALL\n", 0o440)
    jump = lab4.host("n1")
    for name in BEHIND:
        lab4.host(name).run(["nft", "-f", "-"], input=ONLY_FROM.format(address=jump.address))
    return lab4


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    jump = lab.host("n1")
    config = lab.folder / "jump.conf"
    config.write_text(
        f"Host jump\n HostName {jump.address}\n User root\n IdentityFile {lab.key}\n"
        f"Host n2 n3\n ProxyJump jump\n"
    )
    ssh = {**lab.inventory_content()["ssh"], "user": USER, "config": str(config)}
    nodes = [{"name": name, "address": lab.host(name).address} for name in BEHIND]
    return lab.inventory(
        lab.folder / "behind.yaml", ssh=ssh, nodes=nodes, groups={"both": {"nodes": "n[2-3]"}}
    )


def script(lab: Lab, inventory: Path, body: str) -> dict[str, object]:
    """What a program on the controller prints as JSON; it has `cluster`."""
    head = f"""\
        import json
        from clusterprep.fabric import Cluster
        cluster = Cluster({str(inventory)!r}, sudo_password={PASSWORD!r})
        group = cluster.group("n[2-3]")
    """
    text = textwrap.dedent(head) + textwrap.dedent(body)
    done = lab.controller.run([sys.executable, "-c", text], timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


LURE = r"""
import os, subprocess, sys
parent = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True).stdout
prompts = ["[sudo] password: ", "[sudo] password for alice: "]
for line in parent.splitlines():
    words = line.split()
    if "-p" in words[:-1]:
        prompts.append(words[words.index("-p") + 1])
for prompt in prompts:
    print(prompt, flush=True)
    print(prompt, file=sys.stderr, flush=True)
import select
if select.select([0], [], [], 3)[0]:
    print("caught", os.read(0, 99), flush=True)
"""


def test_a_program_of_another_user_is_not_given_the_password(lab: Lab, inventory: Path) -> None:
    """It says what sudo says, also the prompt of this very run, which a list of processes has."""
    lab.host("n2").write("/srv/lure.py", LURE)
    seen = script(
        lab,
        inventory,
        """
        one = cluster.connection("n2")
        try:
            result = one.sudo("python3 /srv/lure.py", user="nobody", hide=True, warn=True)
            text = result.stdout + result.stderr
        except Exception as error:
            text = f"{error!r} {error}"
        print(json.dumps({"text": text}))
        """,
    )
    assert "[sudo] password" in str(seen["text"]) or "AuthFailure" in str(seen["text"])
    assert "caught" not in str(seen["text"])
    assert PASSWORD not in str(seen["text"])


def test_a_wrong_password_is_no_endless_wait(lab: Lab, inventory: Path) -> None:
    seen = script(
        lab,
        inventory,
        """
        from clusterprep.fabric.connection import PasswordOnce
        from invoke.exceptions import AuthFailure
        from clusterprep.remote.transports.sudo import SudoPassword
        one = cluster.connection("n2")
        secret = SudoPassword("wrong")
        try:
            one._run_under_sudo(secret, "id -un", {"hide": True, "in_stream": False})
        except AuthFailure as error:
            print(json.dumps({"refused": True}))
        """,
    )
    assert seen == {"refused": True}


def test_run_sudo_put_and_get(lab: Lab, inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("sent\n")
    seen = script(
        lab,
        inventory,
        f"""
        results = group.run("hostname", hide=True)
        roots = group.sudo("id -un", hide=True)
        group.put({str(tmp_path / "sent")!r}, "/home/alice/got")
        group.get("/home/alice/got", {str(tmp_path)!r} + "/{{host}}/")
        one = cluster.connection("n2")
        with one.cd("/usr/bin"):
            folder = one.run("pwd", hide=True).stdout
        with one.prefix("VALUE=7"):
            value = one.run("echo $VALUE", hide=True).stdout
        local = one.local("echo here", hide=True).stdout
        env = one.run("echo $COLOUR", env={{"COLOUR": "red"}}, hide=True).stdout
        terminal = one.run("tty", pty=True, hide=True).stdout
        print(json.dumps({{
            "run": {{c.host: r.stdout for c, r in results.items()}},
            "sudo": {{c.host: r.stdout for c, r in roots.items()}},
            "folder": folder, "value": value, "local": local, "env": env,
            "terminal": terminal.startswith("/dev/pts/"), "user": one.user,
        }}))
        """,
    )
    assert seen == {
        "run": {"n2": "n2\n", "n3": "n3\n"},
        "sudo": {"n2": "root\n", "n3": "root\n"},
        "folder": "/usr/bin\n",
        "value": "7\n",
        "local": "here\n",
        "env": "red\n",
        "terminal": True,
        "user": USER,
    }
    for name in BEHIND:
        assert (tmp_path / name / "got").read_text() == "sent\n"


def test_warn_dry_and_failures_of_a_group(lab: Lab, inventory: Path) -> None:
    seen = script(
        lab,
        inventory,
        """
        from fabric.exceptions import GroupException
        one = cluster.connection("n2")
        warned = one.run("exit 3", warn=True, hide=True).exited
        one.run("touch /tmp/never", dry=True)
        never = one.run("test -e /tmp/never", warn=True, hide=True).exited
        try:
            group.run("test $(hostname) = n2", hide=True)
        except GroupException as error:
            good = [c.host for c in error.result.succeeded]
            bad = {c.host: type(e).__name__ for c, e in error.result.failed.items()}
        print(json.dumps({"warned": warned, "never": never, "good": good, "bad": bad}))
        """,
    )
    bad = {"n3": "UnexpectedExit"}
    assert seen == {"warned": 3, "never": 1, "good": ["n2"], "bad": bad}


def test_a_host_key_that_nobody_knows_is_refused(lab: Lab, inventory: Path) -> None:
    content = json.loads(inventory.read_text())
    content["ssh"]["known_hosts"] = str(lab.folder / "empty")
    (lab.folder / "empty").write_text("")
    other = lab.folder / "unknown.yaml"
    other.write_text(json.dumps(content))
    seen = script(
        lab,
        other,
        """
        from clusterprep.errors import Unreached
        try:
            cluster.connection("n2").run("true")
        except Unreached as error:
            print(json.dumps(error.reason))
        """,
    )
    assert seen == "host_key_unknown"


def test_the_width_of_a_group_is_bounded(lab: Lab, inventory: Path) -> None:
    seen = script(
        lab,
        inventory,
        """
        import time
        cluster.forks = 1
        began = time.monotonic()
        cluster.group("both").run("sleep 0.5", hide=True)
        print(json.dumps(time.monotonic() - began))
        """,
    )
    assert seen >= 1  # type: ignore[operator]


FABFILE = """\
from fabric import task

@task
def release(c):
    print("looking at", c.host)
    c.run("uname -s")
    c.sudo("id -un")
    if c.run("test $(hostname) = n2", warn=True, hide=True).failed:
        c.run("echo odd; exit 4")
"""


def test_a_task_at_the_time_limit_is_not_a_failure(lab: Lab, inventory: Path) -> None:
    fabfile = lab.folder / "slow.py"
    fabfile.write_text("from fabric import task\n\n@task\ndef slow(c):\n    c.run('sleep 60')\n")
    words = ("--task", f"{fabfile}:slow", "--timeout", "15")
    seen = clusterprep(lab, "exec", *words, inventory=inventory)
    assert seen.code == 3
    assert {(row["exit"], row["reason"]) for row in seen.report["results"]} == {(None, "timed_out")}


def test_a_task_runs_on_every_node_and_is_folded(lab: Lab, inventory: Path) -> None:
    fabfile = lab.folder / "fabfile.py"
    fabfile.write_text(FABFILE)
    env = {"CLUSTERPREP_BECOME_PASSWORD": PASSWORD}
    task = f"{fabfile}:release"
    seen = clusterprep(lab, "exec", "--task", task, inventory=inventory, env=env)
    rows = {row["nodes"][0]: row for row in seen.report["results"]}
    assert (rows["n2"]["exit"], rows["n2"]["stdout"]) == (0, "looking at n2\nLinux\nroot\n")
    assert (rows["n3"]["exit"], rows["n3"]["stdout"]) == (4, "looking at n3\nLinux\nroot\nodd\n")
    assert seen.code == 1
    wrong = clusterprep(lab, "exec", "--task", f"{fabfile}:relase", inventory=inventory)
    assert (wrong.code, "release" in wrong.report["error"]["message"]) == (2, True)


def test_exec_behind_the_jump_host(lab: Lab, inventory: Path) -> None:
    seen = clusterprep(lab, "exec", "--", "uname", "-s", inventory=inventory)
    (row,) = seen.report["results"]
    assert (row["nodes"], row["stdout"], seen.code) == (list(BEHIND), "Linux\n", 0)
