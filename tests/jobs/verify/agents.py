"""Agents on this machine, each under the name of a node.

The real loop and the real link, with a pipe between.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.link import Link
from tests.support.patience import LONG, eventually


class PipeChannel:
    """A subprocess as a channel."""

    peer = None
    near = False
    alive = True

    def __init__(self, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout

    def send(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._in.write(data) or 0 :]
        except OSError as error:
            raise LinkLost("hung", f"the agent takes nothing: {error}") from None

    def recv(self, timeout: float) -> bytes:
        if not select.select([self._out], [], [], timeout)[0]:
            raise TimeoutError
        return os.read(self._out.fileno(), 1 << 16)

    def stderr(self) -> bytes:
        return b""

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self._in.close()
        try:
            self.process.wait(LONG)
        finally:
            self.process.kill()
            self.process.wait()
            self._out.close()


class LocalLink(Link):
    """A link that knows the process at its other end."""

    def __init__(self, node: Node, channel: PipeChannel, nonce: str) -> None:
        super().__init__(node, channel, nonce)
        self.channel = channel

    def relay(self, signum: int) -> None:
        """Signal what is between this end and the agent, where there is something."""
        for pid in children(self.channel.process.pid):
            if Path(f"/proc/{pid}/comm").read_text() == "cat\n":
                os.kill(pid, signum)


def open_agent(node: Node, python: str = sys.executable, relayed: bool = False) -> LocalLink:
    """An agent with the part `ranks`, by the line and the source that a node would get.

    A relayed one is spoken to through two processes, as through sshd.
    """
    command = bootstrap.command().replace("/usr/bin/python3", python)
    channel = PipeChannel(["/bin/sh", "-c", f"cat | ({command}) | cat" if relayed else command])
    nonce = secrets.token_hex(8)
    link = LocalLink(node, channel, nonce)
    try:
        channel.send(bootstrap.payload(nonce, ("ranks",)))
        link.wait_hello(LONG)
    except BaseException:
        link.close()
        raise
    return link


@contextmanager
def agents(nodes: Sequence[Node], relayed: bool = False) -> Iterator[list[LocalLink]]:
    """One agent per node; at the end none is left."""
    with ExitStack() as stack:
        links = []
        for node in nodes:
            links.append(open_agent(node, relayed=relayed))
            stack.callback(links[-1].close)
        yield links


def every_process() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def children(parent: int) -> list[int]:
    found = []
    for pid in every_process():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(pid)
    return found


def processes_of(links: Iterable[Link]) -> list[int]:
    """Processes that ranks of these agents are or have started, whatever became of the agents."""
    marks = tuple(f"CLUSTERPREP_TRIAL={link.hello['pid']}.".encode() for link in links)
    return [pid for pid in every_process() if _carries(pid, marks)]


def _carries(pid: int, marks: tuple[bytes, ...]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            return any(entry.startswith(marks) for entry in source.read().split(b"\0"))
    except OSError:
        return False


def gone(links: Iterable[Link], limit: float) -> bool:
    """Whether nothing is left of the ranks of these agents within `limit` seconds."""
    links = list(links)
    return eventually(lambda: not processes_of(links), limit)
