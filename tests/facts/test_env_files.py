"""The files of each target, and which of them only root has to read."""

from __future__ import annotations

import pytest

from clusterprep.facts.env_files import (
    PAM_FILE,
    PODMAN_CONF,
    PROFILE,
    READ_BY_USER,
    TARGETS,
    files_of,
    is_ours,
    written_files,
)
from clusterprep.model import Inventory

UNIT_FILE = "/etc/systemd/system/train@.service.d/zz-clusterprep.conf"


def inventory(*targets: str) -> Inventory:
    return Inventory("test", (), env_targets=targets, env_units=("train@.service",))


def test_every_target_owns_files_and_systemd_one_for_each_unit() -> None:
    for target in TARGETS:
        assert files_of(target, inventory(target)), target
    assert files_of("systemd", inventory("systemd")) == (UNIT_FILE,)
    assert set(READ_BY_USER) < set(TARGETS)


def test_what_is_written_is_what_the_targets_name() -> None:
    assert written_files(inventory("profile.d", "systemd")) == {
        PROFILE: "profile.d",
        UNIT_FILE: "systemd",
    }


@pytest.mark.parametrize(
    ("path", "targets", "ours"),
    [
        (PROFILE, ("nccl.conf",), True),
        (PODMAN_CONF, (), True),
        (UNIT_FILE, (), True),
        ("/etc/systemd/system/train@.service.d/mine.conf", ("systemd",), False),
        (PAM_FILE, ("ssh",), True),
        (PAM_FILE, ("profile.d",), False),
        ("/etc/profile.d/site.sh", ("profile.d",), False),
        (None, ("profile.d",), False),
    ],
)
def test_whose_a_file_is(path: str | None, targets: tuple[str, ...], ours: bool) -> None:
    assert is_ours(path, inventory(*targets)) is ours
