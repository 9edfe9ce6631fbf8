"""Shared memory: large, small, full, of hosts and of containers, and what dead jobs left in it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.shm import in_container
from clusterprep.facts.storage import Segment, Space
from tests.support.fleet import absent, findings, fleet, mount, told

MIB, GIB = 1 << 20, 1 << 30
HOST = (mount("/"), mount("/dev/shm", "tmpfs", "tmpfs", "0:25"))
DOCKER = (mount("/", "overlay", "overlay", "0:90"), mount("/dev/shm", "tmpfs", "shm", "0:95"))
LAYERS = mount(
    "/", "overlay", "overlay", "0:90", inner="rw,lowerdir=/var/lib/containers/storage/overlay/l/X"
)
DISKLESS = (
    mount("/", "overlay", "overlay", "0:9", inner="rw,lowerdir=/ro,upperdir=/rw/up"),
    HOST[1],
)


def node(size: Any, free: Any = None, mounts: Any = HOST) -> dict[str, Any]:
    space = size
    if isinstance(size, int):
        left = size if free is None else free
        space = Space("/dev/shm", size, size - left, left)
    return {"shm.space": space, "fs.mounts": mounts}


@pytest.mark.parametrize(
    ("facts", "wanted", "expected"),
    [
        pytest.param(node(1000 * GIB), None, "pass", id="half-of-two-terabytes"),
        pytest.param(node(8 * GIB), None, "pass", id="the-floor-of-a-host"),
        pytest.param(node(8 * GIB - 4096), None, "fail warning", id="a-page-less"),
        pytest.param(node(GIB), None, "fail warning", id="one-gib-on-a-host"),
        pytest.param(node(GIB - 4096), None, "fail error", id="less-than-one-gib"),
        pytest.param(node(64 * MIB), None, "fail error", id="dockers-64-mib-on-a-host"),
        pytest.param(node(64 * MIB, mounts=DOCKER), None, "fail error", id="dockers-64-mib"),
        pytest.param(node(GIB, mounts=DOCKER), None, "pass", id="one-gib-in-a-container"),
        pytest.param(node(100 * GIB, 4 * GIB), None, "fail warning", id="nearly-full"),
        pytest.param(node(100 * GIB, 500 * MIB), None, "fail error", id="full"),
        pytest.param(node(None), None, "fail error", id="none"),
        pytest.param(node(2 * GIB), "2GiB", "pass", id="as-required"),
        pytest.param(node(16 * GIB), "32GiB", "fail error", id="less-than-required"),
        pytest.param(node(absent("hung")), None, "unknown error hung", id="hung"),
        pytest.param(node(absent("denied")), None, "unknown error denied", id="denied"),
        pytest.param(
            node(8 * GIB, mounts=absent("garbled")), None, "unknown error garbled", id="no-table"
        ),
    ],
)
def test_what_is_free(facts: dict[str, Any], wanted: str | None, expected: str) -> None:
    each = {"require": {"shm.size": wanted}} if wanted else {}
    assert told(fleet(each=each, n1=facts), "shm.size") == {"n1": expected}


@pytest.mark.parametrize(
    ("facts", "cure"),
    [
        pytest.param(node(4 * GIB), "mount -o remount,size=8G /dev/shm", id="host"),
        pytest.param(node(64 * MIB, mounts=DOCKER), "--ipc=host", id="container"),
        pytest.param(node(100 * GIB, 0), "du -ah /dev/shm", id="full"),
        pytest.param(node(None), "mount -t tmpfs", id="none"),
    ],
)
def test_each_has_its_own_cure(facts: dict[str, Any], cure: str) -> None:
    assert cure in findings(fleet(n1=facts), "shm.size")[0].remedy


@pytest.mark.parametrize(
    ("required", "size"),
    [("12000M", "12G"), ("1T", "1024G"), ("unlimited", "0")],
)
def test_the_cure_has_a_size_that_tmpfs_reads(required: str, size: str) -> None:
    seen = fleet(each={"require": {"shm.size": required}}, n1=node(8 * GIB))
    (bad,) = findings(seen, "shm.size")
    assert f"remount,size={size} /dev/shm" in (bad.remedy or "")


@pytest.mark.parametrize("required", ["unlimited", "1T", None])
def test_a_tmpfs_without_a_limit_is_large_enough(required: str | None) -> None:
    """Its size is 0, as after `mount -o remount,size=0`."""
    settings = {} if required is None else {"require": {"shm.size": required}}
    (found,) = findings(fleet(each=settings, n1=node(0)), "shm.size")
    assert (found.verdict, found.seen) == ("pass", "unlimited")


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [(HOST, False), (DOCKER, True), ((LAYERS, HOST[1]), True), (DISKLESS, False), ((), False)],
)
def test_a_container_is_told_from_a_diskless_host(mounts: Any, expected: bool) -> None:
    assert in_container(mounts) is expected


# ---------------------------------------------------------------- left over


def segment(name: str = "AbCdEf", age: float = 3600.0, held: bool | None = False) -> Segment:
    return Segment(f"/dev/shm/nccl-{name}", 9 * MIB, age, held)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        pytest.param((), "pass", id="none"),
        pytest.param((segment(held=True),), "pass", id="a-job-runs"),
        pytest.param((segment(age=59.0),), "pass", id="just-written"),
        pytest.param((segment(age=60.0),), "fail warning", id="a-minute-old"),
        pytest.param((segment("a", held=True), segment("b")), "fail warning", id="beside-a-job"),
        pytest.param((segment(held=None),), "unknown warning denied", id="not-all-could-be-seen"),
        pytest.param((segment("a"), segment("b", held=None)), "fail warning", id="one-is-sure"),
        pytest.param(absent("hung"), "unknown warning hung", id="hung"),
        pytest.param(absent("denied"), "unknown warning denied", id="denied"),
    ],
)
def test_segments_without_a_process(segments: Any, expected: str) -> None:
    assert told(fleet(n1={"shm.segments": segments}), "shm.stale") == {"n1": expected}


def test_the_remedy_names_the_files_as_a_shell_takes_them() -> None:
    (bad,) = findings(
        fleet(n1={"shm.segments": (segment("x; reboot"), segment("b", held=True))}), "shm.stale"
    )
    assert "for file in '/dev/shm/nccl-x; reboot'; do" in bad.remedy


def test_of_very_many_the_remedy_takes_some() -> None:
    (bad,) = findings(
        fleet(n1={"shm.segments": tuple(segment(str(n)) for n in range(100))}), "shm.stale"
    )
    assert bad.remedy.count("/dev/shm/nccl-") == 16
    assert "84 more" in bad.remedy.note
