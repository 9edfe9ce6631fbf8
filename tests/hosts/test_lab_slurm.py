"""The lab's Slurm is a real one, is gone with its lab, and does not show on hosts of other labs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.lab import Lab
from tests.support.lab.slurm import Slurm

pytestmark = pytest.mark.hosts


def test_a_step_runs_on_every_host(slurm4: Slurm) -> None:
    done = slurm4.run("srun", "--quiet", "--nodes=4", "hostname")
    assert sorted(done.stdout.split()) == ["n1", "n2", "n3", "n4"], done.stderr


def test_a_node_is_down_without_its_slurmd_and_comes_back(slurm4: Slurm) -> None:
    host = slurm4.lab.host("n3")
    slurm4.stop_slurmd(host)
    slurm4.set_down("n3", "lab")
    slurm4.start_slurmd(host)
    slurm4.wait_state("idle", "n3")


def test_slurm_conf_takes_further_lines(slurm4: Slurm) -> None:
    for host in slurm4.lab.hosts:
        host.write("/etc/slurm/prolog.sh", "#!/bin/sh\ntouch /run/prolog-was-here\n", 0o755)
    slurm4.configure("Prolog=/etc/slurm/prolog.sh", "PrologFlags=Alloc")
    slurm4.run("srun", "--quiet", "--nodes=4", "true", check=True)
    slurm4.configure()
    assert [slurm4.lab.host(name).read("/run/prolog-was-here") for name in ("n1", "n4")] == ["", ""]


def test_a_host_is_no_node_of_slurm_because_its_machine_has_slurm(
    make_lab: Callable[..., Lab],
) -> None:
    (host,) = make_lab(1).hosts
    assert (
        host.run(
            ["sh", "-c", "command -v slurmd; ls /lib/systemd/system/slurmd.service"], check=False
        ).stdout
        == ""
    )
