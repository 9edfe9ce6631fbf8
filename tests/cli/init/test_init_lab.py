"""`init` looks at real hosts over SSH and writes an inventory with which `check` passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.inventory.load import load_inventory
from tests.support.command import CLI, clusterprep
from tests.support.lab import Lab

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    from tests.support.lab.fixtures import require_lab

    require_lab()
    with Lab(3) as three:
        yield three


def init(
    lab: Lab, *words: str, known_hosts: Path | None = None
) -> subprocess.CompletedProcess[str]:
    login = [
        "--user",
        "root",
        "-i",
        lab.key,
        "--known-hosts",
        known_hosts or lab.known_hosts,
        "--python",
        sys.executable,
    ]
    return lab.controller.run([*CLI, "init", *login, *words], cwd=lab.folder)


def hosts(lab: Lab) -> list[str]:
    return [f"{host.name}={host.address}" for host in lab.hosts]


def test_check_passes_with_what_init_wrote(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "found.yaml"
    done = init(lab, *hosts(lab), "--output", str(target))
    assert (done.returncode, done.stdout) == (
        0,
        f"{target}: 3 nodes. Look it through, then: clusterprep check {target}\n",
    )
    text = target.read_text()
    inventory = load_inventory(target)
    assert [(n.name, n.address) for n in inventory.nodes] == [
        (h.name, h.address) for h in lab.hosts
    ]
    assert text.startswith("# yaml-language-server: $schema=/")
    assert 'name: "n[1-3]"' in text
    node = inventory.nodes[0]
    assert (node.interfaces.nccl, node.gpus and node.gpus.count, node.python) == (
        "eth0",
        0,
        sys.executable,
    )
    assert set(node.require) == {"kernel.version", "torch.version"}
    assert (inventory.cluster, inventory.groups) == ("n", {})
    answer = clusterprep(lab, "check", inventory=target)
    assert (answer.code, answer.failed()) == (0, {})
    passed = {f["check"] for f in answer.report["findings"] if f["verdict"] == "pass"}
    assert {"torch.version", "kernel.version", "eth.iface_choice", "ssh.reach"} <= passed


def test_unknown_host_keys_are_shown_and_learned_only_on_request(lab: Lab, tmp_path: Path) -> None:
    known, target = tmp_path / "known_hosts", tmp_path / "inventory.yaml"
    words = [*hosts(lab)[:2], "--output", str(target)]
    done = init(lab, *words, known_hosts=known)
    assert done.returncode == 1
    prints = [line for line in done.stderr.splitlines() if "SHA256:" in line]
    assert len(prints) == 2
    assert "--accept-new" in prints[0]
    assert not target.exists()
    assert not known.exists()

    done = init(lab, *words, "--accept-new", known_hosts=known)
    assert done.returncode == 0, done.stderr
    assert [
        line.split("SHA256:")[1][:43] for line in done.stderr.splitlines() if "SHA256:" in line
    ] == [line.split("SHA256:")[1][:43] for line in prints]
    assert "accepted" in done.stderr
    assert len(known.read_text().splitlines()) == 2
    assert init(lab, *words, "--force", known_hosts=known).returncode == 0


def test_a_file_that_is_there_stays_without_force(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "inventory.yaml"
    target.write_text("mine\n")
    done = init(lab, *hosts(lab), "--output", str(target))
    assert done.returncode == 4
    assert "--force" in done.stderr
    assert target.read_text() == "mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["inventory.yaml"]


def test_a_host_that_does_not_answer_is_left_out_with_the_reason(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "inventory.yaml"
    done = init(
        lab, *hosts(lab), "n9=10.77.0.99", "--connect-timeout", "1.5", "--output", str(target)
    )
    assert done.returncode == 3, done.stderr
    assert "3 nodes, 1 left out" in done.stdout
    assert any("n9" in line and line.startswith("#") for line in target.read_text().splitlines())
    assert [node.name for node in load_inventory(target).nodes] == ["n1", "n2", "n3"]


def test_hosts_of_ssh_config_by_pattern_and_text_on_stdout(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    blocks = [
        f"Host {host.name} alias-{host.name}\n  HostName {host.address}\n" for host in lab.hosts
    ]
    config.write_text(
        "".join([*blocks, f"Host other\nHost *\n  User root\n  IdentityFile {lab.key}\n"])
    )
    login = ["--ssh-config", config, "--known-hosts", lab.known_hosts, "--output", "-"]
    done = lab.controller.run([*CLI, "init", "--from-ssh-config", "n*,!n2", *login])
    assert done.returncode == 0, done.stderr
    target = tmp_path / "inventory.yaml"
    target.write_text(done.stdout)
    inventory = load_inventory(target)
    assert [(node.name, node.ssh.config) for node in inventory.nodes] == [
        ("n1", str(config)),
        ("n3", str(config)),
    ]


def ansible(lab: Lab, folder: Path) -> Path:
    """The lab as Ansible's users have it."""
    hosts = "".join(f"{host.name} ansible_host={host.address}\n" for host in lab.hosts)
    login = (
        f"ansible_user=root\nansible_ssh_private_key_file={lab.key}\n"
        f"ansible_python_interpreter={sys.executable}\n"
    )
    path = folder / "hosts.ini"
    path.write_text(f"[gpu]\n{hosts}\n[gpu:vars]\n{login}")
    return path


def test_an_inventory_of_ansible_is_looked_at(lab: Lab, tmp_path: Path) -> None:
    path, target = ansible(lab, tmp_path), tmp_path / "inventory.yaml"
    words = [
        "--from-ansible",
        str(path),
        "--known-hosts",
        str(lab.known_hosts),
        "--output",
        str(target),
    ]
    done = lab.controller.run([*CLI, "init", *words])
    assert done.returncode == 0, done.stderr
    inventory = load_inventory(target)
    assert inventory.groups == {"gpu": ("n1", "n2", "n3")}
    assert inventory.nodes[0].python == sys.executable
    answer = clusterprep(lab, "check", inventory=target)
    assert (answer.code, answer.failed()) == (0, {})


def test_an_inventory_of_ansible_serves_as_it_is(lab: Lab, tmp_path: Path) -> None:
    path = ansible(lab, tmp_path)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").write_bytes(lab.known_hosts.read_bytes())
    answer = clusterprep(lab, "check", inventory=path, env={"HOME": str(home)})
    assert (answer.code, answer.failed()) == (0, {})
    assert answer.report["cluster"] == "hosts"
