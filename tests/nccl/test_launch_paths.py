"""Launch paths in the report: what each has, what it lacks of the plan, and what to add."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.env_files import ENV_FILE, NCCL_CONF, PROFILE
from clusterprep.facts.environment import Reader, Setting
from clusterprep.facts.readable import Readable, Refusal
from clusterprep.model import EnvPath, Report
from clusterprep.nccl.launch_paths import launch_paths
from clusterprep.reports import render
from tests.support.fleet import absent, eth, fleet, torch


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
    assert told["ssh command"].add == "target ssh (/etc/environment, by sshd's PAM)"
    assert "NCCL_SOCKET_IFNAME" in told["nccl"].reaches
    assert "GLOO_SOCKET_IFNAME" not in told["nccl"].reaches
    assert told["nccl"].add == ""


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("systemd", "EnvironmentFile="),
        ("slurm", "TaskProlog="),
        ("container", "--env-file"),
        ("docker", "--env-file"),
        ("podman", "target container"),
        ("enroot", "target container"),
        ("cron", "target ssh"),
    ],
)
def test_each_path_has_its_own_target(path: str, word: str) -> None:
    assert word in rows(node(**{path: ()}))[path].add


def test_without_its_target_a_path_lacks_it() -> None:
    told = rows(node(), env_targets=("profile.d",))
    assert told["nccl"].add == "target nccl.conf"
    assert rows(node(), env_targets=("nccl.conf",))["login shell"].add == "target profile.d"


def test_a_login_shell_that_lacks_its_file_is_told_of_another_one() -> None:
    ours = Setting("NCCL_DEBUG", "WARN", "/etc/nccl.conf", 2)
    told = rows(node(nccl=(ours,)), writing=False)
    assert "target ssh" in told["login shell"].add


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
    assert "target ssh" in rows(node(login_shell=(ours,)), writing=False)["ssh command"].add


def test_the_page_shows_what_lacks_something() -> None:
    told = tuple(rows(node()).values())
    report = Report("env", "", "c", "2026-11-21T09:30:00Z", 1.0, "pass", 0, env_paths=told)
    page = render(report, "console", color=False, verbose=0, width=100, ascii_only=False)
    assert "ssh command" in page
    assert "/etc/environment" in page
    assert "login shell" not in page
    whole = render(report, "console", color=False, verbose=1, width=100, ascii_only=False)
    assert "GLOO_SOCKET_IFNAME" in whole
    data = render(report, "json", color=False, verbose=0, width=100, ascii_only=False)
    assert '"env_paths"' in data


# ---------------------------------------------------------------- files that the job cannot read


def closed_to_alice(path: str) -> dict[str, Any]:
    refusal = Refusal(path, "read", "target", "Permission denied", path)
    return {**node(), "env.readable": Readable("alice", (refusal,))}


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize(("launch", "path"), [("nccl", NCCL_CONF), ("login shell", PROFILE)])
def test_a_file_that_the_job_cannot_read_reaches_no_one(
    launch: str, path: str, writing: bool
) -> None:
    row = rows(closed_to_alice(path), writing=writing)[launch]
    assert row.reaches == ()
    assert row.add == f"{path} has to be readable for alice, see env.readable"


def test_units_read_their_file_as_root() -> None:
    path = ENV_FILE
    closed = {**closed_to_alice(path), "env.paths": node(systemd=(), container=())["env.paths"]}
    told = rows(closed, env_targets=("env-file",))
    assert "EnvironmentFile=" in told["systemd"].add
    assert told["container"].add == f"{path} has to be readable for alice, see env.readable"


# ---------------------------------------------------------------- targets beyond shells

EVERY = {
    "env_targets": ("profile.d", "ssh", "systemd", "container"),
    "env_units": ("train@.service",),
}
OF_ENGINES = {"podman": (), "enroot": (), "docker": ()}


def everywhere(**readers: Reader) -> dict[str, Any]:
    known = {"ssh command": Reader(True), "cron": Reader(True)}
    given = {name.replace("_", " "): reader for name, reader in readers.items()}
    return {**node(cron=(), systemd=(), **OF_ENGINES), "env.readers": {**known, **given}}


def test_each_of_these_targets_reaches_its_launch_paths() -> None:
    told = rows(everywhere(), **EVERY)
    for path in ("ssh command", "cron", "podman", "enroot"):
        assert "GLOO_SOCKET_IFNAME" in told[path].reaches, path
        assert told[path].add == "", path
    assert told["docker"].reaches == ()
    assert told["docker"].add == ("target env-file, and --env-file /etc/clusterprep/nccl.env")


def test_units_have_it_once_systemd_has_read_the_drop_ins() -> None:
    told = rows(everywhere(), **EVERY)["systemd"]
    assert "GLOO_SOCKET_IFNAME" in told.reaches
    assert told.add == "`systemctl daemon-reload` after apply, and train@.service started again"
    later = rows(everywhere(), writing=False, **EVERY)["systemd"]
    assert (later.reaches, later.add) == ((), "")


@pytest.mark.parametrize("path", ["ssh command", "cron"])
def test_a_service_that_does_not_read_the_file_is_told(path: str) -> None:
    deaf = Reader(False, "UsePAM is not yes in /etc/ssh/sshd_config")
    told = rows(everywhere(**{path.replace(" ", "_"): deaf}), **EVERY)
    assert told[path].reaches == ()
    assert told[path].add == (
        "UsePAM is not yes in /etc/ssh/sshd_config: target env-file, and "
        "`set -a; . /etc/clusterprep/nccl.env` before the command"
    )
    assert "GLOO_SOCKET_IFNAME" in told["login shell"].reaches, "by its profile"


def test_a_container_has_no_nccl_conf_of_the_node() -> None:
    conf = (Setting("NCCL_SOCKET_IFNAME", "eth0", NCCL_CONF, 2),)
    told = rows(node(nccl=conf, cron=(), podman=()), env_targets=("nccl.conf",))
    assert told["podman"].add == "target container"
