"""Commands whose whole process group ends with their time limit, so that no pipe stays open."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class CommandFailed(subprocess.CalledProcessError):
    """The standard error, which also says what the command said."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout}{self.stderr}"


# A command gets them as from a terminal, also where the tests were started by nohup, which ignores
# some for good.
_SIGNALS = ("env", "--default-signal", "--")
_UMASK = 0o022
_COLLECTED = 5  # seconds that nsenter has to collect a child that was killed


def default_signals() -> None:
    """Let every signal do to this process what the kernel does by default."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def default_limits() -> None:
    """Give this process and its children the mask of signals, umask and open files of hosts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(_UMASK)
    raise_open_files()


def raise_open_files() -> None:
    """Let this process, and what it starts, open as many files as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def popen(argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a command in a session of its own; text in and out unless ``options`` say otherwise."""
    full: dict[str, Any] = {
        "text": True,
        "errors": "replace",
        "start_new_session": True,
        "umask": _UMASK,
    } | options
    process: subprocess.Popen[str] = subprocess.Popen(
        [*_SIGNALS, *(str(word) for word in argv)], **full
    )
    return process


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    check: bool,
    env: Mapping[str, str],
    input: str | None = None,  # subprocess.run's own name
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run with captured text; ``check`` raises CommandFailed."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(argv, env=env, cwd=cwd, **pipes) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            kill_group(process)
            raise
    done = subprocess.CompletedProcess(list(argv), process.returncode, out, err)
    if check and done.returncode:
        raise CommandFailed(done.returncode, done.args, out, err)
    return done


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a command and everything that it started in its session.

    A command on a host is the child of a nsenter outside it. Were both killed at once, the child
    would be left to whatever collects the orphans of this machine, which may do so late or never,
    and the host would show a zombie. So nsenter is left to collect it, and ends with it.
    """
    if _comm(process.pid) == "nsenter":
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_COLLECTED)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
