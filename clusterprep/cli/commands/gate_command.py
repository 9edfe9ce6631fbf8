"""Runs the user's own command between two batches, on this machine.

It is a line for the shell, as the user wrote it for `--gate`. What nodes it is about is in its
environment, so that no name is put into the line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from clusterprep.model.nodeset import fold

LOOK = 0.1  # seconds between two looks whether it has ended
TERM_LIMIT = 2.0  # seconds between SIGTERM and SIGKILL
KEPT_LINES, KEPT_LINE = 5, 300  # of what it printed, its last lines and the characters of each
# Bytes of one variable of an environment: Linux refuses more than 128 KiB (MAX_ARG_STRLEN).
LONGEST = 100 << 10


class CommandEnd(Struct, frozen=True):
    """How a command ended: its exit code, negative for a signal, and the last lines it printed."""

    code: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """How it ended, in words, and what it printed last."""
        how = f"the command ended with {self.code}"
        if self.code < 0:
            how = f"the command was ended by signal {-self.code}"
        if self.lines:
            how += ":"
        return "\n".join((how, *self.lines))


def names_text(names: Sequence[str]) -> str:
    """Return the names with commas, as `--limit`, clush and pdsh take them.

    Folded, as gpu[01-64], if they are too long for an environment.
    """
    text = ",".join(names)
    return text if len(text) <= LONGEST else fold(names)


def run_command(
    command: str, variables: Mapping[str, str], check: Callable[[], None]
) -> CommandEnd:
    """Run a line in the shell, and return how it ended.

    `check` is called ten times a second and may raise; the command and its children are then ended.
    It reads nothing, and what it prints goes nowhere but to the result.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
        # A session of its own: Ctrl-C is for us to decide about, and its children can be found.
        start_new_session=True,
    )
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    reading = threading.Thread(target=_keep_last, args=(process, lines), daemon=True)
    reading.start()
    try:
        while True:
            check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
                break
    except BaseException:
        _end(process)
        raise
    # What it started and left running may hold the pipe open.
    reading.join(LOOK)
    return CommandEnd(process.returncode, tuple(lines))


def _keep_last(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
    """Keep the last lines that are not empty. A line without an end is cut."""
    if process.stdout is None:
        return
    with process.stdout as source:
        for line in iter(lambda: source.readline(1 << 16), b""):
            text = line.decode("utf-8", "replace").strip()
            if text:
                lines.append(text[:KEPT_LINE])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with all that it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        # On macOS a group that has ended and is not reaped may not be signalled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERM_LIMIT)
