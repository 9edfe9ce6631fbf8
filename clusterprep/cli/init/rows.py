"""Fold names and addresses into few inventory entries with ranges, in the order of the nodes.

    fold_rows([("n1", "10.0.0.1"), ("n2", "10.0.0.2")])   # [("n[1-2]", "10.0.0.[1-2]")]

The order stays, because it is the order of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

Row = tuple[str, str]  # name, address

_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)", re.DOTALL)
# Ranges in one bracket. Nodes that are in no order are easier to read one by one.
MOST_RANGES = 4


class _NumberedText(Struct, frozen=True):
    """A text around its last number."""

    before: str
    number: str
    after: str

    @property
    def padded_width(self) -> int:
        """The width to which zeros pad the number; 0 for a number without leading zeros."""
        is_padded = self.number.startswith("0") and len(self.number) > 1
        return len(self.number) if is_padded else 0


def fold_rows(rows: Iterable[Row]) -> list[Row]:
    """Return folded (names, addresses); expanding them one after the other gives the rows again."""
    entries: list[list[Row]] = []
    for row in rows:
        if entries and _fits(entries[-1], row):
            entries[-1].append(row)
        else:
            entries.append([row])
    folded: list[Row] = []
    for entry in entries:
        names, addresses = zip(*entry, strict=True)
        folded.append((_fold(names), _fold(addresses)))
    return folded


def _fits(entry: Sequence[Row], row: Row) -> bool:
    names, addresses = zip(*entry, row, strict=True)
    return _is_one_range(names) and _is_one_range(addresses)


def _is_one_range(texts: Sequence[str]) -> bool:
    """Return True if texts differ in their last number alone, with few gaps.

    All but the last one were compared before, so only the first and the last two are looked at.
    """
    first = _split(texts[0])
    before = _split(texts[-2])
    last = _split(texts[-1])
    if first is None or last is None or before is None:
        return False
    is_ipv6 = ":" in texts[0]  # its numbers are hexadecimal
    if is_ipv6 or (first.before, first.after) != (last.before, last.after):
        return False
    if first.number == last.number or not _has_same_padding(first, last):
        return False
    if int(last.number) == int(before.number) + 1:
        return True
    return len(_ranges(_split_all(texts))) <= MOST_RANGES


def _has_same_padding(first: _NumberedText, last: _NumberedText) -> bool:
    """Return True for 001 and 100: a number may outgrow its zeros, but none may be shorter."""
    if first.padded_width:
        return len(last.number) == first.padded_width
    return not last.padded_width


def _split(text: str) -> _NumberedText | None:
    match = _LAST_NUMBER.fullmatch(text)
    return _NumberedText(*match.groups()) if match else None


def _split_all(texts: Sequence[str]) -> list[_NumberedText]:
    return [part for part in map(_split, texts) if part is not None]


def _ranges(parts: Sequence[_NumberedText]) -> list[str]:
    """Return 1-3 and 7 for the numbers 1, 2, 3, 7, in the given order."""
    ranges: list[str] = []
    first = last = ""
    for part in parts:
        follows = last != "" and int(part.number) == int(last) + 1
        if not follows:
            first = part.number
            ranges.append(first)
        else:
            ranges[-1] = f"{first}-{part.number}"
        last = part.number
    return ranges


def _fold(texts: Sequence[str]) -> str:
    """Return `n[1-3,7]` for n1, n2, n3 and n7, which differ in their last number alone."""
    parts = _split_all(texts)
    if len(texts) == 1 or len(parts) < len(texts):
        return texts[0]
    bracket = ",".join(_ranges(parts))
    first = parts[0]
    return f"{first.before}[{bracket}]{first.after}"
