"""Run commands on the lab's controller, with the memory of each, or many in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.soak.verdict import Told
from tests.support.command import CLI
from tests.support.lab import Lab

LIMIT = 180.0  # seconds after which a command counts as one that does not end
TOKEN = "CLUSTERPREP_SOAK"  # in the environment of all that a command starts


@dataclass(frozen=True)
class Place:
    """Where the output of a command goes, and its own folder for temporary files."""

    out: Path
    err: Path
    scratch: Path

    @classmethod
    def below(cls, folder: Path) -> Place:
        scratch = folder / "tmp"
        scratch.mkdir(exist_ok=True)
        return cls(folder / "out", folder / "err", scratch)

    def environment(self, token: str) -> dict[str, str]:
        return {TOKEN: token, "TMPDIR": str(self.scratch)}

    def told(self, code: int, killed: bool) -> Told:
        try:
            report = json.loads(self.out.read_text())
        except ValueError:
            report = None
        return Told(code, report, self.err.read_text(), killed)


class Running(Protocol):
    """A command that was started; `ended` is set when it has."""

    pid: int
    ended: threading.Event

    def wait(self) -> Told: ...


class OwnProcess:
    """A command as a process; `peak` is the most memory that it had, in KiB, once it has ended."""

    def __init__(self, lab: Lab, place: Place, token: str, words: Sequence[str]) -> None:
        self._place, self.peak, self.ended = place, 0, threading.Event()
        with place.out.open("w") as out, place.err.open("w") as err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self._process = lab.controller.popen(
                [*CLI, *words], env=place.environment(token), **streams
            )
        self.pid = self._process.pid

    def wait(self) -> Told:
        guard = threading.Timer(LIMIT, os.killpg, (self.pid, signal.SIGKILL))
        guard.daemon = True
        guard.start()
        _, status, used = os.wait4(self.pid, 0)  # and not Popen's own, which forgets the memory
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        overdue = not guard.is_alive()
        guard.cancel()
        self.ended.set()
        self.peak = used.ru_maxrss
        return self._place.told(code, killed=code == -signal.SIGKILL and not overdue)


class Resident:
    """One process that runs one command after the other (`tests.soak.resident`)."""

    def __init__(self, lab: Lab, place: Place, token: str) -> None:
        self._place, pipe = place, subprocess.PIPE
        argv = [sys.executable, "-m", "tests.soak.resident"]
        self._process = lab.controller.popen(
            argv, env=place.environment(token), stdin=pipe, stdout=pipe
        )
        self.pid = self._process.pid
        self.ended = threading.Event()

    def start(self, words: Sequence[str]) -> Resident:
        assert self._process.stdin is not None
        self.ended = threading.Event()
        row = {"words": list(words), "out": str(self._place.out), "err": str(self._place.err)}
        self._process.stdin.write(json.dumps(row) + "\n")
        self._process.stdin.flush()
        return self

    def wait(self) -> Told:
        assert self._process.stdout is not None
        guard = threading.Timer(LIMIT, self._process.kill)
        guard.daemon = True
        guard.start()
        answer = self._process.stdout.readline()
        guard.cancel()
        self.ended.set()
        return self._place.told(int(answer or -1), killed=False)

    def close(self) -> None:
        with self._process:
            self._process.communicate(timeout=30)
