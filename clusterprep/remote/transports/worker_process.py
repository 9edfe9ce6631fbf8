"""The worker process: it logs in to nodes and passes on what they say.

It has an `SshTransport` of its own, and so its own host keys, keys and jump hosts. Known hosts are
files that are changed under their lock, and a passphrase is asked for by the controller.

The controller hands over one end of a socket pair for each node (`worker_messages`). Two threads
serve it: one passes on what the node says, one what the controller says. Neither reads more than
the other side takes, so a node that floods the controller is held up by TCP, as without a worker.

The process ends with its control socket, which ends with the controller, however that comes about.
Its connections end with it, and so do the agents. It is in a session of its own and takes no notice
of the signals that end a command: the controller ends in order, and for that it needs its nodes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import threading
import time

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.ssh_channel import SshChannel
from clusterprep.remote.transports.worker_messages import (
    Kind,
    MessageStream,
    pack_error,
    unpack_question,
)

TICK = 0.25  # seconds between two looks at which nodes have sent a first byte
# Seconds after which a thread that waits for the node sees that the controller has hung up, if the
# other thread cannot see it because the node takes nothing.
LONGEST_WAIT = 5.0
# Thresholds of the garbage collector: what a connection is made of lives until its end.
CYCLES = (50_000, 20, 50)


class Worker:
    """All nodes of one worker process."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._transport = SshTransport(self._ask)
        self._of_thread = threading.local()
        # Nodes that are being opened and have sent nothing, by name: since when.
        self._opening: dict[str, tuple[float, MessageStream]] = {}
        self._channels: set[SshChannel] = set()

    def run(self) -> None:
        """Serve nodes until the controller wants no more."""
        while True:
            readable, _, _ = select.select([self._control], [], [], TICK)
            if readable:
                data, ends = _receive_end(self._control)
                if not data:
                    break
                for end in ends:
                    self._start(MessageStream(end))
            self._tell_heard()
        for channel in list(self._channels):
            channel.close()
        self._transport.close()

    def _start(self, stream: MessageStream) -> None:
        threading.Thread(target=self._serve, args=(stream,), daemon=True, name="node").start()

    def _serve(self, stream: MessageStream) -> None:
        """Start the command of a node and pass on what both sides say, until either ends."""
        try:
            channel = self._opened(stream)
            if channel is not None:
                self._channels.add(channel)
                self._pass_on(stream, channel)
        except EOFError:
            return  # the controller wants nothing more of this node
        finally:
            stream.close()

    def _pass_on(self, stream: MessageStream, channel: SshChannel) -> None:
        """Pass on what both sides say until the controller hangs up. Raises EOFError."""
        inputs = threading.Thread(
            target=_pass_on_input, args=(stream, channel), daemon=True, name="input"
        )
        inputs.start()
        try:
            _pass_on_output(channel, stream)
            inputs.join()
        finally:
            channel.close()
            self._channels.discard(channel)

    def _opened(self, stream: MessageStream) -> SshChannel | None:
        """Return the channel of a node, or None after telling why there is none.

        Raises EOFError.
        """
        _, content = stream.receive()
        node, command = unpack_question(content)
        self._of_thread.stream = stream
        self._opening[node.name] = (time.monotonic(), stream)
        try:
            channel = self._transport.open(node, command)
        except Exception as error:  # noqa: BLE001 - all of them are for the controller
            stream.send(Kind.FAILED, pack_error(error))
            return None
        finally:
            self._opening.pop(node.name, None)
        opened = {"peer": channel.peer, "near": channel.near}
        try:
            stream.send(Kind.OPENED, json.dumps(opened).encode())
        except EOFError:
            channel.close()
            raise
        return channel

    def _ask(self, prompt: str) -> str:
        """Have the controller ask for a passphrase. Raises EOFError if it wants it no more."""
        stream: MessageStream = self._of_thread.stream
        stream.send(Kind.ASK, prompt.encode("utf-8", "surrogateescape"))
        _, content = stream.receive()
        return content.decode("utf-8", "surrogateescape")

    def _tell_heard(self) -> None:
        """Tell the controller which nodes have sent their first byte."""
        now = time.monotonic()
        silent = set(self._transport.unheard())
        for name, (since, stream) in list(self._opening.items()):
            # A moment ago the transport may not have known the node yet.
            if name in silent or now - since < TICK:
                continue
            if self._opening.pop(name, None) is not None:
                with contextlib.suppress(EOFError):
                    stream.send(Kind.HEARD)


def _pass_on_output(channel: SshChannel, stream: MessageStream) -> None:
    """Pass on what a node says until it has ended. Raises EOFError if the controller hangs up."""
    while True:
        try:
            output, errors = channel.recv_both(LONGEST_WAIT)
        except TimeoutError:
            if stream.has_ended:
                raise EOFError from None
            continue
        except LinkLost as lost:
            stream.send(Kind.LOST, pack_error(lost))
            return
        if errors:
            stream.send(Kind.ERRORS, errors)
        if output:
            stream.send(Kind.OUTPUT, output)
        if not output and not errors:
            ended = {"alive": channel.alive}
            stream.send(Kind.ENDED, json.dumps(ended).encode())
            return


def _pass_on_input(stream: MessageStream, channel: SshChannel) -> None:
    """Pass on what the controller says. End the connection when it hangs up."""
    takes_input = True
    with contextlib.suppress(EOFError):
        while True:
            kind, content = stream.receive()
            if kind is Kind.KILL:
                channel.kill()
            elif takes_input:
                try:
                    channel.send(content)
                except LinkLost as lost:
                    takes_input = False
                    stream.send(Kind.LOST, pack_error(lost))
    channel.close()
    stream.close()


def _receive_end(control: socket.socket) -> tuple[bytes, list[socket.socket]]:
    """Return what came on the control socket: a byte with one end of a socket pair, or b""."""
    data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    ends = []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        ends.append(socket.socket(fileno=descriptor))
    return data, ends


def serve() -> None:
    """Be a worker process whose control socket is standard input."""
    # Handlers that do nothing: a ProxyCommand would inherit that a signal is ignored.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: None)
    gc.set_threshold(*CYCLES)
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        Worker(control).run()
    finally:
        os._exit(0)  # threads may wait for nodes
