"""Run commands in forked processes, and send them signals at one event of their run.

    python -m tests.support.signal_points
    python -m tests.support.signal_points FOLDER MOMENT WORD…

The second form runs one command in this process, with a moment given as JSON. The first one reads
one request as a JSON object per line and answers with one: the exit code, stdout, stderr and the
number of events. An event is a call of a Python function in the thread that runs the command,
so the moments of a run are counted and do not depend on how busy the machine is. The process that
forks has imported what commands need, which makes a run cheap.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

COMMAND_THREAD = "command"
LIMIT = 60.0  # seconds for one run
NOTED = 0.02  # seconds after a signal in which the main thread takes it


@dataclass(frozen=True)
class Moment:
    """What is sent at event `at` of a run: names of signals, with seconds between them."""

    at: int = 0
    signals: tuple[str, ...] = ()
    gap: float = 0.0
    ignored: tuple[str, ...] = ()  # when the command starts


@dataclass(frozen=True)
class Run:
    """What a command said, how it ended, and how many events it had."""

    code: int
    out: str
    err: str
    events: int
    seconds: float


class Player:
    """A process that forks one process for each run of a command."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.signal_points"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def run(self, words: Sequence[str], moment: Moment = Moment()) -> Run:
        assert self._process.stdin
        assert self._process.stdout
        request = {"words": list(words), "moment": asdict(moment)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self.close()
            raise RuntimeError("the process that forks has ended; its stderr says why")
        return Run(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


# ---------------------------------------------------------------- the process that forks


def serve() -> None:
    """Answer requests until stdin ends."""
    _import_all()
    for line in sys.stdin:
        request = json.loads(line)
        moment = Moment(**request["moment"])
        print(json.dumps(_forked(request["words"], moment)), flush=True)


# Run in training scripts, and with an SDK that is not always installed.
ELSEWHERE = ("clusterprep.guard", "clusterprep.cli.mcp.server")


def _import_all() -> None:
    """Import everything that a command may import, so that every run has the same events."""
    import clusterprep

    for entry in pkgutil.walk_packages(clusterprep.__path__, "clusterprep."):
        is_elsewhere = ".remote.agent." in entry.name or entry.name in ELSEWHERE
        if not is_elsewhere and not entry.name.endswith("__main__"):
            importlib.import_module(entry.name)


def _forked(words: Sequence[str], moment: Moment) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="signals-") as name:
        folder = Path(name)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(folder, words, moment)
        code = _exit_code(child)
        return {
            "code": code,
            "out": (folder / "out").read_text(),
            "err": (folder / "err").read_text(),
            "events": int((folder / "events").read_text() or "0"),
            "seconds": round(time.monotonic() - began, 3),
        }


def _exit_code(child: int) -> int:
    """Return the exit code of a process; negative for a signal, -9 past LIMIT."""
    end = time.monotonic() + LIMIT
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def _run(folder: Path, words: Sequence[str], moment: Moment) -> None:
    """Become a command in a session of its own. Never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(folder / "out", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open(folder / "err", os.O_WRONLY | os.O_CREAT), 2)
    (folder / "events").touch()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for ignored in moment.ignored:
        signal.signal(signal.Signals[ignored], signal.SIG_IGN)
    sys.argv = ["clusterprep", *words]
    from clusterprep.__main__ import main

    try:
        _Counter(folder, moment).start()
        main()
    except BaseException:  # noqa: BLE001 - the interpreter would print it as well
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(99)


class _Counter:
    """Counts events, and sends the signals at the one that was asked for."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        self._folder = folder
        self._moment = moment
        self._count = 0

    def start(self) -> None:
        threading.setprofile(self._begin_thread)
        sys.setprofile(self._note)

    def _begin_thread(self, frame: FrameType, event: str, value: object) -> None:
        is_command = threading.current_thread().name == COMMAND_THREAD
        sys.setprofile(self._note if is_command else None)

    def _note(self, frame: FrameType, event: str, value: object) -> None:
        if event != "call":
            return
        self._count += 1
        if self._count == self._moment.at:
            self._send()
        if frame.f_code.co_name == "leave":
            (self._folder / "events").write_text(str(self._count))

    def _send(self) -> None:
        for number, name in enumerate(self._moment.signals):
            if number:
                time.sleep(self._moment.gap)
            os.kill(os.getpid(), signal.Signals[name])
        time.sleep(NOTED)


def run_once(folder: str, moment: str, *words: str) -> None:
    """Run one command here. The number of its events is in FOLDER/events."""
    sys.argv = ["clusterprep", *words]
    from clusterprep.__main__ import main

    _Counter(Path(folder), Moment(**json.loads(moment))).start()
    main()


if __name__ == "__main__":
    if sys.argv[1:]:
        run_once(*sys.argv[1:])
    else:
        serve()
