"""The readers of limits by way of launching: what they send of files, and what they do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent.launch_limits import read_launch_limits, read_session_share
from tests.machines import play

HERE = {"user", "daemons", "files", "units"}
# Locks itself into a folder and reads there.
INSIDE = """
import json, os, sys
from clusterprep.remote.agent import launch_limits
os.chroot(sys.argv[1])
os.chdir("/")
json.dump(getattr(launch_limits, sys.argv[2])(None), sys.stdout)
"""
STAT = "{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 2 0 0\n"


def read(folder: Path, files: dict[str, str], reader: str = "read_launch_limits") -> Any:
    """What a reader answers on a node with these files alone."""
    for path, text in files.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    argv = [*play.become_root(), sys.executable, "-c", INSIDE, str(folder), reader]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def process(pid: int, name: str, parent: int = 1, **files: str) -> dict[str, str]:
    """The files of one process in /proc."""
    folder = f"/proc/{pid}"
    more = {f"{folder}/{file}": text for file, text in files.items()}
    stat = STAT.format(pid=pid, name=name, parent=parent)
    return {f"{folder}/stat": stat, f"{folder}/comm": f"{name}\n", **more}


INIT = process(1, "systemd", 0)


def test_this_machine_is_read_in_the_shape_that_is_told() -> None:
    assert set(read_launch_limits(None)) == HERE
    share = read_session_share(None)
    assert share["cpus"] is not None
    assert len(os.sched_getaffinity(0)) >= 1
    assert share["online"]


def test_a_user_who_is_not_there_has_no_account() -> None:
    assert read_launch_limits("nobody-here")["user"] is None


@pytest.mark.machine
@play.needs_chroot
class TestFolder:
    """Readers in a folder with described files."""

    @pytest.mark.parametrize("listed", [True, False], ids=["children-listed", "all-are-asked"])
    def test_daemons_are_children_of_the_first_process(self, tmp_path: Path, listed: bool) -> None:
        files = {
            **INIT,
            **process(20, "slurmd", limits="Max\n", status="Cpus_allowed_list:\t0-3\n"),
            **process(30, "containerd-shim"),
            **process(31, "cron", 30, limits="Max\n"),
        }
        if listed:
            files["/proc/1/task/1/children"] = "20 30 "
        daemons = read(tmp_path, files)["daemons"]
        slurmd = {"pid": 20, "limits": "Max\n", "cpus": "0-3", "conf": None}
        assert daemons == {"slurmd": slurmd}

    def test_where_processes_are_hidden_there_is_no_answer_about_daemons(
        self, tmp_path: Path
    ) -> None:
        assert read(tmp_path, {"/etc/passwd": ""})["daemons"] is None

    @pytest.mark.parametrize("option", ["-f\0/opt/slurm.conf\0", "-f/opt/slurm.conf\0"])
    def test_slurmd_says_which_file_it_reads(self, tmp_path: Path, option: str) -> None:
        files = {
            **INIT,
            **process(20, "slurmd", cmdline=f"slurmd\0-D\0{option}"),
            "/opt/slurm.conf": "#x\nPropagateResourceLimits = NONE # why\nAuthInfo=secret\n",
            "/etc/slurm/slurm.conf": "PropagateResourceLimits=ALL\n",
        }
        assert read(tmp_path, files)["files"] == {
            "/opt/slurm.conf": "PropagateResourceLimits = NONE"
        }

    def test_only_lines_that_set_limits_are_sent(self, tmp_path: Path) -> None:
        ulimits = {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}}
        docker = {"default-ulimits": ulimits, "proxies": {"http-proxy": "http://me:secret@p"}}
        files = {
            **INIT,
            "/etc/docker/daemon.json": json.dumps(docker),
            "/etc/containers/containers.conf": (
                '[containers]\nenv = ["TOKEN=secret"]\n'
                'default_ulimits = [\n  # "nofile=1:1",\n  "memlock=-1:-1",\n]\n'
            ),
            "/etc/pam.d/login": "auth required pam_x.so secret\nsession required pam_limits.so\n",
            "/etc/security/limits.conf": "# * - memlock 1\n* - memlock 64 # why\n",
            "/run/systemd/system/x": "",
            "/etc/systemd/system.conf": (
                "[Manager]\n#DefaultLimitCORE=0\nDefaultLimitMEMLOCK=64K\n"
                'DefaultEnvironment="TOKEN=secret"\n'
            ),
            "/etc/systemd/system/train.service": (
                "[Service]\nEnvironment=NCCL_DEBUG=INFO TOKEN=secret\nLimitMEMLOCK=infinity\n"
            ),
            "/etc/systemd/system/other.service": "[Service]\nLimitMEMLOCK=1\n",
        }
        answer = read(tmp_path, files)
        assert answer["files"] == {
            "/etc/docker/daemon.json": ulimits,
            "/etc/containers/containers.conf": 'default_ulimits = [\n  "memlock=-1:-1",\n]',
            "/etc/pam.d/login": "session required pam_limits.so",
            "/etc/security/limits.conf": "* - memlock 64",
            "/etc/systemd/system.conf": "DefaultLimitMEMLOCK=64K",
        }
        assert answer["units"] == {
            "train.service": {"/etc/systemd/system/train.service": "LimitMEMLOCK=infinity"}
        }

    def test_a_file_that_is_no_json_is_not_known(self, tmp_path: Path) -> None:
        assert read(tmp_path, {"/etc/docker/daemon.json": "{"})["files"] == {
            "/etc/docker/daemon.json": None
        }

    def test_all_cgroups_above_a_session_are_read(self, tmp_path: Path) -> None:
        files = {
            "/proc/self/status": "Cpus_allowed_list:\t0-1\n",
            "/sys/devices/system/cpu/online": "0-7\n",
            "/proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/b\n0::/user.slice/s.scope\n",
            "/sys/fs/cgroup/user.slice/s.scope/memory.max": "max\n",
            "/sys/fs/cgroup/user.slice/memory.max": "4096\n",
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8192\n",
            "/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us": "-1\n",
        }
        answer = read(tmp_path, files, "read_session_share")
        assert answer["groups"] == [
            ["/sys/fs/cgroup/memory/a", {"memory.limit_in_bytes": "8192"}],
            ["/sys/fs/cgroup/cpu/b", {"cpu.cfs_quota_us": "-1"}],
            ["/sys/fs/cgroup/user.slice", {"memory.max": "4096"}],
        ]
        assert (answer["cpus"], answer["online"], answer["slurm"]) == ("0-1", "0-7", False)

    def test_a_task_of_slurm_is_known_by_its_cgroup(self, tmp_path: Path) -> None:
        scope = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
        answer = read(tmp_path, {"/proc/self/cgroup": f"0::{scope}\n"}, "read_session_share")
        assert answer["slurm"] is True
