"""The few Linux system calls of the lab that Python 3.11 does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

CAP_SYS_MODULE = 16
CAP_SYS_TIME = 25

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace behind an open ``/proc/PID/ns/...`` descriptor."""
    _checked(_libc.setns(descriptor, kind), f"setns({kind:#x})")


@contextlib.contextmanager
def in_net(net: int) -> Iterator[None]:
    """Be in another network namespace for a while: this thread, and what it starts."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    setns(net, CLONE_NEWNET)
    try:
        yield
    finally:
        setns(own, CLONE_NEWNET)
        os.close(own)


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount; ``kind`` is the file system type, empty for binds and changes of flags."""
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        f"mount {source!s} on {target!s} ({kind or hex(flags)}, {data})",
    )


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Show ``source`` at ``target`` too."""
    mount(source, target, flags=MS_BIND)
    if read_only:
        # The flag is honoured only when a bind mount is changed, not when it is made.
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter_root(root: Path) -> None:
    """Make ``root`` the root of this mount namespace and let go of the old one."""
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[platform.machine()]
    _checked(_libc.syscall(number, b".", b"."), f"pivot_root {root}")
    # Both roots now lie at "/", the old one on top (pivot_root(2), NOTES).
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends, however it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PDEATHSIG)")


def give_up_capability(number: int) -> None:
    """Take one capability from everything this process will execute."""
    _checked(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"prctl(CAPBSET_DROP, {number})")
