"""What a step's tasks say, put together from srun's labelled lines. Pure.

srun keeps lines of up to 1024 bytes together, but not the last ones of a task that ends; with `--label` every piece
says whose it is, so that pieces of a line are joined whatever came between. See remote/relay.py for the lines.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_PIECE = 1 << 16  # bytes that one record holds, as a task reads no more at once
MAX_LINE = 4096  # bytes of pieces that are no line yet
MAX_TEXT = 2 * MAX_PIECE  # characters of a record


@dataclass(frozen=True)
class Record:
    """One thing that a task said: `o`utput, `e`rrors, end o`f` output, e`x`it, `h`ost, `at`, `junk`, `broken`."""

    kind: str
    channel: int = 0
    data: bytes = b""


@dataclass
class _Talk:
    """What one task has said so far."""

    piece: bytes = b""
    number: int = 0
    text: list[bytes] = field(default_factory=list)
    length: int = 0
    broken: bool = False


class RecordReader:
    """Makes records of srun's stdout."""

    def __init__(self, nonce: str) -> None:
        self._mark = nonce.encode() + b" "
        self._rest = b""
        self._talks: dict[int, _Talk] = {}

    def feed(self, data: bytes) -> Iterator[tuple[int, Record]]:
        """Every record that `data` completes, with the number of its task."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_TEXT:]
        for line in lines:
            label, colon, piece = line.partition(b": ")
            if not colon or not label.strip().isdigit():
                continue
            task = int(label)
            talk = self._talks.setdefault(task, _Talk())
            for record in self._take(talk, piece):
                yield task, record

    def _take(self, talk: _Talk, piece: bytes) -> Iterator[Record]:
        """Heed one piece; those that do not end a line of ours wait for the next."""
        if talk.broken:
            return
        whole = talk.piece + piece
        at = max(0, whole.rfind(self._mark))  # srun may have torn the mark itself
        if whole[:at]:
            yield Record("junk", data=whole[:at][-MAX_LINE:])
        talk.piece = whole[at:]
        if self._mark.startswith(talk.piece):
            return
        if not talk.piece.startswith(self._mark) or len(talk.piece) > MAX_LINE:
            yield Record("junk", data=talk.piece[-MAX_LINE:])
            talk.piece = b""
        elif talk.piece.startswith(b"at ", len(self._mark)):
            yield Record("at", data=talk.piece[len(self._mark) + 3 :])
            talk.piece = b""
        elif talk.piece[-1:] in (b",", b";"):
            line, talk.piece = talk.piece, b""
            yield from self._line(talk, line[len(self._mark) : -1], last=line.endswith(b";"))

    def _line(self, talk: _Talk, line: bytes, *, last: bool) -> Iterator[Record]:
        number, _, text = line.partition(b" ")
        talk.text.append(text)
        talk.length += len(text)
        if not number.isdigit() or int(number) != talk.number or talk.length > MAX_TEXT:
            talk.broken = True
            yield Record("broken", data=b"a part of what the node sent through srun is missing")
            return
        talk.number += 1
        if last:
            whole, talk.text, talk.length = b"".join(talk.text), [], 0
            try:
                yield _record(whole)
            except (ValueError, zlib.error):  # binascii.Error is a ValueError
                talk.broken = True
                yield Record("broken", data=b"what the node sent through srun is no record of ours")


def _record(text: bytes) -> Record:
    kind, channel, data = base64.b64decode(text, validate=True).split(b" ", 2)
    if kind.isupper():
        machine = zlib.decompressobj()
        data = machine.decompress(data, MAX_PIECE)
        if not machine.eof:
            raise ValueError("more than a task reads at once")
    return Record(kind.decode("ascii").lower(), int(channel), data)
