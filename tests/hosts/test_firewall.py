"""The nftables table of clusterprep on real hosts in their own network namespaces.

Connections are tried: those that must come through and those that must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.test_cut_off import quiet
from tests.hosts.test_playbook import said
from tests.support import systemd
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab
from tests.support.lab.faults.network import drop_policy

pytestmark = pytest.mark.hosts

PATH, UNIT = "/etc/nftables.d/clusterprep.nft", "clusterprep-firewall.service"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    quiet(lab4)


def three(lab: Lab) -> Path:
    """The cluster before n4 came to it."""
    nodes = [{"name": host.name, "address": host.address} for host in lab.hosts[:3]]
    return lab.inventory(lab.folder / "three.yaml", nodes=nodes)


def run(lab: Lab, command: str, inventory: Path | None = None, *words: str) -> Answer:
    if command != "rollback":
        words = ("--playbook", "firewall", "--only", "ssh.", *words)
    return clusterprep(lab, command, *words, inventory=inventory)


def apply(lab: Lab, inventory: Path | None = None) -> Answer:
    return run(lab, "apply", inventory, "--no-verify")


def table(host: Host) -> str:
    """As it is loaded, without its counters."""
    text = host.run(["nft", "-s", "list", "table", "inet", "clusterprep"], check=False).stdout
    return str(text)


def state(lab: Lab) -> list[tuple[str, str]]:
    return [(table(host), host.run(["cat", PATH], check=False).stdout) for host in lab.hosts]


def connects(source: Host, target: Host, port: int) -> bool:
    """Return whether a packet to this port comes through: an answer, even a refusal."""
    script = f"exec 3<>/dev/tcp/{target.address}/{port}"
    return "refused" in source.run(["timeout", "2", "bash", "-c", script], check=False).stderr


def test_ports_are_open_between_the_nodes_of_the_cluster_and_closed_for_others(lab: Lab) -> None:
    n1, n4 = lab.host("n1"), lab.host("n4")
    for host in lab.hosts[:2]:
        systemd.install(host, UNIT)
    before = state(lab)
    predicted = run(lab, "plan", three(lab))
    assert predicted.code == 0, predicted.report
    assert state(lab) == before
    done = apply(lab, three(lab))
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert said(done) == said(predicted)
    assert {node: "there is no systemd" in diff for node, _, _, diff in said(done)} == {
        "n1": False, "n2": False, "n3": True
    }  # fmt: skip
    assert systemd.units(n1)[UNIT].startswith("active enabled")
    small = state(lab)
    assert small[3] == before[3]
    again = apply(lab, three(lab))
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert state(lab) == small
    assert connects(lab.host("n2"), n1, 40000)
    assert not connects(n4, n1, 40000)
    assert not connects(n4, n1, 29500)
    assert connects(n4, n1, 20000)
    assert connects(n1, n4, 40000)
    back = run(lab, "rollback", three(lab))
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert state(lab) == before
    assert systemd.units(n1)[UNIT] == "1"
    assert connects(n4, n1, 40000)


def test_a_node_that_comes_to_the_cluster_is_let_in(lab: Lab) -> None:
    n1, n4 = lab.host("n1"), lab.host("n4")
    assert apply(lab, three(lab)).outcomes() == {"done"}
    small = state(lab)
    blocked = clusterprep(lab, "check", "--only", "net.ports")
    assert blocked.blamed("net.ports") == ["n4"], blocked.report["findings"]
    assert apply(lab).outcomes() == {"done"}
    opened = clusterprep(lab, "check", "--only", "net.ports,net.firewall")
    assert {finding["verdict"] for finding in opened.report["findings"]} == {"pass"}
    n1.run(
        ["nft", "insert", "rule", "inet", "clusterprep", "input", "tcp", "dport", "40000", "drop"]
    )
    lab.host("n2").run(["nft", "delete", "table", "inet", "clusterprep"])
    changed = run(lab, "plan")
    assert {node for node, _, action, _ in said(changed) if action != "none"} == {"n1", "n2"}, said(
        changed
    )
    assert run(lab, "rollback").outcomes() == {"undone"}
    assert state(lab)[0] == small[0]
    assert not connects(n4, n1, 40000)
    for host in lab.hosts:
        host.run(["nft", "delete", "table", "inet", "clusterprep"], check=False)


def test_what_another_table_drops_is_said_and_not_covered_up(lab: Lab) -> None:
    before = state(lab)
    with drop_policy(lab.host("n2"), "tcp dport 22"):
        found = run(lab, "plan")
        assert found.code == 1
        (row,) = [
            row
            for row in found.report["changes"]
            if row["nodes"] == ["n2"] and row["outcome"] != "planned"
        ]
        for word in (
            "policy drop",
            "from the other nodes",
            "nft insert rule",
            "No table opens what another one drops",
        ):
            assert word in row["detail"], row
        assert apply(lab).code == 1
    assert state(lab) == before


def test_a_node_that_has_more_addresses_than_the_inventory_says_is_not_shut_out(lab: Lab) -> None:
    for host in lab.hosts:
        host.run(["ip", "address", "add", f"10.99.0.{host.index}/24", "dev", "eth0"])
    found = run(lab, "plan", None, "--limit", "n1")
    assert found.code == 3
    assert "those of n2 are needed" in str(found.report["changes"])
    found = run(lab, "plan")
    assert {"10.99.0.1-10.99.0.4" in diff for _, _, _, diff in said(found)} == {True}
