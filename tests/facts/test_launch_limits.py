"""Limits by way of launching: from processes, Slurm, engines, systemd and PAM; CPUs and memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterprep.facts.launch_limits import Share, format_cpus, parse_cpus
from clusterprep.model import Absent
from tests.support.fleet import learned

MIB = 1 << 20
# github.com/coreos/bugs/issues/1069: a process below dockerd with LimitMEMLOCK=infinity.
COREOS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max file size             unlimited            unlimited            bytes
Max data size             unlimited            unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max resident set          unlimited            unlimited            bytes
Max processes             unlimited            unlimited            processes
Max open files            65536                65536                files
Max locked memory         unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes
Max file locks            unlimited            unlimited            locks
Max pending signals       62551                62551                signals
"""
LOW = COREOS.replace(
    "locked memory         unlimited            unlimited ",
    "locked memory         65536                8388608   ",
)
ALICE = {"name": "alice", "uid": 1000, "groups": [[1000, "alice"], [2000, "ml"]]}
ROOT = {"name": "root", "uid": 0, "groups": [[0, "root"]]}
SLURM = "/etc/slurm/slurm.conf"
LIMITS = "/etc/security/limits.conf"
PAM = {"/etc/pam.d/login": "session required pam_limits.so"}


def daemon(text: str | None = COREOS) -> dict[str, Any]:
    return {"pid": 4711, "limits": text, "cpus": "0-63", "conf": None}


def answer(**fields: Any) -> dict[str, Any]:
    return {"user": ALICE, "daemons": {}, "files": {}, "units": {}, **fields}


def limits(item: str = "memlock", **fields: Any) -> dict[str, Any]:
    """Return value, or the reason why there is none, by way of launching."""
    found = learned("lim.launches", ["ok", answer(**fields)])
    if isinstance(found, Absent):
        return {"": found.reason}
    return {
        limit.path: limit.reason if limit.value is None else limit.value for limit in found[item]
    }


def test_a_node_without_other_ways_of_launching_has_no_limits() -> None:
    assert all(limits(item) == {} for item in ("memlock", "nofile", "stack", "nproc"))


@pytest.mark.parametrize(
    ("item", "conf", "expected"),
    [
        pytest.param("memlock", "", 8.0 * MIB, id="all-are-propagated"),
        pytest.param("memlock", "PropagateResourceLimits=ALL", 8.0 * MIB, id="said"),
        pytest.param("memlock", "PropagateResourceLimits=NONE", 65536.0, id="none"),
        pytest.param("memlock", "PropagateResourceLimits=NOFILE,STACK", 65536.0, id="others"),
        pytest.param("memlock", "propagateresourcelimits=memlock", 8.0 * MIB, id="small-letters"),
        pytest.param("memlock", "PropagateResourceLimitsExcept=MEMLOCK", 65536.0, id="except"),
        pytest.param("memlock", "PropagateResourceLimitsExcept=NOFILE", 8.0 * MIB, id="but-files"),
        pytest.param("stack", "PropagateResourceLimits=NONE", 8.0 * MIB, id="stack"),
    ],
)
def test_tasks_of_slurm_get_what_is_propagated_up_to_slurmds_hard_limit(
    item: str, conf: str, expected: float
) -> None:
    found = limits(item, daemons={"slurmd": daemon(LOW)}, files={SLURM: conf} if conf else {})
    assert found == {"slurmd": expected}


def test_a_limit_that_is_propagated_is_a_ceiling() -> None:
    found = learned("lim.launches", ["ok", answer(daemons={"slurmd": daemon()})])
    assert [limit.ceiling for limit in found["stack"]] == [True]
    assert found["stack"][0].value == math.inf


@pytest.mark.parametrize(
    ("daemons", "files", "expected"),
    [
        pytest.param({"dockerd": daemon(LOW)}, {}, {"docker": 65536.0}, id="child-of-dockerd"),
        pytest.param(
            {"dockerd": daemon(LOW), "containerd": daemon()},
            {},
            {"docker": math.inf},
            id="child-of-containerd",
        ),
        pytest.param(
            {"dockerd": daemon(LOW)},
            {"/etc/docker/daemon.json": {"memlock": {"Hard": -1, "Name": "memlock", "Soft": -1}}},
            {"docker": math.inf},
            id="default-ulimits",
        ),
        pytest.param(
            {"dockerd": daemon()},
            {"/etc/docker/daemon.json": {"nofile": {"Hard": 64000, "Soft": 64000}}},
            {"docker": math.inf},
            id="of-another-limit",
        ),
        pytest.param({"containerd": daemon(LOW)}, {}, {"containerd": 65536.0}, id="kubernetes"),
        pytest.param(
            {"crio": daemon(LOW)},
            {"/etc/crio/crio.conf.d/10.conf": 'default_ulimits = [\n "memlock=-1:-1",\n]'},
            {"cri-o": math.inf},
            id="crio",
        ),
        pytest.param(
            {},
            {"/etc/containers/containers.conf": 'default_ulimits = ["memlock=65536:65536"]'},
            {"podman": 65536.0},
            id="podman",
        ),
        pytest.param({"dockerd": daemon(None)}, {}, {"docker": "denied"}, id="limits-hidden"),
        pytest.param(
            {"dockerd": daemon()},
            {"/etc/docker/daemon.json": None},
            {"docker": "denied"},
            id="file-not-readable",
        ),
        pytest.param({"slurmd": daemon()}, {SLURM: None}, {"slurmd": "denied"}, id="slurm-conf"),
        pytest.param(None, {}, {"daemons": "denied"}, id="hidepid"),
        pytest.param({"slurmd": daemon("Max")}, {}, {"": "garbled"}, id="no-limits"),
        pytest.param(
            {"slurmd": daemon(COREOS.replace("unlimited", "-3"))},
            {},
            {"": "garbled"},
            id="no-number",
        ),
    ],
)
def test_containers_and_what_is_not_readable(daemons: Any, files: Any, expected: Any) -> None:
    assert limits(daemons=daemons, files=files) == expected


@pytest.mark.parametrize(
    ("files", "units", "expected"),
    [
        pytest.param({}, {}, {}, id="systemds-own-default-matters-to-no-job"),
        pytest.param(
            {"/etc/systemd/system.conf": "DefaultLimitMEMLOCK=64K"},
            {},
            {"systemd": 65536.0},
            id="set-for-all",
        ),
        pytest.param(
            {
                "/etc/systemd/system.conf": "DefaultLimitMEMLOCK=64K",
                "/etc/systemd/system.conf.d/9.conf": "DefaultLimitMEMLOCK=infinity",
            },
            {},
            {"systemd": math.inf},
            id="drop-in",
        ),
        pytest.param(
            {}, {"train.service": {}}, {"train.service": 8.0 * MIB}, id="unit-without-a-limit"
        ),
        pytest.param(
            {"/etc/systemd/system.conf": "DefaultLimitMEMLOCK=1G"},
            {
                "ray.service": {"/etc/systemd/system/ray.service": "LimitMEMLOCK=infinity"},
                "train.service": {},
            },
            {"systemd": 1.0 * (1 << 30), "ray.service": math.inf, "train.service": 1.0 * (1 << 30)},
            id="units",
        ),
        pytest.param(
            {"/etc/systemd/system.conf": None}, {}, {"systemd": "denied"}, id="not-readable"
        ),
        pytest.param(
            {"/etc/systemd/system.conf": "DefaultLimitMEMLOCK=much"}, {}, {"": "garbled"}, id="odd"
        ),
    ],
)
def test_units_have_their_own_limit_or_the_managers(files: Any, units: Any, expected: Any) -> None:
    assert limits(files=files, units=units) == expected


@pytest.mark.parametrize(
    ("text", "user", "expected"),
    [
        pytest.param("* - memlock unlimited", ALICE, math.inf, id="all"),
        pytest.param("* - memlock unlimited", ROOT, None, id="a-wildcard-is-not-root"),
        pytest.param("root - memlock 64", ROOT, 65536.0, id="root-by-name"),
        pytest.param("* soft memlock unlimited\n* hard memlock 64", ALICE, 65536.0, id="hard"),
        pytest.param("* hard memlock 64", ALICE, None, id="soft-is-left-as-it-is"),
        pytest.param("@ml - memlock 128\n* - memlock 64", ALICE, 131072.0, id="group-before-all"),
        pytest.param("alice - memlock 1\n@ml - memlock 128", ALICE, 1024.0, id="name-before-group"),
        pytest.param("* - memlock 64\n* - memlock 128", ALICE, 131072.0, id="the-later-of-two"),
        pytest.param("@other - memlock 64", ALICE, None, id="of-another-group"),
        pytest.param("1000: - memlock 64", ALICE, 65536.0, id="range-of-ids"),
        pytest.param("@:2000 - memlock 64", ALICE, 65536.0, id="id-of-a-group"),
        pytest.param("500:999 - memlock 64", ALICE, None, id="another-range"),
        pytest.param("* - memlock -1", ALICE, math.inf, id="minus-one"),
        pytest.param("* - memlock lots", ALICE, None, id="pam-skips-what-is-no-number"),
        pytest.param("* - nofile 64", ALICE, None, id="of-another-limit"),
    ],
)
def test_login_shells_get_what_pam_limits_reads(text: str, user: Any, expected: Any) -> None:
    found = limits(user=user, files={**PAM, LIMITS: text})
    assert found == ({} if expected is None else {"login shell": expected})


def test_files_of_limits_d_come_later_and_by_name() -> None:
    folder = "/etc/security/limits.d"
    files = {
        **PAM,
        f"{folder}/90-b.conf": "* - memlock 90",
        f"{folder}/20-a.conf": "* - memlock 20",
        f"{folder}/99.off": "* - memlock 99",
        LIMITS: "* - memlock 1",
    }
    assert limits(files=files) == {"login shell": 90.0 * 1024}
    assert limits(files={**files, f"{folder}/91.conf": None}) == {"login shell": "denied"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 65536.0, id="no-pam-so-the-daemons"),
        pytest.param({"/etc/pam.d/cron": "session required pam_limits.so"}, math.inf, id="debian"),
        pytest.param(
            {
                "/etc/pam.d/cron": "session include password-auth",
                "/etc/pam.d/password-auth": "session required pam_limits.so",
            },
            math.inf,
            id="by-an-include",
        ),
        pytest.param(
            {
                "/etc/pam.d/cron": "@include common-session",
                "/etc/pam.d/common-session": "@include cron",
            },
            65536.0,
            id="includes-in-a-circle",
        ),
    ],
)
def test_jobs_of_cron_get_the_daemons_limit_where_pam_does_not_set_one(
    files: Any, expected: float
) -> None:
    files = {**files, LIMITS: "* - memlock unlimited"}
    assert limits(daemons={"cron": daemon(LOW)}, files=files) == {"cron": expected}


# ---------------------------------------------------------------- CPUs and memory


def share(**fields: Any) -> Any:
    told = {"cpus": "0-7", "online": "0-7", "slurm": False, "groups": [], "slice": [], **fields}
    return learned("lim.share", ["ok", told])


EVERY = frozenset(range(8))
V1 = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, Share(EVERY, EVERY), id="all"),
        pytest.param({"cpus": "0-127"}, Share(EVERY, EVERY), id="possible-and-not-online"),
        pytest.param({"cpus": "0,2"}, Share(frozenset({0, 2}), EVERY), id="affinity"),
        pytest.param(
            {
                "cpus": "0-1",
                "groups": [
                    ["/a/b", {"cpuset.cpus.effective": "0-1"}],
                    ["/a", {"cpu.max": "400000 100000"}],
                ],
            },
            Share(frozenset({0, 1}), EVERY, 4.0, None, (("cpus", "/a/b"), ("quota", "/a"))),
            id="cgroup-v2",
        ),
        pytest.param(
            {
                "groups": [
                    [f"{V1}/memory/x", {"memory.limit_in_bytes": "4294967296"}],
                    [f"{V1}/memory", {"memory.limit_in_bytes": "9223372036854771712"}],
                    [f"{V1}/cpu", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}],
                    [f"{V1}/cpu/x", {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}],
                ],
            },
            Share(
                EVERY,
                EVERY,
                0.5,
                4 << 30,
                (("memory", f"{V1}/memory/x"), ("quota", f"{V1}/cpu/x")),
            ),
            id="cgroup-v1",
        ),
        pytest.param(
            {"groups": [["/a", {"memory.max": "8589934592", "memory.high": "4294967296"}]]},
            Share(EVERY, EVERY, None, 4 << 30, (("memory", "/a"),)),
            id="throttled-before-it-is-killed",
        ),
        pytest.param(
            {"slice": [["/u.slice", {"cpuset.cpus.effective": "0-3"}]]},
            Share(frozenset(range(4)), EVERY, None, None, (("cpus", "/u.slice"),)),
            id="slice-of-the-jobs-user",
        ),
    ],
)
def test_a_session_has_what_affinity_and_all_its_cgroups_leave(
    fields: Any, expected: Share
) -> None:
    assert share(**fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": None},
        {"cpus": ""},
        {"online": "all"},
        {"cpus": "3-1"},
        {"cpus": "0-99999999999"},
        {"groups": [["/a", {"cpu.max": "1"}]]},
        {"groups": [["/a", {"memory.max": "much"}]]},
    ],
)
def test_what_is_no_share_is_garbled(fields: Any) -> None:
    assert share(**fields).reason == "garbled"


def test_lists_of_cpus_are_written_as_the_kernel_does() -> None:
    for text in ("0", "0-3,8", "1,3,5-6"):
        assert format_cpus(parse_cpus(text)) == text
