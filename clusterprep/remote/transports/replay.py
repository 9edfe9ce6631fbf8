"""Recorded nodes: what a fleet answered once, answered again, so that judgement can be repeated without the fleet."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterprep.errors import Unreached
from clusterprep.model import Json, Node, Read
from clusterprep.remote.transports import Channel

_NONCE = re.compile(rb"main\('([0-9a-f]+)', define, modules\)\n~")


def read_key(read: Read) -> str:
    """How a recording names one read: its kind and arguments, not its limit."""
    return json.dumps([read.kind, *read.args])


def record(
    answers: Mapping[Read, Json], offset: float = 0.0, peer: str | None = None
) -> dict[str, Json]:
    """One node of a recording: raw answers by read, clock offset in seconds, address."""
    return {
        "offset": offset,
        "peer": peer,
        "answers": {read_key(read): value for read, value in answers.items()},
    }


class ReplayTransport:
    """Plays a recording: {node: {"answers": …, "offset": s, "peer": address} or {"unreached": [reason, detail]}}.

    Like a real node it refuses what it does not know: a read that was not recorded has no answer.
    """

    def __init__(self, recording: Mapping[str, Mapping[str, Json]]) -> None:
        self._recording = recording

    @classmethod
    def of_file(cls, path: Path) -> ReplayTransport:
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def open(self, node: Node, command: str) -> Channel:
        recorded = self._recording.get(node.name)
        if recorded is None:
            raise Unreached("name_unknown", f"{node.name} is not in the recording")
        if "unreached" in recorded:
            raise Unreached(*recorded["unreached"])
        return _RecordedNode(recorded)

    def unheard(self) -> tuple[str, ...]:
        """Nobody: a recording says at once what it knows."""
        return ()

    def close(self) -> None:
        """Nothing is shared between recorded nodes."""


class _RecordedNode:
    """The far end of a channel: takes the agent's source, then answers requests from the recording."""

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
            if request["op"] != "pulse":
                self._emit({**self._serve(request), "id": request["id"]})

    def _start(self) -> None:
        length = int(self._incoming[:9] or b"0")
        if len(self._incoming) >= 9 + length:
            match = _NONCE.search(self._incoming[: 9 + length])
            self._nonce = match[1] if match else b"?"
            self._incoming = self._incoming[9 + length :]
            self._emit({"hello": 1})

    def _serve(self, request: Mapping[str, Any]) -> dict[str, Json]:
        op = request["op"]
        if op == "ping":
            now = time.time() + self._recorded.get("offset", 0.0)
            return {"seen": now, "sent": now}
        if op == "look":
            return {"answers": [self._answer(read) for read in request["reads"]]}
        if op == "listen":
            return {"ports": [first for first, _ in request["spans"]]}
        if op == "unlisten":
            return {}
        if op == "dial":
            row = self._recorded.get("dial", ["ok", 50, 0, True, 0])
            return {"dials": [row for _ in request["targets"] for _ in request.get("sizes") or [0]]}
        return {"no": "not_recorded", "why": f"a recording cannot {op}"}

    def _answer(self, read: Sequence[Json]) -> Json:
        key = read_key(Read(read[0], tuple(read[1])))
        return self._recorded["answers"].get(key, ["no", "not_recorded", key])

    def _emit(self, body: Mapping[str, Json]) -> None:
        payload = json.dumps(body).encode()
        self._outgoing += b"\n%s %d %s\n" % (self._nonce, len(payload), payload)

    def recv(self, timeout: float) -> bytes:
        if not self._outgoing:
            time.sleep(min(timeout, 0.01))
            raise TimeoutError
        data, self._outgoing = self._outgoing[:65536], self._outgoing[65536:]
        return data

    def stderr(self) -> bytes:
        return b""

    def kill(self) -> None:
        """There is no process to end."""

    def close(self) -> None:
        """Nor here."""
