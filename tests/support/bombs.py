"""One node of a recorded fleet answers with a bomb. Run as a program, it prints the peak of memory.

python -m tests.support.bombs lists   # → {"peak": MiB, "reasons": {"n1": null, "n2": "garbled", …}}
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clusterprep.cli.commands.selftest import FORKS, _NoProgress, _recording
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Json, Node
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.replay import ReplayTransport, _RecordedNode
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import plan_queries

FLEET = "hgx-h100-ib"
VICTIM = 1
OLD_LARGEST = 16 << 20  # bytes
Pieces = Callable[[int], Iterator[bytes]]
PIECE = 60_000  # bytes of what comes at once
COUNT = 4  # times that it sends its bomb


def _repeated(unit: bytes, size: int) -> Pieces:
    """Return the pieces of an answer in which a value stands so many bytes long."""
    count = PIECE // len(unit)

    def pieces(number: int) -> Iterator[bytes]:
        yield b'{"id":%d,"answers":[' % number
        for _ in range(size // (count * len(unit))):
            yield unit * count
        yield b"0]}"

    return pieces


def _keys(number: int) -> Iterator[bytes]:
    yield b'{"id":%d,"answers":[{"0":0' % number
    for start in range(0, OLD_LARGEST // 12, 1000):
        names = range(start, start + 1000)
        yield b"".join(b',"%x":{}' % name for name in names)
    yield b"}]}"


def _wide(number: int) -> Iterator[bytes]:
    """One text of the allowed size, whose last letter makes each take four bytes."""
    yield b'{"id":%d,"answers":["' % number
    for _ in range((4 << 20) // PIECE - 1):
        yield b"x" * PIECE
    yield b'\\ud83d\\ude00"]}'


def _unasked(number: int) -> Iterator[bytes]:
    yield b'{"what":"x","d":['
    yield b"[]," * 80_000
    yield b"0]}"


# What a node answers, in pieces, to the request of that number.
BOMBS: Mapping[str, Pieces] = {
    "lists": _repeated(b"[],", OLD_LARGEST - 200),
    "objects": _repeated(b"{},", OLD_LARGEST - 200),
    "words": _repeated(b'"ab",', OLD_LARGEST - 200),
    "keys": _keys,
    "lists-of-an-allowed-size": _repeated(b"[],", (4 << 20) - 200),
    "lists-of-an-allowed-number": _repeated(b"[],", 3 * 99_000),
    "a-wide-text": _wide,
    "unasked": _unasked,
}


class Hostile(_RecordedNode):
    """Plays a node of the recording, and sends bombs in place of its answers."""

    def __init__(self, recorded: Mapping[str, Any], bomb: Pieces) -> None:
        super().__init__(recorded)
        self._bomb = bomb
        self._coming: Iterator[bytes] = iter(())

    def _emit(self, body: Mapping[str, Json]) -> None:
        if "answers" in body:
            self._coming = self._frames(body["id"])
        else:
            super()._emit(body)

    def _frames(self, number: int) -> Iterator[bytes]:
        length = sum(map(len, self._bomb(number)))
        for _ in range(COUNT):
            yield b"\n%s %d " % (self._nonce, length)
            yield from self._bomb(number)
            yield b"\n"

    def recv(self, timeout: float) -> bytes:
        return next(self._coming, b"") or super().recv(timeout)


class Transport(ReplayTransport):
    """Plays a recording in which one node is hostile."""

    def __init__(self, recording: Mapping[str, Any], victim: str, bomb: Pieces | None) -> None:
        super().__init__(recording)
        self._recorded = recording[victim]
        self._victim = victim
        self._bomb = bomb

    def open(self, node: Node, command: str) -> Channel:
        if self._bomb is None or node.name != self._victim:
            return super().open(node, command)
        return Hostile(self._recorded, self._bomb)


def looked(bomb: Pieces | None) -> dict[str, str | None]:
    """Look at the fleet with all checks. Return why each node could not be used."""
    plan = plan_queries(tuple(registry.checks().values()), registry.facts())
    with _recording(FLEET) as (path, recording):
        inventory = load_inventory(path)
    victim = inventory.nodes[VICTIM].name
    transport = Transport(recording, victim, bomb)
    transports = dict.fromkeys(("ssh", "local"), transport)
    with Fanout(inventory, transports, FORKS, lambda node: None, _NoProgress()) as fanout:
        fleet = fanout.survey(plan)
    return {name: snapshot.reason for name, snapshot in fleet.snapshots.items()}


def main() -> None:
    """Print the peak of memory beyond what was there before the look, and what became of nodes."""
    name = sys.argv[1]
    bomb = BOMBS[name] if name else None
    looked(None)  # what any look needs is there
    before = _peak()
    reasons = looked(bomb)
    print(json.dumps({"before": before, "peak": _peak(), "reasons": reasons}))


def _peak() -> float:
    """Return the largest resident size so far in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
