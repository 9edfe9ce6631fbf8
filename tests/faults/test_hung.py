"""Three of 64 hosts hang, each in another way.

The run ends in time, and the answers of all others are complete.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.seen import charges
from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

HOSTS, DEADLINE, MARGIN = 64, 10, 2  # hosts; seconds
# What is the machine's and not the hosts': its load, its log and since when it runs; nothing keeps
# clocks here.
MACHINE = {
    ("proc.load", "fail"): "all hosts share one machine's processors",
    ("log.kernel", "unknown"): "the start of 64 hosts fills the machine's log",
    ("log.kernel", "fail"): "the log is the machine's",
    ("host.uptime", "fail"): "the machine may have booted lately",
    ("time.daemon", "fail"): "this lab has no chronyd",
    ("lim.nofile", "fail"): "the limits are those of the machine",
    ("lim.memlock", "fail"): "likewise",
}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_three_hung_hosts_cost_the_deadline_and_nothing_else(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(HOSTS)
    inventory = lab.inventory(ssh={**lab.inventory_content()["ssh"], "connect_timeout": DEADLINE})
    deaf, mute, stuck = lab.host("n5"), lab.host("n6"), lab.host("n7")
    with faults.drop_port(deaf, 22), faults.stop_sshd(mute), faults.hung_mount(stuck, "/boot"):
        answer = clusterprep(lab, "check", inventory=inventory)
    assert answer.report["seconds"] < DEADLINE + MARGIN
    assert charges(answer, MACHINE) == {
        ("ssh.reach", deaf.name, "unknown"),
        ("ssh.reach", mute.name, "unknown"),
        ("kernel.version", stuck.name, "unknown"),
        ("fs.mount", stuck.name, "fail"),
    }
    assert {f["reason"] for f in answer.findings("kernel.version", "unknown")} == {"hung"}
    for check in {f["check"] for f in answer.report["findings"]}:
        spoken = {
            node for f in answer.report["findings"] if f["check"] == check for node in f["nodes"]
        }
        silent = {host.name for host in lab.hosts} - spoken
        assert silent == (set() if check == "ssh.reach" else {deaf.name, mute.name}), check
