"""Hosts that have IPv6 addresses alone, and a cluster in which one of them has.

IPv6 is not judged: it is said so, no node is blamed for it, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CLI, clusterprep
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts

SUM = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item())
dist.destroy_process_group()
"""
NOT_SUPPORTED = "nodes with IPv6 addresses alone are not supported yet"
BY_INTERFACE = {
    "eth.bond",
    "eth.iface_choice",
    "eth.mtu",
    "eth.path_mtu",
    "eth.speed",
    "irq.balance",
    "net.firewall",
    "net.latency",
    "net.ports",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts with IPv6 beside IPv4. A test takes IPv4 away from some of them."""
    require_lab()
    made = Lab(3)
    made.start(owner=os.getpid())
    try:
        keys = [key_of(made, host.address) for host in made.hosts]
        lines = [
            f"{address(host.index)} {key}\n" for host, key in zip(made.hosts, keys, strict=True)
        ]
        with Path(made.known_hosts).open("a") as known_hosts:
            known_hosts.writelines(lines)
        for host in made.hosts:
            host.run(["ip", "address", "add", f"{address(host.index)}/64", "dev", "eth0", "nodad"])
        made.controller.run(["ip", "address", "add", f"{address(0xFF)}/64", "dev", "eth0", "nodad"])
        yield made
    finally:
        made.stop()


def address(number: int) -> str:
    return f"fd00:77::{number:x}"


def key_of(lab: Lab, host: str) -> str:
    """The key of a host as known_hosts has it, without the name."""
    for line in Path(lab.known_hosts).read_text().splitlines():
        names, _, key = line.partition(" ")
        if host in names.split(","):
            return key
    raise LookupError(host)


def inventory(lab: Lab, **settings: Any) -> Path:
    nodes = [{"name": host.name, "address": address(host.index)} for host in lab.hosts]
    return lab.inventory(nodes=nodes, **settings)


def without_ipv4(lab: Lab, *names: str) -> None:
    for name in names:
        lab.host(name).run(["ip", "-4", "address", "flush", "dev", "eth0"])


def test_one_node_with_ipv6_alone_is_not_blamed_by_the_others(lab: Lab) -> None:
    without_ipv4(lab, "n3")
    found = clusterprep(lab, "verify", inventory=inventory(lab))
    assert (found.code, found.report["verify"]["culprits"]) == (3, [])
    assert NOT_SUPPORTED in found.report["verify"]["message"]
    assert found.blamed("eth.iface_choice", "unknown") == ["n3"]
    assert found.blamed("net.ports", "pass") == ["n1", "n2"]
    values = {value["name"]: value["nodes"] for value in found.report["env"]}
    assert values["NCCL_SOCKET_IFNAME"] == values["GLOO_SOCKET_IFNAME"] == ["n1", "n2"]


@pytest.mark.parametrize("declared", [False, True])
def test_all_that_needs_the_interface_is_unknown_and_has_no_remedy(
    lab: Lab, declared: bool
) -> None:
    without_ipv4(lab, "n1", "n2", "n3")
    settings = {"interfaces": {"nccl": "eth0"}} if declared else {}
    found = clusterprep(lab, "check", inventory=inventory(lab, **settings))
    assert (found.code, found.failed().keys() - BY_INTERFACE) == (3, set())
    rows = [row for row in found.report["findings"] if row["reason"] == "ipv6"]
    assert {row["check"] for row in rows} == BY_INTERFACE
    for row in rows:
        assert (row["verdict"], row["nodes"]) == ("unknown", ["n1", "n2", "n3"])
        assert row["remedy"] == ""


@pytest.mark.parametrize("command", ["verify", "launch", "apply", "print"])
def test_no_command_blames_a_node_or_writes_over_ipv6_alone(lab: Lab, command: str) -> None:
    without_ipv4(lab, "n1", "n2", "n3")
    words = {"launch": ("--", "true"), "print": ("--print", "torchrun", "--", "train.py")}
    given = words.get(command, ())
    if command == "print":
        argv = [*CLI, "launch", str(inventory(lab)), *given]
        ended = lab.controller.run(argv, check=False)
        assert (ended.returncode, ended.stdout) == (3, "")
        assert NOT_SUPPORTED in ended.stderr
        return
    found = clusterprep(lab, command, *given, inventory=inventory(lab))
    assert found.code == 3
    if command == "apply":
        assert found.outcomes() == {"not-started"}
        return
    assert found.report[command]["culprits"] == []
    assert NOT_SUPPORTED in found.report[command]["message"]


@pytest.mark.slow
@pytest.mark.torch
def test_a_job_runs_over_ipv6_alone_without_preflight(lab: Lab) -> None:
    without_ipv4(lab, "n1", "n2", "n3")
    for host in lab.hosts:
        host.write("/root/sum.py", SUM)
    env = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    argv = [*CLI, "launch", str(inventory(lab, env=env)), "--no-preflight", "--", "/root/sum.py"]
    ended = lab.controller.run(argv, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout + ended.stderr).count("sum 3.0") == 3
