"""SSH between hosts: missing, set up by one step, found working, and taken back byte for byte."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Host, Lab

pytestmark = pytest.mark.hosts

WANTED = {"require": {"ssh.mesh": "yes"}}


def files(host: Host) -> str:
    """Return mode, owner and digest of every file in root's .ssh."""
    script = "cd /root/.ssh && stat -c '%n %a %u' * && sha256sum *"
    return hashlib.sha256(host.run(["sh", "-c", script]).stdout.encode()).hexdigest()


def test_a_step_gives_every_host_a_way_to_every_other_and_it_is_taken_back(lab4: Lab) -> None:
    host = lab4.host("n1")
    host.write("/root/.ssh/known_hosts", "other.example ssh-ed25519 AAAA\n")
    before = [files(one) for one in lab4.hosts]
    inventory = lab4.inventory(**WANTED)

    def mesh() -> tuple[int, dict[str, list[str]]]:
        seen = clusterprep(lab4, "check", "--only", "ssh.mesh", inventory=inventory)
        return seen.code, seen.failed()

    assert mesh() == (1, {"ssh.mesh": ["n1", "n2", "n3", "n4"]})
    book = lab4.folder / "mesh.yaml"
    book.write_text("- ssh_mesh: {user: root}\n")
    words = ("--playbook", str(book), "--no-verify", "--only", "ssh.")
    done = clusterprep(lab4, "apply", *words, inventory=inventory)
    assert done.code == 0, done.report
    assert "PRIVATE" not in str(done.report)
    assert mesh() == (0, {})
    stat = host.run(["stat", "-c", "%a %U", "/root/.ssh/clusterprep_mesh"]).stdout.split()
    assert stat == ["600", "root"]
    # A second time there is nothing to do.
    again = clusterprep(lab4, "apply", *words, "--detailed-exitcode", inventory=inventory)
    assert again.code == 0
    assert clusterprep(lab4, "rollback", inventory=inventory).code == 0
    assert [files(one) for one in lab4.hosts] == before
    assert mesh()[0] == 1
