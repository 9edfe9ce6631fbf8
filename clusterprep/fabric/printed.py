"""The output of a command, in pieces as it comes: what is kept of it, and its lines. Pure."""

from __future__ import annotations

import codecs
import functools
import threading
from collections.abc import Callable

MOST_KEPT = 256 << 10  # bytes of each stream of a command, as of each answer of an agent
LONGEST = 8192  # characters of a line; longer ones come in pieces

# Takes the name of a node, of a stream ("out" or "err"), and text that came there.
Hear = Callable[[str, str, str], None]


def unchanged(text: str) -> str:
    """Return the text."""
    return text


class LineSplitter:
    """The lines of a stream. A line comes when its end does, or in pieces of LONGEST characters.

    `clean` takes what must not be shown out of a line, before that is cut into pieces.
    """

    def __init__(self, clean: Callable[[str], str] = unchanged) -> None:
        self._clean = clean
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Return the lines that `text` completes."""
        *complete, self._rest = (self._rest + text).split("\n")
        lines = []
        for line in complete:
            lines.extend(_pieces(self._clean(line)) or [""])
        # What begins in the first piece has come to its end by then.
        if len(self._rest) > 2 * LONGEST:
            self._rest = self._clean(self._rest)
        while len(self._rest) > 2 * LONGEST:
            lines.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        return lines

    def end(self) -> list[str]:
        """Return what is left, as a line or its pieces."""
        rest, self._rest = self._clean(self._rest), ""
        return _pieces(rest)


def _pieces(line: str) -> list[str]:
    return [line[start : start + LONGEST] for start in range(0, len(line), LONGEST)]


class Screen:
    """Shows lines of many nodes as they come, each behind the name of its node.

    `show` writes one line, without what would steer a terminal; `clean` takes secrets out of it.
    Lines of one stream of one node stay whole.
    """

    def __init__(
        self, show: Callable[[str], None], clean: Callable[[str], str] = unchanged
    ) -> None:
        self._show = show
        self._clean = clean
        self._lock = threading.Lock()
        self._splitters: dict[tuple[str, str], LineSplitter] = {}

    def hear(self, node: str, stream: str, text: str) -> None:
        """Take text of a stream; an empty text is its end."""
        with self._lock:
            splitter = self._splitters.setdefault((node, stream), LineSplitter(self._clean))
            for line in splitter.feed(text) if text else splitter.end():
                self._show(f"{node}: {line}")


def new_decoder() -> codecs.IncrementalDecoder:
    r"""Return what makes text of bytes that come in pieces.

    Bytes that are no UTF-8 are written as `\xe9`: outputs that differ in them stay different.
    """
    return codecs.getincrementaldecoder("utf-8")("backslashreplace")


class Kept:
    """The beginning of a stream, at most MOST_KEPT bytes of it. `hear` is passed all of it."""

    def __init__(self, hear: Callable[[str], None] | None = None) -> None:
        self._hear = hear
        self._kept = new_decoder()
        self._heard = new_decoder()
        self._texts: list[str] = []
        self._room = MOST_KEPT
        self.left_out = 0

    def feed(self, data: bytes) -> None:
        """Take what came next. It is passed on also where it is not kept."""
        kept = data[: self._room]
        self._room -= len(kept)
        self.left_out += len(data) - len(kept)
        self._texts.append(self._kept.decode(kept))
        if self._hear is not None:
            self._pass_on(self._heard.decode(data))

    def end(self) -> None:
        """Note that nothing more comes."""
        self._texts.append(self._kept.decode(b"", final=True))
        if self._hear is not None:
            self._pass_on(self._heard.decode(b"", final=True))
            self._hear("")

    def _pass_on(self, text: str) -> None:
        if self._hear is not None and text:
            self._hear(text)

    @property
    def text(self) -> str:
        return "".join(self._texts)


def kept_of(node: str, hear: Hear | None) -> dict[str, Kept]:
    """Return what keeps the output of a command on a node, and passes it on."""
    kept = {}
    for stream in ("out", "err"):
        listener = None
        if hear is not None:
            listener = functools.partial(hear, node, stream)
        kept[stream] = Kept(listener)
    return kept
