"""`verify --try-workarounds` on real hosts.

The network that works is found where the declared one does not.
"""

from __future__ import annotations

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]


def test_the_network_that_works_is_found_and_nothing_is_written(lab4: Lab) -> None:
    """Sockets of gloo were sent over a second network where one node drops new connections.

    Login and store are not.
    """
    settings = {
        "verify": {"sizes": ["8", "1M"], "timeout": 4},
        "env": {"GLOO_SOCKET_IFNAME": "eth1"},
    }
    interfaces = {"nccl": "eth0"}
    with faults.second_veth(lab4.hosts), faults.drop_interface(lab4.host("n2"), "eth1"):
        inventory = lab4.inventory(interfaces=interfaces, **settings)
        found = clusterprep(lab4, "verify", "--try-workarounds", inventory=inventory)
    verify = found.report["verify"]
    assert (found.code, verify["verdict"]) == (1, "fail")
    assert [(row["kind"], row["nodes"]) for row in verify["culprits"]] == [("node", ["n2"])]
    rows = {tuple(row["settings"]): row for row in verify["workarounds"]}
    assert {names: row["works"] for names, row in rows.items()} == {
        (): False,
        ("GLOO_SOCKET_IFNAME=eth0",): True,
    }
    row = rows["GLOO_SOCKET_IFNAME=eth0",]
    assert (row["bytes"], row["share"]) == (1 << 20, 1)
    assert row["busbw_gbs"] > 0
    assert "it works with GLOO_SOCKET_IFNAME=eth0" in verify["message"]
    assert "nothing was written" in verify["message"]
    for host in lab4.hosts:
        assert (
            "No such file"
            in host.run(["sh", "-c", "ls /etc/profile.d/clusterprep-nccl.sh 2>&1 || true"]).stdout
        )
