"""Ports of a job through the real firewalld and ufw, beside a host that has neither.

n1 has firewalld, n2 ufw and n3 the table of nftables. n4 does not belong to the cluster at first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import quiet
from tests.hosts.test_firewall import apply, connects, run, table, three
from tests.hosts.test_playbook import said
from tests.support.command import clusterprep
from tests.support.lab import Lab
from tests.support.lab.firewalls import require_firewalls, start_firewalld, start_ufw

pytestmark = pytest.mark.hosts

POLICY = "/etc/firewalld/policies/clusterprep.xml"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    require_firewalls()
    start_firewalld(lab4.host("n1"))
    start_ufw(lab4.host("n2"))
    yield lab4
    quiet(lab4)


def state(lab: Lab) -> list[str]:
    """What the three hosts have, each by its own tool."""
    n1, n2, n3 = lab.hosts[:3]
    policies = n1.run(["firewall-cmd", "--list-all-policies"]).stdout
    rules = n2.run(["ufw", "show", "added"]).stdout
    return [policies, rules, table(n3)]


def test_the_owner_of_the_rules_opens_the_ports_and_closes_them_again(lab: Lab) -> None:
    n1, n2, n3, n4 = lab.hosts
    assert not connects(n3, n1, 40000)
    assert not connects(n3, n2, 40000)
    before = state(lab)
    predicted = run(lab, "plan", three(lab))
    assert predicted.code == 0, predicted.report
    assert state(lab) == before
    assert [(node, target) for node, target, _, _ in said(predicted)] == [
        ("n1", "policy clusterprep of firewalld"),
        ("n2", "rules of ufw"),
        ("n3", "table inet clusterprep"),
    ]
    done = apply(lab, three(lab))
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
    assert said(done) == said(predicted)
    small = state(lab)
    again = apply(lab, three(lab))
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    assert state(lab) == small
    for target in (n1, n2):
        assert connects(n3, target, 40000)
        assert connects(n3, target, 29500)
        assert not connects(n4, target, 40000)
    assert not connects(n3, n1, 20000)  # what is not ours stays closed
    back = run(lab, "rollback", three(lab))
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert state(lab) == before
    assert n1.run(["test", "-e", POLICY], check=False).returncode == 1
    assert not connects(n3, n1, 40000)


@pytest.mark.slow
def test_a_node_that_comes_to_the_cluster_is_let_in(lab: Lab) -> None:
    n1, n2, _, n4 = lab.hosts
    assert apply(lab, three(lab)).code == 0
    small = state(lab)
    assert apply(lab).code == 0
    assert connects(n4, n1, 40000)
    assert connects(n4, n2, 40000)
    opened = clusterprep(lab, "check", "--only", "net.ports,net.firewall")
    assert {finding["verdict"] for finding in opened.report["findings"]} == {"pass"}
    n1.run(["firewall-cmd", "--reload"])
    n2.run(["ufw", "reload"])
    assert apply(lab).outcomes() == {"unchanged"}
    assert run(lab, "rollback").code == 0
    assert state(lab)[:2] == small[:2]
    assert not connects(n4, n1, 40000)


@pytest.mark.slow
def test_rules_of_firewalld_that_a_reload_would_drop_are_said(lab: Lab) -> None:
    n1 = lab.host("n1")
    n1.run(["sh", "-c", f"rm -f {POLICY}; firewall-cmd --reload"])
    n1.run(["firewall-cmd", "--add-port=8000/tcp"])
    found = run(lab, "plan", three(lab))
    assert found.code == 1
    assert "--runtime-to-permanent keeps them" in str(found.report["changes"])
    assert "8000/tcp" in n1.run(["firewall-cmd", "--list-ports"]).stdout
