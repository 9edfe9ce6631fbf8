"""Run a ProxyCommand: a local program whose stdin and stdout are the connection."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess

from clusterprep.errors import Unreached
from clusterprep.remedies import sentence

END_LIMIT = 0.5  # seconds for the kernel to end the program after SIGKILL


class ProxyStream:
    """One end of a socket pair whose other end is the program's stdin and stdout."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._program = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = ours
        self.recv = ours.recv
        self.send = ours.send
        self.settimeout = ours.settimeout

    def shutdown(self, how: int) -> None:
        """End the program, which keeps its process number until `close`."""
        # On macOS a group that has ended and is not reaped may not be signalled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, signal.SIGKILL)
        self._socket.shutdown(how)

    def close(self) -> None:
        """Free the socket and the process number of the program. Comes after `shutdown`."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(END_LIMIT)


def run_proxy(command: str) -> ProxyStream:
    """Start the command. Raises Unreached if no shell can start it."""
    try:
        return ProxyStream(command)
    except OSError as error:
        message = f"ProxyCommand cannot be started: {error}"
        raise Unreached("no_banner", message, sentence("see ssh_config")) from error
