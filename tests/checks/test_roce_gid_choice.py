"""The GID that NCCL would take: by itself, by variables that are right, and by those that are not.

The tables are those of tests/nccl/test_gids.py, of real machines.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from tests.nccl.test_gids import IPV6_FABRIC, TWO_LINK_LOCAL, port_of
from tests.support.fleet import absent, env, eth, findings, fleet, told, torch
from tests.support.rails import hca, hcas, nic_at, node

OLD = torch("2.4.1+cu121", "12.1", "2.20.5")
BASHRC = "/root/.bashrc"
INTERFACES = {
    IPV6_FABRIC: eth("fabric0", ipv6=("fd02:0:0:58::1/64",)),
    TWO_LINK_LOCAL: eth("ens1f0", "172.19.0.60/24"),
}
FAMILY = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}


def machine(table: str, build: Any = None, paths: Any = None, **variables: str) -> dict[str, Any]:
    """A node with one port, and variables that its login shell sets."""
    card = hca("mlx5_0", nic_at(0), port_of(table))
    settings = tuple(Setting(name, value, BASHRC, 3) for name, value in variables.items())
    usual = {"ssh command": (), "login shell": settings, "nccl": ()}
    return {
        **node((card,)),
        "net.interfaces": (INTERFACES[table],),
        "env.paths": usual if paths is None else paths,
        "torch.build": build or torch(),
    }


@pytest.mark.parametrize(
    ("table", "build", "variables", "expected"),
    [
        pytest.param(TWO_LINK_LOCAL, None, {}, "pass", id="by-itself"),
        pytest.param(TWO_LINK_LOCAL, None, {"NCCL_IB_GID_INDEX": "5"}, "pass", id="its-index"),
        pytest.param(TWO_LINK_LOCAL, None, {"NCCL_IB_GID_INDEX": "3"}, "fail error", id="index-3"),
        pytest.param(TWO_LINK_LOCAL, None, {"NCCL_IB_GID_INDEX": "-1"}, "pass", id="no-index"),
        pytest.param(TWO_LINK_LOCAL, None, FAMILY, "fail error", id="the-other-family"),
        pytest.param(
            TWO_LINK_LOCAL, None, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}, "fail error", id="a-range"
        ),
        pytest.param(
            TWO_LINK_LOCAL, None, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, "pass", id="version-1"
        ),
        pytest.param(TWO_LINK_LOCAL, OLD, {}, "fail error", id="an-old-nccl-takes-index-0"),
        pytest.param(
            TWO_LINK_LOCAL,
            None,
            {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_DISABLE": "1"},
            "pass",
            id="without-rdma",
        ),
        pytest.param(
            TWO_LINK_LOCAL,
            None,
            {"NCCL_IB_GID_INDEX": "3", "NCCL_NET": "Socket"},
            "pass",
            id="over-sockets",
        ),
        pytest.param(IPV6_FABRIC, None, {}, "fail error", id="ipv6-and-nothing-set"),
    ],
)
def test_what_the_login_shell_sets_decides(
    table: str, build: Any, variables: dict[str, str], expected: str
) -> None:
    seen = fleet(n1=machine(table, build, **variables))
    assert told(seen, "roce.gid_choice") == {"n1": expected}


@pytest.mark.parametrize(
    ("build", "conf"),
    [
        (None, FAMILY),
        (None, {**FAMILY, "NCCL_IB_ADDR_RANGE": "fd02::/16"}),
        (OLD, {"NCCL_IB_GID_INDEX": "3"}),
    ],
)
def test_what_nccl_reads_from_its_own_file_holds_everywhere(
    build: Any, conf: dict[str, str]
) -> None:
    settings = tuple(Setting(name, value, "/etc/nccl.conf", 1) for name, value in conf.items())
    paths = {"ssh command": (), "login shell": (), "nccl": settings}
    seen = fleet(n1=machine(IPV6_FABRIC, build, paths))
    assert told(seen, "roce.gid_choice") == {"n1": "pass"}


def test_a_fabric_with_ipv6_alone_says_what_is_missing() -> None:
    (bad,) = findings(fleet(n1=machine(IPV6_FABRIC)), "roce.gid_choice")
    assert bad.message == (
        "mlx5_0: NCCL would take index 0, fe80::4cbb:47ff:fe67:f96a IB/RoCE v1 in ssh command "
        "and in login shell: NCCL_IB_ADDR_FAMILY is not set"
    )
    assert bad.remedy == "clusterprep apply INVENTORY"
    assert bad.fix is not None


def test_the_line_that_decides_is_named() -> None:
    seen = fleet(n1=machine(TWO_LINK_LOCAL, NCCL_IB_GID_INDEX="3"))
    (bad,) = findings(seen, "roce.gid_choice")
    assert bad.message.endswith("in login shell: NCCL_IB_GID_INDEX=3 of /root/.bashrc line 3")
    assert BASHRC in bad.remedy
    assert bad.fix is None


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        pytest.param({"systemd": (Setting("NCCL_IB_GID_INDEX", "3"),)}, "fail warning", id="unit"),
        pytest.param({"slurm": absent("denied")}, "unknown error denied", id="a-path-not-known"),
        pytest.param({"container": absent("not_applicable")}, "pass", id="no-container"),
        pytest.param(
            {"slurm": absent("denied"), "ssh command": (Setting("NCCL_IB_GID_INDEX", "3"),)},
            "fail error",
            id="a-wrong-one-beside-one-not-known",
        ),
    ],
)
def test_launch_paths(paths: dict[str, Any], expected: str) -> None:
    usual = {"ssh command": (), "nccl": ()}
    seen = fleet(n1=machine(TWO_LINK_LOCAL, paths={**usual, **paths}))
    assert told(seen, "roce.gid_choice") == {"n1": expected}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"rdma.devices": hcas(1)}, "skip not_applicable", id="infiniband"),
        pytest.param({"rdma.devices": absent("hung")}, "unknown error hung", id="cards-not-known"),
        pytest.param({"net.interfaces": ()}, "unknown error roce.gid", id="no-usable-entry"),
        pytest.param({"env.paths": absent("denied")}, "unknown error denied", id="no-paths"),
        pytest.param({"torch.build": absent("hung")}, "pass", id="torch-not-known"),
    ],
)
def test_where_there_is_nothing_to_judge(facts: dict[str, Any], expected: str) -> None:
    seen = fleet(n1={**machine(TWO_LINK_LOCAL), **facts})
    assert told(seen, "roce.gid_choice") == {"n1": expected}


def test_a_job_that_declares_sockets_takes_no_gid() -> None:
    seen = fleet(each={"env": env(NCCL_NET="Socket")}, n1=machine(TWO_LINK_LOCAL))
    assert told(seen, "roce.gid_choice") == {"n1": "skip not_applicable"}
