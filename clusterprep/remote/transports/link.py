"""The controller's half of a conversation with one agent: start it, ask it, notice that it is gone."""

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
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.transports import Channel, Transport
from clusterprep.remote.transports.frames import MAX_FRAME, Frame, FrameReader
from clusterprep.remote.transports.sudo import SudoPassword, open_with_sudo
from clusterprep.runtime.clock import running_seconds

__all__ = ["Frame", "FrameReader", "Link", "Password", "open_link"]

HELLO_LIMIT = 10.0  # seconds from the started command to the agent's first word
PARTING_LIMIT = 1.0  # seconds for what a command that has ended has left on the way
SILENCE_LIMIT = 5.0  # seconds; the agent beats every second, five missed beats are a lost node
WRITING_LIMIT = 20.0  # seconds of silence once a run has begun to write: to lose a node then costs all nodes the run
MAX_UNTAKEN = 4 * MAX_FRAME  # bytes that come before anybody takes an event or an answer
MOST_EVENTS = 50_000  # that wait; they are taken ten times a second
LONGEST = 300  # characters of a node's own words in a message

Password = Callable[[Node], SudoPassword | None]


class Link:
    """One agent, for one thread at a time; `pulse` may be called from another one."""

    def __init__(self, node: Node, channel: Channel, nonce: str) -> None:
        self.node = node
        self.hello: Frame = {}
        self._channel = channel
        self._reader = FrameReader(nonce)
        self._sending = threading.Lock()
        self._events: deque[Frame] = deque()
        self._heard = running_seconds()
        self.received = 0  # bytes
        self._taken = 0  # bytes that had come when somebody took something last
        self._asked = 0
        self._awaited: set[int] = set()
        self._answers: dict[int, Frame] = {}  # that came while another one was waited for
        self.lost: LinkLost | None = None
        self.silence_limit = SILENCE_LIMIT
        self._up = (
            False  # before its first word an agent does not beat: Python may take long to start
        )
        self._ended = False

    @property
    def peer(self) -> str | None:
        return self._channel.peer

    def silent_for(self) -> float:
        """Seconds since the agent's last word in which we could hear it; more than `silence_limit`: it is gone."""
        return running_seconds() - self._heard

    def send(self, op: str, **body: Any) -> int:
        """Send a request and give its number for `receive`."""
        return self.send_all((op, body))[0]

    def send_all(self, *requests: tuple[str, Mapping[str, Any]]) -> list[int]:
        """Send several requests in one piece, so that together they cost one round trip, and give their numbers."""
        numbers = list(range(self._asked + 1, self._asked + 1 + len(requests)))
        self._asked += len(requests)
        self._awaited.update(numbers)
        self._write(
            *(
                {"id": number, "op": op, **body}
                for number, (op, body) in zip(numbers, requests, strict=True)
            )
        )
        return numbers

    def receive(self, number: int, timeout: float) -> Frame:
        """The answer to request `number`; other answers are kept, and events for `poll`.

        Raises LinkLost when the agent ends, falls silent or has not answered after `timeout` seconds.
        """
        end = running_seconds() + timeout
        while number not in self._answers:
            self._read(end)
        self._taken = self.received
        return self._answers.pop(number)

    def request(self, op: str, timeout: float, **body: Any) -> Frame:
        """One request and its answer."""
        return self.receive(self.send(op, **body), timeout)

    def poll(self, timeout: float) -> list[Frame]:
        """Events that have arrived, waiting up to `timeout` seconds for the first one."""
        if not self._events:
            self._read(running_seconds() + timeout, patient=True)
        events, self._events = list(self._events), deque()
        self._taken = self.received
        return events

    def load(self, part: str) -> None:
        """Send a further part of the agent; whether it was taken shows in the answer to what is asked of it."""
        compiled = self._channel.near and self.hello.get("magic") == boot.MAGIC
        self.send("load", **(boot.compiled(part) if compiled else boot.text(part)))

    def pulse(self) -> None:
        """A sign of life for an agent that would otherwise end itself; never raises."""
        with contextlib.suppress(LinkLost):
            self._write({"op": "pulse"})

    def close(self) -> None:
        self._channel.close()

    def _write(self, *bodies: Frame) -> None:
        data = b"".join(json.dumps(body, separators=(",", ":")).encode() + b"\n" for body in bodies)
        with self._sending:
            try:
                self._channel.send(data)
            except LinkLost as error:
                self.lost = error
                raise

    def _read(self, end: float, patient: bool = False) -> None:
        """Read once and sort what came into answers and events; heartbeats have done their work by coming."""
        now = running_seconds()
        if now >= end and not patient:
            raise self._gone("timed_out", "the agent did not answer in time")
        try:
            data = self._channel.recv(max(0.001, min(end - now, 1.0)))
        except TimeoutError:
            if self._up and self.silent_for() > self.silence_limit:
                raise self._gone("hung", f"no sign of life for {self.silent_for():.1f} s") from None
            return
        except LinkLost as lost:
            self.lost = lost
            raise
        if not data:
            self._ended = True
            raise self._gone("hung", self._last_words())
        self._heard = running_seconds()
        self.received += len(data)
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            raise self._gone("garbled", str(error)) from None
        self._sort(frames)
        if self.received - self._taken > MAX_UNTAKEN or len(self._events) > MOST_EVENTS:
            raise self._gone(
                "garbled", "more came that nobody had asked for than an agent of ours would say"
            )

    def _sort(self, frames: Iterable[Frame]) -> None:
        self._events.extend(f for f in frames if "id" not in f and "beat" not in f)
        for frame in frames:
            number = frame.get("id")
            if (
                type(number) is int and number in self._awaited
            ):  # once each, or a node could fill our memory
                self._awaited.discard(number)
                self._answers[number] = frame

    def _last_words(self) -> str:
        words = " ".join(self._channel.stderr().decode("utf-8", "replace").split())[-LONGEST:]
        return "the agent ended" + (f": {words}" if words else "")

    def _gone(self, reason: str, detail: str) -> LinkLost:
        self.lost = LinkLost(reason, detail)
        return self.lost

    def wait_hello(self, limit: float) -> None:
        """Wait for the agent's first word; raises Unreached with the reason when it does not come."""
        end = running_seconds() + limit
        try:
            while not self._events:
                self._read(end)
        except LinkLost as lost:
            raise self._no_hello(lost) from None
        self.hello, self._up = self._events.popleft(), True

    def _no_hello(self, lost: LinkLost) -> Unreached:
        said = f"{self._reader.rest} {self._channel.stderr().decode('utf-8', 'replace')}".strip()
        tail = " ".join(said.split())[-LONGEST:]
        if boot.NO_PYTHON in said:
            return Unreached(
                "no_python", "no python3 was found on the node", "apt-get install python3-minimal"
            )
        if self._ended and (tail or self._channel.alive):
            words = (
                tail or "the session ended without a word: a start-up file of the shell may end it"
            )
            way = "srun -w" if self.node.transport == "slurm" else "ssh"
            cure = f"{way} {self.node.name} \"/usr/bin/python3 -c 'import json'\""
            return Unreached("no_python", f"Python did not start: {words}", cure)
        return Unreached(
            lost.reason if lost.reason != "timed_out" else "hung", f"{lost.message} {tail}".strip()
        )


def open_link(
    transport: Transport,
    node: Node,
    parts: Sequence[str],
    password: Password,
    first: Callable[[Link], object] | None = None,
) -> Link:
    """Log in, start the agent with `parts` and wait for its first word. Raises Unreached.

    What `first` sends follows the agent at once, and its answers cost no round trip more.
    """
    nonce = os.urandom(8).hex()
    if node.ssh.become:
        channel = open_with_sudo(transport, node, password(node))
    else:
        channel = transport.open(node, boot.command())
    link = Link(node, channel, nonce)
    try:
        try:
            channel.send(boot.payload(nonce, parts, channel.near))
            if first is not None:
                first(link)
        except LinkLost:  # a command that has ended already may have said why
            link.wait_hello(PARTING_LIMIT)
        link.wait_hello(HELLO_LIMIT)
    except BaseException:
        link.close()
        raise
    return link
