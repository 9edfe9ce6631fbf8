"""How Fabric runs a command on a node of ours: without polling, and with bounded memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from fabric.runners import Remote
from paramiko import Channel as Session
from paramiko import SSHException

from clusterprep.fabric.printed import Kept
from clusterprep.fabric.program import ShellProgram
from clusterprep.model import Node
from clusterprep.remote.bootstrap import SHELL_RUNS, become_prefix
from clusterprep.remote.transports.ssh_connection import SshConnection
from clusterprep.remote.transports.sudo import SudoDialogue, SudoPassword

READ_SIZE = 1 << 16  # bytes at once; the default of Fabric is a thousand
LOOK = 0.5  # seconds between two looks at whether a thread of the runner has died
PARTING = 1.0  # seconds for output of a command that has ended
STDERR_KEPT = 8192  # bytes of what sudo says
CONNECTION_ERRORS = (OSError, EOFError, SSHException)


class OpenNode(Protocol):
    """What a runner needs of the connection that it belongs to."""

    node: Node

    @property
    def opened(self) -> SshConnection: ...

    def create_session(self) -> Session: ...


class NodeRunner(Remote):
    """Fabric's runner, which looks a hundred times a second whether the command has ended.

    With a few hundred nodes that takes all of a processor. This one waits for the event.
    """

    read_chunk_size = READ_SIZE
    context: OpenNode
    channel: Session

    def wait(self) -> None:
        """Return once the command has ended, or a thread that reads from it has died."""
        while not self.channel.status_event.wait(LOOK):
            if self.has_dead_threads:
                return


class ProgramRunner(NodeRunner):
    """Runs one of our programs, if asked for under sudo. Its output goes to `kept` alone."""

    def __init__(
        self,
        connection: OpenNode,
        program: ShellProgram,
        secret: SudoPassword | None,
        kept: Mapping[str, Kept],
    ) -> None:
        super().__init__(connection, inline_env=True)
        self._node: Node = connection.node
        self._program = program
        self._secret = secret
        self._kept = kept

    def start(
        self, command: str, shell: str, env: Mapping[str, str], timeout: float | None = None
    ) -> None:
        """Start the program, under sudo where the node asks for it. Raises Unreached.

        Not in `send_start_message`, which Fabric 2, as Debian 13 has it, does not call.
        """
        self.channel = self.context.create_session()
        if self._node.ssh.become:
            self._start_under_sudo()
        else:
            # Without a login shell that stays: it would be in the group that the program ends.
            self.channel.exec_command(f"exec {self._program.line}")
        self.channel.settimeout(None)
        self.channel.sendall(self._program.stdin)
        self.channel.settimeout(PARTING)

    def _start_under_sudo(self) -> None:
        """Return once the program waits for its text: sudo would take that for a password."""
        if self._secret is not None:
            self._secret.refuse_again(self._node)
        ready = os.urandom(8).hex()
        session = SessionChannel(self.context, self.channel)
        line = self._program.line_that_says(ready)
        session.converse(line, ready, self._secret)

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        """Keep all of stdout, and return its end."""
        return self._read_all(self.channel.recv, num_bytes, self._kept["out"])

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        """Keep all of stderr, and return its end."""
        return self._read_all(self.channel.recv_stderr, num_bytes, self._kept["err"])

    def _read_all(self, read: Callable[[int], bytes], size: int, kept: Kept) -> bytes:
        """Keep what comes until the end, or until the command has ended and nothing more comes.

        A daemon that it started may hold the other end for years.
        """
        while True:
            try:
                data = read(size)
            except TimeoutError:
                if self.channel.status_event.is_set():
                    return b""
                continue
            if not data:
                return data
            kept.feed(data)


class SessionChannel:
    """A session of paramiko as sudo's dialogue wants it. See Channel in transports.protocol."""

    peer: str | None = None
    near = False

    def __init__(self, connection: OpenNode, session: Session) -> None:
        self._connection = connection
        self._session = session
        self._tail = b""

    def converse(self, command: str, ready: str, secret: SudoPassword | None) -> None:
        """Start sudo, or doas, and return when the command has printed `ready`. Raises Unreached.

        Without a password sudo never asks.
        """
        prompt = os.urandom(8).hex()
        prefix = become_prefix(None if secret is None else prompt)
        self._session.exec_command(f"echo {SHELL_RUNS}; exec {prefix}{command}")
        try:
            SudoDialogue(self._connection.node, self, prompt, ready, secret).run()
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return not self._session.closed

    def send(self, data: bytes) -> None:
        self._session.sendall(data)

    def recv(self, timeout: float) -> bytes:
        self._session.settimeout(timeout)
        try:
            return self._session.recv(READ_SIZE)
        finally:
            self._session.settimeout(None)

    def stderr(self) -> bytes:
        while self._session.recv_stderr_ready():
            data = self._session.recv_stderr(READ_SIZE)
            self._tail = (self._tail + data)[-STDERR_KEPT:]
        return self._tail

    def kill(self) -> None:
        """Ask sshd to kill the command, before the end of its input makes sudo count a failure."""
        with contextlib.suppress(*CONNECTION_ERRORS):
            self._connection.opened.transport.send_signal(self._session.remote_chanid, "KILL")

    def close(self) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            self._session.close()
