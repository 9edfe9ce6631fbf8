"""Mounts that answer or do not, file systems with and without space, read-only disks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from clusterprep.checks.fs import Least, parse_least, parse_read_only
from clusterprep.facts.storage import Mount, Probes, Space
from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, mount, told

GIB, TIB = 1 << 30, 1 << 40
ROOT = mount("/")
NFS = mount("/data", "nfs4", "nas:/data", "0:61")
HUNG = Absent("hung", "no answer within 2 s")
MISSING = Absent("missing", "No such file or directory")


def space(
    at: str = "/", size: int = TIB, free: int = TIB // 2, inodes: int = 0, inodes_free: int = 0
) -> Space:
    return Space(at, size, size - free, free, inodes, inodes_free)


def node(mounts: tuple[Mount, ...] = (ROOT,), left: int = 0, **answers: Any) -> dict[str, Any]:
    """Paths are given without their slash: data=HUNG."""
    usual: Mapping[str, Any] = {
        "/": space(),
        "/tmp": space("/tmp"),
        "/var": space("/var"),
        "~": space("/root"),
    }
    given = {"/" + word.replace("root", ""): answer for word, answer in answers.items()}
    return {"fs.probes": Probes({**usual, **given}, left), "fs.mounts": mounts}


# ---------------------------------------------------------------- mounts


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(node(), "skip not_applicable", id="nothing-from-elsewhere"),
        pytest.param(node((ROOT, NFS), data=space("/data")), "pass", id="answers"),
        pytest.param(node((ROOT, NFS), data=HUNG), "fail error", id="hangs"),
        pytest.param(
            node((ROOT, NFS), data=Absent("ESTALE", "Stale file handle")), "fail error", id="stale"
        ),
        pytest.param(
            node((ROOT, NFS), data=Absent("ENOTCONN", "Transport endpoint …")),
            "fail error",
            id="fuse-died",
        ),
        pytest.param(
            node((ROOT, NFS), data=Absent("denied", "EACCES")),
            "pass",
            id="a-users-fuse-refuses-root",
        ),
        pytest.param(
            node((ROOT, NFS), data=space("/data"), left=3),
            "unknown error truncated",
            id="too-many-to-try",
        ),
        pytest.param(
            node((ROOT, NFS), data=HUNG, left=3), "fail error", id="too-many-and-one-hangs"
        ),
        pytest.param(
            {**node(), "fs.probes": absent("hung")}, "unknown error hung", id="the-reader-hangs"
        ),
        pytest.param(
            {**node(), "fs.mounts": absent("truncated")}, "unknown error truncated", id="no-table"
        ),
        pytest.param(
            {**node(), "fs.mounts": absent("garbled")}, "unknown error garbled", id="garbled-table"
        ),
    ],
)
def test_network_mounts_answer_without_being_declared(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "fs.mount") == {"n1": expected}


AUTOFS = mount("/data", "autofs", "systemd-1", "0:60")
READ_ONLY = mount("/data", "nfs4", "nas:/data", "0:61", options="ro,relatime")
INDIRECT = (ROOT, mount("/net", "autofs", "auto.net", "0:60"))
LINKED = (ROOT, mount("/mnt/nas", "nfs4", "nas:/data", "0:61"))


@pytest.mark.parametrize(
    ("wanted", "facts", "expected"),
    [
        pytest.param("/data", node((ROOT, NFS), data=space("/data")), "pass", id="there"),
        pytest.param(
            "/data:rw", node((ROOT, NFS), data=space("/data")), "pass", id="there-and-writable"
        ),
        pytest.param(
            "/data:rw", node((ROOT, READ_ONLY), data=space("/data")), "fail error", id="read-only"
        ),
        pytest.param(
            "/data",
            node((ROOT, READ_ONLY), data=space("/data")),
            "pass",
            id="read-only-and-no-matter",
        ),
        pytest.param(
            "/data:ro",
            node((ROOT, READ_ONLY), data=space("/data")),
            "pass",
            id="read-only-on-purpose",
        ),
        pytest.param(
            "/data:ro",
            node((ROOT, NFS), data=space("/data")),
            "fail error",
            id="writable-and-should-not",
        ),
        pytest.param(
            "/data", node(data=space("/data")), "fail error", id="a-folder-of-the-disk-below"
        ),
        pytest.param("/data", node(data=MISSING), "fail error", id="not-even-a-folder"),
        pytest.param("/data", node(data=HUNG), "fail error", id="hangs-outside-of-the-table"),
        pytest.param("/data", node((ROOT, NFS), data=HUNG), "fail error", id="hangs"),
        pytest.param(
            "/data", node((ROOT, AUTOFS), data=space("/data")), "pass", id="mounted-when-asked-for"
        ),
        pytest.param(
            "/data",
            node((ROOT, AUTOFS), data=MISSING),
            "fail error",
            id="automounter-without-success",
        ),
        pytest.param(
            "/net/data",
            node(INDIRECT, **{"net/data": space("/net/data")}),
            "pass",
            id="below-an-automounter",
        ),
        pytest.param(
            "/net/data",
            node(INDIRECT, **{"net/data": MISSING}),
            "fail error",
            id="which-does-not-know-it",
        ),
        pytest.param("/data", node(LINKED, data=space("/mnt/nas")), "pass", id="a-link-to-a-mount"),
        pytest.param(
            "/data",
            node((ROOT, NFS), data=Absent("denied", "EACCES")),
            "pass",
            id="refuses-and-answers",
        ),
        pytest.param("/", node(), "pass", id="the-root"),
    ],
)
def test_declared_mounts_are_there(wanted: str, facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(each={"require": {"fs.mount": wanted}}, n1=facts), "fs.mount") == {
        "n1": expected
    }


def test_each_mount_that_is_dead_is_named_with_its_server() -> None:
    scratch = mount("/scratch dir", "lustre", "mgs@o2ib:/fs", "0:70")
    facts = node((ROOT, NFS, scratch), data=HUNG)
    facts["fs.probes"] = Probes({**facts["fs.probes"].answers, "/scratch dir": HUNG})
    first, second = findings(fleet(n1=facts), "fs.mount")
    assert (first.message, second.message) == (
        "/data does not answer",
        "/scratch dir does not answer",
    )
    assert "nfs4 from nas:/data" in first.seen
    assert second.remedy.endswith("{ umount -l '/scratch dir'; mount '/scratch dir'; }")


# ---------------------------------------------------------------- space


@pytest.mark.parametrize(
    ("facts", "wanted", "expected"),
    [
        pytest.param(node(), None, "pass", id="half-free"),
        pytest.param(node(root=space(free=TIB // 20 + GIB)), None, "pass", id="five-percent"),
        pytest.param(node(root=space(free=TIB // 20 - GIB)), None, "fail warning", id="just-under"),
        pytest.param(
            node(root=space(size=100 * TIB, free=TIB)),
            None,
            "pass",
            id="one-percent-of-much-is-much",
        ),
        pytest.param(node(root=space(free=0)), None, "fail warning", id="full"),
        pytest.param(
            node(root=space(inodes=10**8, inodes_free=10**5)), None, "fail warning", id="no-inodes"
        ),
        pytest.param(
            node(root=space(inodes=10**9, inodes_free=10**7)), None, "pass", id="inodes-enough"
        ),
        pytest.param(node(root=space(inodes=0)), None, "pass", id="btrfs-has-no-inodes"),
        pytest.param(
            node(root=Space("/", 100 * GIB, 50 * GIB, 4 * GIB)),
            None,
            "pass",
            id="what-root-keeps-is-not-used",
        ),
        pytest.param(
            node((mount("/", "overlay"),), root=space(free=0)),
            None,
            "skip not_applicable",
            id="a-container",
        ),
        pytest.param(
            node((mount("/", "squashfs"),), root=space(free=0)),
            None,
            "skip not_applicable",
            id="an-image",
        ),
        pytest.param(
            node((mount("/", inner="ro"),), root=space(free=0)),
            None,
            "skip not_applicable",
            id="read-only",
        ),
        pytest.param(node(root=space(size=GIB >> 5, free=0)), None, "pass", id="tiny"),
        pytest.param(node(var=MISSING), None, "pass", id="no-var"),
        pytest.param(node(var=HUNG), None, "unknown warning hung", id="var-hangs"),
        pytest.param(
            node(var=HUNG, root=space(free=0)),
            None,
            "fail warning + unknown warning hung",
            id="both",
        ),
        pytest.param(
            node(var=Absent("denied", "x")), None, "unknown warning denied", id="var-denied"
        ),
        pytest.param(
            node(root=space(free=TIB // 11)), "10%", "fail error", id="less-than-the-part"
        ),
        pytest.param(
            node(root=space(size=100 * TIB, free=TIB)), "5%", "fail error", id="a-part-is-a-part"
        ),
        pytest.param(node(root=space(free=500 * GIB)), "500GiB", "pass", id="as-required"),
        pytest.param(
            node(root=space(free=499 * GIB)), "500GiB", "fail error", id="less-than-required"
        ),
        pytest.param(
            node(root=space(size=10 * GIB, free=GIB)), "500M", "pass", id="less-is-enough"
        ),
        pytest.param(
            {**node(), "fs.probes": absent("hung")}, None, "unknown warning hung", id="hung"
        ),
        pytest.param(
            {**node(), "fs.mounts": absent("garbled")},
            None,
            "unknown warning garbled",
            id="no-table",
        ),
    ],
)
def test_space_and_inodes(facts: dict[str, Any], wanted: str | None, expected: str) -> None:
    each = {"require": {"fs.space": wanted}} if wanted else {}
    assert told(fleet(each=each, n1=facts), "fs.space") == {"n1": expected}


def test_a_file_system_is_named_once_by_its_first_path() -> None:
    full = space(free=0)
    facts = node(
        (ROOT, mount("/var", device="9:1")), root=full, tmp=full, var=space("/var", free=0)
    )
    found = findings(fleet(n1=facts), "fs.space")
    assert [finding.message for finding in found] == ["/ is nearly full", "/var is nearly full"]
    assert found[1].remedy == "du -xh --max-depth=2 /var | sort -h | tail -20"


def test_declared_mounts_are_looked_at_too() -> None:
    facts = node((ROOT, NFS), data=space("/data", free=GIB))
    seen = fleet(each={"require": {"fs.mount": "/data"}}, n1=facts)
    assert told(seen, "fs.space") == {"n1": "fail warning"}


@pytest.mark.parametrize(
    ("text", "least"),
    [("10%", Least(part=0.1)), ("2.5 %", Least(part=0.025)), ("500GiB", Least(size=500 * GIB))],
)
def test_what_must_be_free(text: str, least: Least) -> None:
    assert parse_least(text) == least


@pytest.mark.parametrize("text", ["", "100%", "ten", "-1%", "unlimited", "10 percent"])
def test_what_cannot_be_free_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected what must be free, such as 10% or 500GiB"):
        parse_least(text)


# ---------------------------------------------------------------- read-only


def disks(*mounts: Mount, **fstab: str) -> dict[str, Any]:
    """fstab by path without its slash, `root` for /."""
    lines = {
        "/" + key.replace("root", ""): frozenset(options.split(","))
        for key, options in fstab.items()
    }
    return {"fs.mounts": mounts, "fs.fstab": lines}


RAID = mount("/raid", "xfs", "/dev/md1", "9:1", options="ro,relatime", inner="ro")
FIRED = mount("/", inner="ro,errors=remount-ro", options="ro")
BIND = mount("/etc/hosts", "ext4", "/dev/md0", "9:0", options="ro")


@pytest.mark.parametrize(
    ("facts", "wanted", "expected"),
    [
        pytest.param(disks(ROOT, root="errors=remount-ro"), None, "pass", id="writable"),
        pytest.param(
            disks(FIRED, root="errors=remount-ro"),
            None,
            "fail error",
            id="errors-remount-ro-has-fired",
        ),
        pytest.param(disks(FIRED), None, "fail error", id="and-there-is-no-line-in-fstab"),
        pytest.param(
            disks(ROOT, RAID, raid="defaults"), None, "fail error", id="fstab-wants-it-writable"
        ),
        pytest.param(
            disks(ROOT, RAID, raid="ro,nofail"), None, "pass", id="fstab-wants-it-read-only"
        ),
        pytest.param(disks(ROOT, RAID, raid="noauto"), None, "pass", id="mounted-by-hand"),
        pytest.param(disks(ROOT, RAID), None, "pass", id="an-image-without-a-line"),
        pytest.param(disks(ROOT, RAID), "/raid", "pass", id="meant"),
        pytest.param(disks(ROOT, RAID, raid="defaults"), "/raid", "pass", id="meant-against-fstab"),
        pytest.param(
            disks(ROOT, RAID, raid="defaults"), "/opt", "fail error", id="another-one-is-meant"
        ),
        pytest.param(
            disks(ROOT, BIND, root="defaults"), None, "pass", id="a-bind-mount-of-a-container"
        ),
        pytest.param(
            disks(ROOT, mount("/snap/x", "squashfs", inner="ro"), root="x"),
            None,
            "pass",
            id="a-snap",
        ),
        pytest.param(
            disks(ROOT, mount("/boot/efi", "vfat", inner="ro"), root="x"),
            None,
            "pass",
            id="firmware",
        ),
        pytest.param(disks(ROOT, mount("/cd", "iso9660", inner="ro")), None, "pass", id="a-cd"),
        pytest.param(
            disks(mount("/", "overlay", inner="ro")), None, "skip not_applicable", id="no-disk"
        ),
        pytest.param(
            {"fs.mounts": absent("truncated"), "fs.fstab": {}},
            None,
            "unknown error truncated",
            id="no-table",
        ),
        pytest.param(
            {"fs.mounts": (ROOT,), "fs.fstab": absent()},
            None,
            "unknown error denied",
            id="no-fstab",
        ),
    ],
)
def test_disks_that_turned_read_only(
    facts: dict[str, Any], wanted: str | None, expected: str
) -> None:
    each = {"require": {"fs.ro": wanted}} if wanted else {}
    assert told(fleet(each=each, n1=facts), "fs.ro") == {"n1": expected}


def test_a_disk_with_two_mounts_is_named_once() -> None:
    again = mount("/export", "xfs", "/dev/md1", "9:1", options="ro", inner="ro")
    (bad,) = findings(fleet(n1=disks(ROOT, RAID, again, raid="rw", export="rw")), "fs.ro")
    assert bad.message == "/raid has turned read-only"
    assert "fsck /dev/md1" in bad.remedy


@pytest.mark.parametrize("text", ["usr", "/usr:ro", ""])
def test_what_may_be_read_only_is_a_mount_point(text: str) -> None:
    with pytest.raises(ValueError, match="expected mount points"):
        parse_read_only(text)
