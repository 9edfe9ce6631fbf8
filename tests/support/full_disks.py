"""Small file systems of their own that a test can fill, and what their files have besides bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
NOBODY = 65534
# Of posix_acl_xattr.h: tag, permissions and id of an entry.
OWNER, USER, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
NO_ID = 0xFFFFFFFF
KILOBYTES = 2048


@contextlib.contextmanager
def mounted(kind: str, at: Path) -> Iterator[Path]:
    """A new file system of this kind, ext4 or tmpfs, of some 2 MiB; skips where it cannot be."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    at.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"mode=755,size={KILOBYTES}k", "tmpfs", str(at)]
    if kind == "ext4":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("needs mkfs.ext4")
        image = at.with_suffix(".image")
        image.write_bytes(bytes(4 * KILOBYTES << 10))
        subprocess.run(["mkfs.ext4", "-q", "-J", "size=1", str(image)], check=True)
        argv = ["mount", "-o", "loop", str(image), str(at)]
    if subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip(f"no {kind} can be mounted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def fill(folder: Path) -> Path:
    """Fill a file system up to its last byte, root's own reserve included; return what does."""
    ballast = folder / "ballast"
    for size in (1 << 16, 1 << 12, 1):
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as sink:
            while sink.write(b"x" * size):
                pass
    with pytest.raises(OSError, match="No space"):
        (folder / "one more").write_bytes(b"x" * 4096)
    (folder / "one more").unlink(missing_ok=True)
    return ballast


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """An access control list as the kernel takes it, of (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def without_nobody() -> bytes:
    """All may read but one user, who may nothing."""
    return access_list(
        (OWNER, 6, NO_ID),
        (USER, 0, NOBODY),
        (GROUP, 4, NO_ID),
        (MASK, 4, NO_ID),
        (OTHERS, 4, NO_ID),
    )


def for_nobody() -> bytes:
    """One user may read and write, and others nothing."""
    return access_list(
        (OWNER, 7, NO_ID),
        (USER, 7, NOBODY),
        (GROUP, 5, NO_ID),
        (MASK, 7, NO_ID),
        (OTHERS, 0, NO_ID),
    )


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}
