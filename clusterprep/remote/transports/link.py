"""The controller's half of a conversation with one agent: start it, ask it, notice its end.

Both sides send a sign of life every few seconds, because SSH notices a dead node after half a
minute at best. An agent that hears nothing for 30 s ends itself and all that it started. Ranks and
processes of a launch are ended after 15 s (LEASH in agent/children.py).

Nothing stays on the node: no file, no process, no second login. `tests/fuzz/` plays broken agents
against this module, `tests/support/hostile.py` hosts that lie.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.frames import MAX_FRAME, Frame, FrameReader
from clusterprep.remote.transports.protocol import Channel, Transport
from clusterprep.remote.transports.sudo import SudoPassword, open_with_sudo
from clusterprep.runtime.clock import running_seconds

__all__ = ["Frame", "FrameReader", "Link", "Password", "open_link"]

HELLO_LIMIT = 10.0  # seconds from the started command to the agent's first frame
PARTING_LIMIT = 1.0  # seconds for output of an ended command that is still on its way
LOOK_LIMIT = 0.1  # seconds of one read by a thread that has to look at other things as well
READ_LIMIT = 1.0  # seconds of one read, after which silence is noticed
SILENCE_LIMIT = 5.0  # seconds; the agent beats every second, five missed beats are a lost node
# Seconds of silence from the first staged byte until the run is finalized or rolled back. To lose a
# node wrongly then costs all nodes the run, or leaves one node in an unknown state. The agent has
# reasons to be silent: it writes and syncs in its own loop, and a disk may take seconds. With 160
# runnable processes on two processors a beat was 5.3 s late. The price: a node that dies between
# stage and commit is noticed 15 s later. Verify goes back to SILENCE_LIMIT, because there a silent
# node is the finding.
WRITING_LIMIT = 20.0
MAX_UNTAKEN = 4 * MAX_FRAME  # bytes that may come before an event or an answer is taken
MOST_EVENTS = 50_000  # that wait; they are taken ten times a second
LONGEST = 300  # characters of a node's own text in a message

Password = Callable[[Node], SudoPassword | None]


class Link:
    """One agent, for one thread at a time. `pulse` may be called from another thread."""

    def __init__(self, node: Node, channel: Channel, nonce: str) -> None:
        self.node = node
        self.hello: Frame = {}
        self._channel = channel
        self._reader = FrameReader(nonce)
        self._sending = threading.Lock()
        self._events: deque[Frame] = deque()
        self._last_heard = running_seconds()
        self.received = 0  # bytes
        self._taken = 0  # value of `received` when an event or an answer was taken last
        self._asked = 0  # number of the last request
        self._awaited: set[int] = set()
        self._answers: dict[int, Frame] = {}  # that came while another one was awaited
        self.lost: LinkLost | None = None
        self.silence_limit = SILENCE_LIMIT
        # Before its first frame an agent does not beat: Python may take long to start.
        self._is_up = False
        self._has_ended = False

    @property
    def peer(self) -> str | None:
        return self._channel.peer

    def silent_for(self) -> float:
        """Return the seconds since the agent's last byte. Above `silence_limit` it is lost."""
        return running_seconds() - self._last_heard

    def send(self, op: str, **body: Any) -> int:
        """Send a request. Returns its number, for `receive`."""
        return self.send_all((op, body))[0]

    def send_all(self, *requests: tuple[str, Mapping[str, Any]]) -> list[int]:
        """Send several requests at once, for one round trip together. Returns their numbers."""
        numbers = []
        bodies = []
        for op, body in requests:
            self._asked += 1
            numbers.append(self._asked)
            bodies.append({"id": self._asked, "op": op, **body})
        self._awaited.update(numbers)
        self._write(bodies)
        return numbers

    def receive(
        self, number: int, timeout: float, patience: Callable[[], float] | None = None
    ) -> Frame:
        """Return the answer to request `number`.

        Other answers are kept for their own `receive`, and events for `poll`. Raises LinkLost if
        the agent ends, falls silent or has not answered after `timeout` seconds. `patience` is
        called ten times a second: it may raise, and returns for how many seconds the answer is
        still awaited.
        """
        end = running_seconds() + timeout
        while number not in self._answers:
            if patience is None:
                self._read(end)
            else:
                end = min(end, running_seconds() + patience())
                self._read(end, longest=LOOK_LIMIT)
        self._taken = self.received
        return self._answers.pop(number)

    def request(self, op: str, timeout: float, **body: Any) -> Frame:
        """Send one request and return its answer."""
        number = self.send(op, **body)
        return self.receive(number, timeout)

    def poll(self, timeout: float) -> list[Frame]:
        """Return events that have arrived, after at most `timeout` seconds for the first one."""
        if not self._events:
            self._read(running_seconds() + timeout, patient=True)
        events = list(self._events)
        self._events = deque()
        self._taken = self.received
        return events

    def load(self, part: str) -> None:
        """Send a further part of the agent.

        Whether the agent accepted it shows in the answers to requests for that part.
        """
        if self._channel.near and self.hello.get("magic") == bootstrap.MAGIC:
            body = bootstrap.load_as_code(part)
        else:
            body = bootstrap.load_as_text(part)
        self.send("load", **body)

    def pulse(self) -> None:
        """Send a sign of life, without which an agent ends itself. Never raises."""
        with contextlib.suppress(LinkLost):
            self._write([{"op": "pulse"}])

    def close(self) -> None:
        self._channel.close()

    def wait_hello(self, limit: float) -> None:
        """Wait for the agent's first frame. Raises Unreached if it does not come."""
        end = running_seconds() + limit
        try:
            while not self._events:
                self._read(end)
        except LinkLost as lost:
            raise self._no_hello(lost) from None
        self.hello = self._events.popleft()
        self._is_up = True

    def _write(self, bodies: Iterable[Frame]) -> None:
        """Send requests, one line each. Raises LinkLost."""
        lines = [json.dumps(body, separators=(",", ":")).encode() + b"\n" for body in bodies]
        data = b"".join(lines)
        with self._sending:
            try:
                self._channel.send(data)
            except LinkLost as error:
                self.lost = error
                raise

    def _read(self, end: float, patient: bool = False, longest: float = READ_LIMIT) -> None:
        """Read once, and sort the frames into answers and events.

        Raises LinkLost; past `end` too, unless `patient`.
        """
        now = running_seconds()
        if now >= end and not patient:
            raise self._loss("timed_out", "the agent did not answer in time")
        limit = min(end - now, longest)
        data = self._receive_bytes(max(0.001, limit))
        if data is None:
            return
        self._last_heard = running_seconds()
        self.received += len(data)
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            raise self._loss("garbled", str(error)) from None
        self._sort(frames)
        if self.received - self._taken > MAX_UNTAKEN or len(self._events) > MOST_EVENTS:
            raise self._loss("garbled", "the node sent more unrequested data than an agent would")

    def _receive_bytes(self, timeout: float) -> bytes | None:
        """Return what comes within `timeout` seconds, None if nothing does. Raises LinkLost."""
        try:
            data = self._channel.recv(timeout)
        except TimeoutError:
            silence = self.silent_for()
            if self._is_up and silence > self.silence_limit:
                raise self._loss("hung", f"no sign of life for {silence:.1f} s") from None
            return None
        except LinkLost as lost:
            self.lost = lost
            raise
        if not data:
            self._has_ended = True
            raise self._loss("hung", self._last_words())
        return data

    def _sort(self, frames: Iterable[Frame]) -> None:
        """Keep awaited answers for `receive` and events for `poll`; drop the rest."""
        for frame in frames:
            number = frame.get("id")
            # Each answer is kept once, or a node could fill the controller's memory.
            if type(number) is int and number in self._awaited:
                self._awaited.discard(number)
                self._answers[number] = frame
            # A heartbeat has served its purpose by coming.
            if "id" not in frame and "beat" not in frame:
                self._events.append(frame)

    def _stderr(self) -> str:
        return self._channel.stderr().decode("utf-8", "replace")

    def _last_words(self) -> str:
        stderr = _last_of(self._stderr())
        if not stderr:
            return "the agent ended"
        return f"the agent ended: {stderr}"

    def _loss(self, reason: str, detail: str) -> LinkLost:
        self.lost = LinkLost(reason, detail)
        return self.lost

    def _no_hello(self, lost: LinkLost) -> Unreached:
        """Return the error for an agent that was lost before its first frame."""
        output = f"{self._reader.rest} {self._stderr()}".strip()
        tail = _last_of(output)
        if bootstrap.NO_PYTHON in output:
            remedy = "apt-get install python3-minimal"
            return Unreached("no_python", "no python3 was found on the node", remedy)
        if self._has_ended and (tail or self._channel.alive):
            return self._python_did_not_start(tail)
        reason = "hung" if lost.reason == "timed_out" else lost.reason
        return Unreached(reason, f"{lost.message} {tail}".strip())

    def _python_did_not_start(self, output: str) -> Unreached:
        if not output:
            output = "the session ended without a word: a start-up file of the shell may end it"
        tool = "srun -w" if self.node.transport == "slurm" else "ssh"
        remedy = f"{tool} {self.node.name} \"/usr/bin/python3 -c 'import json'\""
        return Unreached("no_python", f"Python did not start: {output}", remedy)


def open_link(
    transport: Transport,
    node: Node,
    parts: Sequence[str],
    password: Password,
    first: Callable[[Link], object] | None = None,
) -> Link:
    """Log in, start the agent with `parts` and wait for its first frame. Raises Unreached.

    `parts` names the parts of the agent, and `password(node)` returns sudo's password. Requests
    that `first(link)` sends follow the agent's source at once, so that their answers cost no
    further round trip.
    """
    nonce = os.urandom(8).hex()
    if node.ssh.become:
        channel = open_with_sudo(transport, node, password(node))
    else:
        channel = transport.open(node, bootstrap.command())
    link = Link(node, channel, nonce)
    try:
        try:
            channel.send(bootstrap.payload(nonce, parts, channel.near))
            if first is not None:
                first(link)
        except LinkLost:  # a command that has ended already may have sent the reason
            link.wait_hello(PARTING_LIMIT)
        link.wait_hello(HELLO_LIMIT)
    except BaseException:
        link.close()
        raise
    return link


def _last_of(text: str) -> str:
    """Return the end of a node's text for a message, on one line."""
    return " ".join(text.split())[-LONGEST:]
