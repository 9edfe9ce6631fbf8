"""Which kernel the boot loader starts next, and how another one becomes that.

grubby (RHEL and its relatives) is told. GRUB and systemd-boot start the newest kernel by default;
where there is no grubby, a setting that says otherwise is reported and stays: it is the site's own.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import Absent, Json, Read
from clusterprep.model.operations import RunCommand

LIMIT = 60.0  # seconds
GRUB = "/etc/default/grub"
# Blocks of 1,024 bytes, with the entry that «GRUB_DEFAULT=saved» means.
SAVED = ("/boot/grub2/grubenv", "/boot/grub/grubenv")
# Where the EFI partition may be mounted.
LOADERS = ("/boot/efi/loader/loader.conf", "/boot/loader/loader.conf", "/efi/loader/loader.conf")
DEFAULT_READS = (
    Read("command", ("grubby", "--default-kernel"), 10.0),
    Read("files", (GRUB, *SAVED, *LOADERS)),
)
_KERNEL = re.compile(r"(/boot(?:/[\w.-]+)*/vmlinuz-)([\w.+~-]+)")
_VERSION = re.compile(r"\d+\.\d+")
_GRUB_DEFAULT = re.compile(r"^\s*GRUB_DEFAULT=[\"']?([^\"'\n]*)", re.MULTILINE)
_SAVED_ENTRY = re.compile(r"^saved_entry=(.*)$", re.MULTILINE)
_LOADER_DEFAULT = re.compile(r"^\s*default\s+(\S+)", re.MULTILINE)


class BootDefault(Struct, frozen=True):
    """What decides about the next boot, each empty where there is none.

    `kernel`: the file that grubby names. `grub` and `loader`: the default entry that the settings
    of GRUB and systemd-boot name.
    """

    kernel: str = ""
    grub: str = ""
    loader: str = ""


def parse_default(grubby: Json, files: Json) -> BootDefault:
    """Return what decides about the next boot, as far as it is known."""
    kernel = ""
    if not isinstance(grubby, Absent) and grubby["code"] == 0:
        kernel = str(grubby["out"]).strip()
        if not _KERNEL.fullmatch(kernel):
            kernel = ""
    if isinstance(files, Absent):
        return BootDefault(kernel)
    grub = _last(_GRUB_DEFAULT, files, (GRUB,))
    if grub == "saved":
        grub = _last(_SAVED_ENTRY, files, SAVED)
    return BootDefault(kernel, grub, _last(_LOADER_DEFAULT, files, LOADERS))


def _last(pattern: re.Pattern[str], files: Json, paths: tuple[str, ...]) -> str:
    """Return what the last match has in these files, which is the one that counts, or nothing."""
    texts = [str(files[path]) for path in paths if path in files]
    matches = pattern.findall("\n".join(texts))
    return str(matches[-1]).strip() if matches else ""


def set_default(default: BootDefault, release: str) -> tuple[RunCommand, ...]:
    """Return the command that has grubby start a kernel, none where it does or is not there."""
    match = _KERNEL.fullmatch(default.kernel)
    if match is None or match[2] == release:
        return ()
    run = _grubby(f"{match[1]}{release}")
    return (replace(run, undo=(_grubby(default.kernel),)),)


def _grubby(kernel: str) -> RunCommand:
    return RunCommand(("grubby", "--set-default", kernel), LIMIT)


def warning(default: BootDefault, release: str) -> str:
    """Return that another kernel may be started, empty where nothing says so."""
    if default.kernel:
        return ""
    if default.grub not in ("", "0"):
        return f"another kernel may be started: the default entry of GRUB is {default.grub}"
    if _VERSION.search(default.loader) and release not in default.loader:
        return f"another kernel may be started: that of systemd-boot is {default.loader}"
    return ""
