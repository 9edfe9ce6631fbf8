"""Tries mutants, some at a time, each in a copy of the checkout of its own."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "shared", "build", "dist", "*.egg-info")
PATIENCE = 4  # times the CPU that the tests need without a mutant, and so many seconds besides


@dataclass(frozen=True)
class Attempt:
    """A file with another text (None: as it is), the tests to run, their limit in CPU seconds."""

    path: str
    text: str | None
    tests: tuple[str, ...]
    limit: float


@dataclass(frozen=True)
class Trial:
    """How an attempt ended: `alive` if all tests passed, `killed` by a test, or `timed out`."""

    outcome: str
    by: str
    seconds: float
    said: str


Tries = Callable[[Sequence[Attempt]], Iterator[Trial]]


class Worker:
    """A process that tries mutants in its copy of the checkout."""

    def __init__(self, folder: Path) -> None:
        copy, temporary = folder / "checkout", folder / "tmp"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
        temporary.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.worker", folder],
            cwd=copy,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tried(self, attempt: Attempt) -> Trial:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(vars(attempt)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that tries mutants ended with {self._process.wait()}")
        return Trial(**json.loads(answer))

    def close(self) -> None:
        with self._process:
            assert self._process.stdin
            self._process.stdin.close()


@contextmanager
def workers(count: int) -> Iterator[Tries]:
    """Give a function that tries many, `count` at a time, and yields the trials in order."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(count) as pool,
    ):
        Path(folder).chmod(0o755)  # tests become another user, who must get to their folders
        free: queue.Queue[Worker] = queue.Queue()
        all_of_them = []
        for number in range(count):
            place = Path(folder, str(number))
            place.mkdir()
            all_of_them.append(Worker(place))
            free.put(all_of_them[-1])

        def one(attempt: Attempt) -> Trial:
            worker = free.get()
            try:
                return worker.tried(attempt)
            finally:
                free.put(worker)

        try:
            yield lambda attempts: pool.map(one, attempts)
        finally:
            for worker in all_of_them:
                worker.close()


def limit(seconds: float) -> float:
    """CPU seconds for a mutant whose tests need so many without it."""
    return PATIENCE * (seconds + 1)
