"""A Python that the controller runs in as on macOS, as far as Linux can stand in for it.

`sys.platform` says darwin, what only Linux has is gone from the modules, nothing below /proc and
/sys can be opened, and calls that macOS refuses are refused. Children of Python are the same: they
are started with `sys.executable`, which is the script that `write_python` wrote.

What no stand-in shows: macOS's own kernel, file systems and resolver.
"""

from __future__ import annotations

import errno
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What the modules have on Linux and not on macOS, with Python 3.10 to 3.13.
LINUX_ONLY = {
    "os": """
        copy_file_range eventfd eventfd_read eventfd_write getrandom getresgid getresuid getxattr
        listxattr memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate
        removexattr sched_getaffinity sched_getparam
        sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam
        sched_setscheduler setns setresgid setresuid setxattr splice timerfd_create unshare waitid
        O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE P_PIDFD POSIX_FADV_DONTNEED
        POSIX_FADV_SEQUENTIAL SCHED_BATCH SCHED_IDLE SCHED_RESET_ON_FORK
    """,
    "select": "epoll",
    "time": "CLOCK_BOOTTIME CLOCK_TAI clock_settime pthread_getcpuclockid",
    "signal": """
        SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait
        sigwaitinfo
    """,
    "socket": """
        AF_ALG AF_CAN AF_NETLINK AF_PACKET AF_TIPC AF_VSOCK IP_MTU_DISCOVER IP_PMTUDISC_DO
        MSG_CMSG_CLOEXEC MSG_CONFIRM MSG_ERRQUEUE MSG_MORE SO_BINDTODEVICE SO_DOMAIN SO_MARK
        SO_PASSCRED SO_PEERCRED SO_PRIORITY SO_PROTOCOL SOCK_CLOEXEC SOCK_NONBLOCK TCP_CORK
        TCP_DEFER_ACCEPT TCP_INFO TCP_KEEPIDLE TCP_LINGER2 TCP_QUICKACK TCP_SYNCNT
        TCP_USER_TIMEOUT TCP_WINDOW_CLAMP
    """,
    "fcntl": """
        F_ADD_SEALS F_GETLEASE F_GETPIPE_SZ F_GET_SEALS F_NOTIFY F_OFD_GETLK F_OFD_SETLK
        F_OFD_SETLKW F_SETLEASE F_SETPIPE_SZ
    """,
    "resource": """
        RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD
        prlimit
    """,
}
OF_LINUX = ("/proc/", "/sys/")
OPENING = ("open", "os.listdir", "os.scandir")
OPEN_FILES, MOST_OPEN_FILES = 256, 10240


def stand_in(executable: str) -> None:
    """Make this process one of macOS, whose children are started by `executable`."""
    sys.platform = "darwin"
    sys.executable = executable
    wait = os.waitid
    keep_alive = _keep_alive_number()
    for name, words in LINUX_ONLY.items():
        module = importlib.import_module(name)
        for word in words.split():
            _remove(module, word)
    _remove(importlib.import_module("posix"), "waitid")
    importlib.import_module("socket").TCP_KEEPALIVE = keep_alive
    sys.modules["_scproxy"] = _no_proxies()
    _limit_open_files()
    _refuse_groups_that_ended(wait)
    sys.addaudithook(_refuse)


def _keep_alive_number() -> int:
    """Return the option of Linux that does what TCP_KEEPALIVE does on macOS."""
    import socket

    return socket.TCP_KEEPIDLE


def _remove(module: ModuleType, name: str) -> None:
    if hasattr(module, name):
        delattr(module, name)


def _no_proxies() -> ModuleType:
    """Return the module that urllib asks for the proxies of macOS."""
    module: Any = ModuleType("_scproxy")
    module._get_proxy_settings = dict
    module._get_proxies = dict
    return module  # type: ignore[no-any-return]


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to open what only Linux has, and to find a function that only its C library has."""
    if event == "ctypes.dlsym" and arguments[1] == "mallopt":
        raise AttributeError("dlsym: symbol not found")
    if event not in OPENING or not isinstance(arguments[0], (str, os.PathLike)):
        return
    path = os.fspath(arguments[0])
    if isinstance(path, str) and f"{path}/".startswith(OF_LINUX):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)


def _limit_open_files() -> None:
    """Begin with the limits of a login on macOS, and refuse what its kernel refuses."""
    import resource

    state = {resource.RLIMIT_NOFILE: (OPEN_FILES, resource.RLIM_INFINITY)}
    get, put = resource.getrlimit, resource.setrlimit

    def getrlimit(which: int) -> tuple[int, int]:
        return state.get(which) or get(which)

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        if which == resource.RLIMIT_AS or (which in state and limits[0] > MOST_OPEN_FILES):
            raise ValueError("current limit exceeds maximum limit")
        if which in state:
            state[which] = limits
        else:
            put(which, limits)

    resource.getrlimit, resource.setrlimit = getrlimit, setrlimit


def _refuse_groups_that_ended(wait: Any) -> None:
    """Refuse signals to a process group whose leader has ended and is not reaped."""
    kill = os.killpg
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT

    def killpg(group: int, number: int) -> None:
        try:
            has_ended = wait(os.P_PID, group, options) is not None
        except ChildProcessError:
            has_ended = False
        if has_ended:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        kill(group, number)

    os.killpg = killpg


# ---------------------------------------------------------------- the interpreter

_SCRIPT = """#!{python}
import select
del select.epoll  # before other modules look whether it is there
import sys
sys.path.insert(0, {root!r})
from tests.support import macos
macos.stand_in(__file__)
macos.run(sys.argv[1:])
"""


def write_python(folder: Path) -> Path:
    """Write the interpreter into a folder, and return its path."""
    path = folder / "python-of-macos"
    path.write_text(_SCRIPT.format(python=sys.executable, root=str(ROOT)))
    path.chmod(0o755)
    return path


def run(words: Sequence[str]) -> None:
    """Do what Python does with these arguments: `[-I] -m MODULE …` or `[-I] -c TEXT …`."""
    remaining = [word for word in words if word != "-I"]
    kind, what, *arguments = remaining
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
