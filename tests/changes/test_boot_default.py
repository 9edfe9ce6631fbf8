"""The kernel of the next boot, as grubby, GRUB and systemd-boot have it.

The files are those of RHEL 9 (grubby prints a path), Debian 12, SLES 15 (GRUB_DEFAULT=saved with an
empty block), and of kernel-install for systemd-boot, reduced to the lines that matter.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.boot_default import (
    GRUB,
    LOADERS,
    SAVED,
    BootDefault,
    parse_default,
    set_default,
    warning,
)
from clusterprep.model import Absent

NEW = "6.8.0-45-generic"
NO_GRUBBY = Absent("missing_tool")


def grubby(out: str, code: int = 0) -> dict[str, Any]:
    return {"code": code, "out": out, "err": ""}


def test_grubby_is_told_and_told_back() -> None:
    default = parse_default(grubby("/boot/vmlinuz-5.14.0-1.el9.x86_64\n"), {})
    (run,) = set_default(default, "5.14.0-2.el9.x86_64")
    assert run.argv == ("grubby", "--set-default", "/boot/vmlinuz-5.14.0-2.el9.x86_64")
    (undo,) = run.undo or ()
    assert undo.argv == ("grubby", "--set-default", "/boot/vmlinuz-5.14.0-1.el9.x86_64")
    assert set_default(default, "5.14.0-1.el9.x86_64") == ()
    assert warning(default, "5.14.0-2.el9.x86_64") == ""


@pytest.mark.parametrize(
    "answer",
    [NO_GRUBBY, grubby("", 1), grubby("the param /boot/vmlinuz is wrong\n"), grubby("/tmp/x\n")],
)
def test_what_grubby_does_not_name_is_not_set(answer: Any) -> None:
    default = parse_default(answer, {GRUB: "GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\n"})
    assert set_default(default, NEW) == ()
    assert warning(default, NEW) == ""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ""),
        ({GRUB: "GRUB_DEFAULT=saved\n", SAVED[0]: "# GRUB Environment Block\n####"}, ""),
        (
            {GRUB: "GRUB_DEFAULT=saved\n", SAVED[1]: "# GRUB\nsaved_entry=1>2\n###"},
            "the default entry of GRUB is 1>2",
        ),
        ({GRUB: '# GRUB_DEFAULT=3\nGRUB_DEFAULT="1>4"\n'}, "the default entry of GRUB is 1>4"),
        ({LOADERS[0]: "timeout 3\ndefault 0a1b-*\n"}, ""),
        ({LOADERS[1]: "default 0a1b-6.8.0-45-generic.conf\n"}, ""),
        (
            {LOADERS[1]: "default 0a1b-5.15.0-1-generic.conf\n"},
            "that of systemd-boot is 0a1b-5.15.0-1-generic.conf",
        ),
    ],
)
def test_a_setting_for_another_kernel_is_said(files: dict[str, str], expected: str) -> None:
    said = warning(parse_default(NO_GRUBBY, files), NEW)
    assert said.endswith(expected)
    assert bool(said) == bool(expected)


def test_settings_that_are_not_known_say_nothing() -> None:
    assert parse_default(NO_GRUBBY, Absent("denied")) == BootDefault()
