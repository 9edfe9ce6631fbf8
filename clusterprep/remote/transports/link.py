"""The controller's half of a conversation with one agent: start it, ask it, notice its end.

Both sides send a sign of life every few seconds, because SSH notices a dead node after half a
minute at best. An agent that hears nothing for 30 s ends itself and all that it started. Ranks and
processes of a launch are ended after 15 s (LEASH in agent/children.py).

Nothing stays on the node: no file, no process, no second login. `tests/fuzz/` plays broken agents
against this module, `tests/support/hostile.py` hosts that lie.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remedies import shell_line
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.filtered_channel import FilteredChannel, without_secret
from clusterprep.remote.transports.frames import MAX_EVENT, MAX_FRAME, Frame, FrameReader, plain
from clusterprep.remote.transports.held_bytes import HeldBytes
from clusterprep.remote.transports.login_shell import last_of, shell_trouble
from clusterprep.remote.transports.protocol import Channel, Transport
from clusterprep.remote.transports.secret_filter import SecretFilter
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
# Bytes that a link holds at most: an answer that is coming, and events and answers that were not
# taken yet. An agent lets 2 MiB of a job's output wait (BACKLOG in agent/printed.py).
MAX_HELD = 2 * MAX_FRAME
# The journal's runs, with the bytes of their files.
LARGE_ANSWERS = {"runs": 16 << 20}
MAX_UNASKED = 64 << 20  # bytes that may come before an event or an answer is taken; few are kept
MOST_EVENTS = 20_000  # that wait; they are taken ten times a second

Password = Callable[[Node], SudoPassword | None]


class Link:
    """One agent, for one thread at a time. `send_waiting` may be called from another thread.

    A request is sent at once by `send`, which may block for as long as the node takes nothing, or
    left to such a thread by `post`. Requests leave in the order of these calls. Once a send has
    failed nothing more is sent, because a part of a request may be on its way. `held_bytes` counts
    what the links of a command hold together.
    """

    def __init__(
        self,
        node: Node,
        channel: Channel,
        nonce: str,
        secret_filter: SecretFilter | None = None,
        held_bytes: HeldBytes | None = None,
    ) -> None:
        self.node = node
        self.hello: Frame = {}
        self._filter = secret_filter or SecretFilter()
        self._channel = FilteredChannel(channel, self._filter)
        # A password is searched in values.
        self._reader = FrameReader(nonce, in_pieces=not self._filter.searches_answers)
        self._sending = threading.Lock()
        # Requests that are not sent yet, as values: of a large one the text is made when its turn
        # has come, so that the texts of all nodes are not in memory at once.
        self._unsent: deque[Sequence[Frame]] = deque()
        self._broken: LinkLost | None = None  # why nothing more can be sent
        self.under_way = 0  # bytes of a text that is being sent
        self._events: deque[Frame] = deque()
        self._last_heard = running_seconds()
        self.received = 0  # bytes
        self._taken = 0  # value of `received` when an event or an answer was taken last
        self._asked = 0  # number of the last request
        self._awaited: dict[int, int] = {}  # by number: bytes that the answer may have
        self._held_bytes = held_bytes or HeldBytes()
        # Bytes of events and of answers, by number, that were not taken yet.
        self._event_bytes = 0
        self._answer_bytes: dict[int, int] = {}
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
        numbers = self._queue(requests)
        with self._sending:
            self._send_unsent()
        self.send_waiting()
        if self._broken is not None:
            raise self._broken
        return numbers

    def post(self, op: str, **body: Any) -> int:
        """Queue a request for `send_waiting`. Returns its number; `receive` raises its failure."""
        return self._queue([(op, body)])[0]

    def _queue(self, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> list[int]:
        numbers = []
        bodies = []
        for op, body in requests:
            self._asked += 1
            numbers.append(self._asked)
            bodies.append({"id": self._asked, "op": op, **body})
            self._awaited[self._asked] = LARGE_ANSWERS.get(op, MAX_FRAME)
        self._limit_frames()
        self._unsent.append(bodies)
        return numbers

    def send_waiting(self) -> None:
        """Send what is queued, unless another thread does. Never raises."""
        # That thread may have looked at the queue a moment ago: so it is looked at again behind it.
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                self._send_unsent()
            finally:
                self._sending.release()

    def receive(
        self, number: int, timeout: float, patience: Callable[[], float] | None = None
    ) -> Frame:
        """Return the answer to request `number`.

        Other answers are kept for their own `receive`, and events for `poll`. Raises LinkLost if
        the agent ends, falls silent or has not answered after `timeout` seconds. `patience` is
        called ten times a second: it may raise, and returns for how many seconds the answer is
        still awaited.
        """
        frame = self.receive_pieces(number, timeout, patience)
        return self._plain(frame)

    def receive_pieces(
        self, number: int, timeout: float, patience: Callable[[], float] | None = None
    ) -> Frame:
        """Return the answer as `receive` does, but the answers to reads are pieces.

        A piece is what `frames.decoded` takes; where a password was looked for it is a value.
        """
        end = running_seconds() + timeout
        answer = self._take_answer(number)
        while answer is None:
            if patience is None:
                self._read(end)
            else:
                end = min(end, running_seconds() + patience())
                self._read(end, longest=LOOK_LIMIT)
            answer = self._take_answer(number)
        return answer

    def receive_now(self, number: int, timeout: float = 0.0) -> Frame | None:
        """Return the answer to request `number` if it has come after one read, else None.

        The read waits up to `timeout` seconds for a first byte. Raises LinkLost if the agent has
        ended or fallen silent.
        """
        answer = self._take_answer(number)
        if answer is None:
            self._read(running_seconds() + timeout, patient=True)
            answer = self._take_answer(number)
        return None if answer is None else self._plain(answer)

    def _plain(self, frame: Frame) -> Frame:
        """Return a frame with values as answers. Raises LinkLost for what no agent writes."""
        try:
            return plain(frame)
        except ValueError as error:
            raise self._loss("garbled", str(error)) from None

    def _take_answer(self, number: int) -> Frame | None:
        """Return an answer that has come, else None. Raises LinkLost if no further one can come.

        Of a node that takes no more requests, the answers that it has sent still count.
        """
        if number not in self._answers and self._broken is not None:
            before = self.received
            self._read(running_seconds(), patient=True)
            if self.received == before:
                raise self._broken
        answer = self._answers.pop(number, None)
        if answer is not None:
            self._taken = self.received
            self._answer_bytes.pop(number, None)
        return answer

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
        self._event_bytes = 0
        self._taken = self.received
        return events

    def load(self, part: str) -> None:
        """Queue a further part of the agent, for `send_waiting` or before the next request.

        Whether the agent accepted it shows in the answers to requests for that part.
        """
        if self._channel.near and self.hello.get("magic") == bootstrap.MAGIC:
            body = bootstrap.load_as_code(part)
        else:
            body = bootstrap.load_as_text(part)
        self.post("load", **body)

    def pulse(self) -> None:
        """Queue a sign of life, without which an agent ends itself, for `send_waiting`."""
        if not self._unsent:  # a request that waits is as good
            self._unsent.append([{"op": "pulse"}])

    def close(self) -> None:
        self._channel.close()
        self._held_bytes.forget(self)

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

    def _send_unsent(self) -> None:
        """Send what is queued, one line for each request. The caller holds `_sending`."""
        while self._unsent:
            bodies = self._unsent.popleft()
            if self._broken is not None:
                continue
            lines = [json.dumps(body, separators=(",", ":")).encode() + b"\n" for body in bodies]
            data = b"".join(lines)
            self.under_way = len(data)
            try:
                self._channel.send(data)
            except LinkLost as error:
                self.lost = error
                self._broken = error
            finally:
                self.under_way = 0

    def _read(self, end: float, patient: bool = False, longest: float = READ_LIMIT) -> None:
        """Read once, and sort the frames into answers and events.

        Raises LinkLost; past `end` too, unless `patient`.
        """
        now = running_seconds()
        if now >= end and not patient:
            raise self._loss("timed_out", "the agent did not answer in time")
        limit = min(end - now, longest)
        data = self._receive_bytes(max(0.0, limit))
        if data is None:
            return
        self._last_heard = running_seconds()
        self.received += len(data)
        held_before = self._reader.held + len(data)
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            raise self._loss("garbled", str(error)) from None
        self._sort(frames, held_before - self._reader.held)
        self._refuse_excess()

    def _limit_frames(self) -> None:
        """Let the reader take frames as large as the largest answer that is awaited."""
        self._reader.largest = max(self._awaited.values(), default=MAX_EVENT)

    def _refuse_excess(self) -> None:
        """Raise LinkLost if this node sent too much, or holds most where all hold too much."""
        held = self._reader.held + self._event_bytes + sum(self._answer_bytes.values())
        is_too_much = held > max(MAX_HELD, 2 * self._reader.largest)
        if is_too_much or self.received - self._taken > MAX_UNASKED:
            raise self._loss("garbled", "the node sent more unrequested data than an agent would")
        if len(self._events) > MOST_EVENTS:
            raise self._loss("garbled", "the node sent more events than an agent would")
        if self._held_bytes.exceeds(self, held):
            raise self._loss("garbled", self._held_bytes.refusal)

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

    def _sort(self, frames: Iterable[Frame], size: int) -> None:
        """Keep awaited answers for `receive` and events for `poll`; drop the rest.

        `size` is how many bytes the frames have together.
        """
        has_events = False
        for unfiltered in frames:
            frame = self._filter.frame(unfiltered)
            number = frame.get("id")
            # Each answer is kept once, or a node could fill the controller's memory.
            if type(number) is int and number in self._awaited:
                del self._awaited[number]
                self._limit_frames()
                self._answers[number] = frame
                self._answer_bytes[number] = size
            # A heartbeat has served its purpose by coming.
            if "id" not in frame and "beat" not in frame:
                self._events.append(frame)
                has_events = True
        if has_events:
            self._event_bytes += size

    def _stderr(self) -> str:
        return self._channel.stderr().decode("utf-8", "replace")

    def _last_words(self) -> str:
        stderr = last_of(self._stderr())
        if not stderr:
            return "the agent ended"
        return f"the agent ended: {stderr}"

    def _loss(self, reason: str, detail: str) -> LinkLost:
        self.lost = without_secret(LinkLost(reason, detail), self._filter)
        return self.lost

    def _no_hello(self, lost: LinkLost) -> Unreached:
        """Return the error for an agent that was lost before its first frame."""
        printed = self._filter.text(self._reader.rest)
        stderr = self._stderr()
        output = f"{printed} {stderr}"
        tail = last_of(output)
        if bootstrap.NO_PYTHON in output:
            remedy = shell_line("apt-get install python3-minimal")
            return Unreached("no_python", "no python3 was found on the node", remedy)
        if self._has_ended and (tail or self._channel.alive):
            # Under sudo Python prints before its agent does: then sudo's dialogue has judged this.
            if not self.node.ssh.become:
                trouble = shell_trouble(self.node, printed, stderr)
                if trouble is not None:
                    return trouble
            return self._python_did_not_start(tail)
        reason = "hung" if lost.reason == "timed_out" else lost.reason
        return Unreached(reason, f"{lost.message} {tail}".strip())

    def _python_did_not_start(self, output: str) -> Unreached:
        if not output:
            output = "the session ended without a word"
        tool = shell_line("srun -w" if self.node.transport == "slurm" else "ssh")
        remedy = shell_line(
            "{tool} {name} \"/usr/bin/python3 -c 'import json'\"", tool=tool, name=self.node.name
        )
        return Unreached("no_python", f"Python did not start: {output}", remedy)


def open_link(
    transport: Transport,
    node: Node,
    parts: Sequence[str],
    password: Password,
    first: Callable[[Link], object] | None = None,
    held_bytes: HeldBytes | None = None,
) -> Link:
    """Log in, start the agent with `parts` and wait for its first frame. Raises Unreached.

    `parts` names the parts of the agent, and `password(node)` returns sudo's password. Requests
    that `first(link)` sends follow the agent's source at once, so that their answers cost no
    further round trip. `held_bytes` counts what all links of the command hold.
    """
    secret = password(node)
    secret_filter = secret.filter if secret is not None else SecretFilter()
    try:
        return _open(
            transport,
            node,
            parts,
            secret,
            secret_filter,
            first,
            held_bytes,
        )
    except Unreached as error:
        raise without_secret(error, secret_filter) from None


def _open(
    transport: Transport,
    node: Node,
    parts: Sequence[str],
    secret: SudoPassword | None,
    secret_filter: SecretFilter,
    first: Callable[[Link], object] | None,
    held_bytes: HeldBytes | None,
) -> Link:
    """Return the link of `open_link`. Raises Unreached, whose text may quote the node."""
    nonce = os.urandom(8).hex()
    if node.ssh.become:
        channel = open_with_sudo(transport, node, secret)
    else:
        channel = transport.open(node, bootstrap.command())
    link = Link(
        node,
        channel,
        nonce,
        secret_filter,
        held_bytes,
    )
    try:
        try:
            # In two sends, so that the agent is in memory once and not once for each login.
            own, of_all = bootstrap.pieces(nonce, parts, channel.near)
            channel.send(own)
            channel.send(of_all)
            if first is not None:
                first(link)
        except LinkLost:  # a command that has ended already may have sent the reason
            link.wait_hello(PARTING_LIMIT)
        link.wait_hello(HELLO_LIMIT)
    except BaseException:
        link.close()
        raise
    return link
