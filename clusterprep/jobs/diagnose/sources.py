"""Reads logs of any size in bounded memory and keeps the lines that may matter.

A gigabyte of log has millions of lines and some dozens that matter, so lines are not looked at one
by one. A block is put into small letters with every digit as 0, which makes lines equal that differ
only in numbers. A line of a form that was seen before costs one look into a dictionary; new forms
are searched for what signs of causes look for (`forms`), and the lines that have it are kept
(`keeping`). benchmarks/diagnose.py has the figures.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from msgspec import Struct, field

from clusterprep.errors import InputError, Problem
from clusterprep.jobs.diagnose.forms import Sieve, forms_of
from clusterprep.jobs.diagnose.keeping import Budget, Keeper

BLOCK = 4 << 20  # bytes read at once
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, as it begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's number for the largest window and a header of gzip
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"\xfd7zXZ\x00": "xz -dc",
    b"BZh": "bzip2 -dc",
    b"PK\x03\x04": "unzip -p",
}
_TEXT = bytes(range(32, 127)) + b"\t\n\r\f\b\x1b\0"
_NOT_ASCII = bytes(range(128, 256))
_SAMPLE = 65536  # bytes by which a file is judged to be text or not
# Share of control bytes above which a file is not text; logs of crashed hosts have a few.
_MOST_CONTROL_BYTES = 0.10


class KeptLine(Struct, frozen=True):
    """A line that may matter, as bytes."""

    file: str
    number: int
    text: bytes


class Reading(Struct):
    """What was read of all files. `left_out` counts lines of a kind beyond those kept."""

    kept: list[KeptLine] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    left_out: int = 0


def _is_never_plain(line: bytes) -> bool:
    return False


def read(
    names: Sequence[str],
    needles: Sequence[bytes],
    stdin: BinaryIO | None = None,
    *,
    is_plain: Callable[[bytes], bool] = _is_never_plain,
    budget: Budget = Budget(),  # noqa: B008 - it is frozen
) -> Reading:
    """Read files, `-` for standard input.

    Lines for which `is_plain` is true are kept even where the budget for what they look like is
    used up. Raises InputError that names every file that cannot be read or is not text.
    """
    reader = _Reader(Sieve(needles, budget.exact, budget.forms), budget, is_plain, len(names))
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            reader.read(name, stdin)
        except InputError as error:
            problems += error.problems
        except OSError as error:
            message = error.strerror or str(error)
            problems += InputError.of(message, file=name).problems
    if problems:
        raise InputError(tuple(problems))
    reading = reader.reading
    if reading.left_out:
        reading.notices.append(f"{reading.left_out:,} more lines like those kept were only counted")
    return reading


class _Reader:
    """Reads one file after another. What it learns of forms in one file serves the next."""

    def __init__(
        self, sieve: Sieve, budget: Budget, is_plain: Callable[[bytes], bool], files: int
    ) -> None:
        self.reading = Reading()
        self._sieve = sieve
        self._budget = budget
        self._is_plain = is_plain
        self._tail = budget.tail_of(files)
        self._frames = budget.frames  # lines of tracebacks that may still be kept
        self._name_of_file: dict[tuple[int, int], str] = {}  # by device and inode

    def read(self, name: str, stdin: BinaryIO | None) -> None:
        """Read one file and add what matters of it to the reading."""
        if name == "-":
            self._read_stream(name, stdin or sys.stdin.buffer)
            return
        with open(name, "rb") as stream:
            status = os.fstat(stream.fileno())
            other = self._name_of_file.setdefault((status.st_dev, status.st_ino), name)
            if other != name and stat.S_ISREG(status.st_mode):
                self.reading.notices.append(f"{name} is the same file as {other}, so it is left")
                return
            self._read_stream(name, stream)

    def _read_stream(self, name: str, stream: BinaryIO) -> None:
        reading = self.reading
        keeper = Keeper(name, self._sieve, self._budget, self._is_plain, self._tail)
        number = 0
        ended = True
        self._sieve.start_file()
        for block in _whole_lines(_texts(name, stream, reading.notices)):
            _sift(block, number, self._sieve, keeper)
            number += block.count(b"\n")
            ended = block.endswith(b"\n")
        reading.lines[name] = number if ended else number + 1
        reading.left_out += keeper.left_out
        rows = keeper.rows(self._frames)
        self._frames -= keeper.frames
        reading.kept += [KeptLine(name, line_number, text) for _, line_number, text in rows]
        for limit in (*self._sieve.limits(), *keeper.limits()):
            reading.notices.append(f"{name}: {limit}")


# ---------------------------------------------------------------- bytes


def _texts(name: str, stream: BinaryIO, notices: list[str]) -> Iterator[bytes]:
    """Yield blocks of UTF-8 text without escapes of terminals and without zero bytes."""
    blocks = _unpacked(name, stream, notices)
    first = next(blocks, b"")
    _refuse_packed(name, first)
    _refuse_binary(name, first)
    for block in _decoded(first, blocks):
        text = block
        if b"\0" in text:
            text = text.replace(b"\0", b"")
        if b"\x1b" in text:
            text = _ESCAPES.sub(b"", text)
        yield text


def _unpacked(name: str, stream: BinaryIO, notices: list[str]) -> Iterator[bytes]:
    first = _block(stream, BLOCK)
    rest = iter(functools.partial(_block, stream, BLOCK), b"")
    blocks = itertools.chain([first], rest) if first else rest
    if first.startswith(_GZIP):
        return _unzipped(name, blocks, notices)
    return blocks


def _unzipped(name: str, blocks: Iterable[bytes], notices: list[str]) -> Iterator[bytes]:
    """Yield what gzip data has, never more than a block at once.

    Several gzip files in a row are read as one, as `gzip -dc` does.
    """
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
    """Read so many bytes, fewer only at the end. A pipe may give them in several parts."""
    parts: list[bytes] = []
    remaining = size
    while remaining:
        part = stream.read(remaining)
        if not part:
            break
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _refuse_packed(name: str, first: bytes) -> None:
    for magic, tool in _PACKED.items():
        if first.startswith(magic):
            hint = f"{tool} {name} | clusterprep diagnose -"
            raise InputError.of("is packed in a way that is not read here", file=name, hint=hint)


def _refuse_binary(name: str, first: bytes) -> None:
    """Raise InputError if the first block of a file does not look like text."""
    if not first or _encoding(first) is not None:
        return
    sample = first[:_SAMPLE].replace(b"\0", b"")
    control_bytes = sample.translate(None, _TEXT + _NOT_ASCII)
    decoded = sample.decode("utf-8", "replace")
    not_utf8 = decoded.count("\N{REPLACEMENT CHARACTER}")
    unreadable = len(control_bytes) + not_utf8
    if not sample or unreadable / len(sample) > _MOST_CONTROL_BYTES:
        raise InputError.of("is no text: a log was expected", file=name)


def _encoding(first: bytes) -> str | None:
    """Return the encoding that the mark at the start tells, None for UTF-8."""
    for mark, encoding in _MARKS:
        if first.startswith(mark):
            return encoding
    return None


def _decoded(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks in UTF-8; UTF-16 and UTF-32 are known by their mark."""
    encoding = _encoding(first)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in itertools.chain([first], blocks):
        text = decoder.decode(block)
        yield text.encode("utf-8", "replace")
    rest = decoder.decode(b"", final=True)
    yield rest.encode("utf-8", "replace")


# ---------------------------------------------------------------- lines


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks that end where a line ends.

    A line without an end is yielded in pieces of a block each.
    """
    pending: list[bytes] = []
    size = 0
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*pending, block[:end]])
            pending = []
            size = 0
        tail = block[end:] if end else block
        pending.append(tail)
        size += len(tail)
        if size > BLOCK:
            yield b"".join(pending)
            pending = []
            size = 0
    if size:
        yield b"".join(pending)


def _sift(block: bytes, number: int, sieve: Sieve, keeper: Keeper) -> None:
    """Keep what matters of a block that begins after line `number`."""
    numbers: Sequence[int]
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if b"\r" in block:
        rows, lines = _without_carriage_returns(block)
        block = b"\n".join(lines)
        numbers = [number + row + 1 for row in rows]
    else:
        lines = block.split(b"\n")
        numbers = range(number + 1, number + 1 + len(lines))
    forms = forms_of(block)
    sieve.learn(set(forms))
    keeper.sift(forms, lines, numbers)


def _without_carriage_returns(block: bytes) -> tuple[list[int], list[bytes]]:
    """Split at carriage returns too: a progress bar is one line that is written many times."""
    rows: list[int] = []
    parts: list[bytes] = []
    for row, line in enumerate(block.split(b"\n")):
        written = [part for part in line.split(b"\r") if part]
        rows += [row] * len(written)
        parts += written
    return rows, parts
