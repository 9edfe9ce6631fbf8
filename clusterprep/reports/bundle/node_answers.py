"""Read what the program of a bundle prints on a node. Pure.

A node may be broken or hostile: only sources that were asked for are taken, each once, none longer
than its bound, and what does not follow the form ends the reading.
"""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from clusterprep.errors import Unreached
from clusterprep.fabric.results import Answer
from clusterprep.reports.bundle.node_program import NAME, SECONDS
from clusterprep.reports.bundle.sources import Source

State = Literal["present", "absent", "refused", "failed", "unknown"]

_HEAD = re.compile(rf"{NAME} (\d{{1,10}})")
_LINE = re.compile(
    r"(?P<name>[\w.@-]{1,200}) (?P<ended>[a-z_]{1,20}) (?P<code>-|\d{1,3}) "
    r"(?P<size>\d{1,15}) (?P<length>\d{1,10})"
)
TOO_LONG = "153"  # exit code of a command that SIGXFSZ ended
LONGEST_LINE = 300  # characters of a line that is no answer
_ANY_HEADER = 32 + zlib.MAX_WBITS  # for zlib: gzip's header or its own
# What gzip may add to what it cannot pack; base64 makes four characters of three bytes.
_SLACK = 4096


class Evidence(Struct, frozen=True):
    """What a node answered to a source. `packed` is what is kept of it, as gzip packs it.

    `note` says what is missing, in words of ours. `size` is that of the whole answer.
    """

    source: Source
    state: State
    note: str = ""
    packed: bytes = b""
    size: int = 0


class NodeReader:
    """Takes what a node prints, piece by piece. Holds what is packed, and so few bytes."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = {source.name: source for source in sources}
        self._evidence: dict[str, Evidence] = {}
        self._is_root = False
        self._texts: list[str] = []  # what has come and is not read yet
        self._held = 0  # characters of it
        self._awaited: tuple[Source, re.Match[str]] | None = None  # whose answer comes next
        self._has_begun = False
        self.has_ended = False
        self.trouble = ""  # why the rest cannot be read

    def feed(self, text: str) -> None:
        """Take what came next."""
        if self.has_ended or self.trouble:
            return
        self._texts.append(text)
        self._held += len(text)
        # A long answer is put together once, and not with each piece.
        if self._awaited is not None and self._held <= int(self._awaited[1]["length"]):
            return
        rest = self._read("".join(self._texts))
        self._texts = [rest]
        self._held = len(rest)

    def _read(self, text: str) -> str:
        """Read whole lines and whole answers, and return what is left."""
        while not self.has_ended and not self.trouble:
            if self._awaited is not None:
                source, line = self._awaited
                length = int(line["length"])
                if len(text) <= length:
                    return text
                self._take(source, line, text[:length])
                text = text[length:].removeprefix("\n")
                continue
            head, is_whole, rest = text.partition("\n")
            if not is_whole:
                return self._unfinished(head)
            text = rest
            self._read_line(head)
        return ""

    def _unfinished(self, line: str) -> str:
        """Return the beginning of a line. One that is too long is none of ours."""
        if len(line) <= LONGEST_LINE:
            return line
        if self._has_begun:
            self._give_up()
        return line[-LONGEST_LINE:]

    def evidence(self) -> dict[str, Evidence]:
        """Return what was answered so far, by the name of the source."""
        return dict(self._evidence)

    def _read_line(self, line: str) -> None:
        if not self._has_begun:
            head = _HEAD.fullmatch(line)
            # A login shell may print before the program does.
            self._has_begun = head is not None
            self._is_root = head is not None and int(head[1]) == 0
            return
        if line == "end":
            self.has_ended = True
            return
        found = _LINE.fullmatch(line)
        source = None if found is None else self._sources.get(found["name"])
        if found is None or source is None or source.name in self._evidence:
            self._give_up()
            return
        most = (source.most + source.most // 500 + _SLACK) * 4 // 3
        if int(found["length"]) > most:
            self._give_up()
            return
        self._awaited = (source, found)

    def _give_up(self) -> None:
        self.trouble = "the node answered in another form than the program that was run there does"

    def _take(self, source: Source, line: re.Match[str], body: str) -> None:
        self._awaited = None
        try:
            packed = binascii.a2b_base64(body)
        except ValueError:
            self._give_up()
            return
        size = int(line["size"])
        state, note = _judged(source, line["ended"], line["code"], size, self._is_root)
        self._evidence[source.name] = Evidence(source, state, note, packed, size)


_WITHOUT_BODY: Mapping[str, tuple[State, str]] = {
    "no_file": ("absent", "it is no regular file"),
    "refused": ("refused", "this login may not read it"),
    "skipped": ("unknown", f"not asked: the {SECONDS} s of the node were over"),
}


def _judged(source: Source, ended: str, code: str, size: int, is_root: bool) -> tuple[State, str]:
    """Return how a source was answered, and in words what is missing."""
    if ended == "absent":
        return "absent", "there is no such file" if source.is_file else "not installed"
    if ended in _WITHOUT_BODY:
        return _WITHOUT_BODY[ended]
    state, note = _end_of(source, ended, code, is_root)
    notes = [note] if note else []
    if source.rights == "parts" and not is_root:
        notes.append("without root parts of it are missing")
    if size > source.most:
        part = "first" if source.keep == "start" else "last"
        notes.append(f"the {part} {rough_size(source.most)} of {rough_size(size)}")
    return state, "; ".join(notes)


def _end_of(source: Source, ended: str, code: str, is_root: bool) -> tuple[State, str]:
    """Return how a source ended that may have printed something, and in words what went wrong."""
    if ended == "timed_out":
        return "unknown", f"ended after {source.seconds} s; what it had printed is here"
    if ended != "answered":
        return "unknown", f"hangs since {source.seconds} s, and cannot be ended"
    if code == "0":
        return "present", ""
    if source.rights == "root" and not is_root:
        return "refused", "it needs root"
    if code == TOO_LONG:
        return "failed", "ended, as it printed more than a file may hold"
    return "failed", f"exit code {code}"


def answers_of(
    sources: Iterable[Source], reader: NodeReader, outcome: Answer | Unreached | None
) -> tuple[Evidence, ...]:
    """Return an answer for each source, in their order: what did not come says why."""
    reason = _missing(reader, outcome)
    evidence: Mapping[str, Evidence] = reader.evidence()
    answers = []
    for source in sources:
        answers.append(evidence.get(source.name) or Evidence(source, "unknown", reason))
    return tuple(answers)


def _missing(reader: NodeReader, outcome: Answer | Unreached | None) -> str:
    """Return why answers of a node are missing, where some are."""
    if reader.trouble:
        return reader.trouble
    if outcome is None:
        return "the time was over before the node answered"
    if isinstance(outcome, Unreached):
        return f"the node was not reached: {outcome.reason}"
    if outcome.reason is not None:
        return f"the node was lost meanwhile: {outcome.reason}"
    if outcome.exit_code:
        said = outcome.stderr.strip().splitlines()
        why = f": {said[-1][:200]}" if said else ""
        return f"the program ended with exit code {outcome.exit_code}{why}"
    return "the node did not answer it"


def text_of(evidence: Evidence) -> tuple[str, str]:
    r"""Return an answer as text, and a note where it is not whole.

    Bytes that are no UTF-8 are written as `\xe9`.
    """
    most = evidence.source.most
    data, note = unpacked(evidence.packed, most)
    if evidence.source.is_packed and data[:2] == b"\x1f\x8b":
        data, note = unpacked(data, 2 * most)
    return data.decode("utf-8", "backslashreplace"), note


def unpacked(packed: bytes, most: int) -> tuple[bytes, str]:
    """Return at most so many bytes of what gzip has packed, and why that is not all of it."""
    if not packed:
        return b"", ""
    reader = zlib.decompressobj(_ANY_HEADER)
    try:
        data = reader.decompress(packed, most)
    except zlib.error:
        return b"", "it cannot be unpacked"
    if reader.unconsumed_tail:
        return data, f"the first {rough_size(most)}"
    return data, "" if reader.eof else "it breaks off"


def rough_size(size: int) -> str:
    """Return bytes as «83 B», «12 KiB» or «3.4 MiB»."""
    if size < 1 << 10:
        return f"{size} B"
    if size < 1 << 20:
        return f"{size / (1 << 10):.0f} KiB"
    return f"{size / (1 << 20):.1f} MiB"
