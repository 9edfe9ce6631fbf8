"""One running job step of Slurm: srun carries bytes to and from one task per node.

srun gives its stdin to every task, so bytes for several tasks are sent once (`slurm_envelopes`).
With `--label` it says which task wrote which piece of its stdout; these pieces are put together
here (`slurm_records`).

What srun is like decides the rest:

* It gives its stdin to all tasks. Equal bytes for several tasks are sent once, also the source of
  the agent, which differs by one line from node to node. So the volume does not grow with the
  square of the number of nodes.
* Of its stdout only lines of up to 1024 bytes stay together. Records are in base64, numbered and
  compressed. A missing line loses its node and never makes a wrong answer.
* A node cannot speak for another one. `--label` tells the task of each line, and Slurm's controller
  tells the node of each task. What a task says of its node is only compared: a node whose task
  names another one is not used.
* One reader serves all channels, so each channel has a window, as in SSH: a task sends on when what
  it sent has been read. A command that floods holds up itself and no other command.
* Two dozen variables change what srun does, and it hands on environment, limits and folder. So it
  is given a chosen few (`slurm_commands`), and the child gets what a login has. Else a check on the
  nodes would find the controller's NCCL_* variables.
* A task never ends while a process holds its stdout. So children have pipes and a session of their
  own, and are ended when stdin ends, after 30 s of silence, and with their channel.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model.nodeset import expand, fold
from clusterprep.remedies import shell_line
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.slurm_channel import SlurmChannel
from clusterprep.remote.transports.slurm_envelopes import Outbox
from clusterprep.remote.transports.slurm_records import Record, RecordReader

PULSE = 5.0  # seconds; a task that hears nothing for 30 s ends itself
STALL = 20.0  # seconds in which srun accepts nothing
STDERR_KEPT = 8192  # bytes of srun's stderr
STDERR_SHOWN = 500  # characters of it in a message
END_LIMIT = 2.5  # seconds for the tasks to end once stdin is closed
TERM_LIMIT = 1.0  # seconds for srun to end after SIGTERM
# Seconds between srun's line that a task ended and the one with the reason, which may follow: only
# the step's first node tells of a cancellation, and srun hears the nodes in any order.
REASON_DELAY = 1.0
MOST_CLAIMS = 8  # of each task, that are kept until the layout is known
LONGEST_NAME = 64  # characters of a task's own word for its host in a message
_PIECE = 1 << 18  # bytes of one read
_LABELLED = re.compile(rb"^\s*\d+: ")
_FAILED = re.compile(
    r"^srun: error: (?:Task launch for \S+ failed on node (\S+?): |Node failure on (\S+)$)"
)
_ENDED = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: ")
_CANCELLED = re.compile(r"\*\*\* ((?:STEP|JOB) .{1,300}?) \*\*\*")
_NO_BINDING = b"lacks support for cpu binding"  # a warning only: no binding is requested


class JobStep:
    """srun, from its start to its end.

    `hosts` are Slurm's names of nodes; a task is known by its number in the step. `ask_layout` asks
    Slurm for the host of each task, once a task runs. It raises Unreached.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        hosts: Sequence[str],
        nonce: str,
        ask_layout: Callable[[], Sequence[str]],
    ) -> None:
        self.hosts = tuple(hosts)
        self.nonce = nonce
        self.changed = threading.Condition()
        self.started: dict[str, int] = {}  # host -> task, once the shell of the task runs
        self.ready: dict[str, int] = {}  # host -> task, once its relay listens
        self.failed: dict[str, str] = {}  # host -> what srun reported of its task
        self.contradictions: dict[str, str] = {}  # host -> how its task denies to run there
        self.trouble: Unreached | None = None  # why the hosts of the tasks are not known
        self.no_python: set[int] = set()
        self.ended: str | None = None  # srun's last text, once it has ended
        self.taken = 0  # bytes that srun was given
        self.given = 0  # bytes that srun gave
        self._channels: dict[tuple[int, int], SlurmChannel] = {}  # by task and number
        self._opened: Counter[int] = Counter()  # commands that a task was given so far
        self._ask_layout = ask_layout
        self._asked_layout = False
        self._layout: tuple[str, ...] | None = None  # the host of each task, once Slurm has said it
        # What each task says of its host, until the layout is known: kind of record and host.
        self._claims: dict[int, list[tuple[str, str]]] = {}
        self._stderr = b""
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
        self._outbox.put_for_all(bootstrap.relay_payload(nonce))
        self._listener = threading.Thread(target=self._listen, daemon=True, name="srun stderr")
        self._listener.start()
        for work in (self._write, self._read):
            threading.Thread(target=work, daemon=True, name=f"srun {work.__name__}").start()

    @property
    def stderr(self) -> str:
        """The last that srun and the tasks wrote to stderr, for a message."""
        text = self._stderr.decode("utf-8", "replace")
        return " ".join(text.split())[-STDERR_SHOWN:]

    def settled(self) -> bool:
        """Return whether waiting is over.

        Every host is ready or of no use, or srun has ended, or Slurm does not say which host is
        which.
        """
        if self.ended is not None or self.trouble is not None:
            return True
        finished = self.ready.keys() | self.failed.keys() | self.contradictions.keys()
        for host, task in self.started.items():
            if task in self.no_python:
                finished.add(host)
        return len(finished) >= len(self.hosts)

    def wait(self, deadline: float, linger: float | None = None) -> None:
        """Wait until the step is settled, or until the deadline.

        With `linger`, no longer than that many seconds after the first task has started.
        """
        with self.changed:
            if linger is not None:
                self.changed.wait_for(lambda: self.settled() or self.started, _until(deadline))
                deadline = min(deadline, time.monotonic() + linger)
            self.changed.wait_for(self.settled, _until(deadline))

    @property
    def missing(self) -> list[str]:
        """Hosts whose task has not started."""
        return [host for host in self.hosts if host not in self.started]

    def open(self, host: str, command: str) -> SlurmChannel:
        """Start a shell line on a host that is ready."""
        task = self.ready[host]
        with self.changed:
            self._opened[task] += 1
            number = self._opened[task]
            channel = SlurmChannel(self, host, task, number)
            self._channels[task, number] = channel
        self.send(task, number, "open", command.encode())
        return channel

    def send(self, task: int, channel: int, op: str, body: bytes = b"") -> None:
        """Send bytes to a task. Raises LinkLost if srun has ended or accepts nothing for 20 s."""
        if not self._outbox.wait_for_room(STALL):
            raise LinkLost("hung", f"srun took nothing for {STALL:.0f} s")
        if self.ended is not None:
            raise LinkLost("hung", self.ended)
        self._outbox.put(task, channel, op, body)

    def forget(self, channel: SlurmChannel) -> None:
        """Deliver no more records to this channel."""
        with self.changed:
            self._channels.pop((channel.task, channel.number), None)

    def close(self) -> bool:
        """End the step by the end of its stdin, else by SIGTERM. Never raises.

        Returns whether srun has ended within 3.5 s.
        """
        self._outbox.close()
        return self._wait_end(END_LIMIT) or self.terminate()

    def terminate(self) -> bool:
        """End srun at once, also while it waits for resources.

        Returns whether it has ended within a second.
        """
        self._outbox.close()
        self._signal(signal.SIGTERM)
        return self._wait_end(TERM_LIMIT)

    def kill(self) -> None:
        """Kill srun, which then reports nothing to Slurm any more: the last resort."""
        self._signal(signal.SIGKILL)
        self._wait_end(TERM_LIMIT)

    def _wait_end(self, seconds: float) -> bool:
        """Return whether srun ends within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._srun.wait(seconds)
        return self._srun.returncode is not None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._srun.pid, number)

    # ------------------------------------------------------------ threads

    def _write(self) -> None:
        """Give srun what waits in the outbox, until that is closed."""
        stdin = _pipe(self._srun.stdin)
        with contextlib.suppress(OSError), stdin:
            while (data := self._outbox.take(PULSE)) is not None:
                remaining = memoryview(data)
                while remaining:
                    count = os.write(stdin.fileno(), remaining)
                    remaining = remaining[count:]
                self.taken += len(data)

    def _read(self) -> None:
        """Accept the records of srun's stdout, until its end."""
        with _pipe(self._srun.stdout) as stdout:
            while data := os.read(stdout.fileno(), _PIECE):
                self.given += len(data)
                for task, record in self._reader.feed(data):
                    self._accept(task, record)
        self._finish()

    def _listen(self) -> None:
        """Keep the end of srun's stderr, and note what it says of tasks."""
        rest = b""
        with _pipe(self._srun.stderr) as stderr:
            while data := os.read(stderr.fileno(), _PIECE):
                *lines, rest = (rest + data).split(b"\n")
                self._keep_stderr(lines)
                for line in lines:
                    self._note_end_of_tasks(line.decode("utf-8", "replace"))
                rest = rest[-STDERR_KEPT:]

    def _keep_stderr(self, lines: Sequence[bytes]) -> None:
        stderr = self._stderr
        for line in lines:
            if not line.endswith(_NO_BINDING):
                stderr += _LABELLED.sub(b"", line) + b"\n"
        with self.changed:
            self._stderr = stderr[-STDERR_KEPT:]
            self.changed.notify_all()

    def _note_end_of_tasks(self, line: str) -> None:
        """Fail the hosts whose tasks have ended, if a line of srun's says so.

        It is done once the reason is known, because srun may report it a moment later.
        """
        match = _FAILED.match(line) or _ENDED.match(line)
        if match is None:
            return
        folded = next(filter(None, match.groups()))
        try:
            hosts = expand(folded)
        except ValueError:
            return
        if hosts:
            message = line.removeprefix("srun: ")
            arguments = (hosts, message)
            threading.Thread(target=self._lose, args=arguments, daemon=True).start()

    def _lose(self, hosts: Sequence[str], line: str) -> None:
        """Note that the tasks of hosts have ended, and end their channels."""
        tasks = set()
        with self.changed:
            self.changed.wait_for(self._cancellation, REASON_DELAY)
            reason = self._cancellation() or f"its task in the Slurm step ended: {line}"
            for host in hosts:
                self.failed[host] = reason
                if host in self.started:
                    tasks.add(self.started[host])
            self.changed.notify_all()
        for channel in self._channels_of(tasks):
            channel.lose(LinkLost("hung", reason))

    def _cancellation(self) -> str:
        """Return who or what cancelled the step, "" if Slurm does not say so."""
        match = _CANCELLED.search(self.stderr)
        return f"the Slurm step was cancelled: {match[1]}" if match else ""

    def _channels_of(self, tasks: Collection[int]) -> list[SlurmChannel]:
        with self.changed:
            return [channel for (task, _), channel in self._channels.items() if task in tasks]

    def _accept(self, task: int, record: Record) -> None:
        """Note what a task reports of itself, or give its record to the command's channel."""
        if record.kind in ("at", "h"):
            self._hear_claim(record.kind, task, record.data.decode("utf-8", "replace"))
        elif record.kind == "junk":
            self._note_missing_python(task, record)
        elif record.kind == "broken":
            for channel in self._channels_of({task}):
                channel.lose(LinkLost("garbled", record.data.decode()))
        else:
            addressee = self._channels.get((task, record.channel))
            if addressee is not None:
                addressee.accept(record)

    def _hear_claim(self, kind: str, task: int, host: str) -> None:
        """Take what a task says of its host, and judge it once Slurm has told the layout."""
        with self.changed:
            if self._layout is not None:
                self._judge_claim(kind, task, host)
                return
            claims = self._claims.setdefault(task, [])
            if len(claims) < MOST_CLAIMS:
                claims.append((kind, host))
            if self._asked_layout:
                return
            self._asked_layout = True
        threading.Thread(target=self._find_layout, daemon=True, name="srun layout").start()

    def _find_layout(self) -> None:
        """Ask Slurm for the host of each task, and judge what tasks have said until then."""
        try:
            layout = tuple(self._ask_layout())
            if sorted(layout) != sorted(self.hosts):
                raise _wrong_layout(layout, self.hosts)
        except Unreached as trouble:
            with self.changed:
                self.trouble = trouble
                self.changed.notify_all()
            return
        with self.changed:
            self._layout = layout
            for task, claims in self._claims.items():
                for kind, host in claims:
                    self._judge_claim(kind, task, host)
            self._claims.clear()

    def _judge_claim(self, kind: str, task: int, claimed: str) -> None:
        """Count a task as started ("at") or ready ("h"), unless it names another host than Slurm.

        The caller holds `changed` and knows the layout.
        """
        layout = self._layout or ()
        if task >= len(layout):
            return
        host = layout[task]
        if claimed != host:
            message = (
                f"Slurm runs task {task} on {host}, and the task says that it runs on "
                f"{claimed[:LONGEST_NAME]!r}"
            )
            self.contradictions.setdefault(host, message)
            self.started.pop(host, None)
            self.ready.pop(host, None)
            for (owner, _), channel in self._channels.items():
                if owner == task:
                    channel.lose(LinkLost("garbled", message))
        elif host not in self.contradictions:
            tasks = self.started if kind == "at" else self.ready
            tasks[host] = task
        self.changed.notify_all()

    def _note_missing_python(self, task: int, record: Record) -> None:
        if bootstrap.NO_PYTHON.encode() in record.data:
            with self.changed:
                self.no_python.add(task)
                self.changed.notify_all()

    def _finish(self) -> None:
        """Note the end of srun, and end all channels."""
        code = self._srun.wait()
        # Wait for the last lines of stderr; a descendant of srun may keep the pipe open.
        self._listener.join(1.0)
        with self.changed:
            reason = self.stderr or f"srun left with {code}"
            self.ended = self._cancellation() or f"the Slurm step has ended: {reason}"
            channels = list(self._channels.values())
            self.changed.notify_all()
        self._outbox.close()
        for channel in channels:
            channel.lose(LinkLost("hung", self.ended))


def _wrong_layout(layout: Sequence[str], hosts: Sequence[str]) -> Unreached:
    """Return the error for a step that has other tasks than one on each of `hosts`."""
    wanted = fold(sorted(hosts))
    seen = fold(sorted(set(layout))) or "no node"
    message = f"Slurm was to start one task on each of {wanted}, and says {len(layout)} on {seen}"
    return Unreached("refused", message, shell_line("squeue --steps"))


def _until(deadline: float) -> float:
    """Return the seconds until a moment of time.monotonic(), 0 if it has passed."""
    return max(0.0, deadline - time.monotonic())


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - for mypy: all three are pipes
    return stream
