"""Hosts with IPv6 addresses alone, with those of both families, and a cluster of some of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import real_nccl
from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.fixtures import require_lab

pytestmark = [pytest.mark.hosts, pytest.mark.torch, pytest.mark.timeout(300)]

PROFILE = "/etc/profile.d/clusterprep-nccl.sh"
NCCL_PLACE = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
SUM = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item())
dist.destroy_process_group()
"""
PORT = 29500
Fault = Callable[[Lab], faults.Fault]


@pytest.fixture(scope="module")
def only() -> Iterator[Lab]:
    require_lab()
    with Lab(3, ipv6="only") as lab:
        yield lab


@pytest.fixture(scope="module")
def dual() -> Iterator[Lab]:
    require_lab()
    with Lab(3, real_nccl.kept(), ipv6="dual") as lab:
        yield lab


def by_ipv6(lab: Lab, **settings: Any) -> Path:
    """An inventory by which the logins are over IPv6, whatever the job uses."""
    nodes = [{"name": host.name, "address": host.spec.ipv6} for host in lab.hosts]
    return lab.inventory(nodes=nodes, **settings)


def init(lab: Lab, folder: Path) -> Path:
    """Write an inventory with `init`, from addresses of IPv6."""
    target = folder / "inventory.yaml"
    login = ["--user", "root", "-i", str(lab.key), "--known-hosts", str(lab.known_hosts)]
    hosts = [f"{host.name}={host.spec.ipv6}" for host in lab.hosts]
    words = [*login, "--python", sys.executable, *hosts, "--output", str(target)]
    lab.controller.run([*CLI, "init", *words], cwd=lab.folder)
    return target


@pytest.mark.parametrize(("family", "network"), [("only", "fd00:77::1"), ("dual", "10.77.0.2")])
def test_the_main_job(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, network: str
) -> None:
    lab: Lab = request.getfixturevalue(family)
    for host in lab.hosts:
        host.write("/root/sum.py", SUM)
    inventory = init(lab, tmp_path)

    def run(command: str, *words: str) -> Answer:
        answer = clusterprep(lab, command, *words, inventory=inventory)
        assert answer.code == 0, answer.report
        return answer

    checked = run("check")
    assert sorted(checked.blamed("eth.iface_choice", "pass")) == ["n1", "n2", "n3"]
    assert sorted(checked.blamed("net.ports", "pass")) == ["n1", "n2", "n3"]
    assert sorted(checked.blamed("eth.path_mtu", "pass")) == ["n1", "n2", "n3"]
    assert run("plan").outcomes() == {"planned"}
    applied = run("apply")
    assert applied.outcomes() == {"done"}
    verified = applied.report["verify"]
    host = f"[{network}]" if ":" in network else network
    assert (verified["verdict"], verified["rendezvous"]) == ("pass", f"{host}:{PORT}")
    assert "NCCL_SOCKET_IFNAME=eth0" in lab.host("n3").read(PROFILE)
    launched = run("launch", "--", "/root/sum.py")
    assert launched.report["launch"]["rendezvous"] == f"{host}:{PORT}"
    run("exec", "--", "true")
    assert run("rollback").outcomes() == {"undone"}


def test_files_are_copied_and_fetched(only: Lab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("over IPv6\n")
    copied = clusterprep(only, "copy", str(source), "/root/copied")
    assert (copied.code, only.host("n3").read("/root/copied")) == (0, "over IPv6\n")
    fetched = clusterprep(only, "fetch", "/root/copied", str(tmp_path / "fetched"))
    assert fetched.code == 0
    assert (tmp_path / "fetched" / "n2" / "copied").read_text() == "over IPv6\n"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("torchrun", "--master-addr=fd00:77::1 --master-port=29500"),
        ("mpirun", "export MASTER_ADDR=fd00:77::1"),
        ("accelerate", 'main_process_ip: "fd00:77::1"'),
        ("deepspeed", "--master_addr fd00:77::1"),
        ("hostfile", "fd00:77::3 slots=1"),
    ],
)
def test_printed_forms_name_the_address(only: Lab, form: str, words: str) -> None:
    argv = [*CLI, "launch", str(only.inventory()), "--print", form, "--", "train.py"]
    printed = only.controller.run(argv, check=False)
    assert printed.returncode == 0, printed.stderr
    assert words in printed.stdout


# ---------------------------------------------------------------- some of each


@pytest.fixture
def mixed(dual: Lab) -> Iterator[Lab]:
    """Two hosts of both families, and one with IPv6 addresses alone."""
    host = dual.host("n3")
    with faults.no_address(host, "eth0"):
        yield dual


def test_ipv6_carries_the_job_if_one_node_has_it_alone(mixed: Lab) -> None:
    inventory = by_ipv6(mixed)
    applied = clusterprep(mixed, "apply", inventory=inventory)
    try:
        assert applied.code == 0, applied.report
        assert applied.report["verify"]["rendezvous"] == f"[fd00:77::1]:{PORT}"
        for host in mixed.hosts:
            assert "NCCL_SOCKET_FAMILY=AF_INET6" in host.read(PROFILE)
        assert "GLOO_SOCKET_IFNAME" not in mixed.host("n1").read(PROFILE)
    finally:
        assert clusterprep(mixed, "rollback", inventory=inventory).code == 0


def test_nccl_itself_takes_ipv6_once_the_family_is_written(mixed: Lab) -> None:
    """By ncclGetUniqueId of NVIDIA's library, which publishes the address that it binds."""
    try:
        library = real_nccl.library(real_nccl.RELEASES[-1])
    except LookupError as why:
        pytest.skip(str(why))
    for host in mixed.hosts:
        host.run(["mkdir", "-p", str(Path(NCCL_PLACE).parent)])
        host.run(["ln", "-sf", str(library), NCCL_PLACE])
    inventory = by_ipv6(mixed)
    before = clusterprep(mixed, "check", "--only", "nccl.iface", inventory=inventory)
    found = before.findings("nccl.iface")
    assert [(row["nodes"], row["seen"]) for row in found] == [
        (["n1"], "eth0 10.77.0.2"),
        (["n2"], "eth0 10.77.0.3"),
    ]
    assert all("NCCL_SOCKET_FAMILY=AF_INET6" in row["note"] for row in found)
    assert before.blamed("nccl.iface", "pass") == ["n3"]
    assert clusterprep(mixed, "apply", "--no-verify", inventory=inventory).code == 0
    try:
        after = clusterprep(mixed, "check", "--only", "nccl.iface", inventory=inventory)
        assert sorted(after.blamed("nccl.iface", "pass")) == ["n1", "n2", "n3"]
    finally:
        assert clusterprep(mixed, "rollback", inventory=inventory).code == 0


def test_link_local_addresses_are_refused_with_the_reason(dual: Lab) -> None:
    """The interface that is declared for one node has no other address."""
    host = dual.host("n2")
    host.run(["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "peer1"])
    try:
        for name in ("eth1", "peer1"):
            host.run(["ip", "link", "set", name, "up"])
        settings = {"interfaces": {"nccl": "eth1"}}
        nodes = [{"name": each.name, "address": each.address} for each in dual.hosts]
        nodes[1].update(settings)
        inventory = dual.inventory(nodes=nodes)
        found = clusterprep(dual, "check", "--only", "eth.iface_choice", inventory=inventory)
    finally:
        host.run(["ip", "link", "del", "eth1"])
    assert found.blamed("eth.iface_choice") == ["n2"]
    assert "link-local" in found.findings("eth.iface_choice")[0]["seen"]


# ---------------------------------------------------------------- faults are found as on IPv4


def at(name: str, plant: Callable[[Host], faults.Fault]) -> Fault:
    return lambda lab: plant(lab.host(name))


def looped(host: Host) -> faults.Fault:
    """The host's own name is on loopback."""
    before = host.read("/etc/hosts")
    host.write("/etc/hosts", f"::1 {host.name}\n{before}")
    return faults.Fault(lambda: host.write("/etc/hosts", before))


@pytest.mark.parametrize(
    ("plant", "check", "nodes"),
    [
        pytest.param(
            at("n1", lambda host: faults.drop_port(host, PORT)),
            "net.ports",
            {"n1"},
            id="rendezvous-port-dropped",
        ),
        pytest.param(
            at("n1", lambda host: faults.occupy(host, PORT, "::")),
            "net.ports",
            {"n1"},
            id="rendezvous-port-taken",
        ),
        pytest.param(
            at("n1", lambda host: faults.occupy(host, PORT)),
            "net.ports",
            {"n1"},
            id="rendezvous-port-taken-in-ipv4",
        ),
        pytest.param(
            at("n2", lambda host: faults.drop_policy(host, "tcp dport 22")),
            "net.ports",
            {"n2"},
            id="policy-drop",
        ),
        pytest.param(
            at("n2", lambda host: faults.drop_policy(host, "tcp dport 22", "icmpv6 type 1-255")),
            "net.firewall",
            {"n2"},
            id="firewall",
        ),
        pytest.param(
            lambda lab: faults.drop_pair(lab.host("n2"), lab.host("n3")),
            "net.ports",
            {"n2", "n3"},
            id="pair",
        ),
        pytest.param(
            at("n2", lambda host: faults.switch_mtu(host, 1400)),
            "eth.path_mtu",
            {"n2"},
            id="switch-with-a-smaller-mtu",
        ),
        pytest.param(
            at("n3", lambda host: faults.mtu(host, 1400)), "eth.mtu", {"n3"}, id="mtu-differs"
        ),
        pytest.param(at("n2", looped), "name.resolve", {"n2"}, id="own-name-on-loopback"),
    ],
)
def test_a_fault_of_the_network_is_found(
    only: Lab, plant: Fault, check: str, nodes: set[str]
) -> None:
    with plant(only):
        found = clusterprep(only, "check", "--only", check)
    assert set(found.blamed(check)) == nodes, found.report["findings"]
