"""Find the frames `NONCE LENGTH JSON` in what a node sends, between any other output.

A node may be compromised, so its JSON is limited to what an agent writes: objects that are not
nested deeper than DEEPEST levels, integers of at most 64 bits, and finite numbers. Readers of
frames can rely on that.

Bytes and values are counted before anything is parsed: three bytes of JSON, `[],`, become a hundred
bytes of memory. A machine with eight GPUs answers 70 KB with 7,000 values when it is asked for
everything.

The answers to a look can be left in pieces, one `msgspec.Raw` for each. Nearly all of ten thousand
nodes answer the same to most reads, so a piece is recognised by its bytes, and only new ones are
decoded (`decoded`). The limits hold for each piece then, when it is decoded.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from clusterprep.model import Json

MAX_FRAME = 4 << 20  # bytes of one answer
MAX_EVENT = 256 << 10  # bytes of what an agent says without being asked
MAX_VALUES = 200_000  # values and keys of one answer
MAX_WIDE = 512 << 10  # bytes of texts whose letters take four bytes each
# How JSON writes a letter beyond 16 bits: as two halves.
_WIDE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]")
MAX_EVENT_VALUES = 10_000  # the same of what nothing asked for
DIGITS = 9  # of a length
MAX_JUNK = 1 << 20  # bytes of banners and profile output in a row
DEEPEST = 64  # levels of JSON; answers of agents have ten
LONGEST_INTEGER = 20  # characters: 64 bits, with a sign where they have one
PIECE_LEVEL = 2  # levels of a frame that stand around a piece: the object, and its list of answers
JUNK_SHOWN = 2048  # bytes of what was no frame, for messages

Frame = dict[str, Any]


class FrameReader:
    """Finds frames at line starts in a byte stream and drops everything else.

    `largest` is how many bytes a frame may have; its owner raises it while it awaits an answer.
    With `in_pieces` the answers to a look are not decoded.
    """

    def __init__(self, nonce: str, in_pieces: bool = False) -> None:
        self.largest = MAX_EVENT
        self._in_pieces = in_pieces
        self._mark = b"\n" + nonce.encode() + b" "
        self._buffer = bytearray(b"\n")
        self._searched = 0  # bytes of the buffer in which no mark begins
        self._needed = 0  # bytes of the buffer that the frame at its head needs
        self.junk = b""  # the last of what was no frame, for messages

    def feed(self, data: bytes) -> list[Frame]:
        """Return all frames completed by `data`. Raises ValueError if no agent can have sent it."""
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) > self._needed:
            mark_at = self._buffer.find(self._mark, self._searched)
            if mark_at < 0:
                self._note_searched()
                break
            self._drop(mark_at)
            frame = self._frame_at_head()
            if frame is not None:
                frames.append(frame)
            elif self._searched == 0:  # the frame has not arrived completely
                break
        return frames

    def _note_searched(self) -> None:
        """Remember that the buffer has no mark. Its last bytes may be the beginning of one."""
        size = len(self._buffer)
        self._searched = max(0, size - len(self._mark) + 1)
        if size > MAX_JUNK:
            raise ValueError("more than 1 MiB came that is no answer of the agent")

    def _frame_at_head(self) -> Frame | None:
        """Return the frame that the buffer begins with.

        None if it has not arrived completely, or if the mark is not followed by a length.
        """
        length_at = len(self._mark)
        head = bytes(self._buffer[length_at : length_at + DIGITS + 1])
        digits, space, _ = head.partition(b" ")
        if head and not digits.isdigit():
            self._searched = length_at  # the nonce without a length: no frame of the agent
            return None
        length = int(digits or b"0")
        if len(digits) > DIGITS or length > self.largest:
            raise ValueError(
                f"an answer of {digits.decode()} bytes was announced, and {self.largest:,} are the "
                "most"
            )
        if not space:
            return None
        start = length_at + len(digits) + 1
        end = start + length
        self._needed = end  # and the newline behind it, which belongs to the frame
        if len(self._buffer) <= end:
            return None
        payload = bytes(self._buffer[start:end])
        del self._buffer[:end]
        self._searched = self._needed = 0
        frame = parsed(payload, self._in_pieces)
        if "id" not in frame:
            _refuse_large_event(payload)
        return frame

    @property
    def held(self) -> int:
        """The bytes that have come and are no frame yet."""
        return len(self._buffer)

    def _drop(self, until: int) -> None:
        shown_from = max(0, until - JUNK_SHOWN)
        dropped = bytes(self._buffer[shown_from:until])
        self.junk = (self.junk + dropped)[-JUNK_SHOWN:]
        del self._buffer[:until]
        self._searched = self._needed = 0

    @property
    def rest(self) -> str:
        """The last of what was no frame, as text for a message."""
        waiting = bytes(self._buffer[-JUNK_SHOWN:])
        junk = (self.junk + waiting)[-JUNK_SHOWN:]
        return junk.decode("utf-8", "replace").strip()


def parsed(payload: bytes, in_pieces: bool = False) -> Frame:
    """Return the object that a frame holds. Raises ValueError for what no agent writes.

    With `in_pieces` the `answers` of a look are a list of msgspec.Raw, whose bytes `decoded` takes.
    Those of a frame that msgspec cannot split are values, as without it.
    """
    if has_more_values(payload, MAX_VALUES):
        raise ValueError(f"an answer has more than {MAX_VALUES:,} values")
    if _has_wide_texts(payload):
        raise ValueError(f"an answer has more than {MAX_WIDE:,} bytes of rare letters' texts")
    look = _split(payload) if in_pieces and payload.isascii() else None
    if look is not None:
        return {"id": look.id, "answers": look.answers}
    frame = _strictly_decoded(payload)
    if not isinstance(frame, dict):
        raise ValueError("an answer is no JSON object")  # noqa: TRY004 - bad data, not a bad call
    if _has_more_levels(_outside_texts(payload), DEEPEST):
        raise ValueError(f"an answer is nested more than {DEEPEST} levels deep")
    return frame


def decoded(data: bytes) -> Json:
    """Return the value of one piece of a frame. Raises ValueError as `parsed` does."""
    if _is_harmless(data):
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError):
            return _strictly_decoded(data)
    outside_texts = _outside_texts(data)
    if _has_more_levels(outside_texts, DEEPEST - PIECE_LEVEL):
        raise ValueError(f"an answer is nested more than {DEEPEST} levels deep")
    # msgspec takes integers of any length, and refuses half of a surrogate pair, which an agent
    # writes for a byte that is no UTF-8. Both are rare, and left to the decoder that knows them.
    if _LONG_DIGITS not in outside_texts.translate(_DIGITS_AS_0):
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError):
            pass
    return _strictly_decoded(data)


def _is_harmless(data: bytes) -> bool:
    """Return True for JSON that has few levels and no long integers, whatever its texts are.

    That holds for most pieces, and is seen without taking the texts out.
    """
    if data.count(b"[") + data.count(b"{") > DEEPEST - PIECE_LEVEL:
        return False
    return not has_long_digits(data)


def has_long_digits(data: bytes) -> bool:
    """Return True if JSON may have an integer that is too long. A text may have the digits too."""
    return len(data) >= LONGEST_INTEGER and _LONG_DIGITS in data.translate(_DIGITS_AS_0)


def plain(frame: Frame) -> Frame:
    """Return a frame with the values of its answers. Raises ValueError as `parsed` does."""
    answers = frame.get("answers")
    if not isinstance(answers, list):
        return frame
    values = []
    for answer in answers:
        value = decoded(bytes(answer)) if isinstance(answer, msgspec.Raw) else answer
        values.append(value)
    return {**frame, "answers": values}


def _strictly_decoded(data: bytes) -> Json:
    """Return the value of JSON text. Raises ValueError for what no agent writes."""
    try:
        return _DECODER.decode(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an answer is no JSON: {error}") from None


def has_more_values(payload: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` values and keys, without parsing it.

    Each value but the first stands behind a comma, a colon or a bracket.
    """
    if len(payload) <= most or _count_signs(payload) <= most:
        return False
    # Texts may hold such signs too. They are taken out, which costs as much as there are quotes.
    unescaped = _without_escapes(payload)
    if unescaped.count(b'"') > 2 * most:
        return True
    outside_texts = unescaped.split(b'"')[::2]
    return sum(map(_count_signs, outside_texts)) > most


def _has_wide_texts(payload: bytes) -> bool:
    """Return whether texts with a letter beyond 16 bits have more than MAX_WIDE bytes together.

    One such letter makes each letter of its text take four bytes.
    """
    if len(payload) <= MAX_WIDE:
        return False
    size = 0
    match = _WIDE.search(payload)
    while match is not None and size <= MAX_WIDE:
        start = payload.rfind(b'"', 0, match.start())
        end = payload.find(b'"', match.end())
        if end < 0:
            end = len(payload)
        size += end - start
        match = _WIDE.search(payload, end)
    return size > MAX_WIDE


def _count_signs(text: bytes) -> int:
    return sum(map(text.count, (b",", b":", b"[", b"{")))


def _refuse_large_event(payload: bytes) -> None:
    """Raise ValueError for what no agent says without being asked."""
    if len(payload) > MAX_EVENT:
        raise ValueError(f"{len(payload):,} bytes came that nothing asked for")
    if has_more_values(payload, MAX_EVENT_VALUES):
        raise ValueError(f"more than {MAX_EVENT_VALUES:,} values came that nothing asked for")


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is too large")
    return number


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant
)


class _Look(msgspec.Struct, forbid_unknown_fields=True):
    """The frame by which an agent answers a look."""

    id: int
    answers: list[msgspec.Raw]


def _split(payload: bytes) -> _Look | None:
    """Return the answers to a look in pieces, None for another frame."""
    try:
        return _SPLITTER.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return None


_SPLITTER = msgspec.json.Decoder(_Look)
# For bytes.translate: all digits alike, and brackets alone, of one kind.
_DIGITS_AS_0 = bytes.maketrans(b"123456789", b"000000000")
_LONG_DIGITS = b"0" * LONGEST_INTEGER
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def _has_more_levels(outside_texts: bytes, most: int) -> bool:
    """Return whether JSON is nested more than `most` levels deep, from its `_outside_texts`.

    What is no JSON may pass: no decoder takes it, whatever its levels. Each round takes out the
    innermost brackets, which is as fast as to count them.
    """
    brackets = outside_texts.translate(_AS_SQUARE, _NO_BRACKETS)
    if len(brackets) <= 2 * most:
        return False
    for _ in range(most):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _outside_texts(data: bytes) -> bytes:
    """Return JSON without its texts and keys. It may be no JSON at all."""
    return b"".join(_without_escapes(data).split(b'"')[::2])


def _without_escapes(data: bytes) -> bytes:
    """Return JSON without escaped backslashes and quotes: the quotes that are left end texts."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")
