"""An sshd of a hostile node, by paramiko: it lets everybody in and runs the real command.

What is wrong is the SSH around it, as the way says:

closed  the client may send no more, once the file FLAG is there; the agent goes on beating
drip    the client may send one more byte every 0.2 s
flood   bytes come without end, also beyond what the client allows

    python -m tests.support.hostile_sshd PORT KEY WAY FLAG
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_DATA, cMSG_CHANNEL_WINDOW_ADJUST

from tests.support.lab import Host, processes

WAYS = ("closed", "drip", "flood")
WINDOW = 2048  # bytes that a client may send at first; what is less than this paramiko refuses
PORT = 2222
BEAT = 2.0  # seconds between the signs of life that the agent gets in place of the client's
GONE = (OSError, EOFError, paramiko.SSHException)


class Server(paramiko.ServerInterface):
    """Accepts every key and one command."""

    def __init__(self) -> None:
        self.command = ""
        self.has_command = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.command = command.decode()
        self.has_command.set()
        return True


class Conversation:
    """One login, and the command that runs in it."""

    def __init__(self, connection: socket.socket, key: paramiko.PKey, way: str, flag: Path) -> None:
        self._way = way
        self._flag = flag
        self._transport: Any = paramiko.Transport(connection, default_window_size=WINDOW)
        self._transport.add_server_key(key)
        self._server = Server()

    def run(self) -> None:
        self._transport.start_server(server=self._server)
        channel = self._transport.accept(30)
        if channel is None or not self._server.has_command.wait(30):
            return
        self._channel: Any = channel
        channel._check_add_window = lambda count: 0  # what the client may send is said here alone
        if self._way == "flood":
            with contextlib.suppress(*GONE):
                self._flood()
            return
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self._server.command], stdin=pipe, stdout=pipe, cwd="/"
        )
        threading.Thread(target=self._carry_output, daemon=True).start()
        with contextlib.suppress(*GONE):
            self._carry_input()
        self._process.kill()
        self._transport.close()

    def _send(self, kind: bytes, *values: int | bytes) -> None:
        message = paramiko.Message()
        message.add_byte(kind)
        message.add_int(self._channel.remote_chanid)
        for value in values:
            if isinstance(value, int):
                message.add_int(value)
            else:
                message.add_string(value)
        self._transport._send_user_message(message)

    def _flood(self) -> None:
        while self._transport.is_active():
            self._send(cMSG_CHANNEL_DATA, b"\n" * 30_000)

    def _carry_output(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(*GONE):
            while data := os.read(self._process.stdout.fileno(), 65536):
                self._channel.sendall(data)
            self._channel.close()

    def _carry_input(self) -> None:
        assert self._process.stdin is not None
        stdin = self._process.stdin.fileno()
        left = WINDOW
        while data := self._channel.recv(65536):
            os.write(stdin, data)
            left -= len(data)
            if left:
                continue
            # A whole request has come, so that the agent takes the beats behind it.
            if self._way == "closed" and self._flag.exists() and data.endswith(b"\n"):
                self._beat(stdin)
                return
            left = self._further()
            self._send(cMSG_CHANNEL_WINDOW_ADJUST, left)

    def _further(self) -> int:
        """Return how many bytes more the client may send."""
        if self._way == "drip":
            time.sleep(0.2)
            return 1
        return 1 if self._flag.exists() else 64

    def _beat(self, stdin: int) -> None:
        while self._process.poll() is None and self._transport.is_active():
            os.write(stdin, b'{"op":"pulse"}\n')
            time.sleep(BEAT)


def main() -> None:
    port, key_file, way, flag = sys.argv[1:]
    key = paramiko.Ed25519Key(filename=key_file)
    with socket.create_server(("", int(port))) as listener:
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            conversation = Conversation(connection, key, way, Path(flag))
            threading.Thread(target=conversation.run, daemon=True).start()


@contextmanager
def hostile_sshd(host: Host, way: str, flag: str = "/run/closed") -> Iterator[None]:
    """Serve on PORT of a lab host, with the host's own key."""
    key = "/etc/ssh/ssh_host_ed25519_key"
    argv = [sys.executable, "-m", "tests.support.hostile_sshd", str(PORT), key, way, flag]
    root = Path(__file__).resolve().parents[2]
    process = host.popen(["env", f"PYTHONPATH={root}", *argv], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "listening\n"
        yield
    finally:
        processes.kill_group(process)
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    main()
