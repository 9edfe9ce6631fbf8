"""Recorded nodes: answer again what a fleet answered once, so that checks run without the fleet."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.errors import Unreached
from clusterprep.model import Json, Node, Read
from clusterprep.remote.transports.protocol import Channel

_NONCE = re.compile(rb"main\('([0-9a-f]+)', define, modules\)\n~")


def read_key(read: Read) -> str:
    """Return the name of a read in a recording: its kind and arguments, not its limit."""
    return json.dumps([read.kind, *read.args])


def record(
    answers: Mapping[Read, Json], offset: float = 0.0, peer: str | None = None
) -> dict[str, Json]:
    """Return one node of a recording: raw answers by read, clock offset in seconds, address."""
    by_key = {read_key(read): answer for read, answer in answers.items()}
    return {
        "offset": offset,
        "peer": peer,
        "answers": by_key,
    }


class ReplayTransport:
    """Plays a recording of nodes by name.

    A node is {"answers": …, "offset": seconds, "peer": address} or {"unreached": [reason, detail]}.
    Like a real node it refuses unknown requests: a read that was not recorded has no answer.
    """

    def __init__(self, recording: Mapping[str, Mapping[str, Json]]) -> None:
        self._recording = recording

    def open(self, node: Node, command: str) -> Channel:
        recorded = self._recording.get(node.name)
        if recorded is None:
            raise Unreached("name_unknown", f"{node.name} is not in the recording")
        if "unreached" in recorded:
            raise Unreached(*recorded["unreached"])
        return _RecordedNode(recorded)

    def unheard(self) -> tuple[str, ...]:
        """Return an empty tuple: a recording answers at once."""
        return ()

    def close(self) -> None:
        """Do nothing: recorded nodes share nothing."""


class _RecordedNode:
    """The far end of a channel: takes the agent's source, then answers requests."""

    alive = True
    near = False

    def __init__(self, recorded: Mapping[str, Json]) -> None:
        self.peer: str | None = recorded.get("peer")
        self._recorded = recorded
        self._nonce = b""
        self._incoming = b""
        self._outgoing = b""

    def send(self, data: bytes) -> None:
        self._incoming += data
        if not self._nonce:
            self._start()
        while self._nonce and b"\n" in self._incoming:
            line, self._incoming = self._incoming.split(b"\n", 1)
            request = json.loads(line)
            if request["op"] == "pulse":
                continue
            answer = self._answer(request)
            self._emit({**answer, "id": request["id"]})

    def _start(self) -> None:
        """Take the agent's source, once it has arrived completely: nine digits of length, bytes."""
        end = 9 + int(self._incoming[:9] or b"0")
        if len(self._incoming) < end:
            return
        match = _NONCE.search(self._incoming[:end])
        self._nonce = match[1] if match else b"?"
        self._incoming = self._incoming[end:]
        self._emit({"hello": 1})

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Json]:
        op = request["op"]
        if op == "ping":
            now = time.time() + self._recorded.get("offset", 0.0)
            return {
                "seen": now,
                "sent": now,
            }
        if op == "look":
            answers = [self._answer_to_read(read) for read in request["reads"]]
            return {"answers": answers}
        if op == "listen":
            ports = [first for first, _ in request["spans"]]
            return {"ports": ports}
        if op == "unlisten":
            return {}
        if op == "dial":
            return self._answer_to_dials(request)
        return {
            "no": "not_recorded",
            "why": f"a recording cannot {op}",
        }

    def _answer_to_dials(self, request: Mapping[str, Any]) -> dict[str, Json]:
        """Return one row for each target and packet size, all the same."""
        row = self._recorded.get("dial", ["ok", 50, 0, True, 0])
        sizes = request.get("sizes") or [0]
        count = len(request["targets"]) * len(sizes)
        return {"dials": [row] * count}

    def _answer_to_read(self, read: Sequence[Json]) -> Json:
        kind, arguments = read[0], tuple(read[1])
        key = read_key(Read(kind, arguments))
        return self._recorded["answers"].get(key, ["no", "not_recorded", key])

    def _emit(self, body: Mapping[str, Json]) -> None:
        payload = json.dumps(body).encode()
        self._outgoing += b"\n%s %d %s\n" % (self._nonce, len(payload), payload)

    def recv(self, timeout: float) -> bytes:
        if not self._outgoing:
            time.sleep(min(timeout, 0.01))
            raise TimeoutError
        data = self._outgoing[:65536]
        self._outgoing = self._outgoing[65536:]
        return data

    def stderr(self) -> bytes:
        return b""

    def kill(self) -> None:
        """Do nothing: there is no process to end."""

    def close(self) -> None:
        """Do nothing, likewise."""
