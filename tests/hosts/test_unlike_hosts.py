"""The whole job on twelve hosts that have little in common: three releases of Debian and this one.

Their root file systems take minutes to make, once on a machine: `make test-all`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from clusterprep.inventory.load import load_inventory
from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab
from tests.support.lab.roots import why_no_roots
from tests.support.lab.unlike import HOSTS, JOB_PYTHON, USER, Unlike, unlike_lab

pytestmark = [pytest.mark.hosts, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(3600)]

NAMES = [f"n{number}" for number in range(1, len(HOSTS) + 1)]
JOB = "/usr/local/lib/job.py"
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""
PROFILE = "/etc/profile.d/clusterprep-nccl.sh"
LIMIT = 600


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    torch = pytest.importorskip("torch")
    require_lab()
    if reason := why_no_roots():
        pytest.skip(reason)
    with unlike_lab([Path(torch.__file__).parents[1]]) as unlike:
        for host in unlike.hosts:
            host.write(JOB, PROGRAM, 0o644)
        yield unlike


def drafted(lab: Lab, path: Path) -> str:
    """Let `init` write an inventory of all hosts, and return what it says."""
    words = ["--from-ssh-config", "n*", "--python", sys.executable, "--output", str(path)]
    done = lab.controller.run([*CLI, "init", *words], timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return path.read_text()


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    """The draft of `init` with what it cannot know: rights, and an interpreter for Debian 11."""
    path = lab.folder / "unlike.yaml"
    content = yaml.safe_load(drafted(lab, path))
    content["groups"]["debian-11"]["python"] = JOB_PYTHON
    content["groups"]["by-user"] = {
        "nodes": named(lambda host: bool(host.become)),
        "become": True,
        "job_user": "root",
    }
    # zsh, fish and csh do not read /etc/profile.d.
    content["env_targets"] = ["profile.d", "nccl.conf", "ssh"]
    # Twelve ranks import torch at the same time, on as many cores as this machine has.
    content["verify"] = {"timeout": 900, "sizes": ["8", "64K"]}
    path.write_text(yaml.safe_dump(content, allow_unicode=True))
    return path


def named(chosen: Callable[[Unlike], bool]) -> str:
    """Return the node set of the hosts that are chosen by what is declared of them."""
    return ",".join(name for name, host in zip(NAMES, HOSTS, strict=True) if chosen(host))


def run(lab: Lab, inventory: Path, command: str, *words: str) -> Answer:
    return clusterprep(lab, command, *words, inventory=inventory, timeout=LIMIT)


def test_the_hosts_are_what_is_declared(lab: Lab) -> None:
    asked = "ldd --version | head -1; python3 -V; ssh -V 2>&1; . /etc/os-release; echo $VERSION_ID"
    for host, unlike in zip(lab.hosts, HOSTS, strict=True):
        if unlike.system is None or unlike.busybox:
            continue
        glibc, python, openssh, release = host.run(["sh", "-c", asked]).stdout.splitlines()
        assert glibc.endswith(unlike.system.glibc), host.name
        assert python.startswith(f"Python {unlike.system.python}."), host.name
        assert openssh.startswith(f"OpenSSH_{unlike.system.openssh}"), host.name
        assert unlike.system.title == f"Debian {release}"


def test_init_drafts_a_group_for_each_distribution(lab: Lab, tmp_path: Path) -> None:
    text = drafted(lab, tmp_path / "drafted.yaml")
    found = load_inventory(tmp_path / "drafted.yaml")
    assert [node.name for node in found.nodes] == NAMES
    assert set(found.groups) == {"debian-11", "debian-12", "debian-13"}
    assert "does not start on n[9-11]" in text


def test_an_interpreter_for_a_newer_glibc_is_one_failure(lab: Lab, tmp_path: Path) -> None:
    drafted(lab, tmp_path / "drafted.yaml")
    found = run(lab, tmp_path / "drafted.yaml", "check")
    assert found.code == 1
    causes = [
        finding
        for finding in found.report["findings"]
        if finding["verdict"] == "fail" and finding["severity"] == "error"
    ]
    (cause,) = causes
    assert (cause["check"], cause["nodes"]) == ("python.env", ["n9", "n10", "n11"])
    assert "GLIBC_2.3" in cause["seen"]


def test_all_of_them_are_checked_verified_and_launched(lab: Lab, inventory: Path) -> None:
    found = run(lab, inventory, "check")
    assert (found.code, found.failed()) == (0, {})
    assert set(found.blamed("os.release", "pass")) == set(NAMES)
    written = run(lab, inventory, "apply", "--no-verify")
    assert (written.code, written.failed(), written.outcomes()) == (0, {}, {"done"})
    tried = run(lab, inventory, "verify")
    assert tried.code == 0, tried.report["verify"]
    assert tried.report["verify"]["world_size"] == len(HOSTS)
    launched = run(lab, inventory, "launch", "--", JOB)
    assert launched.code == 0, launched.report["launch"]
    put_back = run(lab, inventory, "rollback")
    assert (put_back.code, put_back.outcomes()) == (0, {"undone"})
    left = [
        host.name
        for host in lab.hosts
        if host.run(["test", "-e", PROFILE], check=False).returncode == 0
    ]
    assert left == []


def test_commands_run_as_root_in_every_shell_and_locale(lab: Lab, inventory: Path) -> None:
    ran = run(lab, inventory, "exec", "--", "printf", "%s|", "a  b", "$HOME", "ä!")
    assert ran.code == 0
    assert {result["stdout"] for result in ran.report["results"]} == {"a  b|$HOME|ä!|"}
    who = run(lab, inventory, "exec", "--", "id", "-u")
    assert {result["stdout"] for result in who.report["results"]} == {"0\n"}


def test_a_command_that_fails_has_its_own_exit_code_everywhere(lab: Lab, inventory: Path) -> None:
    ran = run(lab, inventory, "exec", "--", "sh", "-c", "exit 7")
    assert {result["exit"] for result in ran.report["results"]} == {7}


def test_a_file_is_copied_to_all_of_them(lab: Lab, inventory: Path) -> None:
    source = lab.folder / "ä file"
    source.write_bytes(b"\xff" * 100_000)
    copied = run(lab, inventory, "copy", str(source), "/usr/local/lib/copied")
    assert (copied.code, copied.outcomes()) == (0, {"done"})
    for host in lab.hosts:
        seen = host.run(["stat", "-c", "%U %s", "/usr/local/lib/copied"]).stdout
        assert seen == "root 100000\n", host.name


def test_doas_that_wants_a_password_is_refused_with_what_it_needs(
    lab: Lab, inventory: Path
) -> None:
    (host,) = [
        host for host, unlike in zip(lab.hosts, HOSTS, strict=True) if unlike.become == "doas"
    ]
    before = host.read("/etc/doas.conf")
    host.write("/etc/doas.conf", f"permit {USER}\n", 0o400)
    try:
        found = run(lab, inventory, "check", "--only=ssh.reach", f"--limit={host.name}")
    finally:
        host.write("/etc/doas.conf", before, 0o400)
    (finding,) = found.findings("ssh.reach")
    assert finding["message"].startswith("doas did not let us in: doas: ")
    assert "permit nopass" in finding["remedy"]
