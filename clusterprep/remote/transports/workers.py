"""SSH over several worker processes, so that logging in takes more than one core of this machine.

One process of Python uses one core: its threads share the interpreter's lock. Most of what a node
costs the controller are the key exchange and the login, which need nothing of other nodes. So a
worker process does them (`worker_process`), and holds the connection. What it passes on are the
bytes of the conversation with the agent: a `Link` sees a `Channel` as of any other transport, and
sudo's password, limits of time and of memory, and the meaning of answers stay in the controller.

A worker ends with this process. If a worker ends before, its nodes are lost with a reason, and the
other workers get what is still to be opened.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remedies import shell_line
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.worker_channel import WorkerChannel
from clusterprep.remote.transports.worker_messages import (
    Kind,
    MessageStream,
    pack_question,
    unpack_error,
)
from clusterprep.runtime.clock import running_seconds

LOOK = 1.0  # seconds between two looks at whether a worker has had its time
GRACE = 10.0  # seconds; a worker on a machine that is short of processors may be late
END_LIMIT = 1.0  # seconds for all workers to end by themselves
END_REMEDY = shell_line("dmesg -T | tail   # here: was a process killed for want of memory?")
START_REMEDY = shell_line("ulimit -u; free -m   # here: how many processes, how much memory?")
# The folders of the controller's own modules come as an argument: -I takes no others.
_START = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1]);"
    "from clusterprep.remote.transports.worker_process import serve;serve()"
)


class WorkerTransport:
    """Starts commands over SSH in worker processes. See Transport in transports.protocol.

    The processes are started by the first nodes, and again after `close` if nodes are opened then.
    `ask` is called with a prompt when a key needs its passphrase. A worker that says nothing has
    `grace` seconds beyond a node's connect_timeout.
    """

    def __init__(
        self, count: int, ask: Callable[[str], str] | None = None, grace: float = GRACE
    ) -> None:
        self._count = count
        self._grace = grace
        self._passphrases = Passphrases(ask or _no_passphrase)
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._unheard: set[str] = set()

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers, for measurements and tests."""
        return [worker.pid for worker in self._workers]

    def open(self, node: Node, command: str) -> Channel:
        """Start `command` on the node within node.ssh.connect_timeout. Raises Unreached."""
        self._unheard.add(node.name)
        try:
            worker, stream = self._stream()
            try:
                stream.send(Kind.OPEN, pack_question(node, command))
                return self._channel(node, worker, stream)
            except BaseException as error:
                stream.close()
                worker.release()
                if isinstance(error, EOFError):
                    worker.has_ended = True
                    raise _ended_error() from None
                raise
        finally:
            self._unheard.discard(node.name)

    def unheard(self) -> list[str]:
        """Return the names of the nodes that are being opened and have sent no byte yet."""
        return list(self._unheard)

    def close(self) -> None:
        """End the worker processes, and with them all connections. Never raises."""
        with self._lock:
            workers = self._workers
            self._workers = []
        for worker in workers:
            worker.end()
        until = time.monotonic() + END_LIMIT
        for worker in workers:
            worker.await_end(until)

    def _stream(self) -> tuple[WorkerProcess, MessageStream]:
        """Return a new socket to the worker that has the fewest nodes, and this worker.

        Raises Unreached if no worker is left.
        """
        with self._lock:
            self._start_another()
            running = [worker for worker in self._workers if not worker.has_ended]
            for worker in sorted(running, key=_nodes_of):
                with contextlib.suppress(ConnectionError):
                    return worker, worker.stream()
        raise _ended_error()

    def _start_another(self) -> None:
        """Start a worker if there are too few. Raises Unreached if there is none and none starts.

        One that has ended is not replaced: what ended it may end the next one too.
        """
        if len(self._workers) >= self._count:
            return
        try:
            self._workers.append(WorkerProcess())
        except OSError as error:
            if not self._workers:
                message = f"no process could be started on this machine to log in: {error}"
                raise Unreached("hung", message, START_REMEDY) from error

    def _channel(self, node: Node, worker: WorkerProcess, stream: MessageStream) -> Channel:
        """Return the channel once the worker has opened it. Raises what it failed with."""
        began = running_seconds()
        while True:
            try:
                kind, content = stream.receive(LOOK)
            except TimeoutError:
                self._refuse_stuck(node, began)
                continue
            if kind is Kind.HEARD:
                self._unheard.discard(node.name)
            elif kind is Kind.ASK:
                prompt = content.decode("utf-8", "surrogateescape")
                answer = self._passphrases.answer(worker, prompt)
                stream.send(Kind.ANSWER, answer.encode("utf-8", "surrogateescape"))
            elif kind is Kind.FAILED:
                raise unpack_error(content)
            elif kind is Kind.OPENED:
                opened = json.loads(content)
                return WorkerChannel(stream, opened["peer"], opened["near"], worker)

    def _refuse_stuck(self, node: Node, began: float) -> None:
        """Raise Unreached if the worker has had its time since `began` and says nothing."""
        since = max(began, self._passphrases.last_answer())
        if running_seconds() - since > node.ssh.connect_timeout + self._grace:
            message = "the process on this machine that logs in gives no answer"
            raise Unreached("hung", message, END_REMEDY)


class WorkerProcess:
    """A worker process, as the controller holds it. The lock of its owner guards it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the controller, which then ends in order
            )
        self._control = ours
        self._lock = threading.Lock()
        self.nodes = 0  # that it opens or holds
        # Set where a node's socket has ended by itself. The kernel closes a process's sockets one
        # by one, so the control socket of one that ends may still take a further node.
        self.has_ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def stream(self) -> MessageStream:
        """Return a new socket to the process. Raises ConnectionError if it has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"n"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        with self._lock:
            self.nodes += 1
        return MessageStream(ours)

    def release(self) -> None:
        """Note that a node is no longer opened or held."""
        with self._lock:
            self.nodes -= 1

    def end(self) -> None:
        """Tell the process to end, without waiting."""
        self._control.close()

    def await_end(self, until: float) -> None:
        """Wait until the process has ended, and kill it at `until`, a time.monotonic()."""
        try:
            self._process.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Passphrases:
    """The user's answers to prompts for passphrases: each is asked for once for all workers."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._ask = ask
        self._turn = threading.Lock()
        self._answers: dict[str, list[str]] = {}
        # How often each worker has asked: a second time means that the first answer was wrong.
        self._asked: dict[tuple[WorkerProcess, str], int] = {}
        self._last_answer = 0.0

    def answer(self, worker: WorkerProcess, prompt: str) -> str:
        """Return the answer to a worker's prompt. What another worker was told is not asked again.

        Raises what `ask` raises.
        """
        with self._turn:
            number = self._asked.get((worker, prompt), 0)
            self._asked[worker, prompt] = number + 1
            answers = self._answers.setdefault(prompt, [])
            if number == len(answers):
                answers.append(self._ask(prompt))
            self._last_answer = running_seconds()
            return answers[number]

    def last_answer(self) -> float:
        """Return when the last answer came, in running seconds: now while one is awaited."""
        return running_seconds() if self._turn.locked() else self._last_answer


def _nodes_of(worker: WorkerProcess) -> int:
    return worker.nodes


def _ended_error() -> Unreached:
    message = "the process on this machine that logs in to the node has ended"
    return Unreached("hung", message, END_REMEDY)


def _no_passphrase(prompt: str) -> str:
    return ""
