"""Host names, facts and messages come from machines that may lie: here they become text that is safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_duration

FIELD = 500  # characters of one field; longer ones say how long they were
NAME = 64  # characters of one node's name, the longest that Linux allows
NODES = 160  # characters of a folded node set, two lines of a terminal

_FOLDABLE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_ASCII = str.maketrans(
    {
        "→": "->",
        "≤": "<=",
        "≥": ">=",
        "±": "+/-",
        "…": "...",
        "·": "-",
        "µ": "u",
        "«": '"',
        "»": '"',
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)


def clean(text: str) -> str:
    """Without control characters, escapes, direction marks and lone surrogates; white space becomes a space."""
    if text.isprintable():
        return text
    return "".join(_clean_char(char) for char in text)


def field(text: str, limit: int = FIELD) -> str:
    """Clean and not longer than `limit`, and if it was longer, how long."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}… ({len(text):,} characters)"


def ascii_of(text: str) -> str:
    """The same in ASCII, for terminals that show nothing else."""
    return (
        text
        if text.isascii()
        else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    )


def folded(names: Iterable[str], limit: int | None = NODES) -> str:
    """`gpu[01-14,16]`; a set that does not fold is cut after `limit` characters and says its size."""
    given = tuple(dict.fromkeys(names))
    foldable = [name for name in given if _FOLDABLE.fullmatch(name)]
    strange = [field(name, NAME) for name in given if not _FOLDABLE.fullmatch(name)]
    text = ",".join(([fold(foldable)] if foldable else []) + strange)
    if limit is None or len(text) <= limit:
        return text
    return f"{_whole_names(text[:limit])},… ({len(given)} nodes)"


def folded_ranks(ranks: Iterable[int]) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Seconds for people, in three digits: nobody compares runs by the fourth."""
    return format_duration(seconds if seconds >= 120 else float(f"{seconds:.3g}"))


def elapsed(seconds: float) -> str:
    """How long a stage or a run took, in one unit that can be compared down the page."""
    return f"{seconds:.1f} s" if seconds < 120 else format_duration(seconds)


def distinct(texts: Iterable[str]) -> Sequence[str]:
    """The texts that say something, each once, in order."""
    return [text for text in dict.fromkeys(texts) if text]


def _clean_char(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"


def _whole_names(text: str) -> str:
    """Cut back to the last comma that stands outside brackets, so that what is shown is a valid set."""
    depth, end = 0, 0
    for position, char in enumerate(text):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            end = position
    return text[:end] if end else text
