"""Reads logs of any size in bounded memory and lets the lines through that may matter.

A gigabyte of log has millions of lines and some dozens that matter, so no line is looked at by itself: a block is put
into small letters with every digit as 0, which makes lines that differ in numbers equal, and lines of a form that was
seen before cost a look into a set. New forms are searched for words that every sign of a cause holds one of. What is
measured in benchmarks/diagnose.py says why.
"""

from __future__ import annotations

import bisect
import codecs
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from clusterprep.errors import InputError, Problem

BLOCK = 4 << 20  # bytes read at once
LONGEST = (
    16 << 10
)  # bytes of a line that are looked at; longer ones are tensors that somebody printed
MOST_FORMS = 100_000  # forms of lines that are remembered
EXACT = (
    4 << 20
)  # bytes of forms that are searched for every needle; text that is new all the time gets a coarser look
BROAD = 64 << 20  # bytes that are searched for WORDS, and after them for CORE alone
MOST_ALIKE = 1_024  # lines of one form that are kept; ranks of one job write the same line
MOST_VAGUE = 200  # lines of a file that look like errors and hold nothing that a sign looks for
MOST_KEPT = 20_000  # lines of all files that are kept

# What forms are searched for once EXACT bytes of them were searched for every needle. Nearly every sign holds one of
# these as programs print it; tests/jobs/diagnose/test_sources.py has those that do not.
WORDS = tuple(
    b"error|fail|warn|timeout|timed out|watchdog|killed|signal|mismatch|exception|cannot|could not|unable to"
    b"|nccl version|net/|bootstrap|xid|exitcode|host      :|rank      :|rendezvous|collective|invalid|refused|aborted"
    b"|already in use|out of memory|no space left|too many|completion|duplicate|closed by|not supported|nccl_".split(
        b"|"
    )
)
CORE = tuple(
    b"error|fail|warn|timed out|timeout|watchdog|killed|signal|cannot|xid|exitcode|nccl version".split(
        b"|"
    )
)
# And these once so many held one of those that it must be prose: none of them stands in ordinary sentences.
NAMES = tuple(
    b"nccl warn|nccl version|cuda error|errno|watchdog|xid|exitcode|rendezvous|memory|c10d".split(
        b"|"
    )
)
MOST_JUDGED = 30_000  # forms that were taken for prose after that
TABLE = bytes.maketrans(b"0123456789" + bytes(range(65, 91)), b"0" * 10 + bytes(range(97, 123)))

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_GZIP, _GZIP_BITS = b"\x1f\x8b", 31  # 31: with the header of gzip
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"\xfd7zXZ\x00": "xz -dc",
    b"BZh": "bzip2 -dc",
    b"PK\x03\x04": "unzip -p",
}
_TEXT = bytes(range(32, 127)) + b"\t\n\r\f\b\x1b\0"
_ERRORLIKE = re.compile(
    rb"error|fail|exception|fatal|abort|killed|panic|segfault|refused|timed out|cannot|could not"
)
_STRANGE = (
    0.10  # share of control bytes above which a file is no text; logs of crashed hosts have a few
)


@dataclass(frozen=True, slots=True)
class KeptLines:
    """A line that may matter, as bytes."""

    file: str
    number: int
    text: bytes


@dataclass
class Reading:
    """What was read of all files. `times` counts lines of a form beyond those kept."""

    kept: list[KeptLines] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    left_out: int = 0


def read(names: Sequence[str], needles: Sequence[bytes], stdin: BinaryIO | None = None) -> Reading:
    """Read files, `-` for standard input. InputError names every file that is none, or that is no text."""
    reading = Reading()
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            _read_one(name, reading, needles, stdin)
        except InputError as error:
            problems += error.problems
        except OSError as error:
            problems += InputError.of(error.strerror or str(error), file=name).problems
    if problems:
        raise InputError(tuple(problems))
    if reading.left_out:
        reading.notices.append(f"{reading.left_out:,} more lines like those kept were only counted")
    return reading


def _read_one(
    name: str, reading: Reading, needles: Sequence[bytes], stdin: BinaryIO | None
) -> None:
    if name == "-":
        _filter(name, stdin or sys.stdin.buffer, reading, needles)
        return
    with open(name, "rb") as stream:
        _filter(name, stream, reading, needles)


def _filter(name: str, stream: BinaryIO, reading: Reading, needles: Sequence[bytes]) -> None:
    sieve, number, ended = Sieve(needles), 0, True
    for block in _whole_lines(_texts(name, stream, reading.notices)):
        _sift(name, block, number, sieve, reading)
        number += block.count(b"\n")
        ended = block.endswith(b"\n")
    reading.lines[name] = number + (not ended)
    reading.left_out += sieve.left_out


# ---------------------------------------------------------------- bytes


def _texts(name: str, stream: BinaryIO, notices: list[str]) -> Iterator[bytes]:
    """Blocks of UTF-8 text without escapes of terminals and zero bytes."""
    blocks = _unpacked(name, stream, notices)
    first = next(blocks, b"")
    _refuse_binary(name, first)
    for block in _decoded(first, blocks):
        text = block.replace(b"\0", b"") if b"\0" in block else block
        yield _ESCAPES.sub(b"", text) if b"\x1b" in text else text


def _unpacked(name: str, stream: BinaryIO, notices: list[str]) -> Iterator[bytes]:
    first = _block(stream, BLOCK)
    blocks = itertools.chain([first] if first else [], iter(lambda: _block(stream, BLOCK), b""))
    return _unzipped(name, blocks, notices) if first.startswith(_GZIP) else blocks


def _unzipped(name: str, blocks: Iterable[bytes], notices: list[str]) -> Iterator[bytes]:
    """What gzip holds, never more than a block at once; several files in a row are one, as gzip -dc has it."""
    unzip = zlib.decompressobj(_GZIP_BITS)
    try:
        for block in blocks:
            data = block
            while data:
                if unzip.eof:
                    if not data.startswith(_GZIP):
                        return  # padding
                    unzip = zlib.decompressobj(_GZIP_BITS)
                yield unzip.decompress(data, BLOCK)
                data = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
    except zlib.error as error:
        notices.append(f"{name}: the gzip file is damaged ({error}); what could be read was")
        return
    if not unzip.eof:
        notices.append(f"{name}: the gzip file is cut off; what could be read was")


def _block(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, fewer only at the end; a pipe gives what it has, and the rest of a block comes later."""
    parts, left = [], size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _refuse_binary(name: str, first: bytes) -> None:
    for magic, tool in _PACKED.items():
        if first.startswith(magic):
            hint = f"{tool} {name} | clusterprep diagnose -"
            raise InputError.of("is packed in a way that is not read here", file=name, hint=hint)
    if first.startswith(tuple(mark for mark, _ in _MARKS)):
        return
    sample = first[:65536].replace(b"\0", b"")
    strange = len(sample.translate(None, _TEXT + bytes(range(128, 256))))
    torn = sum(char == "\N{REPLACEMENT CHARACTER}" for char in sample.decode("utf-8", "replace"))
    if first and (not sample or (strange + torn) / len(sample) > _STRANGE):
        raise InputError.of("is no text: a log was expected", file=name)


def _decoded(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 and UTF-32 with a mark become UTF-8."""
    encoding = next((encoding for mark, encoding in _MARKS if first.startswith(mark)), None)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


# ---------------------------------------------------------------- lines


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks that end where a line ends; a line without an end is handed on in pieces of a block each."""
    rest: list[bytes] = []
    size = 0
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, block[:cut]])
            rest, size = [], 0
        tail = block[cut:] if cut else block
        rest.append(tail)
        size += len(tail)
        if size > BLOCK:
            yield b"".join(rest)
            rest, size = [], 0
    if size:
        yield b"".join(rest)


def _sift(name: str, block: bytes, number: int, sieve: Sieve, reading: Reading) -> None:
    """Keep what matters of a block that begins after line `number`."""
    rows: Sequence[int]
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if b"\r" in block:  # a progress bar is one line that is written again and again
        parts = [
            (row, part)
            for row, line in enumerate(block.split(b"\n"))
            for part in line.split(b"\r")
            if part
        ]
        rows, lines = [row for row, _ in parts], [part for _, part in parts]
        block = b"\n".join(lines)
    else:
        lines = block.split(b"\n")
        rows = range(len(lines))
    for place in sieve.matter(block):
        if len(reading.kept) >= MOST_KEPT:
            sieve.left_out += 1
            continue
        reading.kept.append(KeptLines(name, number + rows[place] + 1, lines[place][:LONGEST]))


class Sieve:
    """Tells lines that may matter from others by their form: small letters, every digit a 0.

    `needles` are what signs look for. Lines that hold one are kept; of those that only look like errors a few are,
    to be shown where nothing else is known.
    """

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.left_out = 0
        self._needles = needles
        self._known: set[bytes] = set()
        self._wanted: dict[
            bytes, int
        ] = {}  # forms that matter, and how many lines of them may still be kept
        self._vague = MOST_VAGUE
        self._searched = 0
        self._judged = 0

    def matter(self, block: bytes) -> list[int]:
        """Which lines of a block may matter."""
        forms = block.translate(TABLE).split(b"\n")
        fresh = set(forms)
        fresh -= self._known
        if fresh:
            for form in _holding(list(fresh), self._words(sum(map(len, fresh)))):
                self._judge(form)
            if len(self._known) + len(fresh) > MOST_FORMS:
                self._known.clear()
            self._known |= fresh
        wanted = self._wanted
        return (
            [place for place, form in enumerate(forms) if form in wanted and self._counted(form)]
            if wanted
            else []
        )

    def _words(self, size: int) -> Sequence[bytes]:
        """What to search so many bytes of new forms for."""
        self._searched += size
        if self._searched - size < EXACT:
            return (*WORDS, *self._needles)
        if self._judged >= MOST_JUDGED:
            return NAMES
        return WORDS if self._searched < BROAD else CORE

    def _judge(self, form: bytes) -> None:
        self._judged += 1
        if form in self._wanted or len(self._wanted) >= MOST_FORMS:
            return
        head = form[:LONGEST]
        if any(needle in head for needle in self._needles):
            self._wanted[form] = MOST_ALIKE
        elif self._vague and _ERRORLIKE.search(head):
            self._vague -= 1
            self._wanted[form] = 1

    def _counted(self, form: bytes) -> bool:
        self._wanted[form] -= 1
        if self._wanted[form] >= 0:
            return True
        self.left_out += 1
        return False


def _holding(rows: list[bytes], words: Sequence[bytes]) -> set[bytes]:
    """The forms that hold one of the words, found by searching all forms as one text."""
    text = b"\n".join(rows)
    starts: list[int] = []
    holding: set[int] = set()
    for word in words:
        place = text.find(word)
        while place >= 0:
            starts = starts or list(itertools.accumulate((len(row) + 1 for row in rows), initial=0))
            row = bisect.bisect_right(starts, place) - 1
            holding.add(row)
            place = text.find(word, starts[row + 1])
    return {rows[row] for row in holding}
