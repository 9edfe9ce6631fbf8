"""Tells lines that may matter from others by their form: small letters, every digit a 0.

Lines of one form cost one look into a dictionary. Forms that were not seen before are searched for
needles, which are what signs of causes look for; of these only the ones are looked for whose
longest word is among the words of the new forms.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from clusterprep.jobs.diagnose.model import NUMBER

# Bytes of a line that are searched: longer lines are printed tensors, and a line of this length
# takes all patterns together some milliseconds.
LONGEST = 4 << 10
# Comparisons of new text with needles: bytes times needles, a third of a second each 2^30. After
# them the search is coarser, as such a log prints new text all the time.
EXACT = 10 << 30
BROAD = 64 << 20  # bytes of new forms that are searched for WORDS, and after them for CORE alone
MOST_JUDGED = 30_000  # forms with one of the WORDS, after which NAMES alone are searched for
_MOST_REMEMBERED = 64 << 20  # bytes of memory for forms, and for words, that were seen
_OVERHEAD = 100  # bytes of memory of each, besides its text
MOST_WANTED = 200_000  # forms of lines that may matter that are remembered

# What forms are searched for once EXACT is used up. Nearly every sign has one of these as programs
# print it; tests/jobs/diagnose/test_signs.py has the exceptions.
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
_HEX_DIGITS = b"0123456789abcdef"
TABLE = bytes.maketrans(b"0123456789" + bytes(range(65, 91)), b"0" * 10 + bytes(range(97, 123)))
TRACEBACK = b"traceback (most recent call last)"
# Words of lines that look like errors, whether or not a sign has them.
ERRORLIKE = (
    b"error",
    b"fail",
    b"exception",
    b"fatal",
    b"abort",
    b"killed",
    b"panic",
    b"segfault",
    b"segmentation fault",
    b"core dumped",
    b"interrupt",
    b"refused",
    b"timed out",
    b"cannot",
    b"could not",
)
_ERRORLIKE = frozenset(ERRORLIKE)
VAGUE = b"\0vague"  # stands for the needle of lines that only look like errors
RAISED = b"\0raised"  # and of those that look like what Python prints of an exception
_STANDING_IN = frozenset({VAGUE, RAISED, TRACEBACK})

_LETTERS_ONLY = bytes(byte if 97 <= byte <= 122 else 32 for byte in range(256))
_WORD = re.compile(rb"[a-z]+")
_NUMBER = re.compile(NUMBER.encode())
_RAISED = re.compile(rb"(?:^|[\s:.\]])[a-z_]+(?:error|exception|interrupt|exit)(?:: |$)")


def forms_of(block: bytes) -> list[bytes]:
    """Return the form of each line of a block: small letters, every digit a 0, pointers as 0x."""
    text = block.translate(TABLE)
    if b"0x" in text:
        # Far faster than a regular expression: only the pieces are looked at one by one.
        first, *pieces = text.split(b"0x")
        text = b"0x".join([first, *[piece.lstrip(_HEX_DIGITS) for piece in pieces]])
    return text.split(b"\n")


class Kind(Struct, eq=False):
    """Lines that may matter and differ only in numbers, with what is known of them so far."""

    form: bytes  # with every number as 0
    needles: tuple[bytes, ...]  # what it has, never empty
    # Whether NCCL writes these lines of a job that is well, and every rank many of them.
    informs: bool = False
    kept: int = 0  # lines of it that are kept, of all files
    idle: int = 0  # lines looked at since one was kept
    # Lines beyond the budget that are kept, by file and rank. Few kinds have any.
    lines_of_writer: dict[tuple[str, bytes], int] = field(default_factory=dict)

    @property
    def is_vague(self) -> bool:
        return self.needles == (VAGUE,)

    @property
    def has_sign(self) -> bool:
        """Whether it has what a sign looks for."""
        return not _STANDING_IN.issuperset(self.needles)


class Sieve:
    """Knows which forms matter. One sieve serves all files of a reading."""

    def __init__(
        self, needles: Sequence[bytes], exact: int = EXACT, most: int = MOST_WANTED
    ) -> None:
        self.wanted: dict[bytes, Kind] = {}  # by form
        self.is_coarse = False  # not all forms were searched for every needle
        self.has_long = False  # some forms were searched in their beginning alone
        self.informing = 0  # lines of NCCL_DEBUG=INFO that are kept
        self._exact = exact
        self._most = most
        self._needles = frozenset(needles)
        self._vocabulary = _Vocabulary((*needles, *ERRORLIKE, TRACEBACK))
        self._known: set[bytes] = set()
        self._known_size = 0
        self._kinds: dict[bytes, Kind] = {}  # by form with every number as 0
        self._compared = 0
        self._searched = 0
        self._judged = 0

    def start_file(self) -> None:
        """Forget what `limits` says of the file before."""
        self.is_coarse = False
        self.has_long = False

    def limits(self) -> list[str]:
        """Return what was not searched in full since the file was started."""
        limits: list[str] = []
        if self.has_long:
            limits.append(f"reading was cut: lines were searched in their first {LONGEST:,} bytes")
        if self.is_coarse:
            limits.append(
                "reading was cut: there is so much text of ever new words that some of it was "
                "searched for common words of errors alone"
            )
        return limits

    def learn(self, forms: set[bytes]) -> None:
        """Search forms that were not seen before, so that `wanted` has those that matter."""
        if len(self.wanted) > self._most:
            self._forget()
        fresh = list(forms - self._known)
        if not fresh:
            return
        heads = fresh
        if max(map(len, fresh)) > LONGEST:
            heads = [form[:LONGEST] for form in fresh]
            self._note_long(fresh)
        self._remember(fresh)
        for index, found in self._matches(heads):
            form = fresh[index]
            needles = self._told(heads[index], found)
            if not needles:
                continue
            self.wanted[form] = self._kind(heads[index], needles)

    def _forget(self) -> None:
        """Forget all forms, and kinds of which no line is kept: they are learnt when they come."""
        self.wanted = {}
        self._known = set()
        self._known_size = 0
        self._kinds = {form: kind for form, kind in self._kinds.items() if kind.kept}

    def _note_long(self, fresh: Sequence[bytes]) -> None:
        """Note whether a word of an error stands where long lines are not searched."""
        if self.has_long:
            return
        for form in fresh:
            if len(form) > LONGEST and any(form.find(word, LONGEST) >= 0 for word in CORE):
                self.has_long = True
                return

    def _remember(self, fresh: Sequence[bytes]) -> None:
        """Remember forms but for very long ones, which are searched again when they come again."""
        if max(map(len, fresh)) > LONGEST:
            fresh = [form for form in fresh if len(form) <= LONGEST]
        size = sum(map(len, fresh)) + _OVERHEAD * len(fresh)
        if self._known_size + size > _MOST_REMEMBERED:
            self._known = set(self.wanted)
            self._known_size = 0
        self._known.update(fresh)
        self._known_size += size

    def _matches(self, heads: Sequence[bytes]) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the index of each form that has something, and what it has."""
        text = b"\n".join(heads)
        if self._compared < self._exact:
            needles, compared = self._vocabulary.needles_in(text)
            self._compared += compared + len(text) * len(needles)
            yield from _holding(heads, text, needles).items()
            return
        self.is_coarse = True
        self._searched += len(text)
        found = _holding(heads, text, self._coarse_words())
        self._judged += len(found)
        for index in found:
            head = heads[index]
            everything = itertools.chain(self._needles, ERRORLIKE, (TRACEBACK,))
            yield index, [needle for needle in everything if needle in head]

    def _coarse_words(self) -> Sequence[bytes]:
        if self._judged >= MOST_JUDGED:
            return (*NAMES, TRACEBACK)
        words = WORDS if self._searched < BROAD else CORE
        return (*words, TRACEBACK)

    def _told(self, head: bytes, found: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the needles of a form, or what stands for them, from what was found in it."""
        needles = [needle for needle in found if needle in self._needles or needle == TRACEBACK]
        is_errorlike = not _ERRORLIKE.isdisjoint(found)
        if is_errorlike and _RAISED.search(head):
            needles.append(RAISED)
        if not needles and found:
            return (VAGUE,)
        return tuple(needles)

    def _kind(self, head: bytes, needles: tuple[bytes, ...]) -> Kind:
        form = _NUMBER.sub(b"0", head)
        kind = self._kinds.get(form)
        if kind is None:
            kind = Kind(form, needles, informs=b" nccl info " in form)
            self._kinds[form] = kind
        return kind


class _Vocabulary:
    """Knows in which needles a word is, so that text is searched for few of them."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        self._needles_of_piece: dict[bytes, list[bytes]] = {}
        self._always: list[bytes] = []  # needles without a letter
        for needle in dict.fromkeys(needles):
            pieces = _WORD.findall(needle)
            if pieces:
                piece = max(pieces, key=len)
                self._needles_of_piece.setdefault(piece, []).append(needle)
            else:
                self._always.append(needle)
        self._known: set[bytes] = set()
        self._known_size = 0
        self._needles_of_word: dict[bytes, list[bytes]] = {}

    def needles_in(self, text: bytes) -> tuple[list[bytes], int]:
        """Return the needles that may be in the text, and how many comparisons that took."""
        words = set(text.translate(_LETTERS_ONLY).split())
        new = list(words - self._known)
        compared = self._learn(new) if new else 0
        needles = dict.fromkeys(self._always)
        for word in words & self._needles_of_word.keys():
            needles.update(dict.fromkeys(self._needles_of_word[word]))
        return list(needles), compared

    def _learn(self, new: Sequence[bytes]) -> int:
        text = b"\n".join(new)
        size = len(text) + _OVERHEAD * len(new)
        if self._known_size + size > _MOST_REMEMBERED:
            self._known = set(self._needles_of_word)
            self._known_size = 0
        self._known.update(new)
        self._known_size += size
        pieces = list(self._needles_of_piece)
        for index, found in _holding(new, text, pieces).items():
            needles = [needle for piece in found for needle in self._needles_of_piece[piece]]
            self._needles_of_word[new[index]] = needles
        return len(text) * len(pieces)


def _holding(rows: Sequence[bytes], text: bytes, words: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Return for each row that has one of the words which it has; `text` is all rows joined."""
    starts: list[int] = []  # where each row starts in the text; most texts have none of the words
    holding: dict[int, list[bytes]] = {}
    for word in words:
        position = text.find(word)
        while position >= 0:
            if not starts:
                lengths = (len(row) + 1 for row in rows)
                starts = list(itertools.accumulate(lengths, initial=0))
            index = bisect.bisect_right(starts, position) - 1
            holding.setdefault(index, []).append(word)
            position = text.find(word, starts[index + 1])
    return holding
