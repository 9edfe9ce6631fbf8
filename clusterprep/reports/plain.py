"""Make text that is safe to show from host names, facts and messages, which come from nodes.

`fold_nodes(["n1", "n2", "n4"])` returns `n[1-2,4]`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from clusterprep.model.nodeset import MAX_NODES, fold
from clusterprep.model.units import format_duration

FIELD = 500  # characters of one text; a longer one is cut and says how long it was
NAME = 64  # characters of one node's name, the longest that Linux allows
NODES = 160  # characters of a folded node set, two lines of a terminal

_MANY = 32  # nodes; to fold fewer is as quick as to look whether it was done before
_LEAST_RATE = 0.0001  # GB/s; below that latency decides
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
    """Return the text without control characters, escapes, direction marks and lone surrogates.

    Each of them becomes the replacement character, and white space becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(_clean_char(char) for char in text)


def safe_text(text: str, limit: int = FIELD) -> str:
    """Return the text clean and cut to `limit` characters; a cut text says how long it was."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}… ({len(text):,} characters)"


def to_ascii(text: str) -> str:
    """Return the text in ASCII, for terminals that show nothing else."""
    if text.isascii():
        return text
    translated = text.translate(_ASCII)
    return translated.encode("ascii", "replace").decode("ascii")


def fold_nodes(names: Iterable[str], limit: int | None = NODES) -> str:
    """Return a node set such as `gpu[01-14,16]`.

    A text longer than `limit` characters is cut after a whole name and says how many nodes it has.
    """
    nodes = tuple(names)
    # Most findings are about the same many nodes. Those about few would displace these: there may
    # be thousands of them.
    text, count = _folded(nodes) if len(nodes) < _MANY else _folded_once(nodes)
    if limit is None or len(text) <= limit:
        return text
    return f"{_whole_names(text[:limit])},… ({count} nodes)"


def _folded(names: tuple[str, ...]) -> tuple[str, int]:
    """Return the node set, and how many nodes it has."""
    nodes = names
    if len(set(names)) < len(names):
        nodes = tuple(dict.fromkeys(names))
    foldable = list(filter(_is_foldable, nodes))
    parts = [fold(foldable)] if foldable else []
    if len(foldable) < len(nodes):
        unusual = [name for name in nodes if not _is_foldable(name)]
        parts += [safe_text(name, NAME) for name in unusual]
    return ",".join(parts), len(nodes)


_folded_once = functools.lru_cache(256)(_folded)


@functools.lru_cache(MAX_NODES)
def _is_foldable(name: str) -> bool:
    return _FOLDABLE.fullmatch(name) is not None


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return a set of ranks such as `0-3,6`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = []
    for low, high in runs:
        if low == high:
            parts.append(str(low))
        else:
            parts.append(f"{low}-{high}")
    return ",".join(parts)


def format_seconds(seconds: float) -> str:
    """Return a duration in three digits, with its unit; more digits say nothing to a reader."""
    if seconds < 120:
        seconds = float(f"{seconds:.3g}")
    return format_duration(seconds)


def format_rate(gigabytes: float) -> str:
    """Return a rate in three significant digits, such as `639`, `1.21` and `0.00478`."""
    if gigabytes == 0:
        return "0"
    if gigabytes < _LEAST_RATE:
        return f"<{_LEAST_RATE}"
    if gigabytes >= 100:
        return f"{gigabytes:.0f}"
    return f"{gigabytes:#.3g}"


def format_elapsed(seconds: float) -> str:
    """Return how long a stage or a run took, in one unit so that lines can be compared."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return format_duration(seconds)


def distinct(texts: Iterable[str]) -> Sequence[str]:
    """Return the texts that are not empty, each once, in order."""
    return [text for text in dict.fromkeys(texts) if text]


def nonblank_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


def collective_name(op: str, dtype: str) -> str:
    """Return `all_reduce`, or `all_reduce bfloat16` for elements that are not float32."""
    if dtype == "float32":
        return op
    return f"{op} {dtype}"


def diff_lines(diff: str) -> list[str]:
    """Return the lines of a unified difference; none if it is blank."""
    if not diff.strip():
        return []
    return diff.rstrip().split("\n")


def has_diff_header(lines: Sequence[str]) -> bool:
    """Return True if the difference begins with the two lines that name the file."""
    if len(lines) < 2:
        return False
    return lines[0].startswith("--- ") and lines[1].startswith("+++ ")


def _clean_char(char: str) -> str:
    if char.isprintable():
        return char
    if char.isspace():
        return " "
    return "\N{REPLACEMENT CHARACTER}"


def _whole_names(text: str) -> str:
    """Cut the text at the last comma outside brackets, so that what remains is a valid node set."""
    depth = 0
    end = 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            end = position
    if end == 0:
        return text
    return text[:end]
