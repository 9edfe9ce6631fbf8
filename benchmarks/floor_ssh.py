"""A floor for `check`: the bytes that it sends, through plain OpenSSH clients.

The answers are dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOM = 1 << 20  # bytes that a pipe takes at once, so that nothing here ever waits to write
NUMBER = re.compile(rb'"id":(\d+)}\n')  # how every answer ends


class Talk:
    """One host: its client, and which of its requests have been answered."""

    def __init__(self, command: list[str], first: bytes) -> None:
        self.client = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self._stdin, self.out = self.client.stdin, self.client.stdout.fileno()
        self._tail = b""
        self.answered: set[int] = set()
        fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, ROOM)
        self.send(first)

    def send(self, data: bytes) -> None:
        """Requests, as lines."""
        os.write(self._stdin.fileno(), data)

    def hear(self) -> bool:
        """Take what has come; whether there will be more."""
        data = os.read(self.out, 1 << 16)
        seen = self._tail + data
        self.answered.update(map(int, NUMBER.findall(seen)))
        self._tail = seen[-16:]
        return bool(data)

    def hang_up(self) -> None:
        """The agent ends when its input does."""
        self._stdin.close()


class Round:
    """All hosts: look everywhere, then every host dials the first one."""

    def __init__(self, job: dict[str, Any]) -> None:
        asked = [job["payload"].encode("latin-1") + looks.encode() for looks in job["looks"]]
        asked[0] += job["listen"].encode()
        self._talks = [Talk(*pair) for pair in zip(job["probe"], asked, strict=True)]
        self._dial = job["dial"].encode()
        self._look, self._port = job["wait_for"]  # numbers of requests
        self._to_dial: list[Talk] = []
        self._left = len(self._talks)

    def run(self) -> int:
        """Until every client has ended; the worst exit code."""
        with selectors.DefaultSelector() as selector:
            for talk in self._talks:
                selector.register(talk.out, selectors.EVENT_READ, talk)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._goes_on(key.data):
                        selector.unregister(key.fd)
        lost = any(not self._done(talk) for talk in self._talks)
        return max(lost, *(talk.client.wait() for talk in self._talks))

    def _goes_on(self, talk: Talk) -> bool:
        """Hear a host and say the next thing to it; whether there will be more."""
        looked, done = self._look in talk.answered, self._done(talk)
        goes_on, first = talk.hear(), self._talks[0]
        if self._look in talk.answered and not looked and talk is not first:
            self._to_dial.append(talk)
        while self._port in first.answered and self._to_dial:
            self._to_dial.pop().send(self._dial)
        if self._done(talk) and not done:
            self._end(talk)
        return goes_on

    def _done(self, talk: Talk) -> bool:
        return talk.answered >= {self._look, self._port}

    def _end(self, talk: Talk) -> None:
        """The first host listens until all others have dialled."""
        self._left -= 1
        if talk is not self._talks[0]:
            talk.hang_up()
        if self._left == 0:
            self._talks[0].hang_up()


def main(job: str) -> int:
    """Read the job that fanout.py wrote."""
    return Round(json.loads(Path(job).read_text())).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
