"""Swap: which areas are switched off, what fstab has afterwards, and where it is refused."""

from __future__ import annotations

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.swap import (
    AREAS,
    FSTAB,
    OFF,
    RESOURCE,
    SwapArea,
    parse_areas,
    without_swap,
)
from clusterprep.facts.memory import FREE, FreeMemory
from clusterprep.model.operations import RunCommand, StepAction, Write
from tests.changes.resources.planned import commands, step_actions

GIB = 1 << 30
# fstab of Ubuntu 22.04 with its installer's file, as it is there.
UBUNTU = b"""# /etc/fstab: static file system information.
UUID=5f2c1b6e-8d7c-4e0b-9d51-0c2f4d3e6a01 /               ext4    errors=remount-ro 0       1
/swapfile                                 none            swap    sw              0       0
/dev/disk/by-id/dm-name-swap none swap sw 0 0
#/dev/sdb2 none swap sw 0 0
/data/swap /data ext4 defaults 0 2"""


def planned(*areas: SwapArea, free: int = 64 * GIB, fstab: bytes = b"") -> StepAction:
    facts = {AREAS.name: areas, FREE.name: FreeMemory(128 * GIB, free)}
    (action,) = step_actions(RESOURCE, {"state": "off"}, facts, {FSTAB: fstab})
    return action


def test_areas_are_switched_off_and_come_back_with_their_priority() -> None:
    action = planned(SwapArea("/dev/sda2", 0, -2), SwapArea("/swap file", GIB, 10))
    assert commands(action) == ["swapoff -- /dev/sda2", "swapoff -- /swap file"]
    undone = [
        run.undo[0].argv for run in action.operations if isinstance(run, RunCommand) and run.undo
    ]
    assert undone == [("swapon", "--", "/dev/sda2"), ("swapon", "-p", "10", "--", "/swap file")]


def test_fstab_keeps_every_other_byte() -> None:
    (write,) = planned(fstab=UBUNTU).operations
    assert isinstance(write, Write)
    assert write.after is not None
    assert write.after.count(OFF) == 2
    assert write.after.replace(OFF, b"") == UBUNTU
    assert without_swap(write.after) == write.after
    assert planned(fstab=b"proc /proc proc defaults 0 0\n").action == "none"


@pytest.mark.parametrize(
    ("area", "free", "why"),
    [
        (SwapArea("/dev/sda2", 8 * GIB, -2), 8 * GIB, "8 GiB are in swap"),
        (SwapArea("/swap (deleted)", 0, -2), 64 * GIB, "only a reboot"),
        (SwapArea("/dev/zram0", 0, 100), 64 * GIB, "made again at every boot"),
    ],
)
def test_what_cannot_go_is_refused(area: SwapArea, free: int, why: str) -> None:
    with pytest.raises(NoPlan, match=why):
        planned(area, free=free)


def test_what_the_kernel_says() -> None:
    text = (
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/dev/dm-1                               partition\t1003516\t\t1024\t\t-2\n"
        "/swap\\040file                           file\t\t2097148\t\t0\t\t10\n"
    )
    assert parse_areas(text) == (
        SwapArea("/dev/dm-1", 1 << 20, -2),
        SwapArea("/swap file", 0, 10),
    )
    assert parse_areas(None) == ()
