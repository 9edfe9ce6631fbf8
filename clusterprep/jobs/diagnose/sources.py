"""Reads logs of any size in bounded memory and keeps the lines that may matter.

A gigabyte of log has millions of lines and some dozens that matter, so lines are not looked at one
by one. A block is put into small letters with every digit as 0, which makes lines equal that differ
only in numbers. A line of a form that was seen before costs one look into a set; new forms are
searched for words that every sign of a cause has one of. benchmarks/diagnose.py has the figures.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from clusterprep.errors import InputError, Problem

BLOCK = 4 << 20  # bytes read at once
# Bytes of a line that are searched: longer lines are printed tensors, and a line of this length
# takes all patterns together some milliseconds.
LONGEST = 4 << 10
MOST_FORMS = 100_000  # forms of lines that are remembered
# Bytes of new forms that are searched for every needle. After them the search is coarser, as such
# a log prints new text all the time.
EXACT = 4 << 20
BROAD = 64 << 20  # bytes of new forms that are searched for WORDS, and after them for CORE alone
MOST_ALIKE = 1_024  # lines of one form that are kept; all ranks of a job write the same line
MOST_VAGUE = 200  # lines of a file kept that look like errors and have no needle of any sign
MOST_KEPT = 20_000  # lines of all files that are kept

# What forms are searched for once EXACT bytes of them were searched for every needle. Nearly every
# sign has one of these as programs print it; tests/jobs/diagnose/test_signs.py has the exceptions.
WORDS = (
    b"error",
    b"fail",
    b"warn",
    b"timeout",
    b"timed out",
    b"watchdog",
    b"killed",
    b"signal",
    b"mismatch",
    b"exception",
    b"cannot",
    b"could not",
    b"unable to",
    b"nccl version",
    b"net/",
    b"bootstrap",
    b"xid",
    b"exitcode",
    b"host      :",
    b"rank      :",
    b"rendezvous",
    b"collective",
    b"invalid",
    b"refused",
    b"aborted",
    b"already in use",
    b"out of memory",
    b"no space left",
    b"too many",
    b"completion",
    b"duplicate",
    b"closed by",
    b"not supported",
    b"nccl_",
)
CORE = (
    b"error",
    b"fail",
    b"warn",
    b"timed out",
    b"timeout",
    b"watchdog",
    b"killed",
    b"signal",
    b"cannot",
    b"xid",
    b"exitcode",
    b"nccl version",
)
# What is searched for after MOST_JUDGED forms had one of the words above, because such a text must
# be prose: none of these is part of ordinary sentences.
NAMES = (
    b"nccl warn",
    b"nccl version",
    b"cuda error",
    b"errno",
    b"watchdog",
    b"xid",
    b"exitcode",
    b"rendezvous",
    b"memory",
    b"c10d",
)
MOST_JUDGED = 30_000
TABLE = bytes.maketrans(b"0123456789" + bytes(range(65, 91)), b"0" * 10 + bytes(range(97, 123)))

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
_ERRORLIKE = re.compile(
    rb"error|fail|exception|fatal|abort|killed|panic|segfault|refused|timed out|cannot|could not"
)
_SAMPLE = 65536  # bytes by which a file is judged to be text or not
# Share of control bytes above which a file is not text; logs of crashed hosts have a few.
_MOST_CONTROL_BYTES = 0.10


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A line that may matter, as bytes."""

    file: str
    number: int
    text: bytes


@dataclass
class Reading:
    """What was read of all files. `left_out` counts lines of a form beyond those kept."""

    kept: list[KeptLine] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    left_out: int = 0


def read(names: Sequence[str], needles: Sequence[bytes], stdin: BinaryIO | None = None) -> Reading:
    """Read files, `-` for standard input.

    Raises InputError that names every file that cannot be read or is not text.
    """
    reading = Reading()
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            _read_one(name, reading, needles, stdin)
        except InputError as error:
            problems += error.problems
        except OSError as error:
            message = error.strerror or str(error)
            problems += InputError.of(message, file=name).problems
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
    """Read one file and add what matters of it to the reading."""
    sieve = Sieve(needles)
    number = 0
    ended = True
    texts = _texts(name, stream, reading.notices)
    for block in _whole_lines(texts):
        _sift(
            name,
            block,
            number,
            sieve,
            reading,
        )
        number += block.count(b"\n")
        ended = block.endswith(b"\n")
    reading.lines[name] = number if ended else number + 1
    reading.left_out += sieve.left_out
    for limit in sieve.limits():
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


def _sift(name: str, block: bytes, number: int, sieve: Sieve, reading: Reading) -> None:
    """Keep what matters of a block that begins after line `number`."""
    rows: Sequence[int]  # for each line, how many line ends are before it
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if b"\r" in block:
        rows, lines = _without_carriage_returns(block)
        block = b"\n".join(lines)
    else:
        lines = block.split(b"\n")
        rows = range(len(lines))
    for index in sieve.matter(block):
        if len(reading.kept) >= MOST_KEPT:
            sieve.left_out += 1
            continue
        line_number = number + rows[index] + 1
        text = lines[index][:LONGEST]
        reading.kept.append(KeptLine(name, line_number, text))


def _without_carriage_returns(block: bytes) -> tuple[list[int], list[bytes]]:
    """Split at carriage returns too: a progress bar is one line that is written many times."""
    rows: list[int] = []
    parts: list[bytes] = []
    for row, line in enumerate(block.split(b"\n")):
        written = [part for part in line.split(b"\r") if part]
        rows += [row] * len(written)
        parts += written
    return rows, parts


class Sieve:
    """Tells lines that may matter from others by their form: small letters, every digit a 0.

    `needles` are what signs look for. Lines that have one are kept. Of lines that only look like
    errors a few are kept too, to be shown if nothing else is known.
    """

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.left_out = 0
        self._needles = needles
        self._known: set[bytes] = set()
        # Forms that matter, and how many lines of each may still be kept.
        self._wanted: dict[bytes, int] = {}
        self._vague = MOST_VAGUE
        self._searched = 0
        self._judged = 0
        self._is_coarse = False  # not all forms were searched for every needle
        self._has_long = False  # some forms were searched in their beginning alone

    def limits(self) -> list[str]:
        """Return what was not looked at in full."""
        limits = []
        if self._has_long:
            limits.append(f"lines were searched in their first {LONGEST:,} bytes")
        if self._is_coarse:
            limits.append(
                f"new kinds of lines beyond the first {EXACT >> 20} MiB of them were searched for "
                "common words of errors alone"
            )
        return limits

    def matter(self, block: bytes) -> list[int]:
        """Return the indexes of the lines of a block that may matter."""
        forms = block.translate(TABLE).split(b"\n")
        fresh = set(forms)
        fresh -= self._known
        if fresh:
            self._learn(fresh)
        wanted = self._wanted
        if not wanted:
            return []
        # One comprehension: this runs for every line of the log.
        return [i for i, form in enumerate(forms) if form in wanted and self._counted(form)]

    def _learn(self, fresh: set[bytes]) -> None:
        """Search new forms and remember them."""
        size = sum(map(len, fresh))
        words = self._words(size)
        for form in _holding(list(fresh), words):
            self._judge(form)
        if len(self._known) + len(fresh) > MOST_FORMS:
            self._known.clear()
        self._known |= fresh

    def _words(self, size: int) -> Sequence[bytes]:
        """Return what to search so many bytes of new forms for."""
        before = self._searched
        self._searched += size
        if before < EXACT:
            return (*WORDS, *self._needles)
        self._is_coarse = True
        if self._judged >= MOST_JUDGED:
            return NAMES
        return WORDS if self._searched < BROAD else CORE

    def _judge(self, form: bytes) -> None:
        self._judged += 1
        if form in self._wanted:
            return
        if len(self._wanted) >= MOST_FORMS:
            self.left_out += 1
            return
        if len(form) > LONGEST:
            self._has_long = True
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


def _holding(forms: list[bytes], words: Sequence[bytes]) -> set[bytes]:
    """Return the forms that have one of the words, found by searching all forms as one text."""
    text = b"\n".join(forms)
    starts: list[int] = []  # where each form starts in the text; most texts have none of the words
    holding: set[int] = set()
    for word in words:
        position = text.find(word)
        while position >= 0:
            if not starts:
                lengths = (len(form) + 1 for form in forms)
                starts = list(itertools.accumulate(lengths, initial=0))
            index = bisect.bisect_right(starts, position) - 1
            holding.add(index)
            position = text.find(word, starts[index + 1])
    return {forms[index] for index in holding}
