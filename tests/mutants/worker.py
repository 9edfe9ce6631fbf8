"""Tries mutants in a copy of the checkout, where it is started: for each a line of JSON in and out.

Each is tried in a child made by fork, for which pytest is imported already and nothing of ours is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.fence import write_only_below

MEMORY = 4 << 30  # bytes of address space: what collects without end fails before the machine swaps
WAIT = 300  # seconds by the clock for what waits without computing; no test takes a tenth of it
MARKS = "not hosts and not torch and not machine and not clock and not slow"
# The warning is about what is imported here already.
QUIET = "ignore::pytest.PytestAssertRewriteWarning"
WORDS = ["-x", "-q", "-W", QUIET, "-p", "no:cacheprovider", "-o", "timeout=0", "-m", MARKS]
SAID = Path("said.txt")
# Imported before the fork, as each child needs them.
ONCE = ("hypothesis", "yaml", "jsonschema", "packaging.version", "ClusterShell.NodeSet", "click")


def main(folder: str) -> None:
    write_only_below([Path(folder), Path("/dev")])
    for name in ONCE:
        importlib.import_module(name)
    stamp = int(time.time())
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        answer = tried(asked, stamp + number)
        print(json.dumps(answer), flush=True)


def tried(asked: dict[str, Any], stamp: int) -> dict[str, Any]:
    """Try a text in place of a file. Returns how its tests ended, by which test, in CPU seconds."""
    path = Path(asked["path"])
    before = path.read_bytes(), path.stat()
    if asked["text"] is not None:
        path.write_text(asked["text"], encoding="utf-8")
        # Compiled code is taken for that of a file of the same size and second.
        os.utime(path, (stamp, stamp))
    try:
        return _ended(asked["tests"], asked["limit"])
    finally:
        path.write_bytes(before[0])
        os.utime(path, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))


def _ended(tests: list[str], limit: float) -> dict[str, Any]:
    child = os.fork()
    if not child:
        _run(tests, limit)
    status, usage = _waited(child)
    said = SAID.read_text(encoding="utf-8", errors="replace")
    seconds = usage.ru_utime + usage.ru_stime
    by = next((line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    return {"outcome": outcome(status), "by": by, "seconds": seconds, "said": said[-2000:]}


def outcome(status: int) -> str:
    """Return what the exit status of pytest says of a mutant whose tests pass without it."""
    if os.WIFSIGNALED(status):
        return "timed out" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
    return "killed" if os.WEXITSTATUS(status) else "alive"


def _run(tests: list[str], limit: float) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with SAID.open("wb") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        code = int(pytest.main([*WORDS, *tests]))
    except BaseException:  # noqa: BLE001 - a mutant may raise anything, and the child must not live on
        traceback.print_exc()
        code = pytest.ExitCode.INTERNAL_ERROR
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(child: int) -> tuple[int, resource.struct_rusage]:
    """Wait for the child and end what it left behind."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
    else:
        os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status, usage


if __name__ == "__main__":
    main(*sys.argv[1:])
