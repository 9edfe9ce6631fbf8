"""Put together what a step's tasks send, from srun's labelled lines. Pure.

srun keeps lines of up to 1024 bytes together, but not the last ones of a task that ends. With
`--label` every piece says which task it is from, so the pieces of a line are joined whatever came
between. See clusterprep/remote/agent/relay.py for the lines.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

from msgspec import Struct, field

MAX_PIECE = 1 << 16  # bytes that one record holds, as a task reads no more at once
MAX_LINE = 4096  # bytes of pieces that are no line yet
MAX_TEXT = 2 * MAX_PIECE  # characters of a record


class Record(Struct, frozen=True):
    """One message of a task.

    Kinds: "o" output, "e" stderr, "f" end of output, "x" exit, "h" name of the host, "at" name of
    the host before Python starts, "junk" other output, "broken" a stream that cannot be read.
    """

    kind: str
    channel: int = 0
    data: bytes = b""


class _TaskOutput(Struct):
    """What one task has sent so far and what is not a record yet."""

    piece: bytes = b""
    next_number: int = 0  # of the next line
    texts: list[bytes] = field(default_factory=list)
    length: int = 0
    is_broken: bool = False


class RecordReader:
    """Makes records of srun's stdout."""

    def __init__(self, nonce: str) -> None:
        self._mark = nonce.encode() + b" "
        self._rest = b""
        self._outputs: dict[int, _TaskOutput] = {}  # by task

    def feed(self, data: bytes) -> Iterator[tuple[int, Record]]:
        """Yield every record that `data` completes, with the number of its task."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MAX_TEXT:]
        for line in lines:
            label, colon, piece = line.partition(b": ")
            if not colon or not label.strip().isdigit():
                continue
            task = int(label)
            output = self._outputs.setdefault(task, _TaskOutput())
            for record in self._take(output, piece):
                yield task, record

    def _take(self, output: _TaskOutput, piece: bytes) -> Iterator[Record]:
        """Yield the records that a piece completes.

        A piece that ends no line waits for the next one.
        """
        if output.is_broken:
            return
        joined = output.piece + piece
        mark_at = max(0, joined.rfind(self._mark))  # srun may have torn the mark itself
        if mark_at:
            yield Record("junk", data=joined[:mark_at][-MAX_LINE:])
        line = joined[mark_at:]
        output.piece = line
        if self._mark.startswith(line):
            return
        body = line[len(self._mark) :]
        if not line.startswith(self._mark) or len(line) > MAX_LINE:
            yield Record("junk", data=line[-MAX_LINE:])
            output.piece = b""
        elif body.startswith(b"at "):
            yield Record("at", data=body[3:])
            output.piece = b""
        elif line.endswith((b",", b";")):
            output.piece = b""
            yield from self._line(output, body[:-1], is_last=body.endswith(b";"))

    def _line(self, output: _TaskOutput, line: bytes, *, is_last: bool) -> Iterator[Record]:
        """Yield the record that a numbered line completes, if it is the last one of a record."""
        number, _, text = line.partition(b" ")
        output.texts.append(text)
        output.length += len(text)
        is_next = number.isdigit() and int(number) == output.next_number
        if not is_next or output.length > MAX_TEXT:
            output.is_broken = True
            yield Record("broken", data=b"a part of what the node sent through srun is missing")
            return
        output.next_number += 1
        if not is_last:
            return
        text = b"".join(output.texts)
        output.texts = []
        output.length = 0
        try:
            yield _record(text)
        except (ValueError, zlib.error):  # binascii.Error is a ValueError
            output.is_broken = True
            yield Record("broken", data=b"what the node sent through srun is no record of ours")


def _record(text: bytes) -> Record:
    """Parse the joined text of a record: base64 of "KIND CHANNEL DATA". Raises ValueError."""
    kind, channel, data = base64.b64decode(text, validate=True).split(b" ", 2)
    if kind.isupper():  # the data is compressed
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(data, MAX_PIECE)
        if not decompressor.eof:
            raise ValueError("more than a task reads at once")
    return Record(kind.decode("ascii").lower(), int(channel), data)
