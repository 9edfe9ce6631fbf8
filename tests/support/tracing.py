"""Real strace on a host of the lab.

It watches or spoils the calls that a process and its children make.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.lab import Host


@contextlib.contextmanager
def strace(host: Host, *options: str) -> Iterator[None]:
    """Everything that sshd on this host starts meanwhile."""
    with subprocess.Popen(["strace", "-f", "-qq", *options, "-p", str(host.pid)]) as tracer:
        end = time.monotonic() + 10
        while "TracerPid:\t0\n" in Path(f"/proc/{host.pid}/status").read_text():
            assert tracer.poll() is None, "strace may not watch here"
            assert time.monotonic() < end
            time.sleep(0.01)
        try:
            yield
        finally:
            tracer.terminate()
