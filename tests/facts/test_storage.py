"""Mount tables, fstab, what file systems answer and NCCL's segments, as nodes tell them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.storage import (
    DeclaredMount,
    Segment,
    Space,
    parse_declared_mounts,
    parse_fstab,
    parse_mounts,
)
from clusterprep.model import Absent, Inventory, Node, SshSettings
from clusterprep.survey import registry
from tests.support.fleet import learned

TABLE = r"""
21 28 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 1 9:0 / / rw,relatime shared:1 - ext4 /dev/md0 rw,errors=remount-ro
30 28 0:25 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k
99 28 9:1 /sub /etc/hosts ro,relatime shared:52 master:3 - ext4 /dev/md1 rw
400 28 0:60 / /data rw - autofs systemd-1 rw,fd=55
420 28 0:61 / /data rw,relatime - nfs4 nas:/my\040data ro,vers=4.2
430 28 0:62 / /with\040space rw - tmpfs  rw
""".lstrip()
SPACE = {"at": "/", "size": 100, "used": 40, "free": 50, "inodes": 10, "inodes_free": 5}


def test_a_table_of_mounts() -> None:
    mounts = {mount.point: mount for mount in parse_mounts(TABLE)}
    assert list(mounts) == ["/sys", "/", "/dev/shm", "/etc/hosts", "/data", "/with space"]
    assert (mounts["/"].type, mounts["/"].source, mounts["/"].device) == ("ext4", "/dev/md0", "9:0")
    assert mounts["/"].inner == {"rw", "errors=remount-ro"}
    assert mounts["/with space"].inner == {"rw"}


def test_a_bind_mount_is_read_only_and_its_file_system_is_not() -> None:
    (hosts,) = [mount for mount in parse_mounts(TABLE) if mount.point == "/etc/hosts"]
    assert ("ro" in hosts.options, "ro" in hosts.inner) == (True, False)


def test_the_last_mount_on_a_point_covers_the_others() -> None:
    (data,) = [mount for mount in parse_mounts(TABLE) if mount.point == "/data"]
    assert (data.type, data.source, data.network) == ("nfs4", "nas:/my data", True)


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs", True), ("fuse.sshfs", True), ("fuseblk", False), ("lustre", True), ("tmpfs", False)],
)
def test_what_comes_from_elsewhere(kind: str, network: bool) -> None:
    (mount,) = parse_mounts(f"1 1 0:1 / /x rw - {kind} source rw\n")
    assert mount.network is network


@pytest.mark.parametrize(
    "text", [None, "", TABLE[:-1], TABLE[:-9] + "\n", "a b c\n", "1 1 0:1 / /x rw nfs source rw\n"]
)
def test_a_table_that_is_cut_is_garbled(text: str | None) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_mounts(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("# /dev/sda1 / ext4 ro 0 1\n", {}),
        ("/dev/sda1 / ext4 errors=remount-ro 0 1\n", {"/": {"errors=remount-ro"}}),
        ("UUID=1 /my\\040data xfs ro,noauto\n\nshort line\n", {"/my data": {"ro", "noauto"}}),
    ],
)
def test_fstab(text: str | None, expected: dict[str, set[str]]) -> None:
    assert parse_fstab(text) == expected


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("/data", (DeclaredMount("/data"),)),
        (
            "/data, /scratch:rw,/opt/:ro",
            (DeclaredMount("/data"), DeclaredMount("/scratch", "rw"), DeclaredMount("/opt", "ro")),
        ),
        ("/", (DeclaredMount("/"),)),
        ("/my data", (DeclaredMount("/my data"),)),
    ],
)
def test_what_is_declared(text: str, wishes: tuple[DeclaredMount, ...]) -> None:
    assert parse_declared_mounts(text) == wishes


@pytest.mark.parametrize(
    "text", ["data", "/data:rx", "/data:", "", "/a,,/b", "/a:rw:ro", "nas:/data", "/a\x07"]
)
def test_what_is_no_mount_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected mount points"):
        parse_declared_mounts(text)


def test_one_read_asks_all_file_systems() -> None:
    node = Node("n1", "n1", 0, ssh=SshSettings(user="alice"), require={"fs.mount": "/data,/tmp:rw"})
    inventory = Inventory("test", (node,))
    (read,) = registry.facts()["fs.probes"].reads(node, inventory)
    assert registry.facts()["shm.space"].reads(node, inventory) == (read,)
    assert read.args[:7] == (2.0, "/dev/shm", "/", "/tmp", "/var", "~alice", "/data")
    assert read.limit > 2.0


def answer(**answers: Any) -> list[Any]:
    return ["ok", {"answers": {"/dev/shm": ["ok", SPACE], **answers}, "left": 0}]


def test_each_path_has_its_own_answer() -> None:
    probes = learned("fs.probes", answer(**{"/data": ["no", "hung", "no answer within 2 s"]}))
    assert probes.answers == {
        "/dev/shm": Space(**SPACE),
        "/data": Absent("hung", "no answer within 2 s"),
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["ok", SPACE], Space(**SPACE)),
        (["no", "missing", "No such file"], None),
        (["no", "hung", "no answer"], Absent("hung", "no answer")),
        (["no", "denied", "EACCES"], Absent("denied", "EACCES")),
    ],
)
def test_shared_memory_is_one_of_the_paths(given: list[Any], expected: Any) -> None:
    assert learned("shm.space", answer(**{"/dev/shm": given})) == expected


@pytest.mark.parametrize(
    "given",
    [None, {}, {"answers": {}, "left": None}, {"answers": {"/dev/shm": ["ok", {}]}, "left": 0},
     {"answers": {"/dev/shm": ["ok", {**SPACE, "free": -1}]}, "left": 0},
     {"answers": {"/dev/shm": ["ok", {**SPACE, "size": "much"}]}, "left": 0}],
)  # fmt: skip
def test_what_is_no_space_is_garbled(given: Any) -> None:
    assert learned("fs.probes", ["ok", given]).reason == "garbled"
    assert learned("shm.space", ["ok", given]).reason == "garbled"


FILE = {"path": "/dev/shm/nccl-AbCdEf", "uid": 1000, "size": 4096, "age": 3600.0, "held": False}


@pytest.mark.parametrize(
    ("held", "unread", "whole", "expected"),
    [
        pytest.param(True, {}, True, True, id="held"),
        pytest.param(True, {"1000": 3}, False, True, id="held-by-one-that-we-saw"),
        pytest.param(False, {}, True, False, id="not-held"),
        pytest.param(False, {"0": 200}, True, False, id="only-root-could-not-be-looked-into"),
        pytest.param(False, {"1000": 1}, True, None, id="its-owner-could-not-be-looked-into"),
        pytest.param(False, {}, False, None, id="inside-a-container"),
    ],
)
def test_a_segment_is_stale_only_when_all_who_could_hold_it_were_seen(
    held: bool, unread: dict[str, int], whole: bool, expected: bool | None
) -> None:
    given = {"files": [{**FILE, "held": held}], "unread": unread, "whole": whole}
    assert learned("shm.segments", ["ok", given]) == (
        Segment("/dev/shm/nccl-AbCdEf", 4096, 3600.0, expected),
    )


@pytest.mark.parametrize(
    "given", [None, {}, {"files": [{}], "unread": {}, "whole": True}, {"files": 3, "unread": {}}]
)
def test_segments_that_are_not_understood_are_garbled(given: Any) -> None:
    assert learned("shm.segments", ["ok", given]).reason == "garbled"
