"""The children of the process that runs the tests."""

from __future__ import annotations

from pathlib import Path


def own_children() -> set[int]:
    """Return the pids of all children, zombies too, as proc_pid_task_children(5) lists them.

    Other tests may have children that still run, so that a test compares them before and after.
    """
    pids: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        pids.update(map(int, listed.read_text().split()))
    return pids
