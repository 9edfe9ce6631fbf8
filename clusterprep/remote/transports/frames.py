"""What a node sends, taken apart: frames `NONCE LENGTH JSON` between whatever else comes.

A node may be anybody's, so that its JSON is held to what an agent writes: objects that are not nested deeper than we
could look at, whole numbers of at most 64 bits, and numbers that are numbers. Whoever reads a frame can rely on that.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_FRAME = 16 << 20  # bytes of one answer
DIGITS = 9  # of a length
MAX_JUNK = 1 << 20  # bytes of banners and profile output in a row
DEEPEST = 64  # levels of JSON; answers of agents have ten
LONGEST_WHOLE = 20  # characters of a whole number: 64 bits, and their sign where they have one
TOLD = 2048  # bytes of what was no frame, for messages

Frame = dict[str, Any]


class FrameReader:
    """Finds frames at line starts in a byte stream and drops everything else."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"\n" + nonce.encode() + b" "
        self._buffer = bytearray(b"\n")
        self._looked = 0  # bytes of the buffer in which no mark begins
        self._enough = 0  # bytes of the buffer that the frame at its head needs
        self.junk = b""  # the last of what was no frame, for messages

    def feed(self, data: bytes) -> list[Frame]:
        """All frames completed by `data`. Raises ValueError when the stream cannot be an agent's."""
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) > self._enough:
            at = self._buffer.find(self._mark, self._looked)
            if at < 0:
                self._looked = max(0, len(self._buffer) - len(self._mark) + 1)
                if len(self._buffer) > MAX_JUNK:
                    raise ValueError("more than 1 MiB came that is no answer of the agent")
                break
            self._drop(at)
            if (frame := self._at_head()) is not None:
                frames.append(frame)
            elif self._looked == 0:  # not all of it has come
                break
        return frames

    def _at_head(self) -> Frame | None:
        """The frame that the buffer begins with. None where it has not come as a whole, or where it is none."""
        start = len(self._mark)
        head = bytes(self._buffer[start : start + DIGITS + 1])
        digits, space, _ = head.partition(b" ")
        if head and not digits.isdigit():
            self._looked = start  # the nonce and no length: no frame of the agent
            return None
        length = int(digits or b"0")
        if len(digits) > DIGITS or length > MAX_FRAME:
            raise ValueError(f"an answer of {digits.decode()} bytes was announced")
        if not space:
            return None
        start += len(digits) + 1
        self._enough = start + length  # and the newline behind it, which belongs to the frame
        if len(self._buffer) <= self._enough:
            return None
        payload = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        self._looked = self._enough = 0
        return parsed(payload)

    def _drop(self, until: int) -> None:
        self.junk = (self.junk + bytes(self._buffer[max(0, until - TOLD) : until]))[-TOLD:]
        del self._buffer[:until]
        self._looked = self._enough = 0

    @property
    def rest(self) -> str:
        """What came and was no frame, as text for a message."""
        return (self.junk + bytes(self._buffer[-TOLD:]))[-TOLD:].decode("utf-8", "replace").strip()


def parsed(payload: bytes) -> Frame:
    """The object that a frame holds. Raises ValueError for whatever an agent does not write."""
    try:
        frame = _DECODER.decode(payload.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an answer is no JSON: {error}") from None
    if not isinstance(frame, dict):
        raise ValueError("an answer is no JSON object")  # noqa: TRY004 - bad data, not a bad call
    if payload.count(b"[") + payload.count(b"{") > DEEPEST and _is_deep(frame):
        raise ValueError(f"an answer is nested more than {DEEPEST} levels deep")
    return frame


def _whole(text: str) -> int:
    if len(text) > LONGEST_WHOLE:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is too large")
    return number


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=_constant)


def _is_deep(frame: Frame) -> bool:
    """Level by level, for what is nested a thousand levels deep cannot be looked at by a function that calls itself."""
    level: list[Any] = [frame]
    for _ in range(DEEPEST):
        inner = (
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
        )
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return False
    return True
