"""Sixty-four hosts of which three hang, each in another way: the others are complete, and nobody waits for long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.command import clusterprep
from tests.lab import Host, Lab, faults

DEADLINE = 10  # seconds: ssh.connect_timeout, within which a node must have been logged in to


def fifo_over(host: Host, path: str) -> None:
    """Opening the file waits for a writer that never comes, as with a dead mount below it."""
    host.run(["mkfifo", "/run/stuck"])
    host.run(["mount", "--bind", "/run/stuck", path])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_hung_hosts_of_64_cost_the_deadline_and_no_more(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(64)
    silent, mute, stuck = lab.hosts[9], lab.hosts[29], lab.hosts[49]
    faults.drop_port(silent, 22)
    faults.stop_sshd(mute)
    fifo_over(stuck, "/etc/machine-id")
    inventory = lab.inventory(ssh={**lab.inventory_content()["ssh"], "connect_timeout": DEADLINE})

    began = time.monotonic()
    answer = clusterprep(lab, "check", inventory=inventory)
    seconds = time.monotonic() - began

    reasons = {node["name"]: node["reason"] for node in answer.report["nodes"] if not node["reached"]}
    assert reasons == {silent.name: "timed_out", mute.name: "no_banner"}
    hung = {node: f["check"] for f in answer.report["findings"] if f["reason"] == "hung" for node in f["nodes"]}
    assert hung == {stuck.name: "host.identity"}
    sound = [host.name for host in lab.hosts if host not in (silent, mute, stuck)]
    complete = [f for f in answer.report["findings"] if f["check"] == "host.identity" and f["verdict"] == "pass"]
    assert [name for f in complete for name in f["nodes"]] == sound
    print(f"64 hosts, 3 of them hung: {seconds:.1f} s with a deadline of {DEADLINE} s")
    assert seconds < DEADLINE + 2
