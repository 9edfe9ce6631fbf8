"""A `clusterprep watch` that runs on the lab's controller, and what it tells."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.support.command import CLI
from tests.support.lab import Lab
from tests.support.lab.processes import kill_group

PATIENCE = 90.0  # seconds for what takes one or two; the machine may be busy
BEGUN = "nodes reached"

Event = dict[str, Any]


class Watch:
    """A watch from its first look to the end of the block; `told` has all that it told so far."""

    def __init__(self, lab: Lab, *words: str, every: str = "1s", inventory: Path | None = None):
        place = str(inventory or lab.inventory())
        self._argv = [*CLI, "watch", place, "--every", every, "--format", "jsonl", *words]
        self._lab = lab
        self._lines: queue.Queue[str] = queue.Queue()
        self.told: list[Event] = []
        self.errors: list[str] = []

    def __enter__(self) -> Watch:
        pipe = subprocess.PIPE
        self.process = self._lab.controller.popen(self._argv, stdout=pipe, stderr=pipe, text=True)
        self._threads = [
            threading.Thread(target=self._read, args=(stream, sink), daemon=True)
            for stream, sink in (
                (self.process.stdout, self._lines.put),
                (self.process.stderr, self._hear),
            )
        ]
        self._begun = threading.Event()
        for thread in self._threads:
            thread.start()
        assert self._begun.wait(PATIENCE), self.errors
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        kill_group(self.process)
        for thread in self._threads:
            thread.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read(self, stream: IO[str], sink: Any) -> None:
        for line in stream:
            sink(line)

    def _hear(self, line: str) -> None:
        self.errors.append(line)
        if BEGUN in line:
            self._begun.set()

    def until(self, kind: str, node: str, check: str = "") -> Event:
        """Return the event of this kind about a node, as soon as it is told."""
        deadline = time.monotonic() + PATIENCE
        while True:
            event = self._next(deadline)
            about = (event["kind"], event.get("check", ""))
            if about == (kind, check or about[1]) and node in event["nodes"]:
                return event

    def _next(self, deadline: float) -> Event:
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            message = f"not told: {self.told} {self.errors}"
            raise AssertionError(message) from None
        event: Event = json.loads(line)
        self.told.append(event)
        return event

    def interrupt(self) -> int:
        """End the watch as Ctrl-C does, and return its exit code; `told` is complete then."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self._threads[0].join(PATIENCE)
        while not self._lines.empty():
            self.told.append(json.loads(self._lines.get()))
        return code

    def changes(self) -> list[str]:
        """Return what was told since the first look, as `new n2 eth.mtu`."""
        rows = []
        for event in self.told:
            if event["kind"] != "there":
                words = (event["kind"], ",".join(event["nodes"]), event.get("check", ""))
                rows.append(" ".join(word for word in words if word))
        return rows
