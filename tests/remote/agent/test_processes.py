"""Processes are ended by what they are and not by their number, which another may have by now."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.remote.agent import processes
from clusterprep.remote.agent.processes import (
    MARK,
    descendants,
    exit_code,
    identified,
    is_alive,
    send_signal,
)
from tests.support.surroundings import login_home

REPOSITORY = Path(__file__).resolve().parents[3]
OLD_PYTHONS = sorted(login_home().glob(".pyenv/versions/3.6.*/bin/python"))

# In a process namespace of its own: a number is given again to another process, between the look
# and the signal.
REUSE = """
import os, subprocess, sys, time
sys.path.insert(0, {agent!r})
sys.dont_write_bytecode = True
import types
for name in ("clusterprep", "clusterprep.remote", "clusterprep.remote.agent"):
    sys.modules[name] = types.ModuleType(name)
import processes
environment = dict(os.environ)
environment[processes.MARK] = "mark"
ours = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
end = time.time() + 10
while not processes.descendants("mark", []) and time.time() < end:
    time.sleep(0.01)
seen = processes.descendants("mark", [ours.pid])
ours.kill()
ours.wait()
time.sleep(0.05)  # the start of a process is counted in hundredths of a second
while True:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(ours.pid - 1))
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    if other.pid == ours.pid:
        break
    other.kill()
    other.wait()
for process in seen:
    processes.send_signal(process)
time.sleep(0.3)
print(len(seen), other.poll(), sys.version_info[:2])
other.kill()
"""


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes process namespaces")
@pytest.mark.parametrize("python", [sys.executable, *map(str, OLD_PYTHONS)])
def test_a_process_that_has_the_number_of_another_is_not_killed(python: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    script = REUSE.format(agent=str(REPOSITORY / "clusterprep/remote/agent"))
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", python, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("1 None"), done.stdout + done.stderr


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, MARK: "of-this-test"}, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def wait_for_end(child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 10
    while exit_code(child) is None and time.monotonic() < end:
        time.sleep(0.01)


def test_what_bears_the_mark_or_is_of_the_session_is_found_and_ended(
    child: subprocess.Popen[bytes],
) -> None:
    end = time.monotonic() + 10
    while not descendants("of-this-test", []) and time.monotonic() < end:
        time.sleep(0.01)
    process = identified(child.pid)
    assert descendants("of-this-test", []) == descendants("no mark", [child.pid]) == [process]
    assert is_alive(process)
    send_signal(process)
    wait_for_end(child)
    assert not is_alive(process)


@pytest.mark.parametrize("pidfd", [True, False])
def test_only_the_process_that_was_seen_gets_the_signal(
    child: subprocess.Popen[bytes], pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel or Python has no descriptors of processes."""
    if not pidfd:
        monkeypatch.setattr(processes, "_open_descriptor", None)
    pid, started = identified(child.pid)
    send_signal((pid, started - 1))
    send_signal((1 << 22, 1))
    time.sleep(0.1)
    assert exit_code(child) is None
    send_signal((pid, started), signal.SIGTERM)
    wait_for_end(child)
    assert exit_code(child) == -signal.SIGTERM


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9)])
def test_the_number_of_a_child_stays_its_own_after_its_end(script: str, code: int) -> None:
    child = subprocess.Popen(["sh", "-c", script])
    wait_for_end(child)
    assert exit_code(child) == code
    assert processes.process_stat(child.pid)[0] == "Z"
    assert child.wait() == code
    assert exit_code(child) == code
