"""SSH servers that answer as the agents of a grown fleet would, each in a process of its own.

with ReplayedNodes(512, processes=2) as nodes:
    inventory = nodes.inventory(folder)
    ...
nodes.cpu   # seconds of all servers, from getrusage

No agent runs: the server takes what is sent for Python, and answers the questions that follow from
the recorded machines of `clusterprep selftest`. A node is told by the user who logs in.
"""

from __future__ import annotations

import binascii
import functools
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

import paramiko  # noqa: E402
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: E402

from clusterprep.model import Inventory, Node, Read, SshSettings  # noqa: E402
from clusterprep.remote import bootstrap  # noqa: E402
from tests.support import grown  # noqa: E402

NONCE = re.compile(rb"main\('([0-9a-f]+)', define, modules\)\n~")
DIGITS = 9  # of a length before the agent's source and before a parcel
READ = 1 << 16


class ReplayedNodes:
    """Server processes on 127.0.0.1 that stand for `count` nodes."""

    def __init__(self, count: int, processes: int = 2) -> None:
        self.count = count
        self.cpu = 0.0  # seconds of all servers, known after the end
        self._servers: list[subprocess.Popen[str]] = []
        self._places: list[dict[str, Any]] = []
        self._processes = processes

    def __enter__(self) -> ReplayedNodes:
        for _ in range(self._processes):
            server = subprocess.Popen(
                [sys.executable, str(HERE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._servers.append(server)
        for server in self._servers:
            assert server.stdout is not None
            self._places.append(json.loads(server.stdout.readline()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            rest, _ = server.communicate()
            self.cpu += json.loads(rest)["cpu"]

    def inventory(self, folder: Path) -> Inventory:
        """Return the nodes, with a key to log in and known_hosts in `folder`."""
        key = folder / "key"
        private = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        key.write_bytes(private)
        known_hosts = folder / "known_hosts"
        lines = [f"[127.0.0.1]:{line['port']} ssh-ed25519 {line['key']}" for line in self._places]
        known_hosts.write_text("\n".join(lines) + "\n")
        nodes = []
        for number in range(self.count):
            name = grown.name_of(number)
            settings = SshSettings(
                user=name,
                port=self._places[number % len(self._places)]["port"],
                identity_file=str(key),
                config="/dev/null",
                known_hosts=str(known_hosts),
                connect_timeout=60.0,
            )
            nodes.append(Node(name, "127.0.0.1", number, settings))
        return Inventory("replayed", tuple(nodes), path="replayed")


# ---------------------------------------------------------------- the server


class Admission(paramiko.ServerInterface):
    """Lets every key in, and starts every command."""

    def __init__(self) -> None:
        self.started = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.started.set()
        return True


class Conversation:
    """The far end of one link: takes the agent's source, then answers requests."""

    def __init__(self, channel: paramiko.Channel, answers: grown.Answers, number: int) -> None:
        self._channel = channel
        self._answers = answers
        self._number = number
        self._data = b""

    def run(self) -> None:
        """Answer until the other side hangs up. Raises EOFError then."""
        source = self._take_parcel()
        match = NONCE.search(source)
        nonce = match[1] if match else b""
        if expects_parcels(source.partition(b"~")[2]):  # text and code of a near node
            self._take_parcel()
            self._take_parcel()
        self._emit(nonce, json.dumps({"hello": 1, "magic": bootstrap.MAGIC}).encode())
        while True:
            request = json.loads(self._take_line())
            if "id" in request:
                self._emit(nonce, self._answer(request))

    def _answer(self, request: Mapping[str, Any]) -> bytes:
        if request["op"] != "look":
            return json.dumps({"id": request["id"]}).encode()
        asked = [Read(kind, _hashable(args)) for kind, args, _ in request["reads"]]
        frame = self._answers.frame(self._number, asked)
        return frame.replace(b'"id": 1}', b'"id": %d}' % request["id"])

    def _emit(self, nonce: bytes, payload: bytes) -> None:
        self._channel.sendall(b"\n%s %d %s\n" % (nonce, len(payload), payload))

    def _more(self) -> None:
        data = self._channel.recv(READ)
        if not data:
            raise EOFError
        self._data += data

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def _take_parcel(self) -> bytes:
        return self._take(int(self._take(DIGITS)))

    def _take_line(self) -> bytes:
        while b"\n" not in self._data:
            self._more()
        line, _, self._data = self._data.partition(b"\n")
        return line


@functools.cache
def expects_parcels(packed: bytes) -> bool:
    """Return whether a source of `bootstrap.payload` reads two parcels behind itself."""
    return b"= parcel(), parcel()" in zlib.decompress(binascii.a2b_base64(packed))


def _hashable(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)


def _converse(connection: socket.socket, key: paramiko.PKey, answers: grown.Answers) -> None:
    transport = paramiko.Transport(connection)
    transport.add_server_key(key)
    admission = Admission()
    try:
        transport.start_server(server=admission)
        channel = transport.accept(60.0)
        if channel is None:
            return
        admission.started.wait(60.0)
        number = int((transport.get_username() or "node1").removeprefix("node")) - 1
        Conversation(channel, answers, number).run()
    except (EOFError, OSError, paramiko.SSHException):
        return  # the controller hangs up when it knows enough
    finally:
        transport.close()


def _serve() -> None:
    """Serve until standard input ends, then print the CPU seconds that were used."""
    paramiko.util.logging.getLogger("paramiko").setLevel(100)
    answers = grown.Answers()
    private = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(private.decode()))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(connection, key, answers), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    place = {"port": listener.getsockname()[1], "key": key.get_base64()}
    print(json.dumps(place), flush=True)
    sys.stdin.read()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime}), flush=True)


if __name__ == "__main__":
    _serve()
    os._exit(0)
