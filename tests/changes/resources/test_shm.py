"""The size of /dev/shm: now and at boot, all else kept, and never below what is in use."""

from __future__ import annotations

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.shm import FSTAB, RESOURCE, UNIT
from clusterprep.facts.memory import parse_total
from clusterprep.facts.storage import Space, parse_mounts
from clusterprep.model.operations import StepAction, Write
from tests.changes.resources.planned import commands, step_actions

MIB, GIB = 1 << 20, 1 << 30
MEMORY = parse_total("MemTotal:       1048576 kB\n")
MOUNT = (
    "25 24 0:23 / /dev/shm rw,nosuid,nodev,relatime shared:2 - tmpfs tmpfs rw,size=65536k,inode64\n"
)
AS_WANTED = b"tmpfs\t/dev/shm\ttmpfs\tnosuid,nodev,size=128M\t0\t0\n"


def planned(
    size: str,
    now: int = 64 * MIB,
    used: int = 0,
    fstab: bytes | None = None,
    unit: bytes | None = None,
    mount: str = MOUNT,
) -> StepAction:
    facts = {
        "shm:space": Space("/dev/shm", now, used, now - used),
        "fs.mounts": parse_mounts(mount),
        "mem.total": MEMORY,
    }
    (step_action,) = step_actions(RESOURCE, {"size": size}, facts, {FSTAB: fstab, UNIT: unit})
    return step_action


def fstab(step_action: StepAction) -> bytes | None:
    """What fstab becomes."""
    (write,) = (
        each for each in step_action.operations if isinstance(each, Write) and each.path == FSTAB
    )
    return write.after


def test_shm_is_resized_now_and_at_boot_with_its_undo() -> None:
    step_action = planned("128M")
    remount, write = step_action.operations
    assert commands(step_action) == [
        "mount -o remount,nodev,nosuid,rw,size=134217728 -- tmpfs /dev/shm"
    ]
    assert remount.undo[0].argv[2].endswith("size=67108864")  # type: ignore[union-attr, index]
    assert write == Write(FSTAB, None, AS_WANTED)
    assert step_action.diff == "64 MiB → 128 MiB\nsize=128M in /etc/fstab"


def test_what_is_so_already_is_left_alone() -> None:
    assert planned("128M", 128 * MIB, fstab=AS_WANTED).action == "none"
    assert (
        planned("128MiB", 128 * MIB, fstab=AS_WANTED.replace(b"128M", b"131072k")).action == "none"
    )
    assert commands(planned("128M", 128 * MIB)) == []
    assert not [
        each for each in planned("128M", fstab=AS_WANTED).operations if isinstance(each, Write)
    ]


def test_a_share_is_of_this_nodes_memory_and_stays_one_in_fstab() -> None:
    step_action = planned("25%")
    assert commands(step_action) == [
        "mount -o remount,nodev,nosuid,rw,size=268435456 -- tmpfs /dev/shm"
    ]
    assert fstab(step_action) == AS_WANTED.replace(b"128M", b"25%")
    assert planned("25%", 256 * MIB, fstab=AS_WANTED.replace(b"128M", b"25%")).action == "none"
    assert fstab(planned("25%", fstab=AS_WANTED.replace(b"128M", b"256M"))) == AS_WANTED.replace(
        b"128M", b"25%"
    )


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (b"", AS_WANTED),
        (b"# none /dev/shm tmpfs size=1G 0 0", b"# none /dev/shm tmpfs size=1G 0 0\n" + AS_WANTED),
        (b"none /dev/shm tmpfs defaults 0 0\n", b"none /dev/shm tmpfs defaults,size=128M 0 0\n"),
        (
            b"tmpfs\t/dev/shm/ tmpfs noexec,size=1g,mode=1777\n",
            b"tmpfs\t/dev/shm/ tmpfs noexec,mode=1777,size=128M\n",
        ),
        (
            b"a / ext4 x 0 1\r\nshm /dev/shm tmpfs size=1%,size=2m 0 0",
            b"a / ext4 x 0 1\r\nshm /dev/shm tmpfs size=128M 0 0",
        ),
        (
            b"tmpfs /dev/shm2 tmpfs size=1g 0 0\n",
            b"tmpfs /dev/shm2 tmpfs size=1g 0 0\n" + AS_WANTED,
        ),
    ],
)
def test_every_other_byte_of_fstab_stays(line: bytes, after: bytes) -> None:
    assert fstab(planned("128M", fstab=line)) == after


@pytest.mark.parametrize(
    ("size", "written"),
    [
        pytest.param("128M", b"9" * 19, id="bytes"),
        pytest.param("128M", b"9" * 19 + b"g", id="gibibytes"),
        # More digits than int() takes.
        pytest.param("25%", b"9" * 5000 + b"%", id="share"),
    ],
)
def test_a_size_of_very_many_digits_is_replaced(size: str, written: bytes) -> None:
    line = AS_WANTED.replace(b"128M", written)
    assert fstab(planned(size, fstab=line)) == AS_WANTED.replace(b"128M", size.encode())


def test_a_unit_that_somebody_wrote_says_the_same() -> None:
    unit = b"[Mount]\nWhat=tmpfs\nWhere=/dev/shm\nType=tmpfs\nOptions=nosuid,size=%s,nodev\n"
    step_action = planned("128M", fstab=AS_WANTED, unit=unit % b"1G")
    assert step_action.operations[1] == Write(
        UNIT, unit % b"1G", unit.replace(b"size=%s,nodev", b"nodev,size=128M")
    )
    assert commands(step_action)[1:] == ["systemctl daemon-reload"]
    assert planned("128M", 128 * MIB, fstab=AS_WANTED, unit=unit % b"128m").action == "none"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"used": 65 * MIB, "now": 256 * MIB, "size": "64M"},
            "65 MiB of /dev/shm are in use, more than 64 MiB",
        ),
        ({"now": 0}, "without a limit"),
        ({"mount": "1 1 0:5 / /dev rw - devtmpfs udev rw\n"}, "mount -t tmpfs tmpfs /dev/shm"),
        ({"mount": MOUNT.replace("tmpfs tmpfs", "ramfs none")}, "no file system of its own"),
        ({"fstab": 2 * AS_WANTED}, "has 2 lines"),
        ({"unit": b"[Mount]\n"}, "0 lines Options="),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, object], said: str) -> None:
    with pytest.raises(NoPlan, match=said) as refused:
        planned(**{"size": "128M", **how})  # type: ignore[arg-type]
    assert refused.value.absent.reason == "cannot"


@pytest.mark.parametrize(
    "size", ["", "0", "4096", "unlimited", "0%", "101%", "much", "-1G", "50 %", "1G,mode=777"]
)
def test_sizes_that_mean_nothing(size: str) -> None:
    assert [key for key, _ in RESOURCE.wrong({"size": size})] == ["size"]
