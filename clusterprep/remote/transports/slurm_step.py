"""One running job step of Slurm: srun as a carrier of bytes to and from one task per node.

srun gives its stdin to every task, so what several are to get goes in once (`slurm_envelopes`). Of its stdout it says
itself which task wrote what (`--label`), in pieces that are put together again here (`slurm_records`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO

from clusterprep.errors import LinkLost
from clusterprep.model.nodeset import expand
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.transports.slurm_channel import SlurmChannel
from clusterprep.remote.transports.slurm_envelopes import Outbox
from clusterprep.remote.transports.slurm_records import Record, RecordReader

PULSE = 5.0  # seconds; a task that hears nothing for 30 s ends itself
STALL = 20.0  # seconds in which srun takes nothing
KEPT = 8192  # bytes of what srun said on stderr
LEAVE = 2.5  # seconds for the tasks to end once stdin is closed
INSIST = 1.0  # seconds for srun to end after SIGTERM
SEQUEL = 0.2  # seconds
_PIECE = 1 << 18
_LABELLED = re.compile(rb"^\s*\d+: ")
_FAILED = re.compile(
    r"^srun: error: (?:Task launch for \S+ failed on node (\S+?): |Node failure on (\S+)$)"
)
_NO_BINDING = b"lacks support for cpu binding"  # so that none is needed
_CANCELLED = re.compile(r"\*\*\* ((?:STEP|JOB) .{1,300}?) \*\*\*")
_ENDED = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: ")


class JobStep:
    """srun, from its start to its end. `hosts` are names of Slurm's; a task is known by its number in the step."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], hosts: Sequence[str], nonce: str
    ) -> None:
        self.hosts, self.nonce = tuple(hosts), nonce
        self.changed = threading.Condition()
        self.started: dict[str, int] = {}  # host -> task, once the shell of the task runs
        self.ready: dict[str, int] = {}  # host -> task, once its relay listens
        self.failed: dict[str, str] = {}  # host -> what srun said of its task
        self.no_python: set[int] = set()
        self.ended: str | None = None  # srun's last words, once it has ended
        self.taken = self.given = 0  # bytes that srun took and gave
        self._channels: dict[tuple[int, int], SlurmChannel] = {}
        self._opened: Counter[int] = Counter()  # commands that a task was given so far
        self._words = b""
        self._reader = RecordReader(nonce)
        self._outbox = Outbox()
        pipe = subprocess.PIPE
        self._srun = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
        self._outbox.put(None, boot.relay_payload(nonce))
        self._listener = threading.Thread(target=self._listen, daemon=True, name="srun stderr")
        self._listener.start()
        for work in (self._write, self._read):
            threading.Thread(target=work, daemon=True, name=f"srun {work.__name__}").start()

    @property
    def words(self) -> str:
        """The last that srun and the tasks said on stderr."""
        return " ".join(self._words.decode("utf-8", "replace").split())[-500:]

    def settled(self) -> bool:
        """Whether nothing more is to be waited for: every host is ready or failed, or srun has ended."""
        without = {host for host, task in self.started.items() if task in self.no_python}
        return self.ended is not None or len(
            self.ready.keys() | self.failed.keys() | without
        ) >= len(self.hosts)

    def wait(self, deadline: float, linger: float | None = None) -> None:
        """Wait until it is settled, or until the deadline; or no longer than `linger` seconds after the first start."""
        with self.changed:
            if linger is not None:
                self.changed.wait_for(lambda: self.settled() or self.started, _left(deadline))
                deadline = min(deadline, time.monotonic() + linger)
            self.changed.wait_for(self.settled, _left(deadline))

    @property
    def missing(self) -> list[str]:
        """Hosts whose task has not begun."""
        return [host for host in self.hosts if host not in self.started]

    def open(self, host: str, command: str) -> SlurmChannel:
        """Start a shell line on a host that is ready."""
        task = self.ready[host]
        with self.changed:
            self._opened[task] += 1
            number = self._opened[task]
            channel = self._channels[task, number] = SlurmChannel(self, host, task, number)
        self.send(task, number, "open", command.encode())
        return channel

    def send(self, task: int, channel: int, op: str, body: bytes = b"") -> None:
        """Give bytes to a task. Raises LinkLost when srun has ended or takes nothing for 20 s."""
        if not self._outbox.wait_for_room(STALL):
            raise LinkLost("hung", f"srun took nothing for {STALL:.0f} s")
        if self.ended is not None:
            raise LinkLost("hung", self.ended)
        self._outbox.put(task, body, channel, op)

    def forget(self, channel: SlurmChannel) -> None:
        """Nobody reads this channel any more."""
        with self.changed:
            self._channels.pop((channel.task, channel.number), None)

    def close(self) -> bool:
        """End the step by the end of its stdin, else by SIGTERM; whether srun has ended within 3.5 s. Never raises."""
        self._outbox.close()
        return self._gone(LEAVE) or self.terminate()

    def terminate(self) -> bool:
        """End srun at once, also while it waits for resources; whether it has ended within a second."""
        self._outbox.close()
        self._signal(signal.SIGTERM)
        return self._gone(INSIST)

    def kill(self) -> None:
        """The last resort: srun then says nothing to Slurm any more."""
        self._signal(signal.SIGKILL)
        self._gone(INSIST)

    def _gone(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._srun.wait(seconds)
        return self._srun.returncode is not None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._srun.pid, number)

    # ------------------------------------------------------------ threads

    def _write(self) -> None:
        stdin = _stream(self._srun.stdin)
        with contextlib.suppress(OSError), stdin:
            while (data := self._outbox.take(PULSE)) is not None:
                view = memoryview(data)
                while view:
                    view = view[os.write(stdin.fileno(), view) :]
                self.taken += len(data)

    def _read(self) -> None:
        with _stream(self._srun.stdout) as stdout:
            while data := os.read(stdout.fileno(), _PIECE):
                self.given += len(data)
                for task, found in self._reader.feed(data):
                    self._heed(task, found)
        self._finish()

    def _listen(self) -> None:
        rest = b""
        with _stream(self._srun.stderr) as stderr:
            while data := os.read(stderr.fileno(), _PIECE):
                *lines, rest = (rest + data).split(b"\n")
                told = (
                    _LABELLED.sub(b"", line) for line in lines if not line.endswith(_NO_BINDING)
                )
                self._words = (self._words + b"".join(line + b"\n" for line in told))[-KEPT:]
                for line in lines:
                    self._understand(line.decode("utf-8", "replace"))
                rest = rest[-KEPT:]

    def _understand(self, line: str) -> None:
        """Heed what srun says of the ends of tasks; why they ended may be said a moment later."""
        said = _FAILED.match(line) or _ENDED.match(line)
        try:
            hosts = expand(next(filter(None, said.groups()))) if said else []
        except ValueError:
            return
        if hosts:
            timer = threading.Timer(SEQUEL, self._lose, (hosts, line.removeprefix("srun: ")))
            timer.daemon = True
            timer.start()

    def _lose(self, hosts: Sequence[str], line: str) -> None:
        words = self._cancelled() or f"its task in the Slurm step ended: {line}"
        with self.changed:
            gone = {self.started[host] for host in hosts if host in self.started}
            self.failed.update((host, words) for host in hosts)
            self.changed.notify_all()
        for channel in self._of(gone):
            channel.lose(LinkLost("hung", words))

    def _cancelled(self) -> str:
        """By whom or why the step was ended, where Slurm says it."""
        found = _CANCELLED.search(self.words)
        return f"the Slurm step was cancelled: {found[1]}" if found else ""

    def _of(self, tasks: set[int]) -> list[SlurmChannel]:
        with self.changed:
            return [channel for (task, _), channel in self._channels.items() if task in tasks]

    def _heed(self, task: int, found: Record) -> None:
        if found.kind in ("at", "h"):
            host, there = (
                found.data.decode("utf-8", "replace"),
                self.started if found.kind == "at" else self.ready,
            )
            with self.changed:
                if host in self.hosts and task not in there.values():
                    there.setdefault(host, task)
                    self.changed.notify_all()
        elif found.kind == "junk":
            if boot.NO_PYTHON.encode() in found.data:
                with self.changed:
                    self.no_python.add(task)
                    self.changed.notify_all()
        elif found.kind == "broken":
            for channel in self._of({task}):
                channel.lose(LinkLost("garbled", found.data.decode()))
        elif (wanted := self._channels.get((task, found.channel))) is not None:
            wanted.heed(found)

    def _finish(self) -> None:
        code = self._srun.wait()
        self._listener.join(1.0)  # for its last words; a descendant may hold the stream open
        with self.changed:
            self.ended = (
                self._cancelled()
                or f"the Slurm step has ended: {self.words or f'srun left with {code}'}"
            )
            lost = list(self._channels.values())
            self.changed.notify_all()
        self._outbox.close()
        for channel in lost:
            channel.lose(LinkLost("hung", self.ended))


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - for mypy: all three are pipes
    return stream
