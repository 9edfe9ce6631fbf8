"""Shared folders: the same, local, another, closed, full, slow, and not to be told apart."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.shared import Entries, SharedFolder
from clusterprep.model import EnvSetting, Fleet
from tests.support.fleet import absent, findings, fleet, told

TIB = 1 << 40


def entries(*numbers: int) -> Entries:
    """Files by number, with inodes a hundred above it."""
    return Entries(len(numbers), frozenset(numbers), frozenset(100 + number for number in numbers))


FULL = entries(*range(32))
NFS = SharedFolder(
    "nfs4", "store:/data", "/data", "rw", 128, FULL, True, TIB, TIB // 2, 0.001, 0.002
)
OTHER = entries(*range(50, 82))
COPY = Entries(32, FULL.names, frozenset(range(900, 932)))
FUSE = replace(NFS, type="fuse.juicefs", source="JuiceFS:data", inode=1)
EMPTY = replace(NFS, entries=entries())
UNCLEAR = "nothing in it shows which folder it is"
LOCAL = replace(NFS, type="ext4", source="/dev/sda1", point="/", inode=2)


def nodes(*values: Any, **each: Any) -> Fleet:
    facts = {}
    for number, value in enumerate(values, 1):
        facts[f"n{number}"] = {"fs.shared": {"/data": value}}
    return fleet(each={"shared": ("/data",), **each}, **facts)


@pytest.mark.parametrize(
    ("usual", "odd", "expected"),
    [
        pytest.param(NFS, NFS, "pass", id="same"),
        pytest.param(
            NFS, replace(NFS, source="10.0.0.9:/data"), "pass", id="the-server-by-another-name"
        ),
        pytest.param(NFS, replace(NFS, inode=129), "fail warning", id="another-folder-there"),
        pytest.param(
            NFS,
            replace(NFS, source="old:/data", entries=OTHER),
            "fail warning",
            id="another-export-with-the-same-inode",
        ),
        pytest.param(
            NFS, replace(NFS, source="old:/data", entries=COPY), "fail warning", id="a-copy"
        ),
        pytest.param(
            NFS, replace(NFS, entries=entries(*range(1, 33))), "pass", id="a-file-came-meanwhile"
        ),
        pytest.param(
            EMPTY,
            replace(EMPTY, source="old:/data"),
            f"unknown warning {UNCLEAR}",
            id="nothing-tells",
        ),
        pytest.param(EMPTY, EMPTY, "pass", id="empty-from-one-source"),
        pytest.param(
            replace(NFS, entries=None), replace(NFS, entries=None), "pass", id="too-many-entries"
        ),
        pytest.param(FUSE, replace(FUSE, inode=2), "pass", id="clients-number-inodes"),
        pytest.param(FUSE, replace(FUSE, entries=OTHER), "fail warning", id="another-bucket"),
        pytest.param(NFS, LOCAL, "fail warning", id="not-mounted"),
        pytest.param(NFS, replace(NFS, type="tmpfs"), "fail warning", id="memory"),
        pytest.param(NFS, replace(NFS, type="autofs"), "fail warning", id="automounter-alone"),
        pytest.param(
            NFS, replace(NFS, mode="ro", writable=False), "fail warning", id="read-only-here"
        ),
        pytest.param(NFS, replace(NFS, writable=False), "fail warning", id="no-right-to-write"),
        pytest.param(NFS, replace(NFS, opening=0.11), "fail warning", id="slow"),
        pytest.param(NFS, replace(NFS, reading=0.11), "fail warning", id="slow-to-read"),
        pytest.param(NFS, replace(NFS, reading=0.09), "pass", id="not-noticed"),
        pytest.param(NFS, absent("ESTALE"), "fail warning", id="stale"),
        pytest.param(NFS, absent("EIO"), "fail warning", id="errors"),
        pytest.param(NFS, absent("hung"), "fail warning", id="hangs"),
        pytest.param(NFS, absent("missing"), "fail warning", id="not-there"),
        pytest.param(NFS, absent("denied"), "fail warning", id="closed"),
        pytest.param(NFS, absent("ENOTDIR"), "fail warning", id="a-file"),
        pytest.param(NFS, absent("timed_out"), "unknown warning timed_out", id="too-busy"),
    ],
)
def test_one_node_of_four(usual: Any, odd: Any, expected: str) -> None:
    said = told(nodes(usual, usual, odd, usual), "fs.shared")
    assert said == {"n1": "pass", "n2": "pass", "n3": expected, "n4": "pass"}


def test_a_node_that_may_not_be_asked_is_unknown() -> None:
    seen = fleet(
        each={"shared": ("/data",)},
        n1={"fs.shared": {"/data": NFS}},
        n2={"fs.shared": absent("denied")},
        n3={"fs.shared": {}},
    )
    said = told(seen, "fs.shared")
    assert said["n2"] == "unknown warning denied"
    assert said["n3"] == "unknown warning garbled"
    assert said["n1"] == "unknown warning fewer than two nodes have it"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EMPTY, replace(EMPTY, source="old:/data")),
        (replace(FUSE, entries=entries()), replace(FUSE, entries=entries())),
        (replace(FUSE, entries=None), replace(FUSE, entries=None)),
    ],
)
def test_two_nodes_of_which_nothing_tells_are_both_unknown(one: Any, other: Any) -> None:
    expected = f"unknown warning {UNCLEAR}"
    assert told(nodes(one, other), "fs.shared") == {"n1": expected, "n2": expected}


def test_without_a_majority_all_are_named() -> None:
    other = replace(NFS, entries=OTHER)
    (failed,) = findings(nodes(NFS, NFS, other, other), "fs.shared")
    assert failed.nodes == ("n1", "n2", "n3", "n4")
    assert failed.message == "/data is not one folder, and no node is in a majority"


def test_a_folder_that_nobody_shares() -> None:
    (failed,) = findings(nodes(LOCAL, LOCAL, LOCAL), "fs.shared")
    assert failed.nodes == ("n1", "n2", "n3")
    assert failed.message == "/data is local to each node: it is not shared at all"
    assert failed.seen == "ext4 from /dev/sda1 at / on n[1-3]"


def test_one_node_shares_with_nobody() -> None:
    assert told(nodes(LOCAL), "fs.shared") == {"n1": "pass"}


def test_nodes_of_one_machine_share_its_disk() -> None:
    each = {"transport": "local"}
    seen = nodes(LOCAL, LOCAL, **each)
    some = [
        replace(node, env={"NCCL_HOSTID": EnvSetting(node.name, "node")})
        for node in seen.inventory.nodes
    ]
    seen = replace(seen, inventory=replace(seen.inventory, nodes=tuple(some)))
    assert told(seen, "fs.shared") == {"n1": "pass", "n2": "pass"}


def test_data_that_is_read_only_everywhere_is_meant_so() -> None:
    data = replace(NFS, mode="ro", writable=False, free=0)
    assert set(told(nodes(data, data, data), "fs.shared").values()) == {"pass"}


def test_little_room_is_one_finding() -> None:
    full = replace(NFS, free=TIB // 100)
    (failed,) = findings(nodes(full, full, full), "fs.shared")
    assert failed.nodes == ("n1", "n2", "n3")
    assert (failed.message, failed.seen) == ("/data is nearly full", "10.24 GiB of 1 TiB free")


def test_what_differs_is_shown_with_its_source() -> None:
    seen = nodes(NFS, NFS, replace(NFS, source="old:/data", inode=64, entries=OTHER))
    failed = next(f for f in findings(seen, "fs.shared") if f.verdict == "fail")
    assert failed.seen == (
        "nfs4 from store:/data at /data, inode 128, 32 entries on n[1-2]; "
        "nfs4 from old:/data at /data, inode 64, 32 entries on n3"
    )
