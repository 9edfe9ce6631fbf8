"""The controller's half of a conversation with one agent: start it, ask it, notice that it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remote import boot
from clusterprep.transports import Channel, Transport

HELLO_LIMIT = 10.0  # seconds from the started command to the agent's first word
PARTING_LIMIT = 1.0  # seconds for what a command that has ended has left on the way
SILENCE_LIMIT = 5.0  # seconds; the agent beats every second, five missed beats are a lost node
MAX_FRAME = 16 << 20  # bytes of one answer
DIGITS = 9  # of a length
MAX_JUNK = 1 << 20  # bytes of banners and profile output before the first word of the agent

Frame = dict[str, Any]
Password = Callable[[Node], "str | None"]


class FrameReader:
    """Finds frames `NONCE LENGTH JSON` at line starts in a byte stream and drops everything else."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"\n" + nonce.encode() + b" "
        self._buffer = b"\n"
        self.junk = b""  # the last of what was no frame, for messages

    def feed(self, data: bytes) -> list[Frame]:
        """All frames completed by `data`. Raises ValueError when the stream cannot be an agent's."""
        self._buffer += data
        frames: list[Frame] = []
        while (at := self._buffer.find(self._mark)) >= 0:
            start = at + len(self._mark)
            head = self._buffer[start : start + DIGITS + 1]
            digits, space, _ = head.partition(b" ")
            if head and not digits.isdigit():
                self._drop(start)  # the nonce and no length: no frame of the agent
                continue
            if len(digits) > DIGITS or int(digits or b"0") > MAX_FRAME:
                raise ValueError(f"an answer of {digits.decode()} bytes was announced")
            start += len(digits) + 1
            length = int(digits or b"0")
            if not space or len(self._buffer) <= start + length:  # the newline after the payload belongs to the frame
                self._drop(at)
                return frames
            frames.append(self._parse(self._buffer[start : start + length]))
            self._drop(at, start + length)
        if len(self._buffer) > MAX_JUNK:
            raise ValueError("more than 1 MiB came that is no answer of the agent")
        return frames

    def _drop(self, until: int, then: int | None = None) -> None:
        self.junk = (self.junk + self._buffer[:until])[-2048:]
        self._buffer = self._buffer[until if then is None else then :]

    @staticmethod
    def _parse(payload: bytes) -> Frame:
        try:
            frame = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"an answer is no JSON: {error}") from None
        if not isinstance(frame, dict):
            raise ValueError("an answer is no JSON object")  # noqa: TRY004 - bad data, not a bad call
        return frame

    @property
    def rest(self) -> str:
        """What came and was no frame, as text for a message."""
        return (self.junk + self._buffer)[-2048:].decode("utf-8", "replace").strip()


class Link:
    """One agent, for one thread at a time; `pulse` may be called from another one."""

    def __init__(self, node: Node, channel: Channel, nonce: str) -> None:
        self.node = node
        self.hello: Frame = {}
        self._channel = channel
        self._reader = FrameReader(nonce)
        self._sending = threading.Lock()
        self._events: deque[Frame] = deque()
        self._heard = time.monotonic()
        self._asked = 0
        self._awaited: set[int] = set()
        self._answers: dict[int, Frame] = {}  # that came while another one was waited for
        self.lost: LinkLost | None = None
        self._ended = False
        self._up = False  # before its first word an agent does not beat: Python may take long to start

    @property
    def peer(self) -> str | None:
        return self._channel.peer

    def silent_for(self) -> float:
        """Seconds since the agent's last word; more than SILENCE_LIMIT means that it is gone."""
        return time.monotonic() - self._heard

    def send(self, op: str, **body: Any) -> int:
        """Send a request and give its number for `receive`."""
        return self.send_all((op, body))[0]

    def send_all(self, *requests: tuple[str, Mapping[str, Any]]) -> list[int]:
        """Send several requests in one piece, so that together they cost one round trip, and give their numbers."""
        numbers = list(range(self._asked + 1, self._asked + 1 + len(requests)))
        self._asked += len(requests)
        self._awaited.update(numbers)
        self._write(*({"id": number, "op": op, **body} for number, (op, body) in zip(numbers, requests, strict=True)))
        return numbers

    def receive(self, number: int, timeout: float) -> Frame:
        """The answer to request `number`; other answers are kept, and events for `poll`.

        Raises LinkLost when the agent ends, falls silent or has not answered after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while number not in self._answers:
            self._read(end)
        return self._answers.pop(number)

    def request(self, op: str, timeout: float, **body: Any) -> Frame:
        """One request and its answer."""
        return self.receive(self.send(op, **body), timeout)

    def poll(self, timeout: float) -> list[Frame]:
        """Events that have arrived, waiting up to `timeout` seconds for the first one."""
        if not self._events:
            self._read(time.monotonic() + timeout, patient=True)
        events, self._events = list(self._events), deque()
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
        now = time.monotonic()
        if now >= end and not patient:
            raise self._gone("timed_out", "the agent did not answer in time")
        try:
            data = self._channel.recv(max(0.001, min(end - now, 1.0)))
        except TimeoutError:
            if self._up and self.silent_for() > SILENCE_LIMIT:
                raise self._gone("hung", f"no sign of life for {self.silent_for():.1f} s") from None
            return
        except LinkLost as lost:
            self.lost = lost
            raise
        if not data:
            self._ended = True
            raise self._gone("hung", self._last_words())
        self._heard = time.monotonic()
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            raise self._gone("garbled", str(error)) from None
        self._events.extend(f for f in frames if "id" not in f and "beat" not in f)
        for frame in frames:
            number = frame.get("id")
            if isinstance(number, int) and number in self._awaited:  # once each, or a node could fill our memory
                self._awaited.discard(number)
                self._answers[number] = frame

    def _last_words(self) -> str:
        words = " ".join(self._channel.stderr().decode("utf-8", "replace").split())[-300:]
        return "the agent ended" + (f": {words}" if words else "")

    def _gone(self, reason: str, detail: str) -> LinkLost:
        self.lost = LinkLost(reason, detail)
        return self.lost

    def wait_hello(self, limit: float) -> None:
        """Wait for the agent's first word; raises Unreached with the reason when it does not come."""
        end = time.monotonic() + limit
        try:
            while not self._events:
                self._read(end)
        except LinkLost as lost:
            raise self._no_hello(lost) from None
        self.hello, self._up = self._events.popleft(), True

    def _no_hello(self, lost: LinkLost) -> Unreached:
        said = f"{self._reader.rest} {self._channel.stderr().decode('utf-8', 'replace')}".strip()
        tail = " ".join(said.split())[-300:]
        if boot.NO_PYTHON in said:
            return Unreached("no_python", "no python3 was found on the node", "apt-get install python3-minimal")
        if self._ended and (tail or self._channel.alive):
            words = tail or "the session ended without a word: a start-up file of the shell may end it"
            way = "srun -w" if self.node.transport == "slurm" else "ssh"
            cure = f"{way} {self.node.name} \"/usr/bin/python3 -c 'import json'\""
            return Unreached("no_python", f"Python did not start: {words}", cure)
        return Unreached(lost.reason if lost.reason != "timed_out" else "hung", f"{lost.message} {tail}".strip())


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
        channel = _open_with_sudo(transport, node, password(node))
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


def _open_with_sudo(transport: Transport, node: Node, password: str | None) -> Channel:
    """Start Python under sudo. The password goes out only after sudo's own prompt has been seen."""
    prompt, ready = os.urandom(8).hex(), os.urandom(8).hex()
    command = boot.command(become=prompt, ready=ready, password=password is not None)
    channel = transport.open(node, command)
    try:
        _answer_sudo(channel, prompt, ready, password)
    except BaseException:
        channel.close()
        raise
    return channel


def _answer_sudo(channel: Channel, prompt: str, ready: str, password: str | None) -> None:
    end, out, asked = time.monotonic() + HELLO_LIMIT, b"", False
    while ready.encode() not in out:
        try:
            data = channel.recv(0.1)
        except TimeoutError:
            data = None
        out = (out + (data or b""))[-MAX_JUNK:]
        prompts = channel.stderr().count(prompt.encode()) + out.count(prompt.encode())
        if prompts == 1 and not asked and password is not None:
            channel.send(password.encode() + b"\n")
            asked = True
        if data == b"" or prompts > 1 or time.monotonic() > end:
            raise _sudo_refused(channel, prompt)


def _sudo_refused(channel: Channel, prompt: str) -> Unreached:
    words = " ".join(channel.stderr().decode("utf-8", "replace").replace(prompt, "").split())[-300:]
    remedy = "run it again with --ask-become-pass, or give the user NOPASSWD: ALL in /etc/sudoers.d"
    return Unreached("sudo_refused", f"sudo did not let us in: {words or 'no answer'}", remedy)
