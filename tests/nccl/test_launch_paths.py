"""Launch paths in the report: what each has, what it lacks of the plan, and what to add."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.facts.rdma import ENV_FILES
from clusterprep.model import EnvPath, Report
from clusterprep.nccl.launch_paths import launch_paths
from clusterprep.reports import render
from tests.support.fleet import absent, eth, fleet, torch

PROFILE, CONF = ENV_FILES["profile.d"], ENV_FILES["nccl.conf"]


def node(**paths: Any) -> dict[str, Any]:
    given = {path.replace("_", " "): settings for path, settings in paths.items()}
    return {
        "env.paths": {"login shell": (), "ssh command": (), "nccl": (), **given},
        "net.interfaces": (eth("eth0", "10.0.0.1/16"),),
        "rdma.devices": (),
        "torch.build": torch(),
        "ssh.peer": "10.0.0.1",
    }


def rows(*nodes: dict[str, Any], writing: bool = True, **inventory: Any) -> dict[str, EnvPath]:
    seen = fleet(
        inventory=inventory, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)}
    )
    return {row.path: row for row in launch_paths(seen, writing=writing) or ()}


def test_without_answers_no_launch_path_is_told() -> None:
    assert launch_paths(fleet(n1={}), writing=True) is None
    assert launch_paths(fleet(n1={"env.paths": absent("hung")}), writing=True) == ()


def test_a_profile_does_not_reach_a_command_and_ncclconf_brings_half() -> None:
    told = rows(node())
    assert "GLOO_SOCKET_IFNAME" in told["login shell"].reaches
    assert told["login shell"].add == ""
    assert told["ssh command"].reaches == ()
    assert "env-file" in told["ssh command"].add
    assert "NCCL_SOCKET_IFNAME" in told["nccl"].reaches
    assert "GLOO_SOCKET_IFNAME" not in told["nccl"].reaches
    assert told["nccl"].add == ""


@pytest.mark.parametrize(
    ("path", "word"),
    [("systemd", "EnvironmentFile="), ("slurm", "TaskProlog="), ("container", "--env-file")],
)
def test_each_path_has_its_own_target(path: str, word: str) -> None:
    assert word in rows(node(**{path: ()}))[path].add


def test_without_its_target_a_path_lacks_it() -> None:
    told = rows(node(), env_targets=("profile.d",))
    assert told["nccl"].add == "target nccl.conf"
    assert rows(node(), env_targets=("nccl.conf",))["login shell"].add == "target profile.d"


def test_nodes_that_are_alike_share_a_row() -> None:
    other = node(ssh_command=(Setting("NCCL_ALGO", "Ring"),))
    seen = fleet(n1=node(), n2=other, n3=node())
    told = [row for row in launch_paths(seen, writing=True) or () if row.path == "ssh command"]
    assert [(row.nodes, row.reaches) for row in told] == [
        (("n1", "n3"), ()),
        (("n2",), ("NCCL_ALGO",)),
    ]


def test_check_speaks_of_what_to_add_only_where_something_was_written() -> None:
    before = rows(node(), writing=False)
    assert {row.add for row in before.values()} == {""}
    assert before["login shell"].reaches == ()
    ours = Setting("NCCL_DEBUG", "WARN", PROFILE, 2)
    assert "env-file" in rows(node(login_shell=(ours,)), writing=False)["ssh command"].add


def test_the_page_shows_what_lacks_something() -> None:
    told = tuple(rows(node()).values())
    report = Report("env", "", "c", "2026-11-21T09:30:00Z", 1.0, "pass", 0, env_paths=told)
    page = render(report, "console", color=False, verbose=0, width=100, ascii_only=False)
    assert "ssh command" in page
    assert "/etc/clusterprep/nccl.env" in page
    assert "login shell" not in page
    whole = render(report, "console", color=False, verbose=1, width=100, ascii_only=False)
    assert "GLOO_SOCKET_IFNAME" in whole
    data = render(report, "json", color=False, verbose=0, width=100, ascii_only=False)
    assert '"env_paths"' in data
